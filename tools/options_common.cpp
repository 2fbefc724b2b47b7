// Rows that several commands share.

#include <fmt/format.h>

#include "tools/options_table.h"

namespace tessera {

const NamedValues<DType>& cache_types() {
    static const NamedValues<DType> kTypes{
        {"f16", DType::kF16}, {"f32", DType::kF32}, {"bf16", DType::kBF16}, {"q8_0", DType::kQ8_0}};
    return kTypes;
}

const NamedValues<ActPolicy>& act_policies() {
    static const NamedValues<ActPolicy> kPolicies{{"auto", ActPolicy::kAuto},
                                                  {"f32", ActPolicy::kF32},
                                                  {"bf16", ActPolicy::kBF16},
                                                  {"int8", ActPolicy::kInt8},
                                                  {"nvfp4", ActPolicy::kNvfp4}};
    return kPolicies;
}

std::vector<std::string> backend_names() {
    return {"cpu", "reference"};
}

Option name_row(const Row& row, std::string& target, const std::vector<std::string>& known) {
    Option option = make_row(row, target);
    option.choices = known;
    option.set = [&target, known](const Occurrence& given) {
        target = known[parse_choice(given, known)];
    };
    return option;
}

Option isa_row(std::string& isa) {
    return name_row({"--isa", "NAME", "ISA", "CPU kernels at most this new; default: the best"},
                    isa, {"scalar", "neon", "avx2", "avx512", "amx"});
}

NamedValues<DType> format_names(std::span<const DType> formats) {
    NamedValues<DType> names;
    for (const DType format : formats)
        names.emplace_back(std::string(dtype_info(format).name), format);
    return names;
}

Option threads_row(int32_t& threads) {
    Option option =
        make_row({"-t, --threads", "N", "THREADS", "threads of the CPU"}, "one per physical core");
    option.set = [&threads](const Occurrence& given) {
        threads = std::max(0, static_cast<int32_t>(parse_integer(given, -1, 1024)));
    };
    return option;
}

Option act_row(ActPolicy& act) {
    return choice_row(
        {"--act", "FORMAT", "ACT",
         "format of activations in matrix products; nvfp4 reproduces the numerics of W4A4"},
        act, act_policies());
}

std::vector<Option> context_rows(EngineOptions& engine) {
    constexpr int64_t kMost = 1 << 30;
    Option context = integer_row({"-c, --ctx-size", "N", "CTX_SIZE",
                                  "tokens of context; 0: what the model was trained with"},
                                 engine.context, 0, kMost);
    return {
        std::move(context),
        integer_row({"-b, --batch-size", "N", "BATCH", "most tokens that are submitted at a time"},
                    engine.batch, 1, kMost),
        integer_row({"-ub, --ubatch-size", "N", "UBATCH", "most tokens of one forward pass"},
                    engine.ubatch, 1, 1 << 20),
        choice_row({"-ctk, --cache-type-k", "TYPE", "CACHE_TYPE_K", "format of cached keys"},
                   engine.type_k, cache_types()),
        choice_row({"-ctv, --cache-type-v", "TYPE", "CACHE_TYPE_V", "format of cached values"},
                   engine.type_v, cache_types()),
    };
}

namespace {

/// Flags that people type by habit and whose every meaning this build already fulfils.
Option gpu_layers_row(AllOptions& all) {
    Option option = make_row({"-ngl, --gpu-layers, --n-gpu-layers", "N", "N_GPU_LAYERS",
                              "layers on a GPU (a number, auto or all); this build has none"},
                             "");
    option.set = [&all](const Occurrence& given) {
        if (given.text == "0" || given.text == "auto") return;
        if (given.text != "all" && parse_integer(given, -1, 1 << 20) <= 0) return;
        const std::string note = "no GPU backend in this build: running on the CPU";
        if (all.notes.empty()) all.notes.push_back(note);
    };
    return option;
}

Option habit_row(const Row& row, std::vector<std::string> choices) {
    Option option = make_row(row, choices.front());
    option.choices = choices;
    option.set = [choices](const Occurrence& given) { parse_choice(given, choices); };
    return option;
}

}  // namespace

std::vector<Option> machine_rows(EngineOptions& engine, AllOptions& all) {
    std::vector<Option> rows;
    rows.push_back(threads_row(engine.backend.threads));
    rows.push_back(act_row(engine.backend.act));
    rows.push_back(
        name_row({"--backend", "NAME", "BACKEND", "what computes; reference is slow and exact"},
                 engine.backend.name, backend_names()));
    rows.push_back(isa_row(engine.backend.isa));
    rows.push_back(habit_row({"-fa, --flash-attn", "MODE", "FLASH_ATTN",
                              "attention never stores its scores here, so every value is the same"},
                             {"auto", "on", "off", "1", "0"}));
    rows.push_back(habit_row({"-lm, --load-mode", "MODE", "LOAD_MODE",
                              "weights are mapped and repacked whatever the value"},
                             {"auto", "none", "mmap"}));
    rows.push_back(gpu_layers_row(all));
    return rows;
}

Positional argument_row(AllOptions& all, std::string name, std::string help) {
    Positional positional;
    positional.name = std::move(name);
    positional.help = std::move(help);
    positional.required = false;
    positional.set = [&all](const Occurrence& given) { all.arguments.emplace_back(given.text); };
    return positional;
}

void require_model(const std::string& command, const std::string& path) {
    if (path.empty())
        throw UserError(ExitCode::kUsage,
                        fmt::format("{}: no model; give a GGUF file with -m", command));
}

}  // namespace tessera
