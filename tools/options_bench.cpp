// Options of `bench` and `test-ops`.

#include <fmt/format.h>

#include "core/nearest.h"
#include "tools/options_table.h"

namespace tessera {
namespace {

std::vector<std::string> owned(const std::vector<std::string_view>& names) {
    return {names.begin(), names.end()};
}

Option models_row(std::vector<std::string>& models) {
    Option option = texts_row({"-m, --model", "FILE", "MODEL", "models, comma-separated"}, models);
    option.is_file = true;
    option.set = [&models](const Occurrence& given) {
        if (given.first) models.clear();
        for (std::string& path : split_list(given.text, ',')) models.push_back(std::move(path));
    };
    return option;
}

SynthSpec parse_synth(const Occurrence& given, const std::string& text) {
    const std::vector<std::string> parts = split_list(text, ':');
    if (parts.size() < 2 || parts.size() > 3)
        throw UserError(
            ExitCode::kUsage,
            fmt::format("{}: '{}' is not ARCH:SHAPE or ARCH:SHAPE:TYPE", given.where, text));
    const auto choose = [&](const std::string& part, const std::vector<std::string>& known) {
        return known[parse_choice({given.where, part, false, false}, known)];
    };
    SynthSpec spec;
    spec.architecture = choose(parts[0], owned(synth_architectures()));
    spec.shape = choose(parts[1], owned(synth_shapes()));
    if (parts.size() == 3) {
        const NamedValues<DType> formats = format_names(quantize_formats());
        const std::string name = choose(parts[2], names_of(formats));
        spec.type = dtype_from_name(name).value();
    }
    return spec;
}

Option synth_row(std::vector<SynthSpec>& synth) {
    Option option = make_row(
        {"--synth", "ARCH:SHAPE:TYPE", "", "random models made in memory, such as llama:1b:nvfp4"},
        "");
    option.set = [&synth](const Occurrence& given) {
        if (given.first) synth.clear();
        for (const std::string& text : split_list(given.text, ','))
            synth.push_back(parse_synth(given, text));
    };
    return option;
}

Option prompt_gen_row(std::vector<std::pair<int32_t, int32_t>>& target) {
    Option option = make_row({"-pg", "P,N", "", "a prompt of P tokens, then N generated ones"}, "");
    option.set = [&target](const Occurrence& given) {
        if (given.first) target.clear();
        const std::vector<std::string> parts = split_list(given.text, ',');
        if (parts.size() != 2)
            throw UserError(ExitCode::kUsage,
                            fmt::format("{}: '{}' is not P,N", given.where, given.text));
        const auto number = [&](const std::string& part) {
            return static_cast<int32_t>(
                parse_integer({given.where, part, false, false}, 1, 1 << 30));
        };
        target.emplace_back(number(parts[0]), number(parts[1]));
    };
    return option;
}

Option gpu_layers_list_row(AllOptions& all) {
    return integers_row(
        {"-ngl, --n-gpu-layers", "N", "", "layers on the GPU: -1 or many for all, 0 for the CPU"},
        all.bench.gpu_layers, -1, 1 << 20);
}

std::vector<Option> test_rows(BenchOptions& bench) {
    constexpr int64_t kMost = 1 << 30;
    return {
        integers_row({"-p, --n-prompt", "N", "", "tokens of a prompt; 0: no such test"},
                     bench.n_prompt, 0, kMost),
        integers_row({"-n, --n-gen", "N", "", "tokens to generate; 0: no such test"}, bench.n_gen,
                     0, kMost),
        prompt_gen_row(bench.prompt_gen),
        integers_row({"-d, --n-depth", "N", "", "tokens that are in the context beforehand"},
                     bench.n_depth, 0, kMost),
        integer_row({"-r, --repetitions", "N", "", "how often each test runs"}, bench.repetitions,
                    1, 1 << 20),
        integer_row({"--delay", "SECONDS", "", "pause between tests"}, bench.delay_s, 0, 86400),
        switch_row({"--warmup, --no-warmup", "", "", "an unmeasured run before each test"},
                   bench.warmup),
    };
}

std::vector<Option> tuning_rows(AllOptions& all) {
    BenchOptions& bench = all.bench;
    constexpr int64_t kMost = 1 << 30;
    const NamedValues<int32_t> attention{{"auto", -1}, {"on", 1}, {"off", 0}, {"1", 1}, {"0", 0}};
    const NamedValues<std::string> modes{{"auto", "auto"}, {"none", "none"}, {"mmap", "mmap"}};
    Option threads = integers_row({"-t, --threads", "N", "THREADS", "threads of the CPU"},
                                  bench.threads, 0, 1024);
    threads.shown_default = "one per physical core";
    return {
        integers_row({"-b, --batch-size", "N", "BATCH", "most tokens that are submitted at a time"},
                     bench.batch, 1, kMost),
        integers_row({"-ub, --ubatch-size", "N", "UBATCH", "most tokens of one forward pass"},
                     bench.ubatch, 1, 1 << 20),
        choices_row({"-ctk, --cache-type-k", "TYPE", "CACHE_TYPE_K", "format of cached keys"},
                    bench.type_k, cache_types()),
        choices_row({"-ctv, --cache-type-v", "TYPE", "CACHE_TYPE_V", "format of cached values"},
                    bench.type_v, cache_types()),
        std::move(threads),
        choices_row({"-fa, --flash-attn", "MODE", "FLASH_ATTN",
                     "attention never stores its scores here, so every value is the same"},
                    bench.flash_attn, attention),
        choices_row({"-lm, --load-mode", "MODE", "LOAD_MODE",
                     "weights are mapped and repacked whatever the value"},
                    bench.load_mode, modes),
        choices_row({"--act", "FORMAT", "ACT", "format of activations in matrix products"},
                    bench.act, act_policies()),
        emulate_row(bench.emulate),
        act_policy_row(bench.act_nvfp4),
        delta_row(bench.delta_bf16),
        backend_row({"--backend", "NAME", "BACKEND",
                     "what computes: auto (a GPU where there is one), cpu, cuda, CUDA1, or "
                     "reference, which is slow and exact"},
                    bench.backend),
        isa_row(bench.isa),
        gpu_layers_list_row(all),
    };
}

std::vector<Option> bench_output_rows(BenchOptions& bench) {
    const NamedValues<BenchOutput> formats{{"md", BenchOutput::kMarkdown},
                                           {"csv", BenchOutput::kCsv},
                                           {"json", BenchOutput::kJson},
                                           {"jsonl", BenchOutput::kJsonl}};
    NamedValues<BenchOutput> with_none = formats;
    with_none.emplace_back("none", BenchOutput::kNone);
    return {
        choice_row({"-o, --output", "FORMAT", "", "what to print on stdout"}, bench.output,
                   formats),
        choice_row({"-oe, --output-err", "FORMAT", "", "what to print on stderr"}, bench.output_err,
                   with_none),
        switch_row({"--ops", "", "",
                    "where the time goes op by op, beside the device's peak, and every fallback, "
                    "on stderr"},
                   bench.ops),
        switch_row({"--progress", "", "", "show progress on stderr"}, bench.progress),
        switch_row({"-v, --verbose", "", "", "say what was loaded and how memory is used"},
                   bench.verbose),
    };
}

}  // namespace

Command bench_command(AllOptions& all) {
    Command command;
    command.name = "bench";
    command.summary = "measure speed and memory as llama-bench does";
    command.description =
        "Every flag of the tests takes several values, separated by commas or given repeatedly, "
        "and ranges first-last, first-last+step, first-last*factor; every combination is measured. "
        "Tables have a column for each flag that was given. What --act came to for prompts stands "
        "in that column in parentheses, or in the last line where there is none; csv and json have "
        "it as act_prompt, beside act_policy. delta_bf16 is 0 where the switch has no effect.";
    command.sections = {{"Models", {models_row(all.bench.models), synth_row(all.bench.synth)}},
                        {"Tests", test_rows(all.bench)},
                        {"Settings to vary", tuning_rows(all)},
                        {"Output", bench_output_rows(all.bench)}};
    command.examples = {"tessera bench -m model.gguf",
                        "tessera bench -m model.gguf -p 512,2048 -n 0 -ub 128-1024*2 -o json",
                        "tessera bench --synth llama:1b:nvfp4 -t 1-4 --ops"};
    command.check = [&all] {
        if (all.bench.models.empty() && all.bench.synth.empty())
            throw UserError(ExitCode::kUsage,
                            "bench: no model; give a GGUF file with -m, or --synth llama:1b:nvfp4");
    };
    command.run = [&all] { return run_bench(all.bench); };
    return command;
}

Command test_ops_command(AllOptions& all) {
    TestOpsOptions& options = all.test_ops;
    const NamedValues<TestOpsMode> modes{{"test", TestOpsMode::kTest},
                                         {"perf", TestOpsMode::kPerf},
                                         {"support", TestOpsMode::kSupport}};
    const NamedValues<TestOpsOutput> formats{{"console", TestOpsOutput::kConsole},
                                             {"csv", TestOpsOutput::kCsv},
                                             {"jsonl", TestOpsOutput::kJsonl}};
    Command command;
    command.name = "test-ops";
    command.summary = "check or time every op against the reference";
    command.description =
        "Runs the cases of every op on a backend and on the reference and compares within named "
        "tolerances (test), measures them (perf), or lists which ops have kernels (support).";
    Positional mode;
    mode.name = "test|perf|support";
    mode.help = "what to do; default: test";
    mode.required = false;
    mode.choices = names_of(modes);
    mode.set = [&options, modes](const Occurrence& given) {
        options.mode = modes[parse_choice(given, names_of(modes))].second;
    };
    command.positionals = {std::move(mode)};
    command.sections = {
        {"Cases",
         {text_row({"-o, --op", "OP", "", "only this op, such as MUL_MAT"}, options.op),
          text_row({"-p, --params", "REGEX", "", "only cases whose names match"},
                   options.pattern)}},
        {"Machine",
         {backend_row({"-b, --backend", "NAME", "BACKEND", "what to check: cpu, cuda, CUDA1, ..."},
                      options.backend.name),
          threads_row(options.backend.threads), act_row(options.backend.act),
          act_policy_row(options.backend.act_nvfp4), emulate_row(options.backend.emulate),
          delta_row(options.backend.delta_bf16), isa_row(options.backend.isa),
          device_debug_rows(options.backend)[0], device_debug_rows(options.backend)[1]}},
        {"Output",
         {choice_row({"--output", "FORMAT", "", "what to print on stdout"}, options.output,
                     formats)}}};
    command.examples = {"tessera test-ops", "tessera test-ops perf -o MUL_MAT -p nvfp4"};
    command.run = [&options] { return run_test_ops(options); };
    return command;
}

Command doctor_command(AllOptions& all) {
    DoctorOptions& options = all.doctor;
    options.backend.name = "auto";
    Command command;
    command.name = "doctor";
    command.summary = "check that this machine computes right, as a report";
    command.description =
        "Asks the backend about instructions that its kernels were written without, runs the cases "
        "of every op against the reference, and prints a report to paste into an issue. Exit code "
        "1: something is wrong.";
    command.sections = {
        {"Options",
         {backend_row({"-b, --backend", "NAME", "BACKEND", "what to check: cpu, cuda, CUDA1, ..."},
                      options.backend.name),
          switch_row({"--quick", "", "", "every tenth case of each op"}, options.quick),
          emulate_row(options.backend.emulate), threads_row(options.backend.threads),
          isa_row(options.backend.isa)}}};
    command.examples = {"tessera doctor", "tessera doctor -b cpu --quick"};
    command.run = [&options] { return run_doctor(options); };
    return command;
}

}  // namespace tessera
