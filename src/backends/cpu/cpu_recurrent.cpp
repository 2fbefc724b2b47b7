// The gated delta net. Convolution: every thread takes blocks of channels through all sequences.
// Delta rule: items are handed out by a counter; for generated rows an item is a block of value
// rows of one (sequence, value head), for prompt rows it is a share of the value heads and strips
// of one (sequence, key head), whose products of keys and queries those value heads have in common,
// or several key heads (cpu_recurrent_prompt.cpp).
// No result depends on who takes an item nor on how the rows are shared out, because value rows
// never meet.
#include "backends/cpu/cpu_recurrent.h"

#include <algorithm>
#include <cmath>

#include "backends/cpu/isa/rows_kernels.h"
#include "ops/checks.h"

namespace tessera::cpu {

Place place_of(const Batch& batch, int64_t sequence) {
    const auto* starts = batch.seq_start.as<int32_t>();
    Place place{.begin = starts[sequence],
                .rows = starts[sequence + 1] - starts[sequence],
                .slot = batch.slots.as<int32_t>()[sequence],
                .position = 0,
                .save_slot = -1,
                .save_after = -1};
    if (place.rows == 0) return place;
    place.position = batch.positions.as<int32_t>()[place.begin];
    if (batch.save_slots.absent() || batch.save_slots.as<int32_t>()[sequence] < 0) return place;
    const int32_t save = batch.save_positions.as<int32_t>()[sequence];
    place.save_slot = batch.save_slots.as<int32_t>()[sequence];
    place.save_after = save - place.position;
    check(save % kChunkTokens == 0 && place.save_after > 0 && place.save_after <= place.rows &&
              place.begin < batch.prompt_rows && place.save_slot != place.slot,
          "recurrence: save position");
    return place;
}

DeltaRun run_of(
    const DeltaCall& call, const Place& place, int64_t head, int64_t row, int64_t rows) {
    const int64_t t = place.begin, key_head = head % call.key_heads;
    return {.q = call.q.row<float>(t) + key_head * call.q.stride[1],
            .q_stride = call.q.stride[0],
            .k = call.k.row<float>(t) + key_head * call.k.stride[1],
            .k_stride = call.k.stride[0],
            .v = call.v.row<float>(t) + head * call.v.stride[1] + row,
            .v_stride = call.v.stride[0],
            .log_decay = call.log_decay.row<float>(t) + head,
            .decay_stride = call.log_decay.stride[0],
            .beta = call.beta.row<float>(t) + head,
            .beta_stride = call.beta.stride[0],
            .out = call.out.row<float>(t) + head * call.out.stride[1] + row,
            .out_stride = call.out.stride[0],
            .tokens = place.rows,
            .key_size = call.key_size,
            .rows = rows};
}

namespace {

/// Channels that a thread takes at once: taps and the rows of the window stay in the first cache.
constexpr int64_t kChannelBlock = 512;
/// Strips that a thread takes through the chunks of a prompt together: half of a second-level
/// cache.
constexpr int64_t kHeldFloats = 256 * 1024;

constexpr int64_t kLineFloats = 16;
int64_t whole_lines(int64_t floats) {
    return round_up(floats, kLineFloats);
}

// ---- convolution ----

struct ConvCall {
    const RecurrentKernels& kernels;
    const Tensor& u;
    const Tensor& taps;
    const Batch& batch;
    const RecurrentView& memory;
    const Tensor& out;
    int64_t width;
};

/// Channels [first, first + count) of one sequence. taps [width][count]; history
/// [width - 1][count] and window [count][width - 1] are scratch.
void convolve_block(
    const ConvCall& call, const Place& place, int64_t first, int64_t count, float* scratch) {
    const int64_t held = call.width - 1;
    const float* taps = scratch;
    float* history = scratch + call.width * count;
    float* slot = call.memory.conv.row<float>(place.slot) + first * held;
    if (place.position == 0) {
        std::fill_n(history, held * count, 0.0f);
        // Also for a tentative batch, whose accepted rows come on top of it.
        std::fill_n(slot, held * count, 0.0f);
    } else {
        call.kernels.transpose(slot, held, {count, held, count}, history);
    }
    // Input t of the sequence, t >= -held.
    const auto input = [&](int64_t t) -> const float* {
        return t < 0 ? history + (t + held) * count : call.u.row<float>(place.begin + t) + first;
    };
    const auto keep = [&](int64_t rows, float* window) {
        for (int64_t i = 0; i < held; ++i) {
            const float* source = input(rows - held + i);
            for (int64_t c = 0; c < count; ++c) window[c * held + i] = source[c];
        }
    };
    constexpr int64_t kMostTaps = 8;
    const float* sources[kMostTaps];
    for (int64_t t = 0; t < place.rows; ++t) {
        for (int64_t i = 0; i < call.width; ++i) sources[i] = input(t - held + i);
        call.kernels.convolve(sources, taps, call.width, count,
                              call.out.row<float>(place.begin + t) + first);
    }
    if (place.save_slot >= 0)
        keep(place.save_after, call.memory.conv.row<float>(place.save_slot) + first * held);
    if (!call.batch.tentative) return keep(place.rows, slot);
    float* log = call.memory.conv_log.row<float>(place.slot) + first;
    for (int64_t t = 0; t < place.rows; ++t) std::copy_n(input(t), count, log + t * call.u.cols());
}

// ---- delta rule ----

DeltaScratch delta_scratch(const DeltaCall& call) {
    const RecurrentKernels& kernels = call.kernels;
    const int64_t group = call.heads / call.key_heads, size = call.size, key_size = call.key_size;
    DeltaScratch out;
    out.strips = ceil_div(size, kernels.strip_rows);
    out.strip_floats = whole_lines(key_size * kernels.strip_rows);
    out.key_floats = kChunkTokens * whole_lines(key_size);
    out.square_floats = kChunkTokens * kChunkTokens;
    out.delta_floats = kChunkTokens * kernels.strip_rows;
    if (kernels.tile_floats != nullptr)
        out.tile_floats = whole_lines(kernels.tile_floats(key_size));
    const int64_t strips = group * out.strips * out.strip_floats;
    out.together = std::clamp<int64_t>(kHeldFloats / strips, 1, call.key_heads);
    const int64_t chunk = out.together * strips + 5 * out.key_floats + 4 * out.square_floats +
                          3 * kChunkTokens + out.delta_floats + out.tile_floats;
    const int64_t token = whole_lines(kernels.advance_floats(key_size)) + size * key_size;
    out.total = whole_lines(std::max(chunk, token));
    return out;
}

/// Into how many blocks of value rows the heads are cut so that every thread has work.
struct Blocks {
    int64_t count, rows;
};
Blocks value_blocks(const RecurrentKernels& kernels, int64_t heads, int64_t size, int32_t threads) {
    const int64_t wanted = heads >= 4 * threads ? 1 : ceil_div(4 * threads, heads);
    const int64_t rows = round_up(ceil_div(size, wanted), kernels.tile_rows);
    return {ceil_div(size, rows), rows};
}

/// A block of value rows of one generated sequence.
void token_item(const DeltaCall& call,
                const Place& place,
                int64_t head,
                int64_t row,
                int64_t rows,
                float* scratch) {
    float* state =
        call.memory.state.row<float>(place.slot) + (head * call.size + row) * call.key_size;
    const int64_t floats = rows * call.key_size;
    // Also for a tentative batch, whose accepted rows come on top of it.
    if (place.position == 0) std::fill_n(state, floats, 0.0f);
    if (call.batch.tentative) {
        float* copy = scratch + whole_lines(call.kernels.advance_floats(call.key_size));
        std::copy_n(state, floats, copy);
        state = copy;
    }
    call.kernels.advance(run_of(call, place, head, row, rows), scratch, state);
}

/// k, v, log decay and beta of the rows of a tentative sequence.
void log_rows(const DeltaCall& call, const Place& place) {
    const Tensor& log = call.memory.delta_log;
    for (int64_t t = 0; t < place.rows; ++t) {
        float* out = log.row<float>(place.slot) + t * log.cols();
        for (const Tensor* x : {&call.k, &call.v})
            for (int64_t h = 0; h < x->shape[1]; ++h)
                out =
                    std::copy_n(x->row<float>(place.begin + t) + h * x->stride[1], x->cols(), out);
        for (const Tensor* x : {&call.log_decay, &call.beta})
            out = std::copy_n(x->row<float>(place.begin + t), x->cols(), out);
    }
}

void run_generated(const DeltaCall& call,
                   ThreadPool& pool,
                   const DeltaScratch& sizes,
                   int64_t first_sequence,
                   float* scratch) {
    const int64_t sequences = call.batch.sequence_count() - first_sequence;
    if (sequences == 0) return;
    const Blocks blocks =
        value_blocks(call.kernels, sequences * call.heads, call.size, pool.size());
    const int64_t products =
        (call.batch.row_count() - call.batch.prompt_rows) * call.heads * call.size * call.key_size;
    const int64_t items = sequences * call.heads * blocks.count;
    run_items(pool, items, products >= kWorthProducts, [&](int64_t item, int32_t thread) {
        const int64_t block = item % blocks.count;
        const int64_t head = item / blocks.count % call.heads;
        const Place place = place_of(call.batch, first_sequence + item / blocks.count / call.heads);
        if (place.rows == 0) return;
        const int64_t row = block * blocks.rows;
        token_item(call, place, head, row, std::min(blocks.rows, call.size - row),
                   scratch + thread * sizes.total);
    });
}

}  // namespace

void CpuOps::causal_conv(Exec& ex,
                         const Tensor& u,
                         const Tensor& taps,
                         const Batch& batch,
                         const RecurrentView& memory,
                         const Tensor& out) {
    const int64_t channels = u.cols(), width = taps.cols();
    check_causal_conv(u, taps, memory, out);
    check_recurrent_batch(batch, u.rows());
    const Scope scope(ex.arena);
    const int64_t scratch_floats = 2 * width * kChannelBlock;
    auto* scratch = reinterpret_cast<float*>(
        ex.arena.allocate_bytes(static_cast<size_t>(pool_.size() * scratch_floats) * 4));
    if (ex.planning() || u.rows() == 0) return;
    const double elements = static_cast<double>(u.elements());
    const Timed timed(*this, "causal_conv", 2 * elements * static_cast<double>(width),
                      8 * elements);
    const ConvCall call{*rows_->recurrent, u, taps, batch, memory, out, width};
    const int64_t blocks = ceil_div(channels, kChannelBlock);
    run_items(pool_, blocks, u.elements() * width >= kWorthProducts,
              [&](int64_t block, int32_t thread) {
                  float* own = scratch + thread * scratch_floats;
                  const int64_t first = block * kChannelBlock;
                  const int64_t count = std::min(kChannelBlock, channels - first);
                  call.kernels.transpose(taps.row<float>(first), width, {count, width, count}, own);
                  for (int64_t s = 0; s < batch.sequence_count(); ++s) {
                      const Place place = place_of(batch, s);
                      if (place.rows == 0) continue;
                      check(!batch.tentative || place.rows <= memory.conv_log.shape[1],
                            "causal_conv: more tentative rows than the log holds");
                      convolve_block(call, place, first, count, own);
                  }
              });
}

void CpuOps::delta_gates(Exec& ex,
                         const Tensor& a,
                         const Tensor& b,
                         const Tensor& bias,
                         const Tensor& rate,
                         const Tensor& log_decay,
                         const Tensor& beta) {
    const int64_t heads = a.cols();
    check_delta_gates(a, b, bias, rate, log_decay, beta);
    if (ex.planning() || a.elements() == 0) return;
    const double elements = static_cast<double>(a.elements());
    const Timed timed(*this, "delta_gates", 10 * elements, 16 * elements);
    const auto* biases = bias.as<float>();
    const auto* rates = rate.as<float>();
    parallel_rows(pool_, a.rows(), a.elements() >= 512, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t)
            for (int64_t h = 0; h < heads; ++h) {
                const float x = a.row<float>(t)[h] + biases[h];
                const float softplus = x > 20.0f ? x : std::log1p(std::exp(x));
                const bool undefined = (softplus == 0.0f && std::isinf(rates[h])) ||
                                       (std::isinf(softplus) && rates[h] == 0.0f);
                log_decay.row<float>(t)[h] = undefined ? 0.0f : softplus * rates[h];
                beta.row<float>(t)[h] = 1.0f / (1.0f + std::exp(-b.row<float>(t)[h]));
            }
    });
}

void CpuOps::gated_delta_rule(Exec& ex,
                              const Tensor& q,
                              const Tensor& k,
                              const Tensor& v,
                              const Tensor& log_decay,
                              const Tensor& beta,
                              const Batch& batch,
                              const RecurrentView& memory,
                              const Tensor& out) {
    const int64_t rows = q.rows();
    const DeltaCall call{
        *rows_->recurrent, q,          k,          v,         log_decay, beta, batch, memory, out,
        q.shape[1],        q.shape[2], v.shape[1], v.shape[2]};
    check_delta_rule(q, k, v, log_decay, beta, memory, out);
    check_recurrent_batch(batch, rows);
    const Scope scope(ex.arena);
    const DeltaScratch sizes = delta_scratch(call);
    auto* scratch = reinterpret_cast<float*>(
        ex.arena.allocate_bytes(static_cast<size_t>(pool_.size() * sizes.total) * 4));
    if (ex.planning() || rows == 0) return;
    const auto products = static_cast<double>(rows * call.heads * call.size * call.key_size);
    const double values = static_cast<double>(q.elements() + v.elements());
    const double states =
        static_cast<double>(batch.sequence_count()) * static_cast<double>(memory.state.stride[0]);
    const Timed timed(*this, "gated_delta_rule", 7 * products, 8 * (values + states),
                      batch.prompt_rows > 0 ? rows_->prompt_operands : Operands::kF32, {});
    int64_t prompts = 0;
    const auto* starts = batch.seq_start.as<int32_t>();
    while (prompts < batch.sequence_count() && starts[prompts] < batch.prompt_rows) ++prompts;
    if (prompts > 0) run_prompts(call, pool_, sizes, prompts, scratch);
    run_generated(call, pool_, sizes, prompts, scratch);
    if (!batch.tentative) return;
    for (int64_t s = 0; s < batch.sequence_count(); ++s) {
        const Place place = place_of(batch, s);
        check(place.rows <= memory.delta_log.shape[1],
              "gated_delta_rule: more tentative rows than the log holds");
        log_rows(call, place);
    }
}

void CpuOps::accept_recurrent(Exec& ex,
                              const Tensor& slots,
                              const Tensor& counts,
                              const RecurrentView& memory) {
    const int64_t heads = memory.state.shape[1], size = memory.state.shape[2];
    const int64_t key_size = memory.state.shape[3];
    const int64_t channels = memory.conv.shape[1], held = memory.conv.shape[2];
    const int64_t log_floats = memory.delta_log.cols();
    const int64_t key_heads = (log_floats - heads * (size + 2)) / key_size;
    check(slots.rows() == counts.rows() && memory.conv_log.cols() == channels &&
              log_floats == key_heads * key_size + heads * (size + 2) &&
              dense_slots(memory.state) && dense_slots(memory.conv),
          "accept_recurrent: shapes");
    const RecurrentKernels& kernels = *rows_->recurrent;
    const Scope scope(ex.arena);
    const int64_t scratch_floats = whole_lines(kernels.advance_floats(key_size));
    auto* scratch = reinterpret_cast<float*>(
        ex.arena.allocate_bytes(static_cast<size_t>(pool_.size() * scratch_floats) * 4));
    if (ex.planning() || slots.rows() == 0) return;
    const auto floats = static_cast<double>(slots.rows() * heads * size * key_size);
    const Timed timed(*this, "accept_recurrent", 5 * floats, 8 * floats);
    const Blocks blocks = value_blocks(kernels, slots.rows() * heads, size, pool_.size());
    // The window of a slot is one item more.
    const int64_t items_a_slot = heads * blocks.count + 1;
    run_items(pool_, slots.rows() * items_a_slot, true, [&](int64_t item, int32_t thread) {
        const int64_t slot = slots.as<int32_t>()[item / items_a_slot];
        const int64_t count = counts.as<int32_t>()[item / items_a_slot];
        check(count >= 0 && count <= memory.delta_log.shape[1], "accept_recurrent: count");
        const int64_t head = item % items_a_slot / blocks.count;
        if (head == heads) {
            float* window = memory.conv.row<float>(slot);
            const float* log = memory.conv_log.row<float>(slot);
            for (int64_t c = 0; c < channels; ++c, window += held)
                for (int64_t i = 0; i < held; ++i) {
                    const int64_t t = i + count - held;
                    window[i] = t < 0 ? window[i + count] : log[t * channels + c];
                }
            return;
        }
        const int64_t row = item % items_a_slot % blocks.count * blocks.rows;
        const float* log = memory.delta_log.row<float>(slot);
        const float* values = log + key_heads * key_size;
        const float* decays = values + heads * size;
        const DeltaRun run{.k = log + head % key_heads * key_size,
                           .k_stride = log_floats,
                           .v = values + head * size + row,
                           .v_stride = log_floats,
                           .log_decay = decays + head,
                           .decay_stride = log_floats,
                           .beta = decays + heads + head,
                           .beta_stride = log_floats,
                           .tokens = count,
                           .key_size = key_size,
                           .rows = std::min(blocks.rows, size - row)};
        kernels.advance(run, scratch + thread * scratch_floats,
                        memory.state.row<float>(slot) + (head * size + row) * key_size);
    });
}

}  // namespace tessera::cpu
