// Rows that several commands share.

#include <fmt/format.h>

#include <optional>

#include "tools/options_table.h"
#include "tools/terminal.h"

namespace tessera {

const NamedValues<DType>& cache_types() {
    static const NamedValues<DType> kTypes{{"f16", DType::kF16},
                                           {"f32", DType::kF32},
                                           {"bf16", DType::kBF16},
                                           {"q8_0", DType::kQ8_0},
                                           {"fp8", DType::kF8_E4M3}};
    return kTypes;
}

std::string cache_type_name(DType type) {
    const std::string name = name_of(cache_types(), type);
    return name.empty() ? std::string(dtype_info(type).name) : name;
}

const NamedValues<ActPolicy>& act_policies() {
    static const NamedValues<ActPolicy> kPolicies{
        {"auto", ActPolicy::kAuto}, {"f32", ActPolicy::kF32},     {"bf16", ActPolicy::kBF16},
        {"int8", ActPolicy::kInt8}, {"nvfp4", ActPolicy::kNvfp4}, {"fp8", ActPolicy::kFp8}};
    return kPolicies;
}

const NamedValues<Emulation>& emulations() {
    static const NamedValues<Emulation> kEmulations{
        {"none", Emulation::kNone}, {"general", Emulation::kGeneral}, {"fp4", Emulation::kFp4}};
    return kEmulations;
}

const NamedValues<Nvfp4Policy>& scale_policies() {
    static const NamedValues<Nvfp4Policy> kPolicies{{"search", Nvfp4Policy::kSearch},
                                                    {"amax6", Nvfp4Policy::kAmax6},
                                                    {"four-six", Nvfp4Policy::kFourSix}};
    return kPolicies;
}

namespace {

/// "cuda1" for "CUDA1"; nothing for what does not name a card by its number.
std::optional<std::string> numbered_card(std::string_view text) {
    constexpr std::string_view kPrefix = "cuda";
    std::string name = lower_case(text);
    const bool numbered = name.starts_with(kPrefix) && name.size() > kPrefix.size() &&
                          name.find_first_not_of("0123456789", kPrefix.size()) == std::string::npos;
    return numbered ? std::optional(std::move(name)) : std::nullopt;
}

}  // namespace

Option backend_row(const Row& row, std::string& target) {
    Option option = make_row(row, target);
    option.choices = {"auto", "cpu", "cuda", "reference"};
    option.set = [&target, known = option.choices](const Occurrence& given) {
        const auto card = numbered_card(given.text);
        target = card ? *card : known[parse_choice(given, known)];
    };
    return option;
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
         "format of activations in matrix products; nvfp4 reproduces the numerics of W4A4, "
         "fp8 is for FP4 weights on Hopper"},
        act, act_policies());
}

Option emulate_row(Emulation& emulate) {
    return choice_row(
        {"--emulate", "WHAT", "EMULATE",
         "GPU: run what Blackwell cards (sm_120) run; general: every kernel but the products of "
         "FP4 tensor cores; fp4: those, too, on Hopper with --act nvfp4, the instruction made of "
         "others: slow, to check them"},
        emulate, emulations());
}

Option act_policy_row(Nvfp4Policy& policy) {
    return choice_row({"--act-policy", "NAME", "ACT_POLICY",
                       "--act nvfp4: how the scale of a block is chosen: amax6 is the usual rule, "
                       "four-six also tries amax/4, search also tries the neighbouring codes"},
                      policy, scale_policies());
}

Option delta_row(bool& bf16) {
    return switch_row({"--delta-bf16, --no-delta-bf16", "", "DELTA_BFLOAT",
                       "GPU: prompts run the gated delta rule on bf16 operands, an eighth as "
                       "precise as f16, for models with values over 65504"},
                      bf16);
}

std::vector<Option> device_debug_rows(BackendOptions& backend) {
    return {switch_row({"--poison, --no-poison", "", "TESSERA_POISON",
                        "GPU: fill fresh memory with 0xFF, which shows reads of unwritten memory"},
                       backend.poison),
            switch_row({"--synchronous, --no-synchronous", "", "TESSERA_SYNCHRONOUS",
                        "GPU: wait after every kernel, so that a fault names the right one"},
                       backend.synchronous)};
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

Option gpu_layers_row(BackendOptions& backend) {
    Option option = make_row({"-ngl, --gpu-layers, --n-gpu-layers", "N", "N_GPU_LAYERS",
                              "layers on the GPU: auto, all, or 0 for the CPU"},
                             "auto");
    option.set = [&backend](const Occurrence& given) {
        backend.gpu_layers = given.text == "auto" || given.text == "all"
                                 ? kAllLayers
                                 : static_cast<int32_t>(parse_integer(given, -1, 1 << 20));
        if (backend.gpu_layers < 0) backend.gpu_layers = kAllLayers;
    };
    return option;
}

Option device_row(BackendOptions& backend) {
    Option option = make_row({"-dev, --device", "NAME", "DEVICE",
                              "CUDA0, CUDA1, ... as CUDA_VISIBLE_DEVICES leaves them, or none"},
                             "");
    option.set = [&backend](const Occurrence& given) {
        const auto card = numbered_card(given.text);
        if (!card && lower_case(given.text) != "none")
            throw UserError(
                ExitCode::kUsage,
                fmt::format("{}: unknown device '{}' (one of CUDA0, CUDA1, ... or none)",
                            given.where, given.text));
        backend.name = card.value_or("cpu");
    };
    return option;
}

/// Flags that people type by habit and whose every meaning this program already fulfils.
Option habit_row(const Row& row, std::vector<std::string> choices) {
    Option option = make_row(row, choices.front());
    option.choices = choices;
    option.set = [choices](const Occurrence& given) { parse_choice(given, choices); };
    return option;
}

}  // namespace

std::vector<Option> machine_rows(EngineOptions& engine) {
    std::vector<Option> rows;
    rows.push_back(threads_row(engine.backend.threads));
    rows.push_back(act_row(engine.backend.act));
    rows.push_back(act_policy_row(engine.backend.act_nvfp4));
    rows.push_back(emulate_row(engine.backend.emulate));
    rows.push_back(delta_row(engine.backend.delta_bf16));
    engine.backend.name = "auto";
    engine.backend.note = print_note;
    rows.push_back(backend_row({"--backend", "NAME", "BACKEND",
                                "what computes: auto (a GPU where there is one), cpu, cuda, CUDA1, "
                                "or reference, which is slow and exact"},
                               engine.backend.name));
    rows.push_back(device_row(engine.backend));
    rows.push_back(isa_row(engine.backend.isa));
    rows.push_back(habit_row({"-fa, --flash-attn", "MODE", "FLASH_ATTN",
                              "attention never stores its scores here, so every value is the same"},
                             {"auto", "on", "off", "1", "0"}));
    rows.push_back(habit_row({"-lm, --load-mode", "MODE", "LOAD_MODE",
                              "weights are mapped and repacked whatever the value"},
                             {"auto", "none", "mmap"}));
    rows.push_back(gpu_layers_row(engine.backend));
    for (Option& option : device_debug_rows(engine.backend)) rows.push_back(std::move(option));
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
