// Default bodies of the fused ops: the composition that every override is tested against.
#include "ops/ops.h"

#include <algorithm>
#include <cstring>

#include "ops/checks.h"

namespace tessera {

namespace {

/// Whether linear_glu rounds the values of prompt rows to bf16.
bool rounds_gated(ActWants wants) {
    constexpr unsigned kRounded = 1u << static_cast<unsigned>(ActFormat::kNvfp4) |
                                  1u << static_cast<unsigned>(ActFormat::kFp4);
    return (wants.prompt & kRounded) != 0;
}

}  // namespace

OpCount& count_of(std::vector<OpCount>& counts,
                  std::string_view name,
                  Operands operands,
                  std::string_view fallback) {
    for (OpCount& count : counts)
        if (count.name == name && count.operands == operands && count.fallback == fallback)
            return count;
    OpCount& fresh = counts.emplace_back();
    fresh.name = name;
    fresh.operands = operands;
    fresh.fallback = fallback;
    return fresh;
}

void Ops::copy_to_device(void* to, const void* from, size_t bytes) {
    std::memcpy(to, from, bytes);
}

void Ops::copy_to_host(void* to, const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
}

Tensor Ops::stage(Exec&, const Tensor& host) {
    return host;
}

std::unique_ptr<Recording> Ops::record(const std::function<void()>&) {
    return nullptr;
}

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
    return join(ex, gated, other, kind, wants);
}

GemmInput Ops::join(Exec& ex, const Tensor& gated, const Tensor& other, Glu kind, ActWants wants) {
    if (!rounds_gated(wants)) return glu_input(ex, gated, other, kind, wants);
    glu(ex, gated, other, kind, gated);
    round_gated(ex, gated, wants);
    return prepare(ex, gated, wants);
}

void Ops::round_gated(Exec& ex, const Tensor& gated, ActWants wants) {
    const int64_t prompt = std::min<int64_t>(ex.prompt_rows, gated.rows());
    if (!rounds_gated(wants) || prompt == 0) return;
    const Scope scope(ex.arena);
    const Tensor rows = gated.slice_rows(0, prompt);
    const Tensor rounded = ex.arena.allocate(DType::kBF16, {prompt, gated.cols()});
    copy(ex, rows, rounded);
    copy(ex, rounded, rows);
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

void Ops::advance_batch(Exec& ex, const Tensor& ids, const Batch& batch) {
    check_advance_batch(ids, batch);
    if (ex.planning()) return;
    std::copy_n(ids.as<int32_t>(), ids.elements(), batch.tokens.as<int32_t>());
    for (int32_t& position :
         std::span(batch.positions.as<int32_t>(), static_cast<size_t>(batch.positions.elements())))
        ++position;
}

GemmInput Ops::glu_input(Exec& ex, const Tensor& gate, const Tensor& up, Glu kind, ActWants wants) {
    const int64_t rows = gate.rows();
    const int64_t heads = gate.rank == 3 ? gate.shape[1] : 1;
    const Tensor gated = ex.arena.allocate(DType::kF32, {rows, heads * gate.cols()});
    glu(ex, gate, up, kind, gate.rank == 3 ? gated.reshape({rows, heads, gate.cols()}) : gated);
    return prepare(ex, gated, wants);
}

void Ops::delta_net_input(Exec& ex,
                          const Tensor& u,
                          const Tensor& a,
                          const Tensor& b,
                          const DeltaNetInput& how,
                          const Batch& batch,
                          const RecurrentView& memory,
                          const Tensor& qkv) {
    causal_conv(ex, u, how.taps, batch, memory, qkv);
    const int64_t keys = how.key_heads * how.key_size;
    l2_norm(ex, qkv.column_heads(0, how.key_heads, how.key_size), how.eps);
    l2_norm(ex, qkv.column_heads(keys, how.key_heads, how.key_size), how.eps);
    delta_gates(ex, a, b, how.bias, how.rate, a, b);
}

GemmInput Ops::gated_rms_norm_input(
    Exec& ex, const Tensor& x, const Tensor& gain, float eps, const Tensor& z, ActWants wants) {
    const Tensor normed = ex.arena.allocate(DType::kF32, {x.rows(), x.shape[1], x.cols()});
    rms_norm(ex, x, gain, eps, normed);
    return glu_input(ex, z, normed, Glu::kSwiGlu, wants);
}

GemmInput Ops::linear_experts_glu(Exec& ex,
                                  const GemmInput& x,
                                  const ExpertWork& work,
                                  const Weight& gate,
                                  const Weight& up,
                                  Glu kind,
                                  ActWants wants) {
    const int64_t pairs = work.pairs.rows();
    const Tensor gated = ex.arena.allocate(DType::kF32, {pairs, gate.rows});
    const Tensor other = ex.arena.allocate(DType::kF32, {pairs, up.rows});
    linear_experts(ex, x, work, gate, gated);
    linear_experts(ex, x, work, up, other);
    Exec pair_rows{.arena = ex.arena, .prompt_rows = ex.prompt_rows * work.choices};
    return join(pair_rows, gated, other, kind, wants);
}

}  // namespace tessera
