#include "models/blocks/attention.h"

#include <array>

namespace tessera {
namespace {

Ops::QkvRope qkv_rope(const AttentionWeights& w, const AttentionShape& shape) {
    return {.q_gain = w.q_norm,
            .k_gain = w.k_norm,
            .eps = shape.norm_eps,
            .rope = shape.rope,
            .freq_factors = shape.freq_factors};
}

}  // namespace

Tensor attention_heads(Ops& ops,
                       Exec& ex,
                       const AttentionWeights& w,
                       const AttentionShape& shape,
                       const Tensor& x,
                       const Batch& batch,
                       const KvView& kv) {
    const int64_t rows = x.rows();
    const int64_t d = shape.head_size;
    const Tensor q = ex.arena.allocate(DType::kF32, {rows, shape.heads * d});
    Scope scope(ex.arena);
    const Tensor k = ex.arena.allocate(DType::kF32, {rows, shape.kv_heads * d});
    const Tensor v = ex.arena.allocate(DType::kF32, {rows, shape.kv_heads * d});
    {
        Scope input_scope(ex.arena);
        const GemmInput h =
            ops.rms_norm_input(ex, x, w.norm, shape.norm_eps, w.q.wants | w.k.wants | w.v.wants);
        const std::array<const Weight*, 3> weights = {&w.q, &w.k, &w.v};
        const std::array<Tensor, 3> biases = {w.q_bias, w.k_bias, w.v_bias};
        const std::array<Tensor, 3> outs = {q, k, v};
        ops.linear_many(ex, h, weights, biases, outs);
    }

    const Tensor q_heads = q.reshape({rows, shape.heads, d});
    ops.qk_norm_rope_store(ex, q_heads, k.reshape({rows, shape.kv_heads, d}),
                           v.reshape({rows, shape.kv_heads, d}), qkv_rope(w, shape), batch, kv);
    ops.attention(ex, q_heads, batch, kv, shape.params, q);
    return q;
}

void store_keys_values(Ops& ops,
                       Exec& ex,
                       const AttentionWeights& w,
                       const AttentionShape& shape,
                       const Tensor& x,
                       const Batch& batch,
                       const KvView& kv) {
    Scope scope(ex.arena);
    const int64_t rows = x.rows(), d = shape.head_size;
    const Tensor k = ex.arena.allocate(DType::kF32, {rows, shape.kv_heads, d});
    const Tensor v = ex.arena.allocate(DType::kF32, {rows, shape.kv_heads, d});
    const GemmInput h = ops.rms_norm_input(ex, x, w.norm, shape.norm_eps, w.k.wants | w.v.wants);
    const std::array<const Weight*, 2> weights = {&w.k, &w.v};
    const std::array<Tensor, 2> biases = {};
    const std::array<Tensor, 2> outs = {k.reshape({rows, shape.kv_heads * d}),
                                        v.reshape({rows, shape.kv_heads * d})};
    ops.linear_many(ex, h, weights, biases, outs);
    if (!w.k_norm.absent()) ops.rms_norm(ex, k, w.k_norm, shape.norm_eps, k);
    ops.rope(ex, k, batch.positions, shape.freq_factors, shape.rope);
    ops.kv_store(ex, k, v, batch, kv);
}

void attention_output(
    Ops& ops, Exec& ex, const AttentionWeights& w, const Tensor& heads, const Tensor& x) {
    Scope scope(ex.arena);
    const GemmInput input = ops.prepare(ex, heads, w.out.wants);
    ops.linear(ex, input, w.out, w.out_bias, x, Accumulate::kAdd);
}

void gated_attention_block(Ops& ops,
                           Exec& ex,
                           const AttentionWeights& w,
                           const AttentionShape& shape,
                           const Tensor& x,
                           const Batch& batch,
                           const KvView& kv) {
    Scope scope(ex.arena);
    const int64_t rows = x.rows();
    const int64_t d = shape.head_size;
    const Tensor q_gate = ex.arena.allocate(DType::kF32, {rows, shape.heads, 2 * d});
    const Tensor heads = ex.arena.allocate(DType::kF32, {rows, shape.heads * d});
    Tensor q = q_gate;
    q.shape[2] = d;
    Tensor gate = q;
    if (gate.data != nullptr) gate.data = q_gate.as<float>() + d;
    {
        Scope input_scope(ex.arena);
        const Tensor k = ex.arena.allocate(DType::kF32, {rows, shape.kv_heads, d});
        const Tensor v = ex.arena.allocate(DType::kF32, {rows, shape.kv_heads, d});
        {
            Scope norm_scope(ex.arena);
            const GemmInput h = ops.rms_norm_input(ex, x, w.norm, shape.norm_eps,
                                                   w.q.wants | w.k.wants | w.v.wants);
            const std::array<const Weight*, 3> weights = {&w.q, &w.k, &w.v};
            const std::array<Tensor, 3> biases = {};
            const std::array<Tensor, 3> outs = {q_gate.reshape({rows, shape.heads * 2 * d}),
                                                k.reshape({rows, shape.kv_heads * d}),
                                                v.reshape({rows, shape.kv_heads * d})};
            ops.linear_many(ex, h, weights, biases, outs);
        }
        ops.qk_norm_rope_store(ex, q, k, v, qkv_rope(w, shape), batch, kv);
        ops.attention(ex, q, batch, kv, shape.params, heads);
    }
    const GemmInput gated =
        ops.glu_input(ex, gate, heads.reshape({rows, shape.heads, d}), Glu::kSigmoid, w.out.wants);
    ops.linear(ex, gated, w.out, Tensor{}, x, Accumulate::kAdd);
}

}  // namespace tessera
