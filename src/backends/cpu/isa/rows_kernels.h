#pragma once
// What an instruction set provides for the ops along rows, and the state of those ops.

#include <cstdint>
#include <vector>

#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/isa/attention_kernels.h"
#include "backends/cpu/isa/recurrent_kernels.h"

namespace tessera::cpu {

/// Kernels over one row. An element's result depends on its value and, where the formula says so,
/// on the row, never on the element's place in a register: tails go through padded registers.
struct RowKernels {
    /// gain may be null. In place allowed.
    void (*rms_norm)(const float* x, const float* gain, float eps, int64_t cols, float* out);
    /// The same, rounded to bf16.
    void (*rms_norm_bf16)(
        const float* x, const float* gain, float eps, int64_t cols, uint16_t* out);
    /// x /= sqrt(sum x^2 + eps), in place.
    void (*l2_norm)(float* x, float eps, int64_t cols);
    void (*glu)(Glu kind, const float* gate, const float* up, int64_t count, float* out);
    void (*add)(const float* a, const float* b, int64_t count, float* out);
    void (*softmax)(const float* x, float scale, int64_t visible, int64_t cols, float* out);
    /// Rotates one head in place. `turns` holds `rotary` cosines, then `rotary` signed sines: out_i
    /// = x_i cos_i + x_partner(i) sin_i.
    void (*rope)(const float* turns, RopePairs pairs, int32_t rotary, float* head);
    void (*f16_from_f32)(const float* x, int64_t count, uint16_t* out);
    void (*bf16_from_f32)(const float* x, int64_t count, uint16_t* out);
    void (*f32_from_f16)(const uint16_t* x, int64_t count, float* out);
    void (*f32_from_bf16)(const uint16_t* x, int64_t count, float* out);
    /// Largest value that is not NaN (-inf if there is none); `has_nan` tells whether one was seen.
    float (*largest)(const float* x, int64_t count, bool* has_nan);
    /// First index at or after `begin` with x >= floor; `count` if there is none.
    int64_t (*find_at_least)(const float* x, int64_t begin, int64_t count, float floor);
};

const RowKernels& row_kernels_scalar();
#if defined(__x86_64__)
const RowKernels& row_kernels_avx2();
const RowKernels& row_kernels_avx512();
#endif

/// Cosines and sines of the last positions that a set of rope parameters was asked for. All layers
/// of a pass ask for the same positions, so one table a set is enough.
struct RopeTable {
    RopeParams params;
    std::vector<float> factors;       ///< empty: none
    std::vector<double> frequencies;  ///< per pair, radians a position, scaling included
    int64_t axes = 1;                 ///< positions of a token
    std::vector<int32_t> positions;   ///< [tokens][axes]
    std::vector<float> turns;         ///< [positions][2 rotary], see RowKernels::rope
};

/// Kernel tables of the ops that are not matrix products.
struct CpuOps::Rows {
    /// Prompt rows go through bf16 tiles where the set has them, unless the options ask for f32
    /// activations: then attention is f32 as well.
    Rows(Isa isa, const CpuOptions& options);

    /// The turns of every row, computed or remembered. While planning (positions without data) only
    /// the memory is reserved and the result is null.
    const float* turns(ThreadPool& pool,
                       const Tensor& positions,
                       const Tensor& freq_factors,
                       const RopeParams& params);

    const RowKernels* kernels = nullptr;
    const PromptKernels& (*prompt)(int32_t head_size) = nullptr;
    const SplitKernels& (*split)(int32_t head_size) = nullptr;
    const RecurrentKernels* recurrent = nullptr;
    Operands prompt_operands = Operands::kF32;  ///< of attention and delta rule, for the counters
    std::vector<RopeTable> rope_tables;
    size_t next_table = 0;  ///< which table is given up next
};

}  // namespace tessera::cpu
