#include "op_cases/hosted_ops.h"

#include <algorithm>
#include <utility>

#include "op_cases/hosted_call.h"

namespace tessera::op_cases {

HostedOps::HostedOps(std::unique_ptr<Ops> inner, bool recorded)
    : inner_(std::move(inner)), recorded_(recorded) {}
HostedOps::~HostedOps() = default;

std::byte* HostedOps::reserve(Space& space, size_t bytes) {
    if (bytes > space.bytes) {
        space.bytes = std::max(bytes, space.bytes + space.bytes / 2);
        space.base = inner_->allocate(space.bytes);
    }
    return space.base;
}

std::vector<std::string> HostedOps::take_faults() {
    return std::exchange(faults_, {});
}

HostedOps::Seconds HostedOps::take_seconds() {
    Seconds seconds;
    for (const OpCount& count : inner_->op_counts()) {
        seconds.all += count.seconds;
        if (count.name == "prepare") seconds.prepare += count.seconds;
    }
    inner_->reset_op_counts();
    return seconds;
}

std::byte* HostedOps::allocate(size_t bytes) {
    memory_.push_back(std::make_unique<std::byte[]>(bytes + 64));
    std::byte* base = memory_.back().get();
    return base + (64 - reinterpret_cast<uintptr_t>(base) % 64) % 64;
}

void HostedOps::embed(Exec& ex, const Tensor& ids, const Weight& table, const Tensor& out) {
    if (ex.planning()) return inner_->embed(ex, ids, table, out);
    Call call(*this, ex);
    call.add(ids);
    call.add(out);
    call.run("embed", true,
             [&](Exec& inner) { inner_->embed(inner, call.at(ids), table, call.at(out)); });
}

GemmInput HostedOps::prepare(Exec& ex, const Tensor& x, ActWants wants) {
    if (ex.planning()) return inner_->prepare(ex, x, wants);
    Call call(*this, ex);
    call.add(x);
    GemmInput result;
    call.run("prepare", true,
             [&](Exec& inner) { result = inner_->prepare(inner, call.at(x), wants); });
    return call.home(result);
}

void HostedOps::linear(Exec& ex,
                       const GemmInput& x,
                       const Weight& weight,
                       const Tensor& bias,
                       const Tensor& out,
                       Accumulate accumulate) {
    if (ex.planning()) return inner_->linear(ex, x, weight, bias, out, accumulate);
    Call call(*this, ex);
    call.add(x);
    call.add(bias);
    call.add(out);
    call.run("linear", true, [&](Exec& inner) {
        inner_->linear(inner, call.at(x), weight, call.at(bias), call.at(out), accumulate);
    });
}

GemmInput HostedOps::linear_glu(
    Exec& ex, const GemmInput& x, const Weight& gate, const Weight& up, Glu kind, ActWants wants) {
    if (ex.planning()) return inner_->linear_glu(ex, x, gate, up, kind, wants);
    Call call(*this, ex);
    call.add(x);
    GemmInput result;
    call.run("linear_glu", true, [&](Exec& inner) {
        result = inner_->linear_glu(inner, call.at(x), gate, up, kind, wants);
    });
    return call.home(result);
}

void HostedOps::rms_norm(
    Exec& ex, const Tensor& x, const Tensor& gain, float eps, const Tensor& out) {
    if (ex.planning()) return inner_->rms_norm(ex, x, gain, eps, out);
    Call call(*this, ex);
    call.add(x);
    call.add(gain);
    call.add(out);
    call.run("rms_norm", true, [&](Exec& inner) {
        inner_->rms_norm(inner, call.at(x), call.at(gain), eps, call.at(out));
    });
}

GemmInput HostedOps::rms_norm_input(
    Exec& ex, const Tensor& x, const Tensor& gain, float eps, ActWants wants) {
    if (ex.planning()) return inner_->rms_norm_input(ex, x, gain, eps, wants);
    Call call(*this, ex);
    call.add(x);
    call.add(gain);
    GemmInput result;
    call.run("rms_norm_input", true, [&](Exec& inner) {
        result = inner_->rms_norm_input(inner, call.at(x), call.at(gain), eps, wants);
    });
    return call.home(result);
}

void HostedOps::glu(Exec& ex, const Tensor& gate, const Tensor& up, Glu kind, const Tensor& out) {
    if (ex.planning()) return inner_->glu(ex, gate, up, kind, out);
    Call call(*this, ex);
    call.add(gate);
    call.add(up);
    call.add(out);
    call.run("glu", true, [&](Exec& inner) {
        inner_->glu(inner, call.at(gate), call.at(up), kind, call.at(out));
    });
}

GemmInput HostedOps::glu_input(
    Exec& ex, const Tensor& gate, const Tensor& up, Glu kind, ActWants wants) {
    if (ex.planning()) return inner_->glu_input(ex, gate, up, kind, wants);
    Call call(*this, ex);
    call.add(gate);
    call.add(up);
    GemmInput result;
    call.run("glu_input", true, [&](Exec& inner) {
        result = inner_->glu_input(inner, call.at(gate), call.at(up), kind, wants);
    });
    return call.home(result);
}

void HostedOps::l2_norm(Exec& ex, const Tensor& x, float eps) {
    if (ex.planning()) return inner_->l2_norm(ex, x, eps);
    Call call(*this, ex);
    call.add(x);
    call.run("l2_norm", true, [&](Exec& inner) { inner_->l2_norm(inner, call.at(x), eps); });
}

void HostedOps::add(Exec& ex, const Tensor& a, const Tensor& b, const Tensor& out) {
    if (ex.planning()) return inner_->add(ex, a, b, out);
    Call call(*this, ex);
    call.add(a);
    call.add(b);
    call.add(out);
    call.run("add", true,
             [&](Exec& inner) { inner_->add(inner, call.at(a), call.at(b), call.at(out)); });
}

void HostedOps::softmax(
    Exec& ex, const Tensor& x, const Tensor& visible, float scale, const Tensor& out) {
    if (ex.planning()) return inner_->softmax(ex, x, visible, scale, out);
    Call call(*this, ex);
    call.add(x);
    call.add(visible);
    call.add(out);
    call.run("softmax", true, [&](Exec& inner) {
        inner_->softmax(inner, call.at(x), call.at(visible), scale, call.at(out));
    });
}

void HostedOps::rope(Exec& ex,
                     const Tensor& x,
                     const Tensor& positions,
                     const Tensor& freq_factors,
                     const RopeParams& params) {
    if (ex.planning()) return inner_->rope(ex, x, positions, freq_factors, params);
    Call call(*this, ex);
    call.add(x);
    call.add(positions);
    call.add(freq_factors);
    call.run("rope", true, [&](Exec& inner) {
        inner_->rope(inner, call.at(x), call.at(positions), call.at(freq_factors), params);
    });
}

void HostedOps::copy(Exec& ex, const Tensor& from, const Tensor& to) {
    if (ex.planning()) return inner_->copy(ex, from, to);
    Call call(*this, ex);
    call.add(from);
    call.add(to);
    call.run("copy", true, [&](Exec& inner) { inner_->copy(inner, call.at(from), call.at(to)); });
}

void HostedOps::concat(
    Exec& ex, const Tensor& a, const Tensor& b, int32_t axis, const Tensor& out) {
    if (ex.planning()) return inner_->concat(ex, a, b, axis, out);
    Call call(*this, ex);
    call.add(a);
    call.add(b);
    call.add(out);
    call.run("concat", true, [&](Exec& inner) {
        inner_->concat(inner, call.at(a), call.at(b), axis, call.at(out));
    });
}

void HostedOps::gather_rows(Exec& ex, const Tensor& x, const Tensor& ids, const Tensor& out) {
    if (ex.planning()) return inner_->gather_rows(ex, x, ids, out);
    Call call(*this, ex);
    call.add(x);
    call.add(ids);
    call.add(out);
    call.run("gather_rows", true, [&](Exec& inner) {
        inner_->gather_rows(inner, call.at(x), call.at(ids), call.at(out));
    });
}

void HostedOps::kv_store(
    Exec& ex, const Tensor& k, const Tensor& v, const Batch& batch, const KvView& cache) {
    if (ex.planning()) return inner_->kv_store(ex, k, v, batch, cache);
    Call call(*this, ex);
    call.add(k);
    call.add(v);
    call.add(batch);
    call.add(cache);
    call.run("kv_store", true, [&](Exec& inner) {
        inner_->kv_store(inner, call.at(k), call.at(v), call.at(batch), call.at(cache));
    });
}

void HostedOps::attention(Exec& ex,
                          const Tensor& q,
                          const Batch& batch,
                          const KvView& cache,
                          const AttentionParams& params,
                          const Tensor& out) {
    if (ex.planning()) return inner_->attention(ex, q, batch, cache, params, out);
    Call call(*this, ex);
    call.add(q);
    call.add(batch);
    call.add(cache);
    call.add(params.sinks);
    call.add(out);
    call.run("attention", true, [&](Exec& inner) {
        AttentionParams there = params;
        there.sinks = call.at(params.sinks);
        inner_->attention(inner, call.at(q), call.at(batch), call.at(cache), there, call.at(out));
    });
}

void HostedOps::causal_conv(Exec& ex,
                            const Tensor& u,
                            const Tensor& taps,
                            const Batch& batch,
                            const RecurrentView& memory,
                            const Tensor& out) {
    if (ex.planning()) return inner_->causal_conv(ex, u, taps, batch, memory, out);
    Call call(*this, ex);
    call.add(u);
    call.add(taps);
    call.add(batch);
    call.add(memory);
    call.add(out);
    call.run("causal_conv", true, [&](Exec& inner) {
        inner_->causal_conv(inner, call.at(u), call.at(taps), call.at(batch), call.at(memory),
                            call.at(out));
    });
}

void HostedOps::delta_gates(Exec& ex,
                            const Tensor& a,
                            const Tensor& b,
                            const Tensor& bias,
                            const Tensor& rate,
                            const Tensor& log_decay,
                            const Tensor& beta) {
    if (ex.planning()) return inner_->delta_gates(ex, a, b, bias, rate, log_decay, beta);
    Call call(*this, ex);
    call.add(a);
    call.add(b);
    call.add(bias);
    call.add(rate);
    call.add(log_decay);
    call.add(beta);
    call.run("delta_gates", true, [&](Exec& inner) {
        inner_->delta_gates(inner, call.at(a), call.at(b), call.at(bias), call.at(rate),
                            call.at(log_decay), call.at(beta));
    });
}

void HostedOps::delta_net_input(Exec& ex,
                                const Tensor& u,
                                const Tensor& a,
                                const Tensor& b,
                                const DeltaNetInput& how,
                                const Batch& batch,
                                const RecurrentView& memory,
                                const Tensor& qkv) {
    if (ex.planning()) return inner_->delta_net_input(ex, u, a, b, how, batch, memory, qkv);
    Call call(*this, ex);
    for (const Tensor* operand : {&u, &a, &b, &how.taps, &how.bias, &how.rate, &qkv})
        call.add(*operand);
    call.add(batch);
    call.add(memory);
    call.run("delta_net_input", true, [&](Exec& inner) {
        DeltaNetInput there = how;
        there.taps = call.at(how.taps);
        there.bias = call.at(how.bias);
        there.rate = call.at(how.rate);
        inner_->delta_net_input(inner, call.at(u), call.at(a), call.at(b), there, call.at(batch),
                                call.at(memory), call.at(qkv));
    });
}

void HostedOps::gated_delta_rule(Exec& ex,
                                 const Tensor& q,
                                 const Tensor& k,
                                 const Tensor& v,
                                 const Tensor& log_decay,
                                 const Tensor& beta,
                                 const Batch& batch,
                                 const RecurrentView& memory,
                                 const Tensor& out) {
    if (ex.planning())
        return inner_->gated_delta_rule(ex, q, k, v, log_decay, beta, batch, memory, out);
    Call call(*this, ex);
    call.add(q);
    call.add(k);
    call.add(v);
    call.add(log_decay);
    call.add(beta);
    call.add(batch);
    call.add(memory);
    call.add(out);
    call.run("gated_delta_rule", true, [&](Exec& inner) {
        inner_->gated_delta_rule(inner, call.at(q), call.at(k), call.at(v), call.at(log_decay),
                                 call.at(beta), call.at(batch), call.at(memory), call.at(out));
    });
}

void HostedOps::accept_recurrent(Exec& ex,
                                 const Tensor& slots,
                                 const Tensor& counts,
                                 const RecurrentView& memory) {
    if (ex.planning()) return inner_->accept_recurrent(ex, slots, counts, memory);
    Call call(*this, ex);
    call.add(slots);
    call.add(counts);
    call.add(memory);
    call.run("accept_recurrent", true, [&](Exec& inner) {
        inner_->accept_recurrent(inner, call.at(slots), call.at(counts), call.at(memory));
    });
}

GemmInput HostedOps::gated_rms_norm_input(
    Exec& ex, const Tensor& x, const Tensor& gain, float eps, const Tensor& z, ActWants wants) {
    if (ex.planning()) return inner_->gated_rms_norm_input(ex, x, gain, eps, z, wants);
    Call call(*this, ex);
    call.add(x);
    call.add(gain);
    call.add(z);
    GemmInput result;
    call.run("gated_rms_norm_input", true, [&](Exec& inner) {
        result =
            inner_->gated_rms_norm_input(inner, call.at(x), call.at(gain), eps, call.at(z), wants);
    });
    return call.home(result);
}

void HostedOps::route(Exec& ex,
                      const Tensor& logits,
                      const Tensor& bias,
                      const RouteParams& params,
                      const Tensor& ids,
                      const Tensor& weights) {
    if (ex.planning()) return inner_->route(ex, logits, bias, params, ids, weights);
    Call call(*this, ex);
    call.add(logits);
    call.add(bias);
    call.add(ids);
    call.add(weights);
    call.run("route", true, [&](Exec& inner) {
        inner_->route(inner, call.at(logits), call.at(bias), params, call.at(ids),
                      call.at(weights));
    });
}

ExpertWork HostedOps::group_experts(Exec& ex, const Tensor& ids, int32_t experts) {
    if (ex.planning()) return inner_->group_experts(ex, ids, experts);
    Call call(*this, ex);
    call.add(ids);
    ExpertWork result;
    call.run("group_experts", true,
             [&](Exec& inner) { result = inner_->group_experts(inner, call.at(ids), experts); });
    return {call.home(result.pairs), call.home(result.starts), result.choices};
}

void HostedOps::linear_experts(
    Exec& ex, const GemmInput& x, const ExpertWork& work, const Weight& weight, const Tensor& out) {
    if (ex.planning()) return inner_->linear_experts(ex, x, work, weight, out);
    Call call(*this, ex);
    call.add(x);
    call.add(work);
    call.add(out);
    call.run("linear_experts", true, [&](Exec& inner) {
        inner_->linear_experts(inner, call.at(x), call.at(work), weight, call.at(out));
    });
}

GemmInput HostedOps::linear_experts_glu(Exec& ex,
                                        const GemmInput& x,
                                        const ExpertWork& work,
                                        const Weight& gate,
                                        const Weight& up,
                                        Glu kind,
                                        ActWants wants) {
    if (ex.planning()) return inner_->linear_experts_glu(ex, x, work, gate, up, kind, wants);
    Call call(*this, ex);
    call.add(x);
    call.add(work);
    GemmInput result;
    call.run("linear_experts_glu", true, [&](Exec& inner) {
        result =
            inner_->linear_experts_glu(inner, call.at(x), call.at(work), gate, up, kind, wants);
    });
    return call.home(result);
}

void HostedOps::combine(
    Exec& ex, const Tensor& y, const Tensor& weights, const Tensor& out, Accumulate accumulate) {
    if (ex.planning()) return inner_->combine(ex, y, weights, out, accumulate);
    Call call(*this, ex);
    call.add(y);
    call.add(weights);
    call.add(out);
    call.run("combine", true, [&](Exec& inner) {
        inner_->combine(inner, call.at(y), call.at(weights), call.at(out), accumulate);
    });
}

void HostedOps::argmax(Exec& ex, const Tensor& logits, const Tensor& ids) {
    if (ex.planning()) return inner_->argmax(ex, logits, ids);
    Call call(*this, ex);
    call.add(logits);
    call.add(ids);
    call.run("argmax", true,
             [&](Exec& inner) { inner_->argmax(inner, call.at(logits), call.at(ids)); });
}

void HostedOps::sample(Exec& ex,
                       const Tensor& logits,
                       std::span<const SampleParams> params,
                       std::span<const std::span<const int32_t>> history,
                       std::span<const float> uniforms,
                       const Tensor& ids) {
    if (ex.planning()) return inner_->sample(ex, logits, params, history, uniforms, ids);
    Call call(*this, ex);
    call.add(logits);
    call.add(ids);
    call.run("sample", false, [&](Exec& inner) {
        inner_->sample(inner, call.at(logits), params, history, uniforms, call.at(ids));
    });
}

void HostedOps::linear_many(Exec& ex,
                            const GemmInput& x,
                            std::span<const Weight* const> weights,
                            std::span<const Tensor> biases,
                            std::span<const Tensor> outs) {
    if (ex.planning()) return inner_->linear_many(ex, x, weights, biases, outs);
    Call call(*this, ex);
    call.add(x);
    for (const Tensor& bias : biases) call.add(bias);
    for (const Tensor& out : outs) call.add(out);
    call.run("linear_many", true, [&](Exec& inner) {
        std::vector<Tensor> device_biases, device_outs;
        for (const Tensor& bias : biases) device_biases.push_back(call.at(bias));
        for (const Tensor& out : outs) device_outs.push_back(call.at(out));
        inner_->linear_many(inner, call.at(x), weights, device_biases, device_outs);
    });
}

void HostedOps::qk_norm_rope_store(Exec& ex,
                                   const Tensor& q,
                                   const Tensor& k,
                                   const Tensor& v,
                                   const QkvRope& how,
                                   const Batch& batch,
                                   const KvView& cache) {
    if (ex.planning()) return inner_->qk_norm_rope_store(ex, q, k, v, how, batch, cache);
    Call call(*this, ex);
    for (const Tensor* part : {&q, &k, &v, &how.q_gain, &how.k_gain, &how.freq_factors})
        call.add(*part);
    call.add(batch);
    call.add(cache);
    call.run("qk_norm_rope_store", true, [&](Exec& inner) {
        QkvRope there = how;
        for (Tensor* part : {&there.q_gain, &there.k_gain, &there.freq_factors})
            *part = call.at(*part);
        inner_->qk_norm_rope_store(inner, call.at(q), call.at(k), call.at(v), there, call.at(batch),
                                   call.at(cache));
    });
}

}  // namespace tessera::op_cases
