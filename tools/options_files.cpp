// Options of the commands that work on files: `quantize`, `convert`, `inspect`, `tokenize`,
// `synth`.

#include <fmt/format.h>

#include <filesystem>

#include "core/nearest.h"
#include "tools/options_table.h"

namespace tessera {
namespace {

std::vector<std::string> target_names() {
    std::vector<std::string> names;
    for (const QuantizeTarget& target : quantize_targets()) names.emplace_back(target.name);
    return names;
}

Option format_row(const Row& row, std::optional<DType>& target) {
    Option option = make_row(row, "");
    const NamedValues<DType> formats = format_names(quantize_formats());
    option.choices = names_of(formats);
    option.set = [&target, formats](const Occurrence& given) {
        target = formats[parse_choice(given, names_of(formats))].second;
    };
    return option;
}

/// NAME=TYPE, several separated by commas or repeated.
Option tensor_type_row(std::vector<std::pair<std::string, DType>>& target) {
    Option option =
        make_row({"--tensor-type", "REGEX=TYPE", "",
                  "format of the tensors whose names match; may be given several times"},
                 "");
    const NamedValues<DType> formats = format_names(quantize_formats());
    option.set = [&target, formats](const Occurrence& given) {
        const size_t equals = given.text.rfind('=');
        if (equals == std::string_view::npos || equals == 0)
            throw UserError(ExitCode::kUsage,
                            fmt::format("{}: '{}' is not REGEX=TYPE", given.where, given.text));
        const Occurrence type{given.where, given.text.substr(equals + 1), false, false};
        target.emplace_back(std::string(given.text.substr(0, equals)),
                            formats[parse_choice(type, names_of(formats))].second);
    };
    return option;
}

GgufValue parse_kv_value(const Occurrence& given, std::string_view type, std::string_view text) {
    const Occurrence value{given.where, text, false, false};
    if (type == "int") return {GgufType::kU32, GgufType::kU32, parse_integer(value, 0, UINT32_MAX)};
    if (type == "float") return {GgufType::kF32, GgufType::kF32, parse_real(value, -3e38, 3e38)};
    if (type == "bool") return {GgufType::kBool, GgufType::kBool, parse_switch(value)};
    if (type == "str") return {GgufType::kString, GgufType::kString, std::string(text)};
    throw UserError(
        ExitCode::kUsage,
        fmt::format("{}: unknown type '{}' (known: int, float, bool, str)", given.where, type));
}

Option override_row(std::vector<std::pair<std::string, GgufValue>>& target) {
    Option option = make_row({"--override-kv", "KEY=TYPE:VALUE", "",
                              "set a metadata key; types int, float, bool, str; repeatable"},
                             "");
    option.set = [&target](const Occurrence& given) {
        const size_t equals = given.text.find('=');
        const size_t colon = given.text.find(':', equals == std::string::npos ? 0 : equals);
        if (equals == std::string::npos || equals == 0 || colon == std::string::npos)
            throw UserError(ExitCode::kUsage,
                            fmt::format("{}: '{}' is not KEY=TYPE:VALUE", given.where, given.text));
        target.emplace_back(std::string(given.text.substr(0, equals)),
                            parse_kv_value(given, given.text.substr(equals + 1, colon - equals - 1),
                                           given.text.substr(colon + 1)));
    };
    return option;
}

std::vector<Option> quantize_rows(QuantizeOptions& options) {
    return {
        switch_row({"--pure", "", "", "one format for every matrix"}, options.pure),
        switch_row({"--allow-requantize", "", "", "also from formats that are quantized already"},
                   options.allow_requantize),
        switch_row({"--leave-output-tensor", "", "", "output.weight stays as it is"},
                   options.leave_output),
        format_row({"--output-tensor-type", "TYPE", "", "format of output.weight"},
                   options.output_type),
        format_row({"--token-embedding-type", "TYPE", "", "format of token_embd.weight"},
                   options.embedding_type),
        tensor_type_row(options.tensor_types),
        choice_row({"--scale-policy", "NAME", "SCALE_POLICY",
                    "how the scale of an NVFP4 block is chosen: amax6 is the usual rule, four-six "
                    "also tries amax/4, search also tries the neighbouring codes"},
                   options.policy, scale_policies()),
        override_row(options.kv_overrides),
        switch_row({"--dry-run", "", "", "show what would be done and the sizes"}, options.dry_run),
        threads_row(options.threads),
    };
}

const QuantizeTarget& require_target(const std::string& name) {
    if (const QuantizeTarget* target = find_quantize_target(name)) return *target;
    const std::vector<std::string> known = target_names();
    parse_choice({"quantize: TYPE", name, false, false}, known);
    throw UserError(ExitCode::kUsage, "quantize: TYPE: unknown");
}

/// IN [OUT] TYPE [THREADS], as llama-quantize: without OUT the file stands beside IN.
void check_quantize(AllOptions& all) {
    QuantizeOptions& options = all.quantize;
    std::vector<std::string> arguments = all.arguments;
    if (arguments.size() < 2)
        throw UserError(ExitCode::kUsage,
                        "quantize: too few arguments, expected IN.gguf OUT.gguf TYPE");
    options.input = arguments[0];
    const bool output_left_out = find_quantize_target(arguments[1]) != nullptr;
    if (output_left_out) {
        const std::string name =
            fmt::format("ggml-model-{}.gguf", find_quantize_target(arguments[1])->name);
        const auto path = std::filesystem::path(options.input).parent_path() / name;
        arguments.insert(arguments.begin() + 1, path.string());
    }
    if (arguments.size() < 3)
        throw UserError(
            ExitCode::kUsage,
            fmt::format("quantize: '{}' is no type and no type follows; known are {}", arguments[1],
                        fmt::format("{}", fmt::join(target_names(), ", "))));
    options.output = arguments[1];
    options.target = &require_target(arguments[2]);
    if (arguments.size() > 3)
        options.threads = static_cast<int32_t>(
            parse_integer({"quantize: THREADS", arguments[3], false, false}, 1, 1024));
    std::error_code error;
    if (!options.dry_run && std::filesystem::equivalent(options.input, options.output, error))
        throw UserError(ExitCode::kUsage, "quantize: input and output are the same file");
}

}  // namespace

Command quantize_command(AllOptions& all) {
    Command command;
    command.name = "quantize";
    command.summary = "write a model in another number format";
    command.description = "Which tensor gets which format follows llama-quantize. Types:\n";
    for (const QuantizeTarget& target : quantize_targets())
        command.description += fmt::format("  {:10} {}\n", target.name, target.about);
    command.description.pop_back();
    command.usage = "IN.gguf [OUT.gguf] TYPE [THREADS]";
    command.positionals = {argument_row(all, "IN.gguf", "model to read"),
                           argument_row(all, "OUT.gguf", "model to write"),
                           argument_row(all, "TYPE", "a type by name or number"),
                           argument_row(all, "THREADS", "as -t")};
    command.positionals[2].choices = target_names();
    command.sections = {{"Options", quantize_rows(all.quantize)}};
    command.examples = {"tessera quantize model-f16.gguf model-nvfp4.gguf NVFP4",
                        "tessera quantize --dry-run model-f16.gguf Q8_0"};
    command.check = [&all] { check_quantize(all); };
    command.run = [&all] { return run_quantize(all.quantize); };
    return command;
}

Command convert_command(AllOptions& all) {
    ConvertOptions& options = all.convert;
    const auto positional = [](const char* label, const char* help, std::string& target) {
        Positional row;
        row.name = label;
        row.help = help;
        row.set = [&target](const Occurrence& given) { target = given.text; };
        return row;
    };
    Option type = make_row({"--outtype", "TYPE", "",
                            "format of the matrices that are not quantized; auto: as they are"},
                           options.type);
    type.choices = {"auto", "bf16", "f16", "f32"};
    type.set = [&options, choices = type.choices](const Occurrence& given) {
        options.type = choices[parse_choice(given, choices)];
    };
    Option output = file_row({"--outfile", "FILE", "", "as OUT.gguf"}, options.output);
    Command command;
    command.name = "convert";
    command.summary = "write a Hugging Face folder as one GGUF file";
    command.description =
        "Names, orders and constants are those that llama.cpp's programs expect. NVFP4 weights of "
        "ModelOpt or compressed-tensors are repacked without loss, FP8 ones become BF16. No other "
        "command needs this: all of them read folders as they are.";
    command.positionals = {positional("FOLDER", "model to read", options.input),
                           positional("OUT.gguf", "model to write", options.output)};
    command.positionals[1].required = false;
    command.sections = {
        {"Options", {std::move(type), std::move(output), threads_row(options.threads)}}};
    command.examples = {"tessera convert Qwen3.5-9B qwen3.5-9b.gguf",
                        "tessera convert --outtype f16 SmolLM2-135M smollm2-f16.gguf"};
    command.check = [&options] {
        if (options.output.empty())
            throw UserError(ExitCode::kUsage,
                            "convert: OUT.gguf is missing; see 'tessera help "
                            "convert'");
    };
    command.run = [&options] { return run_convert(options); };
    return command;
}

Command inspect_command(AllOptions& all) {
    InspectOptions& options = all.inspect;
    Command command;
    command.name = "inspect";
    command.summary = "show keys, tensors and memory need of a model";
    command.description =
        "Reads the header only. The memory estimate is for the context and cache types given.";
    command.positionals = {
        argument_row(all, "MODEL", "GGUF file, or folder of a Hugging Face model")};
    std::vector<Option> context = context_rows(options.engine);
    context.insert(context.begin(), file_row({"-m, --model", "FILE", "MODEL",
                                              "GGUF file, or folder of a Hugging Face model"},
                                             options.engine.model_path));
    command.sections = {
        {"What to show",
         {switch_row({"--json", "", "", "as one JSON object"}, options.json),
          switch_row({"--tensors, --no-tensors", "", "", "list the tensors"}, options.tensors),
          switch_row({"--ops", "", "", "list the fused ops that the backend has kernels for"},
                     options.ops)}},
        {"Memory estimate", std::move(context)},
        {"Machine", machine_rows(options.engine)}};
    command.examples = {"tessera inspect model.gguf --no-tensors",
                        "tessera inspect model.gguf --json -c 8192 -ctk q8_0 -ctv q8_0"};
    command.check = [&all, &options] {
        if (!all.arguments.empty()) options.engine.model_path = all.arguments.front();
        if (!options.ops) require_model("inspect", options.engine.model_path);
    };
    command.run = [&options] { return run_inspect(options); };
    return command;
}

Command tokenize_command(AllOptions& all) {
    TokenizeOptions& options = all.tokenize;
    Option prompt = make_row({"-p, --prompt", "TEXT", "", "the text"}, "");
    prompt.set = [&options](const Occurrence& given) { options.prompt = std::string(given.text); };
    Command command;
    command.name = "tokenize";
    command.summary = "show the tokens of a text";
    command.description = "One token per line: id and text. Needs the tokenizer of the model only.";
    command.sections = {
        {"Options",
         {file_row({"-m, --model", "FILE", "MODEL", "GGUF file, or folder of a Hugging Face model"},
                   options.model),
          std::move(prompt),
          file_row({"-f, --file", "FILE", "", "read the text from a file"}, options.file),
          switch_row({"--stdin", "", "", "read the text from stdin"}, options.from_stdin),
          switch_row({"--ids", "", "", "only ids, as [1, 2, 3]"}, options.ids_only),
          switch_row({"--no-bos", "", "", "no start token, even if the model wants one"},
                     options.add_bos),
          switch_row({"--no-parse-special", "", "", "control tokens in the text are plain text"},
                     options.parse_special),
          switch_row({"--show-count", "", "", "print the number of tokens"}, options.show_count)}}};
    command.examples = {"tessera tokenize -m model.gguf -p \"Hello world\"",
                        "tessera tokenize -m model.gguf --stdin --ids < prompt.txt"};
    command.check = [&options] {
        require_model("tokenize", options.model);
        const int sources = (options.prompt ? 1 : 0) + (options.file.empty() ? 0 : 1);
        if (sources == 2 && !options.from_stdin)
            throw UserError(ExitCode::kUsage, "tokenize: --prompt and --file contradict");
        if (sources == 0 && !options.from_stdin)
            throw UserError(ExitCode::kUsage, "tokenize: no text; give it with -p, -f or --stdin");
    };
    command.run = [&options] { return run_tokenize(options); };
    return command;
}

Command synth_command(AllOptions& all) {
    SynthOptions& options = all.synth;
    Command command;
    command.name = "synth";
    command.summary = "write a random model of a given shape";
    command.description =
        "The weights are random but scaled so that activations stay sane; speed and memory are "
        "those of a real model of this shape.";
    const auto name = [](std::string& target, const std::vector<std::string_view>& known) {
        return [&target, names = std::vector<std::string>(known.begin(), known.end())](
                   const Occurrence& given) { target = names[parse_choice(given, names)]; };
    };
    const auto positional = [](const char* label, const char* help, auto set) {
        Positional row;
        row.name = label;
        row.help = help;
        row.set = std::move(set);
        return row;
    };
    command.positionals = {
        positional("ARCH", "architecture", name(options.spec.architecture, synth_architectures())),
        positional("SHAPE", "size", name(options.spec.shape, synth_shapes())),
        positional("OUT.gguf", "model to write",
                   [&options](const Occurrence& given) { options.output = given.text; })};
    for (const std::string_view known : synth_architectures())
        command.positionals[0].choices.emplace_back(known);
    for (const std::string_view known : synth_shapes())
        command.positionals[1].choices.emplace_back(known);
    Option seed = make_row({"-s, --seed", "N", "SEED", "of the random numbers"}, "1");
    seed.set = [&options](const Occurrence& given) {
        options.spec.seed =
            static_cast<uint64_t>(parse_integer(given, 0, std::numeric_limits<int64_t>::max()));
    };
    command.sections = {
        {"Options",
         {choice_row({"--type", "TYPE", "", "format of the matrices"}, options.spec.type,
                     format_names(quantize_formats())),
          std::move(seed),
          file_row({"--vocab-from", "FILE", "",
                    "take the tokenizer of this model instead of one token per byte"},
                   options.spec.vocab_from),
          threads_row(options.spec.threads)}}};
    command.examples = {"tessera synth llama 1b llama-1b.gguf --type nvfp4 --seed 1"};
    command.run = [&options] { return run_synth(options); };
    return command;
}

std::vector<Command> describe_commands(AllOptions& all) {
    std::vector<Command> commands{
        run_command(all),      bench_command(all),   perplexity_command(all), quantize_command(all),
        convert_command(all),  inspect_command(all), tokenize_command(all),   synth_command(all),
        test_ops_command(all), doctor_command(all)};
    return commands;
}

}  // namespace tessera
