#pragma once
// The gated feed-forward block: x += down(act(gate(norm x)) * up(norm x)).

#include "ops/ops.h"

namespace tessera {

struct FfnWeights {
    Tensor norm;            ///< [width]
    Weight gate, up, down;  ///< [ffn, width] twice, [width, ffn]
};

/// x [T, width] is updated in place.
void ffn_block(Ops& ops, Exec& ex, const FfnWeights& w, float norm_eps, Glu kind, const Tensor& x);

}  // namespace tessera
