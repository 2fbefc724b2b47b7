// The one factory of backends.
#include "engine/backends.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <optional>

#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/library.h"
#include "backends/cuda/pools.h"
#include "backends/reference/reference_ops.h"
#include "core/nearest.h"
#include "engine/engine.h"
#include "engine/machine.h"

namespace tessera {
namespace {

ActFormat act_format(ActPolicy policy) {
    switch (policy) {
        case ActPolicy::kBF16:
            return ActFormat::kBF16;
        case ActPolicy::kInt8:
            return ActFormat::kInt8;
        case ActPolicy::kNvfp4:
            return ActFormat::kNvfp4;
        case ActPolicy::kFp8:
            return ActFormat::kFp8;
        case ActPolicy::kF32:
        case ActPolicy::kAuto:
            break;
    }
    return ActFormat::kF32;
}

/// W4A4 and fp8 are formats of prompt rows: generated rows, which are bound by memory, keep bf16
/// activations.
ActFormat generated_format(ActPolicy policy) {
    const bool prompt_only = policy == ActPolicy::kNvfp4 || policy == ActPolicy::kFp8;
    return prompt_only ? ActFormat::kBF16 : act_format(policy);
}

/// "cuda" and "CUDA1" name a card; "cuda" leaves the number to `device`.
std::optional<int32_t> cuda_device(const BackendOptions& options) {
    const std::string_view name = options.name;
    constexpr size_t kPrefix = 4;
    if (name.size() < kPrefix || name.size() > kPrefix + 2) return std::nullopt;
    for (size_t i = 0; i < kPrefix; ++i)
        if (std::tolower(static_cast<unsigned char>(name[i])) != "cuda"[i]) return std::nullopt;
    if (name.size() == kPrefix) return options.device;
    int32_t device = 0;
    for (const char digit : name.substr(kPrefix)) {
        if (digit < '0' || digit > '9') return std::nullopt;
        device = device * 10 + (digit - '0');
    }
    return device;
}

std::unique_ptr<Ops> make_cuda(const BackendOptions& options, int32_t device) {
    const ActPolicy act = options.act;
    if (act == ActPolicy::kInt8)
        throw UserError(
            ExitCode::kUsage,
            "the CUDA backend takes --act auto, bf16, f32, nvfp4 or fp8; int8 activations "
            "are for --backend cpu");
    // Not fp8 where the card has it: 1.4 times as fast, but 2% of perplexity that nobody asked for
    // (docs/measurements.md, "Activations side by side").
    const ActPolicy chosen = act == ActPolicy::kAuto ? ActPolicy::kBF16 : act;
    const cuda::Fp4Products fp4 = options.emulate == Emulation::kNone ? cuda::Fp4Products::kNative
                                  : options.emulate == Emulation::kFp4
                                      ? cuda::Fp4Products::kEmulated
                                      : cuda::Fp4Products::kOff;
    auto ops = cuda::make_cuda_ops({.device = device,
                                    .act_prompt = act_format(chosen),
                                    .act_generated = generated_format(chosen),
                                    .fp4_products = fp4,
                                    .act_auto = act == ActPolicy::kAuto,
                                    .nvfp4 = options.act_nvfp4,
                                    .general = options.emulate != Emulation::kNone,
                                    .delta_bf16 = options.delta_bf16,
                                    .poison = options.poison,
                                    .synchronous = options.synchronous});
    if (options.note) {
        const SelfTest test = ops->self_test();
        if (!test.faults.empty())
            options.note(fmt::format(
                "CUDA{}: {} failed the self-test, {}; please report what `tessera doctor` "
                "prints ({})",
                device, test.checked,
                options.emulate == Emulation::kFp4
                    ? "so that results are not to be trusted"
                    : "so that products of 16-bit rows take its place",
                test.faults.front()));
    }
    return ops;
}

/// Nothing where there is no card, no driver or no library, nor where others fill the card. Says
/// why where a card might have been expected.
std::unique_ptr<Ops> try_cuda(const BackendOptions& options) {
    try {
        return make_cuda(options, options.device);
    } catch (const UserError& error) {
        if (error.code() != ExitCode::kDevice && error.code() != ExitCode::kMemory) throw;
        if (options.note && cuda::card_present())
            options.note(fmt::format("CUDA{} not used: {}; running on the CPU", options.device,
                                     error.what()));
        return nullptr;
    }
}

/// The options with what --emulate implies.
BackendOptions emulating(BackendOptions options) {
    const bool fp4 = options.emulate == Emulation::kFp4;
    if (fp4 && options.act == ActPolicy::kAuto) options.act = ActPolicy::kNvfp4;
    if (fp4 && options.act != ActPolicy::kNvfp4)
        throw UserError(ExitCode::kUsage,
                        "--emulate fp4 multiplies rows of NVFP4: it goes with --act nvfp4 or "
                        "auto alone");
    if (options.act == ActPolicy::kFp8)
        throw UserError(ExitCode::kUsage,
                        "--emulate general has no products of --act fp8, which are for Hopper");
    if (options.name == "cpu" || options.name == "reference")
        throw UserError(ExitCode::kUsage,
                        fmt::format("--emulate {} is for cards: --backend cuda, not {}",
                                    fp4 ? "fp4" : "general", options.name));
    return options;
}

}  // namespace

int64_t bytes_beside(const Ops& ops, std::span<const int64_t> blocks) {
    return ops.on_host() ? 0 : cuda::bytes_beside(blocks);
}

std::unique_ptr<Ops> make_ops(const BackendOptions& given) {
    const BackendOptions options = given.emulate == Emulation::kNone ? given : emulating(given);
    constexpr std::array<std::string_view, 4> kNames = {"auto", "cpu", "cuda", "reference"};
    if (const auto device = cuda_device(options)) return make_cuda(options, *device);
    if (options.name == "auto") {
        const bool possible = options.act != ActPolicy::kInt8;
        if (options.gpu_layers > 0 && possible)
            if (auto card = try_cuda(options)) return card;
        BackendOptions fallback = options;
        fallback.name = "cpu";
        return make_ops(fallback);
    }
    if (options.name == "reference")
        return make_reference_ops({.act_prompt = act_format(options.act),
                                   .act_generated = generated_format(options.act),
                                   .nvfp4 = options.act_nvfp4});
    if (options.name == "cpu")
        return std::make_unique<cpu::CpuOps>(
            cpu::CpuOptions{.threads = options.threads > 0 ? options.threads : physical_cores(),
                            .act_auto = options.act == ActPolicy::kAuto,
                            .act_prompt = act_format(options.act),
                            .act_generated = generated_format(options.act),
                            .nvfp4 = options.act_nvfp4,
                            .isa = options.isa});
    throw UserError(ExitCode::kUsage,
                    fmt::format("unknown backend '{}'; nearest known: {}", options.name,
                                nearest_name(options.name, kNames)));
}

}  // namespace tessera
