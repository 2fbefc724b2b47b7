#pragma once
// Multi-head attention with grouped keys, rotary positions and optional biases and per-head norms.

#include "ops/ops.h"

namespace tessera {

struct AttentionWeights {
    Tensor norm;          ///< [width]
    Weight q, k, v, out;  ///< [heads * d, width], [kv_heads * d, width] twice, [width, heads * d]
    Tensor q_bias, k_bias, v_bias, out_bias;  ///< absent: none
    Tensor q_norm, k_norm;                    ///< [d], absent: none
};

struct AttentionShape {
    int32_t heads = 0;
    int32_t kv_heads = 0;
    int32_t head_size = 0;
    float norm_eps = 0.0f;
    RopeParams rope;
    Tensor freq_factors;  ///< [rotary/2] or absent
    AttentionParams params;
};

/// Norm, projections, rotation, store, attention: the concatenated heads [T, heads * d], before the
/// output projection. x [T, width] is not changed.
Tensor attention_heads(Ops& ops,
                       Exec& ex,
                       const AttentionWeights& w,
                       const AttentionShape& shape,
                       const Tensor& x,
                       const Batch& batch,
                       const KvView& kv);

/// Only what later rows see of these: norm, key and value projections without biases, rotation and
/// store. x [T, width] is not changed.
void store_keys_values(Ops& ops,
                       Exec& ex,
                       const AttentionWeights& w,
                       const AttentionShape& shape,
                       const Tensor& x,
                       const Batch& batch,
                       const KvView& kv);

/// x += heads * out^T (+ bias).
void attention_output(
    Ops& ops, Exec& ex, const AttentionWeights& w, const Tensor& heads, const Tensor& x);

/// Gated attention (qwen3.5): the rows of w.q are [heads][2][d], a query and a gate per head; x +=
/// (heads * sigmoid(gate)) * out^T. No biases.
void gated_attention_block(Ops& ops,
                           Exec& ex,
                           const AttentionWeights& w,
                           const AttentionShape& shape,
                           const Tensor& x,
                           const Batch& batch,
                           const KvView& kv);

}  // namespace tessera
