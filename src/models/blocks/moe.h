#pragma once
// The mixture-of-experts feed-forward block: every token goes through the experts that the router
// chooses and, where the model has one, a shared expert.

#include "ops/ops.h"

namespace tessera {

struct MoeWeights {
    Tensor norm;            ///< [width]
    Weight router;          ///< [experts, width]
    Tensor selection_bias;  ///< [experts], added for the choice only; absent: none
    Weight gate, up, down;  ///< experts x [ffn, width] twice, experts x [width, ffn]
    Weight shared_gate, shared_up, shared_down;  ///< absent: no shared expert
    Weight shared_router;  ///< [1, width]: the shared expert counts sigmoid(router x); absent: 1
};

struct MoeShape {
    int32_t experts = 0;
    int32_t choices = 0;  ///< experts a token goes through
    RouteParams route;
};

/// x [T, width] is updated in place.
void moe_block(Ops& ops,
               Exec& ex,
               const MoeWeights& w,
               const MoeShape& shape,
               float norm_eps,
               const Tensor& x);

}  // namespace tessera
