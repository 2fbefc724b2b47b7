#include "models/blocks/delta_net.h"

#include <array>

namespace tessera {
namespace {

/// Of the original model: inside the root of the norm of q and k.
constexpr float kL2Eps = 1e-6f;

/// Columns [first, first + heads * size) of x [T, C] as [T, heads, size].
Tensor head_columns(const Tensor& x, int64_t first, int64_t heads, int64_t size) {
    Tensor view = x;
    view.data = x.data == nullptr ? nullptr : x.as<float>() + first;
    view.rank = 3;
    view.shape = {x.rows(), heads, size, 1};
    view.stride = {x.stride[0], size, 1, 0};
    return view;
}

}  // namespace

void delta_net_block(Ops& ops,
                     Exec& ex,
                     const DeltaNetWeights& w,
                     const RecurrentSpec& spec,
                     float norm_eps,
                     const Tensor& x,
                     const Batch& batch,
                     const RecurrentView& memory) {
    Scope scope(ex.arena);
    const int64_t rows = x.rows();
    const int64_t heads = spec.value_heads;
    const int64_t keys = int64_t{spec.key_heads} * spec.key_size;
    const Tensor z = ex.arena.allocate(DType::kF32, {rows, heads * spec.value_size});
    const Tensor mixed = ex.arena.allocate(DType::kF32, {rows, heads, spec.value_size});
    {
        Scope input_scope(ex.arena);
        const Tensor u = ex.arena.allocate(DType::kF32, {rows, spec.channels});
        const Tensor a = ex.arena.allocate(DType::kF32, {rows, heads});
        const Tensor b = ex.arena.allocate(DType::kF32, {rows, heads});
        {
            Scope norm_scope(ex.arena);
            const GemmInput h = ops.rms_norm_input(
                ex, x, w.norm, norm_eps, w.qkv.wants | w.z.wants | w.alpha.wants | w.beta.wants);
            const std::array<const Weight*, 4> weights = {&w.qkv, &w.z, &w.alpha, &w.beta};
            const std::array<Tensor, 4> biases = {};
            const std::array<Tensor, 4> outs = {u, z, a, b};
            ops.linear_many(ex, h, weights, biases, outs);
        }
        const Tensor qkv = ex.arena.allocate(DType::kF32, {rows, spec.channels});
        ops.causal_conv(ex, u, w.taps, batch, memory, qkv);
        const Tensor q = head_columns(qkv, 0, spec.key_heads, spec.key_size);
        const Tensor k = head_columns(qkv, keys, spec.key_heads, spec.key_size);
        const Tensor v = head_columns(qkv, 2 * keys, heads, spec.value_size);
        ops.l2_norm(ex, q, kL2Eps);
        ops.l2_norm(ex, k, kL2Eps);
        ops.delta_gates(ex, a, b, w.dt_bias, w.rate, a, b);
        ops.gated_delta_rule(ex, q, k, v, a, b, batch, memory, mixed);
    }
    const GemmInput g = ops.gated_rms_norm_input(
        ex, mixed, w.gain, norm_eps, z.reshape({rows, heads, spec.value_size}), w.out.wants);
    ops.linear(ex, g, w.out, Tensor{}, x, Accumulate::kAdd);
}

}  // namespace tessera
