#include "models/blocks/delta_net.h"

#include <array>

namespace tessera {
namespace {

/// Of the original model: inside the root of the norm of q and k.
constexpr float kL2Eps = 1e-6f;

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
        const Ops::DeltaNetInput how{.taps = w.taps,
                                     .bias = w.dt_bias,
                                     .rate = w.rate,
                                     .eps = kL2Eps,
                                     .key_heads = spec.key_heads,
                                     .key_size = spec.key_size};
        ops.delta_net_input(ex, u, a, b, how, batch, memory, qkv);
        const Tensor q = qkv.column_heads(0, spec.key_heads, spec.key_size);
        const Tensor k = qkv.column_heads(keys, spec.key_heads, spec.key_size);
        const Tensor v = qkv.column_heads(2 * keys, heads, spec.value_size);
        ops.gated_delta_rule(ex, q, k, v, a, b, batch, memory, mixed);
    }
    const GemmInput g = ops.gated_rms_norm_input(
        ex, mixed, w.gain, norm_eps, z.reshape({rows, heads, spec.value_size}), w.out.wants);
    ops.linear(ex, g, w.out, Tensor{}, x, Accumulate::kAdd);
}

}  // namespace tessera
