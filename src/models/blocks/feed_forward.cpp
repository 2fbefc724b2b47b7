#include "models/blocks/feed_forward.h"

namespace tessera {

void feed_forward_block(Ops& ops,
                        Exec& ex,
                        const FeedForwardWeights& w,
                        const MoeShape& shape,
                        float norm_eps,
                        const Tensor& x) {
    if (shape.experts > 0) {
        moe_block(ops, ex, w.moe, shape, norm_eps, x);
    } else {
        ffn_block(ops, ex, w.dense, norm_eps, Glu::kSwiGlu, x);
    }
}

}  // namespace tessera
