// The gated delta net, one token after the other, in f64. What passes from one token to the next
// (state and convolution window) is rounded to f32 after every token, as the memory holds it, so
// that nothing depends on how many tokens come at once.
#include <algorithm>
#include <cmath>
#include <vector>

#include "backends/reference/reference_class.h"
#include "ops/checks.h"

namespace tessera::reference {
namespace {

/// One sequence of a batch and its place in the recurrent memory.
struct Sequence {
    int64_t begin = 0;
    int64_t rows = 0;
    int64_t slot = 0;
    bool fresh = false;      ///< starts at position 0
    int64_t save_slot = -1;  ///< receives a copy after row `save_after`, -1: none
    int64_t save_after = -1;
};

std::vector<Sequence> sequences_of(const Batch& batch) {
    check(!batch.tentative || batch.prompt_rows == 0, "recurrence: tentative prompt rows");
    std::vector<Sequence> all;
    const auto* starts = batch.seq_start.as<int32_t>();
    for (int32_t s = 0; s < batch.sequence_count(); ++s) {
        if (starts[s] == starts[s + 1]) continue;
        const int32_t first = batch.positions.as<int32_t>()[starts[s]];
        Sequence one{.begin = starts[s],
                     .rows = starts[s + 1] - starts[s],
                     .slot = batch.slots.as<int32_t>()[s],
                     .fresh = first == 0};
        if (!batch.save_slots.absent() && batch.save_slots.as<int32_t>()[s] >= 0) {
            one.save_slot = batch.save_slots.as<int32_t>()[s];
            const int32_t position = batch.save_positions.as<int32_t>()[s];
            one.save_after = position - first - 1;
            check(position % kChunkTokens == 0 && one.save_after >= 0 &&
                      one.save_after < one.rows && one.begin < batch.prompt_rows,
                  "recurrence: save position");
        }
        all.push_back(one);
    }
    return all;
}

/// The window of one channel moves on by one input.
void shift_in(float* window, int64_t size, float input) {
    std::copy(window + 1, window + size, window);
    window[size - 1] = input;
}

double sigmoid(double x) {
    return 1.0 / (1.0 + std::exp(-x));
}

bool infinite_times_zero(float a, float b) {
    return (std::isinf(a) && b == 0.0f) || (a == 0.0f && std::isinf(b));
}

double read(const float* values, int64_t i) {
    return static_cast<double>(values[i]);
}

/// One token of one value head.
struct DeltaStep {
    const float* k = nullptr;
    const float* v = nullptr;
    float log_decay = 0.0f;
    float beta = 0.0f;
    const float* q = nullptr;  ///< null: only the state moves on
    float* out = nullptr;
};

void advance(const DeltaStep& step, int64_t value_size, int64_t key_size, float* state) {
    const double decay = std::exp(static_cast<double>(step.log_decay));
    const double scale = 1.0 / std::sqrt(static_cast<double>(key_size));
    for (int64_t row = 0; row < value_size; ++row) {
        float* s = state + row * key_size;
        double seen = 0.0;
        for (int64_t i = 0; i < key_size; ++i) seen += decay * read(s, i) * read(step.k, i);
        const double delta = static_cast<double>(step.beta) * (read(step.v, row) - seen);
        for (int64_t i = 0; i < key_size; ++i)
            s[i] = static_cast<float>(decay * read(s, i) + delta * read(step.k, i));
        if (step.q == nullptr) continue;
        double sum = 0.0;
        for (int64_t i = 0; i < key_size; ++i) sum += read(s, i) * read(step.q, i);
        step.out[row] = static_cast<float>(sum * scale);
    }
}

/// The operands of gated_delta_rule.
struct DeltaRows {
    const Tensor& q;
    const Tensor& k;
    const Tensor& v;
    const Tensor& log_decay;
    const Tensor& beta;
    const Tensor& out;
};

/// Row `t` of the batch to row `index` of a slot's log: k, v, log decay, beta.
void log_row(const DeltaRows& rows, int64_t t, float* log) {
    for (const Tensor* x : {&rows.k, &rows.v})
        for (int64_t h = 0; h < x->shape[1]; ++h)
            log = std::copy_n(x->row<float>(t) + h * x->stride[1], x->cols(), log);
    for (const Tensor* x : {&rows.log_decay, &rows.beta})
        log = std::copy_n(x->row<float>(t), x->cols(), log);
}

/// All tokens of a sequence through value head `h`, whose state moves on in `state`.
void run_head(const DeltaRows& rows,
              const Sequence& sequence,
              int64_t h,
              const Tensor& all_states,
              float* state) {
    const int64_t key_head = h % rows.k.shape[1];
    const int64_t size = rows.v.cols(), key_size = rows.k.cols();
    for (int64_t i = 0; i < sequence.rows; ++i) {
        const int64_t t = sequence.begin + i;
        advance({.k = rows.k.row<float>(t) + key_head * rows.k.stride[1],
                 .v = rows.v.row<float>(t) + h * rows.v.stride[1],
                 .log_decay = rows.log_decay.row<float>(t)[h],
                 .beta = rows.beta.row<float>(t)[h],
                 .q = rows.q.row<float>(t) + key_head * rows.q.stride[1],
                 .out = rows.out.row<float>(t) + h * rows.out.stride[1]},
                size, key_size, state);
        if (i == sequence.save_after && sequence.save_slot >= 0)
            std::copy_n(state, size * key_size,
                        all_states.row<float>(sequence.save_slot) + h * size * key_size);
    }
}

}  // namespace

void ReferenceOps::l2_norm(Exec& ex, const Tensor& x, float eps) {
    check(x.rank >= 2, "l2_norm: shapes");
    if (ex.planning()) return;
    const auto elements = static_cast<double>(x.elements());
    const Counted counted(*this, "l2_norm", 3.0 * elements, 8.0 * elements);
    for (int64_t row = 0; row < row_count(x); ++row) {
        float* values = x.as<float>() + row_offset(x, row);
        double squares = 0.0;
        for (int64_t i = 0; i < x.cols(); ++i) squares += read(values, i) * read(values, i);
        const double factor = 1.0 / std::sqrt(squares + static_cast<double>(eps));
        for (int64_t i = 0; i < x.cols(); ++i)
            values[i] = static_cast<float>(read(values, i) * factor);
    }
}

void ReferenceOps::causal_conv(Exec& ex,
                               const Tensor& u,
                               const Tensor& taps,
                               const Batch& batch,
                               const RecurrentView& memory,
                               const Tensor& out) {
    const int64_t channels = u.cols();
    const int64_t width = taps.cols();
    const int64_t held = width - 1;
    check_causal_conv(u, taps, memory, out);
    check_recurrent_batch(batch, u.rows());
    if (ex.planning()) return;
    const auto elements = static_cast<double>(u.elements());
    const Counted counted(*this, "causal_conv", 2.0 * elements * static_cast<double>(width),
                          8.0 * elements);
    std::vector<float> window(static_cast<size_t>(held));
    for (const Sequence& sequence : sequences_of(batch)) {
        float* const slot = memory.conv.row<float>(sequence.slot);
        check(!batch.tentative || sequence.rows <= memory.conv_log.shape[1],
              "causal_conv: more tentative rows than the log holds");
        if (sequence.fresh) std::fill_n(slot, channels * held, 0.0f);
        for (int64_t c = 0; c < channels; ++c) {
            std::copy_n(slot + c * held, held, window.begin());
            for (int64_t t = 0; t < sequence.rows; ++t) {
                const float input = u.row<float>(sequence.begin + t)[c];
                const float* tap = taps.row<float>(c);
                double sum = 0.0;
                for (int64_t i = 0; i < held; ++i) sum += read(tap, i) * read(window.data(), i);
                sum += read(tap, held) * static_cast<double>(input);
                out.row<float>(sequence.begin + t)[c] = static_cast<float>(sum * sigmoid(sum));
                shift_in(window.data(), held, input);
                if (batch.tentative)
                    memory.conv_log.row<float>(sequence.slot)[t * channels + c] = input;
                if (t == sequence.save_after && sequence.save_slot >= 0)
                    std::copy_n(window.begin(), held,
                                memory.conv.row<float>(sequence.save_slot) + c * held);
            }
            if (!batch.tentative) std::copy_n(window.begin(), held, slot + c * held);
        }
    }
}

void ReferenceOps::delta_gates(Exec& ex,
                               const Tensor& a,
                               const Tensor& b,
                               const Tensor& bias,
                               const Tensor& rate,
                               const Tensor& log_decay,
                               const Tensor& beta) {
    const int64_t heads = a.cols();
    check_delta_gates(a, b, bias, rate, log_decay, beta);
    if (ex.planning()) return;
    const auto elements = static_cast<double>(a.elements());
    const Counted counted(*this, "delta_gates", 10.0 * elements, 16.0 * elements);
    for (int64_t t = 0; t < a.rows(); ++t)
        for (int64_t h = 0; h < heads; ++h) {
            const double x = read(a.row<float>(t), h) + read(bias.as<float>(), h);
            // Rounded before the product: what f32 calls 0 must meet an infinite rate as 0.
            const auto softplus = static_cast<float>(x > 20.0 ? x : std::log1p(std::exp(x)));
            const float decay = softplus * rate.as<float>()[h];
            log_decay.row<float>(t)[h] =
                infinite_times_zero(softplus, rate.as<float>()[h]) ? 0.0f : decay;
            beta.row<float>(t)[h] = static_cast<float>(sigmoid(read(b.row<float>(t), h)));
        }
}

void ReferenceOps::gated_delta_rule(Exec& ex,
                                    const Tensor& q,
                                    const Tensor& k,
                                    const Tensor& v,
                                    const Tensor& log_decay,
                                    const Tensor& beta,
                                    const Batch& batch,
                                    const RecurrentView& memory,
                                    const Tensor& out) {
    const int64_t rows = q.rows(), key_size = q.shape[2];
    const int64_t heads = v.shape[1], size = v.shape[2];
    check_delta_rule(q, k, v, log_decay, beta, memory, out);
    check_recurrent_batch(batch, rows);
    const Scope scope(ex.arena);
    const int64_t head_floats = size * key_size;
    const Tensor copy = ex.arena.allocate(DType::kF32, {head_floats});
    if (ex.planning()) return;
    const auto products = static_cast<double>(rows * heads * head_floats);
    const Counted counted(*this, "gated_delta_rule", 7.0 * products, 8.0 * products);
    const DeltaRows operands{q, k, v, log_decay, beta, out};
    for (const Sequence& sequence : sequences_of(batch)) {
        float* const slot = memory.state.row<float>(sequence.slot);
        if (sequence.fresh) std::fill_n(slot, heads * head_floats, 0.0f);
        for (int64_t h = 0; h < heads; ++h) {
            float* state = slot + h * head_floats;
            if (batch.tentative) {
                std::copy_n(state, head_floats, copy.as<float>());
                state = copy.as<float>();
            }
            run_head(operands, sequence, h, memory.state, state);
        }
        if (!batch.tentative) continue;
        const Tensor& log = memory.delta_log;
        check(sequence.rows <= log.shape[1],
              "gated_delta_rule: more tentative rows than the log holds");
        for (int64_t i = 0; i < sequence.rows; ++i)
            log_row(operands, sequence.begin + i, log.row<float>(sequence.slot) + i * log.cols());
    }
}

void ReferenceOps::accept_recurrent(Exec& ex,
                                    const Tensor& slots,
                                    const Tensor& counts,
                                    const RecurrentView& memory) {
    const int64_t heads = memory.state.shape[1], size = memory.state.shape[2];
    const int64_t key_size = memory.state.shape[3];
    const int64_t channels = memory.conv.shape[1], held = memory.conv.shape[2];
    const int64_t log_floats = memory.delta_log.cols();
    const int64_t key_heads = (log_floats - heads * (size + 2)) / key_size;
    check(slots.rows() == counts.rows() && memory.conv_log.cols() == channels &&
              log_floats == key_heads * key_size + heads * (size + 2),
          "accept_recurrent: shapes");
    if (ex.planning()) return;
    const Counted counted(*this, "accept_recurrent", 0.0, 0.0);
    for (int64_t s = 0; s < slots.rows(); ++s) {
        const int64_t slot = slots.as<int32_t>()[s];
        const int64_t count = counts.as<int32_t>()[s];
        check(count >= 0 && count <= memory.delta_log.shape[1], "accept_recurrent: count");
        const float* inputs = memory.conv_log.row<float>(slot);
        for (int64_t t = 0; t < count; ++t)
            for (int64_t c = 0; c < channels; ++c)
                shift_in(memory.conv.row<float>(slot) + c * held, held, inputs[t * channels + c]);
        for (int64_t t = 0; t < count; ++t) {
            const float* k = memory.delta_log.row<float>(slot) + t * log_floats;
            const float* v = k + key_heads * key_size;
            const float* decay = v + heads * size;
            for (int64_t h = 0; h < heads; ++h)
                advance({.k = k + h % key_heads * key_size,
                         .v = v + h * size,
                         .log_decay = decay[h],
                         .beta = decay[heads + h]},
                        size, key_size, memory.state.row<float>(slot) + h * size * key_size);
        }
    }
}

}  // namespace tessera::reference
