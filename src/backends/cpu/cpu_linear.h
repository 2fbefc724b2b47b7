#pragma once
// Private parts of the CPU backend that belong to weights and matrix products.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "backends/cpu/cpu_ops.h"
#include "core/weight.h"
#include "ops/exec.h"

namespace tessera::cpu {

struct LinearKernels;

/// Which kernels and activation formats this backend uses. `CpuOps` makes one in its constructor.
struct CpuOps::Linear {
    /// `isa` is the set that pick_isa() chose. UserError(kUsage) for activations that the CPU lacks
    /// (fp8).
    Linear(Isa isa, const CpuOptions& options);

    /// Activation formats that a weight of `format` asks for.
    ActWants wants(DType format) const;
    ActFormat act_of(DType stored, ActFormat chosen) const;
    /// Name of a product in the counters: "linear[nvfp4,amx]".
    const std::string& label(DType stored, bool prompt) const {
        return labels[static_cast<size_t>(stored)][prompt ? 1 : 0];
    }

    /// "linear_experts[nvfp4,amx]".
    const std::string& expert_label(DType stored, bool prompt) const {
        return expert_labels[static_cast<size_t>(stored)][prompt ? 1 : 0];
    }

    /// What such a product multiplies, for the counters.
    Operands operands(DType stored, bool prompt) const {
        return multiplied[static_cast<size_t>(stored)][prompt ? 1 : 0];
    }

    const LinearKernels* kernels = nullptr;
    Isa isa;
    ActFormat act_prompt = ActFormat::kF32;
    ActFormat act_generated = ActFormat::kF32;
    Nvfp4Policy nvfp4;
    std::vector<std::array<std::string, 2>> labels;  ///< by format; generated, prompt rows
    std::vector<std::array<std::string, 2>> expert_labels;
    std::vector<std::array<Operands, 2>> multiplied;
};

/// Elements between two rows of a bf16 activation of `cols` columns: a multiple of 32 (64 bytes),
/// padded with zeros, and an odd multiple, so that the 16 rows of a tile fall into 16 cache sets.
int64_t act_stride(int64_t cols);

/// Allocates `rows` x `cols` in every format of `wants` from the arena (no values yet): what
/// prepare() fills and what a fused producer may fill itself. kBF16 and kNvfp4 values have rows of
/// act_stride(cols) elements whose padding the producer must zero; the others are contiguous.
GemmInput allocate_input(Exec& ex, int64_t rows, int64_t cols, ActWants wants);

}  // namespace tessera::cpu
