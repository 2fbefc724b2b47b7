// The one factory of backends.
#include <fmt/format.h>

#include <array>

#include "backends/cpu/cpu_ops.h"
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
        case ActPolicy::kF32:
        case ActPolicy::kAuto:
            break;
    }
    return ActFormat::kF32;
}

/// W4A4 is a format of prompt rows: generated rows, which are bound by memory, keep bf16
/// activations.
ActFormat generated_format(ActPolicy policy) {
    return policy == ActPolicy::kNvfp4 ? ActFormat::kBF16 : act_format(policy);
}

}  // namespace

std::unique_ptr<Ops> make_ops(const BackendOptions& options) {
    constexpr std::array<std::string_view, 2> kNames = {"cpu", "reference"};
    if (options.name == "reference")
        return make_reference_ops({.act_prompt = act_format(options.act),
                                   .act_generated = generated_format(options.act)});
    if (options.name == "cpu")
        return std::make_unique<cpu::CpuOps>(
            cpu::CpuOptions{.threads = options.threads > 0 ? options.threads : physical_cores(),
                            .act_auto = options.act == ActPolicy::kAuto,
                            .act_prompt = act_format(options.act),
                            .act_generated = generated_format(options.act),
                            .isa = options.isa});
    throw UserError(ExitCode::kUsage,
                    fmt::format("unknown backend '{}'; nearest known: {}", options.name,
                                nearest_name(options.name, kNames)));
}

}  // namespace tessera
