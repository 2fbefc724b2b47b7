// Options of `run` and `perplexity`.

#include <fmt/format.h>

#include "tools/options_table.h"

namespace tessera {
namespace {

Option model_row(AllOptions& all, std::string& path) {
    Option option = file_row(
        {"-m, --model", "FILE", "MODEL", "GGUF file, or folder of a Hugging Face model"}, path);
    const auto set = option.set;
    option.set = [set, &all](const Occurrence& given) {
        set(given);
        if (!given.from_environment) all.model_flag = true;
    };
    return option;
}

Option prompt_row(std::optional<std::string>& target) {
    Option option = make_row({"-p, --prompt", "TEXT", "", "the prompt"}, "");
    option.set = [&target](const Occurrence& given) { target = std::string(given.text); };
    return option;
}

Option seed_row(int64_t& seed) {
    Option option = make_row({"-s, --seed", "N", "SEED", "of the random numbers"}, "random");
    option.set = [&seed](const Occurrence& given) {
        seed = parse_integer(given, -1, std::numeric_limits<int64_t>::max());
    };
    return option;
}

std::vector<Option> prompt_rows(AllOptions& all) {
    RunOptions& run = all.run;
    std::vector<Option> rows{
        prompt_row(run.prompt),
        file_row({"-f, --file", "FILE", "", "read the prompt from a file"}, run.prompt_file),
        text_row({"-sys, --system-prompt", "TEXT", "", "system message of the chat"},
                 run.system_prompt),
        file_row({"-sysf, --system-prompt-file", "FILE", "", "read the system message from a file"},
                 run.system_prompt_file),
        integer_row(
            {"-n, --predict, --n-predict", "N", "N_PREDICT",
             "tokens to generate; -1: until the answer ends, -2: until the context is full"},
            run.n_predict, -2, 1 << 30),
        texts_row({"-r, --reverse-prompt, --stop", "TEXT", "",
                   "stop the answer before this text; may be given several times"},
                  run.stops),
        switch_row({"-e, --escape, --no-escape", "", "", "\\n, \\t, \\xHH in texts are escapes"},
                   all.escape),
        switch_row({"--ignore-eos", "", "", "go on after an end token"}, run.ignore_eos),
        switch_row({"-sp, --special", "", "", "show control tokens in the answer"}, run.special),
        switch_row({"--display-prompt, --no-display-prompt", "", "",
                    "repeat the prompt before the answer"},
                   run.display_prompt),
        switch_row({"--verbose-prompt", "", "", "list the tokens of the prompt"},
                   run.verbose_prompt),
    };
    return rows;
}

Option conversation_row(RunOptions::Conversation& target) {
    using Conversation = RunOptions::Conversation;
    Option option = make_row({"-cnv, --conversation, -no-cnv, --no-conversation", "", "",
                              "chat through the model's template; default: where it has one"},
                             "");
    option.set = [&target](const Occurrence& given) {
        target = parse_switch(given) ? Conversation::kOn : Conversation::kOff;
    };
    return option;
}

std::vector<Option> chat_rows(AllOptions& all) {
    RunOptions& run = all.run;
    Option kwargs = text_row({"--chat-template-kwargs", "JSON", "CHAT_TEMPLATE_KWARGS",
                              "object of further variables of the template"},
                             run.chat_template_kwargs);
    Option jinja = make_row({"--jinja", "", "JINJA", "templates are always interpreted"}, "");
    jinja.set = [](const Occurrence& given) {
        if (!parse_switch(given))
            throw UserError(ExitCode::kUsage, given.where + ": templates are always interpreted");
    };
    return {
        conversation_row(run.conversation),
        switch_row({"-st, --single-turn", "", "", "end after the first answer"}, run.single_turn),
        text_row({"--chat-template", "JINJA", "CHAT_TEMPLATE", "template instead of the model's"},
                 run.chat_template),
        file_row({"--chat-template-file", "FILE", "CHAT_TEMPLATE_FILE", "the same from a file"},
                 run.chat_template_file),
        std::move(kwargs),
        std::move(jinja),
    };
}

std::vector<Option> sampling_rows(RunOptions& run) {
    SampleParams& sampling = run.sampling;
    return {
        seed_row(run.seed),
        real_row({"--temp, --temperature", "X", "TEMPERATURE", "0: always the most probable token"},
                 sampling.temperature, 0, 1000),
        integer_row({"--top-k", "N", "TOP_K", "keep the N most probable tokens; 0: all"},
                    sampling.top_k, 0, 1 << 30),
        real_row({"--top-p", "X", "TOP_P", "keep the most probable tokens up to this mass; 1: all"},
                 sampling.top_p, 0, 1),
        real_row({"--min-p", "X", "MIN_P", "drop tokens less probable than X of the best; 0: none"},
                 sampling.min_p, 0, 1),
        integer_row({"--repeat-last-n", "N", "",
                     "tokens that the penalties look at; 0: none, -1: the context"},
                    run.repeat_last_n, -1, 1 << 30),
        real_row({"--repeat-penalty", "X", "REPEAT_PENALTY", "divides logits of repeated tokens"},
                 sampling.repeat_penalty, 0.01, 100),
        real_row({"--presence-penalty", "X", "PRESENCE_PENALTY", "taken off repeated tokens once"},
                 sampling.presence_penalty, -100, 100),
        real_row({"--frequency-penalty", "X", "FREQUENCY_PENALTY",
                  "taken off repeated tokens every time"},
                 sampling.frequency_penalty, -100, 100),
    };
}

std::vector<Option> draft_rows(RunOptions& run) {
    return {
        choice_row({"--spec-type", "NAME", "SPEC_TYPE",
                    "guess tokens ahead and verify them together; the answer stays the same"},
                   run.draft_mtp, NamedValues<bool>{{"none", false}, {"draft-mtp", true}}),
        integer_row(
            {"--spec-draft-n-max, --draft-max", "N", "SPEC_DRAFT_N_MAX", "most guesses at a time"},
            run.draft_max, 1, 64),
        real_row({"--spec-draft-p-min, --draft-p-min", "X", "SPEC_DRAFT_P_MIN",
                  "guess no further than tokens of this probability"},
                 run.draft_p_min, 0, 1),
        switch_row({"--spec-draft-adaptive, --no-spec-draft-adaptive", "", "",
                    "fewer guesses or none while they do not pay"},
                   run.draft_adaptive),
        integer_row({"-ctxcp, --ctx-checkpoints", "N", "CTX_CHECKPOINTS",
                     "states kept of a recurrent model's prompt, for chats"},
                    run.engine.checkpoints, 0, 1024),
    };
}

std::vector<Option> run_output_rows(RunOptions& run) {
    const NamedValues<RunOptions::Color> colors{{"auto", RunOptions::Color::kAuto},
                                                {"on", RunOptions::Color::kOn},
                                                {"off", RunOptions::Color::kOff}};
    return {
        choice_row({"-co, --color", "WHEN", "", "colour the prompt and the input"}, run.color,
                   colors),
        switch_row({"--perf, --no-perf", "", "PERF", "a line of speeds after each answer"},
                   run.show_stats),
        switch_row({"-v, --verbose", "", "", "say what was loaded and how memory is used"},
                   run.verbose),
    };
}

void check_run(AllOptions& all) {
    RunOptions& run = all.run;
    std::vector<std::string> arguments = all.arguments;
    if (!all.model_flag && !arguments.empty()) {
        run.engine.model_path = arguments.front();
        arguments.erase(arguments.begin());
    }
    if (arguments.size() > 1)
        throw UserError(ExitCode::kUsage,
                        fmt::format("run: unexpected argument '{}'", arguments.back()));
    const auto fail = [](const char* problem) { throw UserError(ExitCode::kUsage, problem); };
    if (!arguments.empty() && run.prompt) fail("run: the prompt is given twice");
    if (!arguments.empty()) run.prompt = arguments.front();
    require_model("run", run.engine.model_path);
    if (run.prompt && !run.prompt_file.empty()) fail("run: --prompt and --file contradict");
    if (!run.system_prompt.empty() && !run.system_prompt_file.empty())
        fail("run: --system-prompt and --system-prompt-file contradict");
    if (!run.chat_template.empty() && !run.chat_template_file.empty())
        fail("run: --chat-template and --chat-template-file contradict");
    if (!run.chat_template.empty() && run.chat_template.find('{') == std::string::npos)
        throw UserError(ExitCode::kUsage,
                        fmt::format("run: --chat-template: '{}' is not a Jinja template, and "
                                    "templates have no names here; without it the model's is used",
                                    run.chat_template));
    if (run.conversation == RunOptions::Conversation::kOff && run.single_turn)
        fail("run: --single-turn and --no-conversation contradict");
    if (!all.escape) return;
    if (run.prompt) run.prompt = unescape(*run.prompt);
    run.system_prompt = unescape(run.system_prompt);
    for (std::string& stop : run.stops) stop = unescape(stop);
}

}  // namespace

Command run_command(AllOptions& all) {
    all.run.engine.checkpoints = 4;
    Command command;
    command.name = "run";
    command.summary = "answer a prompt, or chat";
    command.description =
        "Without a prompt, a terminal starts a chat and a pipe is read as the prompt. The answer "
        "goes to stdout, everything else to stderr. The first Ctrl-C stops the answer, a second "
        "one quits.";
    command.positionals = {argument_row(all, "MODEL", "as -m"),
                           argument_row(all, "PROMPT", "the prompt, unless -p gives it")};
    std::vector<Option> model = context_rows(all.run.engine);
    model.insert(model.begin(), model_row(all, all.run.engine.model_path));
    command.sections = {{"Model", std::move(model)},
                        {"Prompt and answer", prompt_rows(all)},
                        {"Chat", chat_rows(all)},
                        {"Sampling", sampling_rows(all.run)},
                        {"Drafting and reuse", draft_rows(all.run)},
                        {"Machine", machine_rows(all.run.engine)},
                        {"Output", run_output_rows(all.run)}};
    command.examples = {"tessera run model.gguf",
                        "tessera run model.gguf \"Why is the sky blue?\" --temp 0",
                        "git diff | tessera run -m model.gguf -sys \"Write a commit message.\""};
    command.check = [&all] { check_run(all); };
    command.run = [&all] { return run_run(all.run); };
    return command;
}

namespace {

std::vector<Option> perplexity_rows(PerplexityOptions& options) {
    return {
        file_row({"-f, --file", "FILE", "", "the text"}, options.file),
        text_row({"-p, --prompt", "TEXT", "", "the text itself"}, options.prompt),
        integer_row({"--chunks", "N", "", "chunks to evaluate; -1: all"}, options.chunks, -1,
                    1 << 30),
        integer_row({"--ppl-stride", "N", "", "step between overlapping chunks; 0: no overlap"},
                    options.stride, 0, 1 << 30),
        integer_row({"--ppl-output-type", "N", "", "1: one line per chunk"}, options.output_type, 0,
                    1),
        file_row({"--save-all-logits, --kl-divergence-base", "FILE", "",
                  "write all logits, or with --kl-divergence read them"},
                 options.logits_file),
        switch_row({"--kl-divergence", "", "", "compare with the logits of --kl-divergence-base"},
                   options.kl_divergence),
        switch_row({"--progress, --no-progress", "", "", "show progress on stderr"},
                   options.progress),
        switch_row({"-v, --verbose", "", "", "say what was loaded and how memory is used"},
                   options.verbose),
    };
}

void check_perplexity(const PerplexityOptions& options) {
    const auto fail = [](const char* problem) { throw UserError(ExitCode::kUsage, problem); };
    require_model("perplexity", options.engine.model_path);
    if (options.kl_divergence && options.logits_file.empty())
        fail("perplexity: --kl-divergence needs --kl-divergence-base FILE");
    const bool has_text = !options.file.empty() || !options.prompt.empty();
    if (!has_text && !options.kl_divergence) fail("perplexity: no text; give a file with -f");
    if (!options.file.empty() && !options.prompt.empty())
        fail("perplexity: --file and --prompt contradict");
    if (options.stride > 0 && !options.logits_file.empty())
        fail("perplexity: --ppl-stride and --kl-divergence-base contradict");
}

}  // namespace

Command perplexity_command(AllOptions& all) {
    PerplexityOptions& options = all.perplexity;
    options.engine.context = 512;
    Command command;
    command.name = "perplexity";
    command.summary = "measure how well a model predicts a text";
    command.description =
        "Cuts the text into chunks of the context size and scores the second half of each, as "
        "llama-perplexity does. With saved logits of another run it also gives the KL divergence.";
    std::vector<Option> model = context_rows(options.engine);
    model.insert(model.begin(), model_row(all, options.engine.model_path));
    command.sections = {{"Model", std::move(model)},
                        {"Text and method", perplexity_rows(options)},
                        {"Machine", machine_rows(options.engine)}};
    command.examples = {
        "tessera perplexity -m model.gguf -f wiki.test.raw",
        "tessera perplexity -m f16.gguf -f wiki.test.raw --kl-divergence-base base.kld",
        "tessera perplexity -m nvfp4.gguf --kl-divergence-base base.kld --kl-divergence"};
    command.check = [&options] { check_perplexity(options); };
    command.run = [&options] { return run_perplexity(options); };
    return command;
}

}  // namespace tessera
