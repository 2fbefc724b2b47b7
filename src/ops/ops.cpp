// Default bodies of the fused ops: the composition that every override is tested against.
#include "ops/ops.h"

namespace tessera {

void Ops::linear_many(Exec& ex,
                      const GemmInput& x,
                      std::span<const Weight* const> weights,
                      std::span<const Tensor> biases,
                      std::span<const Tensor> outs) {
    check(weights.size() == outs.size() && weights.size() == biases.size(),
          "linear_many: operand counts");
    for (size_t i = 0; i < weights.size(); ++i)
        linear(ex, x, *weights[i], biases[i], outs[i], Accumulate::kNo);
}

GemmInput Ops::linear_glu(
    Exec& ex, const GemmInput& x, const Weight& gate, const Weight& up, Glu kind, ActWants wants) {
    const Tensor gated = ex.arena.allocate(DType::kF32, {x.rows, gate.rows});
    const Tensor other = ex.arena.allocate(DType::kF32, {x.rows, up.rows});
    linear(ex, x, gate, Tensor{}, gated, Accumulate::kNo);
    linear(ex, x, up, Tensor{}, other, Accumulate::kNo);
    glu(ex, gated, other, kind, gated);
    return prepare(ex, gated, wants);
}

GemmInput Ops::rms_norm_input(
    Exec& ex, const Tensor& x, const Tensor& gain, float eps, ActWants wants) {
    const Tensor normed = ex.arena.allocate(DType::kF32, {x.rows(), x.cols()});
    rms_norm(ex, x, gain, eps, normed);
    return prepare(ex, normed, wants);
}

void Ops::qk_norm_rope_store(Exec& ex,
                             const Tensor& q,
                             const Tensor& k,
                             const Tensor& v,
                             const QkvRope& how,
                             const Batch& batch,
                             const KvView& cache) {
    if (!how.q_gain.absent()) rms_norm(ex, q, how.q_gain, how.eps, q);
    if (!how.k_gain.absent()) rms_norm(ex, k, how.k_gain, how.eps, k);
    rope(ex, q, batch.positions, how.freq_factors, how.rope);
    rope(ex, k, batch.positions, how.freq_factors, how.rope);
    kv_store(ex, k, v, batch, cache);
}

}  // namespace tessera
