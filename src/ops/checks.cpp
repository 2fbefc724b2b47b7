#include "ops/checks.h"

namespace tessera {
namespace {

void check_gain(const Tensor& x, const Tensor& gain, const Caller& where) {
    check(x.dtype == DType::kF32, "norm: x is not F32", where);
    check(gain.absent() || gain.elements() == x.cols(), "norm: gain", where);
}

}  // namespace

bool same_shape(const Tensor& a, const Tensor& b) {
    return a.rank == b.rank && a.shape == b.shape;
}

void check_linear(const GemmInput& x,
                  const Weight& weight,
                  const Tensor& bias,
                  const Tensor& out,
                  const Caller& where) {
    check(weight.experts == 1 && x.cols == weight.cols && out.rank == 2 && out.rows() == x.rows &&
              out.cols() == weight.rows,
          "linear: shapes", where);
    check(bias.absent() || bias.elements() == weight.rows, "linear: bias", where);
}

void check_rms_norm(const Tensor& x, const Tensor& gain, const Tensor& out, const Caller& where) {
    check(same_shape(x, out) && x.rank >= 2, "rms_norm: shapes", where);
    check_gain(x, gain, where);
}

void check_rms_norm_input(const Tensor& x, const Tensor& gain, const Caller& where) {
    check(x.rank == 2, "rms_norm_input: shapes", where);
    check_gain(x, gain, where);
}

void check_gated_rms_norm_input(const Tensor& x,
                                const Tensor& gain,
                                const Tensor& z,
                                const Caller& where) {
    check(same_shape(x, z) && x.rank == 3, "gated_rms_norm_input: shapes", where);
    check_gain(x, gain, where);
}

void check_glu(const Tensor& gate, const Tensor& up, const Tensor& out, const Caller& where) {
    check(same_shape(gate, up) && same_shape(gate, out) && gate.rank >= 2, "glu: shapes", where);
}

void check_glu_input(const Tensor& gate, const Tensor& up, const Caller& where) {
    check(same_shape(gate, up) && gate.rank >= 2 && gate.rank <= 3, "glu_input: shapes", where);
}

void check_l2_norm(const Tensor& x, const Caller& where) {
    check(x.rank >= 2 && x.dtype == DType::kF32, "l2_norm: x is F32 with 2 to 4 axes", where);
}

void check_add(const Tensor& a, const Tensor& b, const Tensor& out, const Caller& where) {
    check(same_shape(a, b) && same_shape(a, out) && a.rank >= 2, "add: shapes", where);
}

void check_softmax(const Tensor& x, const Tensor& visible, const Tensor& out, const Caller& where) {
    check(same_shape(x, out) && x.rank == 2, "softmax: shapes", where);
    check(visible.absent() || (visible.rows() == x.rows() && visible.contiguous()),
          "softmax: visible", where);
}

void check_rope(const Tensor& x,
                const Tensor& positions,
                const Tensor& freq_factors,
                const RopeParams& params,
                const Caller& where) {
    check(x.rank == 3 && positions.rows() == x.rows() && positions.contiguous() &&
              (positions.rank == 1 || positions.cols() == 3),
          "rope: shapes", where);
    check(params.rotary % 2 == 0 && params.rotary <= x.cols(), "rope: rotary size", where);
    check(freq_factors.absent() || freq_factors.elements() == params.rotary / 2, "rope: factors",
          where);
}

void check_copy(const Tensor& from, const Tensor& to, const Caller& where) {
    check(same_shape(from, to) && from.rank >= 1, "copy: shapes", where);
    check(from.cols() % dtype_info(from.dtype).block_elements == 0 &&
              to.cols() % dtype_info(to.dtype).block_elements == 0,
          "copy: part of a block", where);
}

void check_concat(
    const Tensor& a, const Tensor& b, int32_t axis, const Tensor& out, const Caller& where) {
    check(a.rank == b.rank && a.rank == out.rank && axis >= 0 && axis < a.rank, "concat: axes",
          where);
    check(a.dtype == b.dtype && a.dtype == out.dtype && !is_block_format(a.dtype),
          "concat: formats", where);
    const auto joined = static_cast<size_t>(axis);
    for (size_t i = 0; i < 4; ++i) {
        const bool fits = i == joined ? a.shape[i] + b.shape[i] == out.shape[i]
                                      : a.shape[i] == out.shape[i] && b.shape[i] == out.shape[i];
        check(fits, "concat: shapes", where);
    }
}

void check_advance_batch(const Tensor& ids, const Batch& batch, const Caller& where) {
    for (const Tensor* part : {&ids, &batch.tokens, &batch.positions})
        check(part->rank == 1 && part->dtype == DType::kI32 && part->contiguous() &&
                  part->elements() == batch.row_count(),
              "advance_batch: a number for every row", where);
    check(batch.prompt_rows == 0 && batch.sequence_count() == batch.row_count(),
          "advance_batch: a generated row for every sequence", where);
}

void check_gather_rows(const Tensor& x, const Tensor& ids, const Tensor& out, const Caller& where) {
    check(x.rank == 2 && out.rank == 2 && x.cols() == out.cols() && ids.rows() == out.rows(),
          "gather_rows: shapes", where);
    check(ids.dtype == DType::kI32 && ids.contiguous(), "gather_rows: ids", where);
}

bool dense_slots(const Tensor& part) {
    if (part.rank == 4)
        return part.stride[2] == part.shape[3] && part.stride[1] == part.shape[2] * part.shape[3];
    return part.rank == 3 && part.stride[1] == part.shape[2];
}

void check_recurrent_batch(const Batch& batch, int64_t rows, const Caller& where) {
    const int64_t sequences = batch.sequence_count();
    check(batch.positions.rows() == rows && batch.slots.rows() == sequences, "recurrence: batch",
          where);
    check(batch.save_slots.absent() ||
              (batch.save_slots.rows() == sequences && batch.save_positions.rows() == sequences),
          "recurrence: saves", where);
    check(!batch.tentative || batch.prompt_rows == 0, "recurrence: tentative prompt rows", where);
}

void check_causal_conv(const Tensor& u,
                       const Tensor& taps,
                       const RecurrentView& memory,
                       const Tensor& out,
                       const Caller& where) {
    const int64_t channels = u.cols(), width = taps.cols();
    check(u.rank == 2 && out.rank == 2 && out.shape == u.shape && taps.rows() == channels &&
              taps.contiguous() && width >= 2 && width <= 8,
          "causal_conv: shapes", where);
    check(memory.conv.shape[1] == channels && memory.conv.shape[2] == width - 1 &&
              dense_slots(memory.conv),
          "causal_conv: memory", where);
}

void check_delta_gates(const Tensor& a,
                       const Tensor& b,
                       const Tensor& bias,
                       const Tensor& rate,
                       const Tensor& log_decay,
                       const Tensor& beta,
                       const Caller& where) {
    const int64_t heads = a.cols();
    check(a.rank == 2 && a.shape == b.shape && a.shape == log_decay.shape &&
              a.shape == beta.shape && bias.elements() == heads && rate.elements() == heads,
          "delta_gates: shapes", where);
}

void check_delta_net_input(const Tensor& u,
                           const Tensor& a,
                           const Ops::DeltaNetInput& how,
                           const Caller& where) {
    check(u.rows() == a.rows(), "delta_net_input: shapes", where);
    check(how.key_heads > 0 && how.key_size > 0 && 2 * how.key_heads * how.key_size <= u.cols(),
          "delta_net_input: heads", where);
}

void check_delta_rule(const Tensor& q,
                      const Tensor& k,
                      const Tensor& v,
                      const Tensor& log_decay,
                      const Tensor& beta,
                      const RecurrentView& memory,
                      const Tensor& out,
                      const Caller& where) {
    const int64_t rows = q.rows(), heads = v.shape[1];
    check(q.rank == 3 && k.rank == 3 && v.rank == 3 && q.shape == k.shape && out.shape == v.shape &&
              v.rows() == rows && heads % q.shape[1] == 0,
          "gated_delta_rule: shapes", where);
    check(log_decay.shape == beta.shape && log_decay.rows() == rows && log_decay.cols() == heads,
          "gated_delta_rule: gates", where);
    check(memory.state.shape[1] == heads && memory.state.shape[2] == v.shape[2] &&
              memory.state.shape[3] == q.shape[2] && dense_slots(memory.state),
          "gated_delta_rule: memory", where);
}

void check_route(const Tensor& logits,
                 const Tensor& bias,
                 const Tensor& ids,
                 const Tensor& weights,
                 const Caller& where) {
    const int64_t rows = logits.rows(), experts = logits.cols(), choices = ids.cols();
    check(ids.rank == 2 && ids.dtype == DType::kI32 && ids.rows() == rows && choices <= experts &&
              weights.rows() == rows && weights.cols() == choices,
          "route: shapes", where);
    check(bias.absent() || bias.elements() == experts, "route: bias", where);
}

void check_linear_experts(const GemmInput& x,
                          const ExpertWork& work,
                          const Weight& weight,
                          const Tensor& out,
                          const Caller& where) {
    const int64_t pairs = work.pairs.rows();
    check(x.cols == weight.cols && (x.rows == pairs || x.rows * work.choices == pairs) &&
              out.rank == 2 && out.rows() == pairs && out.cols() == weight.rows &&
              work.starts.rows() == weight.experts + 1,
          "linear_experts: shapes", where);
}

void check_combine(const Tensor& y, const Tensor& weights, const Tensor& out, const Caller& where) {
    const int64_t rows = weights.rows();
    check(weights.rank == 2 && y.rows() == rows * weights.cols() && out.rows() == rows &&
              out.cols() == y.cols(),
          "combine: shapes", where);
}

}  // namespace tessera
