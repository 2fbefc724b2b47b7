#pragma once
// The gated delta net mixer (arXiv 2412.06464) as qwen3.5 uses it: projections, short convolution,
// gated delta rule, gated norm, output projection.

#include "models/model.h"
#include "ops/ops.h"

namespace tessera {

struct DeltaNetWeights {
    Tensor norm;         ///< [width]
    Weight qkv;          ///< [channels, width]: rows of q, k (key heads), v (value heads)
    Weight z;            ///< [value_heads * value_size, width]
    Weight alpha, beta;  ///< [value_heads, width]
    Tensor taps;         ///< [channels, taps]
    Tensor dt_bias;      ///< [value_heads]
    Tensor rate;         ///< [value_heads], -exp(A_log)
    Tensor gain;         ///< [value_size]
    Weight out;          ///< [width, value_heads * value_size]
};

/// x [T, width] += mixer(norm x). Value head h belongs to key head h % key_heads.
void delta_net_block(Ops& ops,
                     Exec& ex,
                     const DeltaNetWeights& w,
                     const RecurrentSpec& spec,
                     float norm_eps,
                     const Tensor& x,
                     const Batch& batch,
                     const RecurrentView& memory);

}  // namespace tessera
