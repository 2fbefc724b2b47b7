// The command line: what people type by habit is understood or refused by name, never ignored.

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tools/help.h"
#include "tools/options_table.h"
#include "tools/saturation.h"

namespace tessera {
namespace {

using Environment = std::map<std::string, std::string>;

/// Parses "run -m x"; returns the message of the failure, or "".
std::string parse(AllOptions& all,
                  const std::vector<std::string>& words,
                  const Environment& environment = {}) {
    const std::vector<Command> commands = describe_commands(all);
    const EnvLookup env = [&](const std::string& name) {
        const auto found = environment.find(name);
        return found == environment.end() ? nullptr : found->second.c_str();
    };
    try {
        const Command& command = find_command(commands, words.front());
        parse_command(command, commands, std::span(words).subspan(1), env);
    } catch (const UserError& error) {
        EXPECT_EQ(error.code(), ExitCode::kUsage);
        return error.what();
    }
    return "";
}

std::string failure(const std::vector<std::string>& words, const Environment& environment = {}) {
    AllOptions all;
    const std::string message = parse(all, words, environment);
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
}

// Guards against a benchmark command that people paste from llama.cpp threads being refused.
TEST(Options, TakesBenchmarkCommandsAsTyped) {
    AllOptions all;
    EXPECT_EQ(parse(all, {"bench", "-m", "x.gguf", "-p", "8192", "-n", "0", "-b", "16384", "-ub",
                          "2048", "-r", "7", "-fa", "1", "-lm", "none"}),
              "");
    EXPECT_EQ(all.bench.n_prompt, std::vector<int32_t>{8192});
    EXPECT_EQ(all.bench.n_gen, std::vector<int32_t>{0});
    EXPECT_EQ(all.bench.batch, std::vector<int32_t>{16384});
    EXPECT_EQ(all.bench.ubatch, std::vector<int32_t>{2048});
    EXPECT_EQ(all.bench.repetitions, 7);
    EXPECT_EQ(all.bench.flash_attn, std::vector<int32_t>{1});
    EXPECT_EQ(all.bench.load_mode, std::vector<std::string>{"none"});
    EXPECT_TRUE(all.notes.empty());
}

// Guards against lists and ranges that expand differently from llama-bench's documentation.
TEST(Options, ExpandsListsAndRanges) {
    AllOptions all;
    EXPECT_EQ(
        parse(all, {"bench",       "-m",   "a,b",        "-p",  "512,1024",   "-p",  "1-3",  "-d",
                    "0-4096+2048", "-ub",  "128-1024*2", "-pg", "512,128",    "-pg", "64,8", "-ctk",
                    "f16,q8_0",    "-ctv", "fp8",        "-fa", "on,off,auto"}),
        "");
    EXPECT_EQ(all.bench.models, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(all.bench.n_prompt, (std::vector<int32_t>{512, 1024, 1, 2, 3}));
    EXPECT_EQ(all.bench.n_depth, (std::vector<int32_t>{0, 2048, 4096}));
    EXPECT_EQ(all.bench.ubatch, (std::vector<int32_t>{128, 256, 512, 1024}));
    EXPECT_EQ(all.bench.prompt_gen,
              (std::vector<std::pair<int32_t, int32_t>>{{512, 128}, {64, 8}}));
    EXPECT_EQ(all.bench.type_k, (std::vector<DType>{DType::kF16, DType::kQ8_0}));
    EXPECT_EQ(all.bench.type_v, std::vector<DType>{DType::kF8_E4M3});
    EXPECT_EQ(cache_type_name(DType::kF8_E4M3), "fp8") << "what is printed can be typed";
    EXPECT_EQ(all.bench.flash_attn, (std::vector<int32_t>{1, 0, -1}));
    EXPECT_EQ(all.bench.n_gen, std::vector<int32_t>{128}) << "an untouched list keeps its default";
}

// Guards against the environment winning over the command line, or a list mixing both.
TEST(Options, CommandLineBeatsEnvironment) {
    AllOptions all;
    EXPECT_EQ(parse(all, {"run", "-c", "100", "-p", "hi"},
                    {{"TESSERA_ARG_MODEL", "env.gguf"},
                     {"TESSERA_ARG_CTX_SIZE", "7"},
                     {"TESSERA_ARG_PERF", "Disabled"},
                     {"TESSERA_ARG_CACHE_TYPE_K", "Q8_0"}}),
              "");
    EXPECT_EQ(all.run.engine.model_path, "env.gguf");
    EXPECT_EQ(all.run.engine.context, 100);
    EXPECT_FALSE(all.run.show_stats);
    EXPECT_EQ(all.run.engine.type_k, DType::kQ8_0);
    AllOptions lists;
    EXPECT_EQ(parse(lists, {"bench", "-m", "x", "-t", "3,4"}, {{"TESSERA_ARG_THREADS", "1,2"}}),
              "");
    EXPECT_EQ(lists.bench.threads, (std::vector<int32_t>{3, 4}));
    EXPECT_EQ(failure({"run", "x"}, {{"TESSERA_ARG_CTX_SIZE", "big"}}),
              "run: TESSERA_ARG_CTX_SIZE: 'big' is not a whole number");
    EXPECT_EQ(failure({"run", "x"}, {{"TESSERA_ARG_PERF", "maybe"}}),
              "run: TESSERA_ARG_PERF: 'maybe' is neither on nor off");
}

// Guards against a positional model overriding -m, or the prompt being taken for a model.
TEST(Options, PositionalsOfRunDependOnTheModelFlag) {
    AllOptions one;
    EXPECT_EQ(parse(one, {"run", "a.gguf", "hello\\n"}), "");
    EXPECT_EQ(one.run.engine.model_path, "a.gguf");
    EXPECT_EQ(one.run.prompt, "hello\n");
    AllOptions two;
    EXPECT_EQ(parse(two, {"run", "hello\\n", "-m", "b.gguf", "--no-escape"}), "");
    EXPECT_EQ(two.run.engine.model_path, "b.gguf");
    EXPECT_EQ(two.run.prompt, "hello\\n");
    AllOptions three;
    EXPECT_EQ(parse(three, {"run", "c.gguf"}, {{"TESSERA_ARG_MODEL", "env.gguf"}}), "");
    EXPECT_EQ(three.run.engine.model_path, "c.gguf");
    AllOptions dashes;
    EXPECT_EQ(parse(dashes, {"run", "-m", "d.gguf", "-r", "User:", "-r", "\\n\\n", "--", "-p"}),
              "");
    EXPECT_EQ(dashes.run.prompt, "-p");
    EXPECT_EQ(dashes.run.stops, (std::vector<std::string>{"User:", "\n\n"}));
}

// Guards against llama-quantize's form without an output name being misread.
TEST(Options, QuantizeTakesItsArgumentsAsLlamaQuantize) {
    AllOptions all;
    EXPECT_EQ(parse(all, {"quantize", "--pure", "dir/in.gguf", "out.gguf", "nvfp4", "3",
                          "--tensor-type", "attn_v=q8_0", "--override-kv", "a.b=int:5"}),
              "");
    EXPECT_EQ(all.quantize.output, "out.gguf");
    EXPECT_EQ(all.quantize.target->dtype, DType::kNVFP4);
    EXPECT_EQ(all.quantize.threads, 3);
    EXPECT_TRUE(all.quantize.pure);
    EXPECT_EQ(all.quantize.tensor_types.front().second, DType::kQ8_0);
    EXPECT_EQ(std::get<int64_t>(all.quantize.kv_overrides.front().second.value), 5);
    AllOptions without;
    EXPECT_EQ(parse(without, {"quantize", "dir/in.gguf", "Q4_K"}), "");
    EXPECT_EQ(without.quantize.output, "dir/ggml-model-Q4_K.gguf");
    AllOptions number;
    EXPECT_EQ(parse(number, {"quantize", "in.gguf", "out.gguf", "7"}), "");
    EXPECT_EQ(number.quantize.target->name, "Q8_0");
}

TEST(Options, NamesTheNearestKnownWord) {
    EXPECT_EQ(failure({"quantise"}), "unknown command 'quantise'; did you mean 'quantize'?");
    EXPECT_EQ(failure({"run", "x", "--tempp", "1"}),
              "run: unknown flag --tempp; did you mean --temp?");
    EXPECT_EQ(failure({"run", "x", "--chunks", "1"}),
              "run: unknown flag --chunks (it is a flag of 'tessera perplexity')");
    EXPECT_EQ(failure({"bench", "-m", "x", "-o", "jsonn"}),
              "bench: -o: unknown value 'jsonn'; did you mean json? (known: md, csv, json, jsonl)");
    EXPECT_EQ(
        failure({"run", "x", "--act", "nvpf4"}),
        "run: --act: unknown value 'nvpf4'; did you mean nvfp4? (known: auto, f32, bf16, int8, "
        "nvfp4, fp8)");
    EXPECT_NE(failure({"quantize", "a", "b", "NVFP5"}).find("did you mean NVFP4?"),
              std::string::npos);
    EXPECT_EQ(failure({"run", "x", "--ctx", "1"}),
              "run: unknown flag --ctx; did you mean --ctx-size?");
    EXPECT_EQ(failure({"run", "x", "-x"}), "run: unknown flag -x; see 'tessera help run'");
}

// Guards against a habit from llama.cpp that meets a riddle, or worse, is taken for something else.
TEST(Options, AnswersHabitsFromLlamaCpp) {
    EXPECT_EQ(failure({"llama-cli", "-m", "x"}),
              "unknown command 'llama-cli'; did you mean 'run'?");
    EXPECT_EQ(failure({"serve"}), "unknown command 'serve'; there is no server yet");
    EXPECT_EQ(failure({"-m", "x"}), "-m stands where a command belongs, as in 'tessera run -m'");
    EXPECT_EQ(failure({"--verison"}), "unknown command '--verison'; did you mean '--version'?");
    EXPECT_EQ(failure({"run", "x", "--port", "8080"}),
              "run: --port: tessera does not have this flag of llama.cpp: there is no server yet");
    EXPECT_NE(failure({"run", "x", "-mlock"}).find("use -lm mmap"), std::string::npos);
    EXPECT_EQ(failure({"run", "x", "--chat-template", "chatml"}),
              "run: --chat-template: 'chatml' is not a Jinja template, and templates have no names "
              "here; without it the model's is used");
    EXPECT_EQ(failure({"bench", "-m", "x", "-p", "1-"}),
              "bench: -p: '1-' is not a range first-last");
}

TEST(Options, RefusesSenselessValues) {
    EXPECT_EQ(failure({"run", "x", "-c", "12k"}), "run: -c: '12k' is not a whole number");
    EXPECT_EQ(failure({"run", "x", "-c", "99999999999999999999"}),
              "run: -c: '99999999999999999999' is not a whole number");
    EXPECT_EQ(failure({"run", "x", "--top-p", "1.5"}),
              "run: --top-p: 1.5 is out of range, it must be from 0 to 1");
    EXPECT_EQ(failure({"run", "x", "--temp", "nan"}), "run: --temp: 'nan' is not a number");
    EXPECT_EQ(failure({"run", "x", "--temp", ""}), "run: --temp: '' is not a number");
    EXPECT_EQ(failure({"run", "x", "-ub", "0"}),
              "run: -ub: 0 is out of range, it must be from 1 to 1048576");
    EXPECT_EQ(failure({"run", "x", "-m"}), "run: -m needs a value");
    EXPECT_EQ(failure({"run", "x", "-m", "-p"}),
              "run: -m needs a value, found the flag -p; --model=-p takes it literally");
    EXPECT_EQ(failure({"bench", "-m", "x", "-p", "5-3"}),
              "bench: -p: the range '5-3' runs backwards");
    EXPECT_EQ(failure({"bench", "-m", "x", "-p", "0-8*2"}),
              "bench: -p: the range '0-8*2' never leaves 0");
    EXPECT_EQ(failure({"bench", "-m", "x", "-p", "1-1000000"}),
              "bench: -p: more than 10000 values");
    EXPECT_EQ(failure({"bench", "-m", "x", "-pg", "512"}), "bench: -pg: '512' is not P,N");
    EXPECT_EQ(failure({"bench", "--synth", "llama"}),
              "bench: --synth: 'llama' is not ARCH:SHAPE or ARCH:SHAPE:TYPE");
    EXPECT_EQ(failure({"quantize", "a", "b", "NVFP4", "--override-kv", "a=u8:1"}),
              "quantize: --override-kv: unknown type 'u8' (known: int, float, bool, str)");
}

TEST(Options, RefusesContradictionsAndMissingParts) {
    EXPECT_EQ(failure({"run"}), "run: no model; give a GGUF file with -m");
    EXPECT_EQ(failure({"run", "x", "-p", "a", "-f", "b"}), "run: --prompt and --file contradict");
    EXPECT_EQ(failure({"run", "x", "y", "-p", "a"}), "run: the prompt is given twice");
    EXPECT_EQ(failure({"run", "x", "y", "z"}), "run: unexpected argument 'z'");
    EXPECT_EQ(failure({"perplexity", "-m", "x", "-f", "t", "--kl-divergence"}),
              "perplexity: --kl-divergence needs --kl-divergence-base FILE");
    EXPECT_EQ(failure({"tokenize", "-m", "x"}),
              "tokenize: no text; give it with -p, -f or --stdin");
    EXPECT_EQ(failure({"synth", "llama", "tiny"}),
              "synth: OUT.gguf is missing; see 'tessera help synth'");
    EXPECT_EQ(failure({"quantize", "a"}),
              "quantize: too few arguments, expected IN.gguf OUT.gguf TYPE");
}

// Guards against -ngl 99, typed by habit, being an error or passing in silence.
// Guards against a card that is taken although none was wanted, and against a habit from llama.cpp
// that is not understood.
TEST(Options, ChoosesTheCard) {
    const auto backend_of = [](std::vector<std::string> flags) {
        flags.insert(flags.begin(), {"run", "x"});
        AllOptions all;
        EXPECT_EQ(parse(all, flags), "");
        return all.run.engine.backend;
    };
    EXPECT_EQ(backend_of({}).name, "auto");
    EXPECT_EQ(backend_of({}).gpu_layers, kAllLayers);
    EXPECT_EQ(backend_of({"-ngl", "99"}).gpu_layers, 99);
    EXPECT_EQ(backend_of({"-ngl", "all"}).gpu_layers, kAllLayers);
    EXPECT_EQ(backend_of({"-ngl", "0"}).gpu_layers, 0);
    EXPECT_EQ(backend_of({"--backend", "CUDA1"}).name, "cuda1");
    EXPECT_EQ(backend_of({"-dev", "CUDA0"}).name, "cuda0");
    EXPECT_EQ(backend_of({"-dev", "none"}).name, "cpu");
    AllOptions poisoned;
    EXPECT_EQ(parse(poisoned, {"run", "x"}, {{"TESSERA_POISON", "1"}}), "");
    EXPECT_TRUE(poisoned.run.engine.backend.poison);
    EXPECT_EQ(backend_of({}).act_nvfp4, kActNvfp4);
    EXPECT_EQ(backend_of({"--act-policy", "amax6"}).act_nvfp4, Nvfp4Policy::kAmax6);
    EXPECT_EQ(backend_of({"--act-policy", "four-six"}).act_nvfp4, Nvfp4Policy::kFourSix);
    EXPECT_EQ(backend_of({"--act-policy", "search"}).act_nvfp4, Nvfp4Policy::kSearch);
    EXPECT_FALSE(backend_of({}).delta_bf16);
    EXPECT_TRUE(backend_of({"--delta-bf16"}).delta_bf16);
    EXPECT_FALSE(backend_of({"--delta-bf16", "--no-delta-bf16"}).delta_bf16);
    AllOptions all;
    EXPECT_EQ(parse(all, {"run", "x", "-dev", "Vulkan0"}),
              "run: -dev: unknown device 'Vulkan0' (one of CUDA0, CUDA1, ... or none)");
    EXPECT_EQ(parse(all, {"run", "x", "--backend", "cudaX"}),
              "run: --backend: unknown value 'cudaX'; did you mean cuda? (known: auto, cpu, "
              "cuda, reference)");
}

/// Why there is no backend with these flags of a run, in one line.
std::string refusal(std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"run", "x"});
    AllOptions all;
    EXPECT_EQ(parse(all, flags), "");
    try {
        make_ops(all.run.engine.backend);
    } catch (const UserError& error) {
        EXPECT_EQ(error.code(), ExitCode::kUsage) << error.what();
        EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
        return error.what();
    }
    return "";
}

// Guards against a check of FP4 products that quietly checks something else: on a backend without
// them, or with other activations than those that they multiply.
TEST(Options, EmulatesWhatItSaysOrRefuses) {
    EXPECT_EQ(
        failure({"bench", "-m", "x", "--emulate", "fp8"}),
        "bench: --emulate: unknown value 'fp8'; did you mean fp4? (known: none, general, fp4)");
    EXPECT_EQ(refusal({"--backend", "cpu"}), "");
    EXPECT_EQ(refusal({"--backend", "cpu", "--emulate", "none"}), "");
    for (const char* backend : {"cpu", "reference"})
        EXPECT_NE(refusal({"--backend", backend, "--emulate", "fp4"}).find("--backend cuda"),
                  std::string::npos);
    for (const char* act : {"bf16", "f32", "fp8", "int8"})
        EXPECT_NE(refusal({"--backend", "cuda", "--emulate", "fp4", "--act", act}).find("--act"),
                  std::string::npos);
    EXPECT_NE(refusal({"-ngl", "0", "--emulate", "fp4"}).find("--backend cuda"), std::string::npos);
    EXPECT_NE(refusal({"--backend", "cpu", "--emulate", "general"}).find("--backend cuda"),
              std::string::npos);
    EXPECT_NE(
        refusal({"--backend", "cuda", "--emulate", "general", "--act", "fp8"}).find("--act fp8"),
        std::string::npos);
}

// Guards against advice that comes without a reason, names a way that was taken already, or says
// more than the counter does.
TEST(Saturation, IsNotedWithWhatToDo) {
    const std::vector<OpCount> none{{.name = "gated_delta_rule", .calls = 9}};
    const std::vector<OpCount> some{none[0], {.name = std::string(kDeltaSaturated), .calls = 7}};
    EXPECT_EQ(saturation_note(none, false), "");
    EXPECT_EQ(saturation_note(some, true), "");
    const std::string note = saturation_note(some, false);
    EXPECT_TRUE(note.starts_with("7 operands")) << note;
    EXPECT_NE(note.find("--delta-bf16"), std::string::npos) << note;
    // The counter has NaN as well, which nothing clamps and no range helps.
    EXPECT_NE(note.find("or no numbers"), std::string::npos) << note;
    EXPECT_NE(note.find("unless the model"), std::string::npos) << note;
}

bool is_flag_of(const Command& command, const std::string& flag) {
    for (const OptionSection& section : command.sections) {
        for (const Option& option : section.options) {
            for (const auto* names : {&option.flags, &option.negations})
                if (std::find(names->begin(), names->end(), flag) != names->end()) return true;
        }
    }
    return flag == "-h" || flag == "--help" || flag == "--usage" || flag == "--version";
}

// Guards against a flag of llama.cpp that is neither understood nor refused with what to do.
TEST(Options, KnowsEveryFlagOfLlamaCpp) {
    AllOptions all;
    const std::vector<Command> commands = describe_commands(all);
    std::ifstream list(TESSERA_TEST_DATA "/tools/llama_flags.txt");
    std::string name;
    std::string flag;
    int count = 0;
    while (list >> name >> flag) {
        ++count;
        bool known = foreign_flag_hint(flag).has_value();
        for (const Command& command : commands) known = known || is_flag_of(command, flag);
        EXPECT_TRUE(known) << name << " " << flag;
    }
    EXPECT_GT(count, 300);
}

// Guards against two rows of one command that claim the same flag or variable: the second is dead.
TEST(Options, NoFlagIsDescribedTwice) {
    AllOptions all;
    for (const Command& command : describe_commands(all)) {
        std::set<std::string> seen{"-h", "--help"};
        std::set<std::string> variables;
        for (const OptionSection& section : command.sections) {
            for (const Option& option : section.options) {
                for (const auto* names : {&option.flags, &option.negations})
                    for (const std::string& flag : *names)
                        EXPECT_TRUE(seen.insert(flag).second) << command.name << " " << flag;
                EXPECT_FALSE(option.help.empty()) << option.flags.back();
                if (option.env.empty()) continue;
                EXPECT_TRUE(variables.insert(option.env).second) << command.name << option.env;
                EXPECT_EQ(option.env.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_"),
                          std::string::npos);
            }
        }
    }
}

TEST(Options, UnescapesLikeC) {
    EXPECT_EQ(unescape("a\\nb\\t\\\\n\\x41\\q\\"), "a\nb\t\\nA\\q\\");
    EXPECT_EQ(unescape("\\x4"), "\\x4");
    EXPECT_EQ(unescape("\\xzz"), "\\xzz");
}

}  // namespace
}  // namespace tessera
