#include "tools/run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "engine/chat.h"
#include "engine/generate.h"
#include "tools/interrupt.h"
#include "tools/run_text.h"
#include "tools/saturation.h"
#include "tools/terminal.h"
#include "tools/text_input.h"

namespace tessera {
namespace {

/// The answer goes to stdout as it comes, everything else to stderr.
class Console {
  public:
    explicit Console(const RunOptions& options)
        : options_(options), error_(Terminal::of(STDERR_FILENO)), bar_(ProgressUnit::kTokens) {
        if (options.color == RunOptions::Color::kOff) error_.color = false;
        if (options.color == RunOptions::Color::kOn) error_.color = true;
    }

    void show(std::string_view text) {
        if (text.empty()) return;
        bar_.clear();
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fflush(stdout);
        last_ = text.back();
    }

    void progress(std::string_view what, int64_t done, int64_t total) {
        bar_.update(what, done, total);
    }

    /// Ends the answer's last line and says how it went.
    void finish(const GenerateResult& result, int32_t context) {
        bar_.clear();
        if (last_ != '\n') show("\n");
        last_ = '\n';
        if (result.finish == FinishReason::kContext)
            fmt::print(stderr, "the context of {} tokens is full: raise -c for longer answers\n",
                       context);
        if (options_.show_stats)
            fmt::print(stderr, "{}\n", colored(error_, "2", stats_line(result)));
    }

    void clear() { bar_.clear(); }

    /// The user's next line, nothing at the end of input or after Ctrl-C. A backslash at the end
    /// of a line continues it.
    std::optional<std::string> ask_user() {
        fmt::print(stderr, "{}", colored(error_, "1;32", "> "));
        std::string text;
        std::string line;
        while (std::getline(std::cin, line)) {
            if (!line.ends_with('\\')) return text + line;
            line.back() = '\n';
            text += line;
        }
        fmt::print(stderr, "\n");
        return std::nullopt;
    }

  private:
    const RunOptions& options_;
    Terminal error_;
    ProgressBar bar_;
    char last_ = '\n';
};

uint64_t chosen_seed(const RunOptions& options) {
    if (options.seed >= 0) return static_cast<uint64_t>(options.seed);
    const uint64_t seed = std::random_device{}();
    if (options.sampling.temperature > 0) fmt::print(stderr, "seed {}\n", seed);
    return seed;
}

GenerateOptions generate_options(const RunOptions& options) {
    GenerateOptions wanted;
    wanted.sampling = options.sampling;
    wanted.seed = chosen_seed(options);
    wanted.max_tokens = options.n_predict < 0 ? -1 : options.n_predict;
    wanted.repeat_last = options.repeat_last_n;
    wanted.ignore_end = options.ignore_eos || options.n_predict == -2;
    wanted.render_special = options.special;
    wanted.stops = options.stops;
    wanted.draft_max = options.draft_mtp ? options.draft_max : 0;
    wanted.draft_p_min = options.draft_p_min;
    wanted.draft_adaptive = options.draft_adaptive;
    return wanted;
}

void list_tokens(const Engine& engine, std::span<const int32_t> tokens) {
    fmt::print(stderr, "prompt of {} tokens:\n", tokens.size());
    for (const int32_t token : tokens)
        fmt::print(stderr, "{:6} '{}'\n", token,
                   engine.tokenizer().piece(token, /*render_special=*/true));
}

void list_engine(Engine& engine) {
    const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0); };
    const MemoryPlan& plan = engine.plan();
    fmt::print(
        stderr,
        "{} ({}), {}\ncontext {} tokens, memory {:.1f} MiB: weights {:.1f}, cache {:.1f}, "
        "state {:.1f}, compute {:.1f}{}\n",
        engine.info().name, engine.info().description, engine.ops().description(),
        engine.options().context, mib(plan.total()), mib(plan.weight_bytes), mib(plan.kv_bytes),
        mib(plan.state_bytes), mib(plan.compute_bytes),
        plan.reserve_bytes > 0 ? fmt::format(", reserve {:.1f}", mib(plan.reserve_bytes)) : "");
}

void check_numbers(const GenerateResult& result) {
    if (result.finish == FinishReason::kNan)
        throw UserError(
            ExitCode::kFailure,
            fmt::format("model produced NaN at token {}",
                        result.prompt_tokens + static_cast<int32_t>(result.generated.size())));
}

int exit_code(const GenerateResult& result) {
    return static_cast<int>(result.finish == FinishReason::kCancelled ? ExitCode::kInterrupted
                                                                      : ExitCode::kOk);
}

/// Continues a text as it is, without a template.
int complete(const RunOptions& options, Engine& engine, const std::string& prompt) {
    Console console(options);
    const Tokenizer& tokenizer = engine.tokenizer();
    Sequence sequence = engine.new_sequence();
    GenerateRequest request;
    request.sequence = &sequence;
    request.tokens = tokenizer.encode(prompt, /*add_special=*/true, /*parse_special=*/true);
    if (request.tokens.empty() && tokenizer.bos() >= 0) request.tokens = {tokenizer.bos()};
    if (request.tokens.empty()) throw UserError(ExitCode::kUsage, "the prompt is empty");
    request.options = generate_options(options);
    if (options.verbose_prompt) list_tokens(engine, request.tokens);
    const InterruptScope interrupt;
    request.on_text = [&](std::string_view text) { console.show(text); };
    request.cancelled = [&] { return interrupt.requested(); };
    if (options.display_prompt) console.show(prompt);
    const GenerateResult result = std::move(
        generate(engine, {&request, 1}, [&](std::string_view what, int64_t done, int64_t total) {
            console.progress(what, done, total);
        }).front());
    console.finish(result, engine.options().context);
    check_numbers(result);
    return exit_code(result);
}

ChatOptions chat_options(const RunOptions& options) {
    ChatOptions chat;
    chat.template_source = options.chat_template_file.empty()
                               ? options.chat_template
                               : read_text_file(options.chat_template_file);
    if (!options.chat_template_kwargs.empty()) {
        chat.template_arguments = nlohmann::ordered_json::parse(options.chat_template_kwargs,
                                                                nullptr, /*exceptions=*/false);
        if (!chat.template_arguments.is_object())
            throw UserError(ExitCode::kUsage, "--chat-template-kwargs: not a JSON object");
    }
    return chat;
}

std::string system_text(const RunOptions& options) {
    return options.system_prompt_file.empty() ? options.system_prompt
                                              : read_text_file(options.system_prompt_file);
}

/// A conversation with the user at the terminal or with one given prompt.
class Talk {
  public:
    Talk(const RunOptions& options, Engine& engine)
        : options_(options),
          engine_(engine),
          console_(options),
          chat_(engine, chat_options(options), system_text(options)),
          generate_(generate_options(options)) {}

    GenerateResult answer(const std::string& prompt) {
        const InterruptScope interrupt;
        if (options_.display_prompt) console_.show(prompt + "\n");
        try {
            const GenerateResult result = chat_.ask(
                prompt, generate_, [&](std::string_view text) { console_.show(text); },
                [&] { return interrupt.requested(); },
                [&](std::string_view what, int64_t done, int64_t total) {
                    console_.progress(what, done, total);
                });
            console_.finish(result, engine_.options().context);
            check_numbers(result);
            return result;
        } catch (...) {
            console_.clear();
            throw;
        }
    }

    /// Until the end of input (exit code 0) or Ctrl-C at the prompt (130).
    int converse() {
        fmt::print(stderr, "{}: /help lists the commands, Ctrl-D ends\n", engine_.info().name);
        while (true) {
            const InterruptScope interrupt;
            const std::optional<std::string> line = console_.ask_user();
            if (interrupt.requested()) return static_cast<int>(ExitCode::kInterrupted);
            if (!line.has_value() || *line == "/exit" || *line == "/quit" || *line == "/bye")
                return static_cast<int>(ExitCode::kOk);
            if (*line == "/help") {
                fmt::print(stderr, "{}",
                           "/clear  forget the conversation\n/exit   leave (or Ctrl-D)\n"
                           "A backslash at the end of a line continues it. Ctrl-C stops an answer "
                           "and, at the prompt, leaves.\n");
            } else if (*line == "/clear") {
                chat_.reset();
            } else if (!line->empty()) {
                answer_or_explain(*line);
            }
        }
    }

  private:
    /// A question that does not fit into the context must not end the conversation.
    void answer_or_explain(const std::string& line) {
        try {
            answer(line);
        } catch (const UserError& error) {
            fmt::print(stderr, "error: {} (/clear starts afresh)\n", error.what());
        }
    }

    const RunOptions& options_;
    Engine& engine_;
    Console console_;
    Chat chat_;
    GenerateOptions generate_;
};

int talk(const RunOptions& options, Engine& engine, const std::optional<std::string>& prompt) {
    Talk conversation(options, engine);
    if (options.verbose_prompt && prompt.has_value()) {
        std::vector<ChatMessage> messages;
        if (const std::string system = system_text(options); !system.empty())
            messages.push_back({"system", system});
        messages.push_back({"user", *prompt});
        list_tokens(engine, ChatFormat(engine, chat_options(options)).encode(messages));
    }
    if (prompt.has_value()) {
        const GenerateResult result = conversation.answer(*prompt);
        const bool goes_on = options.conversation == RunOptions::Conversation::kOn &&
                             !options.single_turn && isatty(STDIN_FILENO) != 0;
        if (!goes_on) return exit_code(result);
    }
    return conversation.converse();
}

/// The newline that editors and echo put at the end belongs to the file, not to the prompt.
std::string without_last_newline(std::string text) {
    if (text.ends_with('\n')) text.pop_back();
    return text;
}

/// What to answer: -p, -f, or what is piped in. Nothing when a person sits at the terminal.
std::optional<std::string> given_prompt(const RunOptions& options) {
    if (options.prompt.has_value()) return options.prompt;
    if (!options.prompt_file.empty())
        return without_last_newline(read_text_file(options.prompt_file));
    if (isatty(STDIN_FILENO) == 0) return without_last_newline(read_stream(stdin));
    return std::nullopt;
}

bool wants_chat(const RunOptions& options, const Engine& engine) {
    switch (options.conversation) {
        case RunOptions::Conversation::kOn:
            return true;
        case RunOptions::Conversation::kOff:
            return false;
        case RunOptions::Conversation::kAuto:
            break;
    }
    return engine.chat_template() != nullptr || !options.chat_template.empty() ||
           !options.chat_template_file.empty();
}

}  // namespace

int run_run(const RunOptions& options) {
    std::optional<std::string> prompt = given_prompt(options);
    EngineOptions wanted = options.engine;
    wanted.draft_max = options.draft_mtp ? options.draft_max : 0;
    ProgressBar bar(ProgressUnit::kBytes);
    wanted.progress = [&](std::string_view what, int64_t done, int64_t total) {
        bar.update(what, done, total);
    };
    Engine engine(wanted);
    bar.clear();
    if (options.verbose) list_engine(engine);
    if (wants_chat(options, engine)) {
        if (prompt.has_value() && prompt->empty())
            throw UserError(ExitCode::kUsage, "the prompt is empty");
        const int code = talk(options, engine, prompt);
        note_saturation(engine);
        return code;
    }
    if (!prompt.has_value()) {
        fmt::print(stderr, "type the text to continue, then Ctrl-D\n");
        prompt = without_last_newline(read_stream(stdin));
    }
    const int code = complete(options, engine, *prompt);
    note_saturation(engine);
    return code;
}

}  // namespace tessera
