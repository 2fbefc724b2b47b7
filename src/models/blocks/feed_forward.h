#pragma once
// What stands behind the mixer of a layer: one gated feed-forward block, or experts.

#include "models/blocks/ffn.h"
#include "models/blocks/moe.h"

namespace tessera {

struct FeedForwardWeights {
    FfnWeights dense;
    MoeWeights moe;  ///< instead, in a model with experts
};

/// x [T, width] is updated in place; with experts when shape.experts > 0.
void feed_forward_block(Ops& ops,
                        Exec& ex,
                        const FeedForwardWeights& w,
                        const MoeShape& shape,
                        float norm_eps,
                        const Tensor& x);

}  // namespace tessera
