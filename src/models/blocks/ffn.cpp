#include "models/blocks/ffn.h"

namespace tessera {

void ffn_block(Ops& ops, Exec& ex, const FfnWeights& w, float norm_eps, Glu kind, const Tensor& x) {
    Scope scope(ex.arena);
    const GemmInput h = ops.rms_norm_input(ex, x, w.norm, norm_eps, w.gate.wants | w.up.wants);
    const GemmInput g = ops.linear_glu(ex, h, w.gate, w.up, kind, w.down.wants);
    ops.linear(ex, g, w.down, Tensor{}, x, Accumulate::kAdd);
}

}  // namespace tessera
