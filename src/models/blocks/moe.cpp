#include "models/blocks/moe.h"

namespace tessera {
namespace {

/// x += sigmoid(router h) * down(silu(gate h) * up h), or without the factor.
void shared_expert(Ops& ops, Exec& ex, const MoeWeights& w, const GemmInput& h, const Tensor& x) {
    Scope scope(ex.arena);
    const GemmInput g =
        ops.linear_glu(ex, h, w.shared_gate, w.shared_up, Glu::kSwiGlu, w.shared_down.wants);
    if (w.shared_router.absent()) {
        ops.linear(ex, g, w.shared_down, Tensor{}, x, Accumulate::kAdd);
        return;
    }
    const Tensor y = ex.arena.allocate(DType::kF32, {x.rows(), x.cols()});
    ops.linear(ex, g, w.shared_down, Tensor{}, y, Accumulate::kNo);
    // A router of one expert: its weight is the sigmoid of its logit.
    const Tensor logit = ex.arena.allocate(DType::kF32, {x.rows(), 1});
    const Tensor id = ex.arena.allocate(DType::kI32, {x.rows(), 1});
    const Tensor weight = ex.arena.allocate(DType::kF32, {x.rows(), 1});
    ops.linear(ex, h, w.shared_router, Tensor{}, logit, Accumulate::kNo);
    ops.route(ex, logit, Tensor{}, {.sigmoid = true, .normalize = false}, id, weight);
    ops.combine(ex, y, weight, x, Accumulate::kAdd);
}

ActWants wants_of(const MoeWeights& w) {
    ActWants wants = w.router.wants | w.gate.wants | w.up.wants;
    if (w.shared_gate.absent()) return wants;
    wants = wants | w.shared_gate.wants | w.shared_up.wants;
    return w.shared_router.absent() ? wants : wants | w.shared_router.wants;
}

}  // namespace

void moe_block(Ops& ops,
               Exec& ex,
               const MoeWeights& w,
               const MoeShape& shape,
               float norm_eps,
               const Tensor& x) {
    Scope scope(ex.arena);
    const int64_t rows = x.rows();
    const GemmInput h = ops.rms_norm_input(ex, x, w.norm, norm_eps, wants_of(w));
    const Tensor logits = ex.arena.allocate(DType::kF32, {rows, shape.experts});
    const Tensor ids = ex.arena.allocate(DType::kI32, {rows, shape.choices});
    const Tensor weights = ex.arena.allocate(DType::kF32, {rows, shape.choices});
    ops.linear(ex, h, w.router, Tensor{}, logits, Accumulate::kNo);
    ops.route(ex, logits, w.selection_bias, shape.route, ids, weights);
    const ExpertWork work = ops.group_experts(ex, ids, shape.experts);
    const GemmInput g =
        ops.linear_experts_glu(ex, h, work, w.gate, w.up, Glu::kSwiGlu, w.down.wants);
    const Tensor y = ex.arena.allocate(DType::kF32, {rows * shape.choices, x.cols()});
    ops.linear_experts(ex, g, work, w.down, y);
    ops.combine(ex, y, weights, x, Accumulate::kAdd);
    if (!w.shared_gate.absent()) shared_expert(ops, ex, w, h, x);
}

}  // namespace tessera
