#pragma once
// What the two families of attention kernels are told; attention.cu checks the operands.

#include <cstdint>

#include "core/arena.h"
#include "ops/ops.h"

namespace tessera::cuda {

class Device;

/// One call of CudaOps::attention.
struct AttentionCall {
    const Tensor& q;  ///< [T, H, d]
    const Batch& batch;
    const KvView& cache;
    const AttentionParams& params;
    const Tensor& out;  ///< [T, H * d], may be q

    int32_t heads() const { return static_cast<int32_t>(q.shape[1]); }
    int32_t kv_heads() const { return static_cast<int32_t>(cache.keys.shape[1]); }
    int32_t group() const { return heads() / kv_heads(); }
    /// By query head; null: none.
    const float* sinks() const { return params.sinks.as<float>(); }
    int32_t head_size() const { return static_cast<int32_t>(q.shape[2]); }
};

/// Head sizes that attend_prompt() takes.
inline constexpr int32_t kLargestPromptHead = 256;

/// Rows [0, prompt_rows), operands rounded to 16 bits.
void attend_prompt(Device& device, const AttentionCall& call, int32_t prompt_rows);

/// Memory for the partial sums of `rows` generated rows; smaller for less rows or fewer keys.
struct SplitScratch {
    float* sums = nullptr;   ///< [rows of a pass, H, splits, padded head size]
    float* marks = nullptr;  ///< [rows of a pass, H, splits, 2]: largest score, sum of exponentials
    int32_t splits = 0;
    int32_t rows_a_pass = 0;
};
SplitScratch allocate_splits(Arena& arena, const AttentionCall& call, int32_t rows);

/// Rows [first_row, T) in f32.
void attend_generated(Device& device,
                      const AttentionCall& call,
                      int32_t first_row,
                      const SplitScratch& scratch);

}  // namespace tessera::cuda
