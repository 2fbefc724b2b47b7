#pragma once
// Causal depthwise convolution: a thread takes a channel, whose window moves through its registers.
// Rows of a prompt are cut into segments that any number of threads take at once; the first rows of
// a sequence read the old memory, so the new memory is written by a kernel behind all of them.
// Generated sequences are short: one thread takes all rows of a channel and writes its memory.
// Bound: 8 bytes an element, read once and written once.

#include "backends/cuda/recurrent/place.cuh"

namespace tessera::cuda {

constexpr int32_t kConvThreads = 128;
/// Rows of a segment: each segment reads W - 1 rows twice.
constexpr int32_t kConvRows = 32;
/// Rows whose loads are under way together.
constexpr int32_t kConvAhead = 4;

struct ConvArgs {
    const float* u = nullptr;
    int64_t u_stride = 0;
    const float* taps = nullptr;  ///< [channels][W]
    float* out = nullptr;
    int64_t out_stride = 0;
    float* memory = nullptr;  ///< [slots][channels][W - 1]
    int64_t memory_stride = 0;
    float* log = nullptr;  ///< [slots][log rows][channels]
    int64_t log_stride = 0;
    int32_t log_rows = 0;
    int32_t channels = 0;
    int32_t channel_blocks = 0;
    bool tentative = false;
    BatchArgs batch{};
};

/// One channel of one sequence.
template <int W>
struct ConvChannel {
    const ConvArgs& args;
    const Place& place;
    int32_t channel;

    __device__ float* memory(int32_t slot) const {
        return args.memory + slot * args.memory_stride + static_cast<int64_t>(channel) * (W - 1);
    }
    /// Input `row` of the sequence, row > -W.
    __device__ float input(int32_t row) const {
        if (row >= 0)
            return args.u[(static_cast<int64_t>(place.begin) + row) * args.u_stride + channel];
        return place.position == 0 ? 0.0f : memory(place.slot)[row + W - 1];
    }
    /// The W - 1 inputs before `row`, oldest first.
    __device__ void window_before(int32_t row, float (&window)[W]) const {
#pragma unroll
        for (int32_t i = 0; i < W - 1; ++i) window[i] = input(row - (W - 1) + i);
    }
    __device__ void store(int32_t slot, const float (&window)[W]) const {
        float* out = memory(slot);
#pragma unroll
        for (int32_t i = 0; i < W - 1; ++i) out[i] = window[i];
    }
};

/// silu(sum_i taps[i] window[i]), i ascending. Every rounding is written out: delta_net_input gives
/// the same bits. The quotient is two units in the last place off at most.
template <int W>
__device__ __forceinline__ float convolved(const float (&window)[W], const float (&taps)[W]) {
    float sum = __fmul_rn(taps[0], window[0]);
#pragma unroll
    for (int32_t i = 1; i < W; ++i) sum = fmaf(taps[i], window[i], sum);
    return __fdividef(sum, __fadd_rn(1.0f, expf(-sum)));
}

/// Rows [row, end) of a sequence, `window` holding the inputs before them and, afterwards, the last
/// ones of them.
template <int W>
__device__ __forceinline__ void convolve_rows(const ConvChannel<W>& at,
                                              int32_t row,
                                              int32_t end,
                                              float (&window)[W]) {
    float taps[W];
#pragma unroll
    for (int32_t i = 0; i < W; ++i)
        taps[i] = at.args.taps[static_cast<int64_t>(at.channel) * W + i];
    const int64_t first = at.place.begin;
    for (; row < end; row += kConvAhead) {
        float ahead[kConvAhead];
#pragma unroll
        for (int32_t i = 0; i < kConvAhead; ++i) ahead[i] = row + i < end ? at.input(row + i) : 0;
#pragma unroll
        for (int32_t i = 0; i < kConvAhead; ++i) {
            if (row + i >= end) break;
            window[W - 1] = ahead[i];
            at.args.out[(first + row + i) * at.args.out_stride + at.channel] =
                convolved(window, taps);
#pragma unroll
            for (int32_t j = 0; j + 1 < W; ++j) window[j] = window[j + 1];
        }
    }
}

/// Blocks of (segment of prompt rows, channels); memory stays as it is.
template <int W>
__global__ void __launch_bounds__(kConvThreads, 8)
    conv_prompt(const __grid_constant__ ConvArgs args) {
    const auto block = static_cast<int32_t>(blockIdx.x);
    const int32_t channel = block % args.channel_blocks * kConvThreads + threadIdx.x;
    if (channel >= args.channels) return;
    int32_t row = block / args.channel_blocks * kConvRows;
    const int32_t end = min(row + kConvRows, args.batch.prompt_rows);
    for (int32_t s = sequence_of_row(args.batch, row); row < end; ++s) {
        const Place place = place_of(args.batch, s);
        if (place.rows == 0) continue;
        const ConvChannel<W> at{args, place, channel};
        const int32_t from = row - place.begin, to = min(end - place.begin, place.rows);
        float window[W];
        at.window_before(from, window);
        convolve_rows(at, from, to, window);
        row = place.begin + to;
    }
}

/// Blocks of (prompt sequence, channels): what the memory holds behind conv_prompt.
template <int W>
__global__ void __launch_bounds__(kConvThreads, 8)
    conv_prompt_memory(const __grid_constant__ ConvArgs args) {
    const auto block = static_cast<int32_t>(blockIdx.x);
    const int32_t channel = block % args.channel_blocks * kConvThreads + threadIdx.x;
    const Place place = place_of(args.batch, block / args.channel_blocks);
    if (channel >= args.channels || place.rows == 0 || place.begin >= args.batch.prompt_rows)
        return;
    const ConvChannel<W> at{args, place, channel};
    float window[W], saved[W];
    at.window_before(place.rows, window);
    if (place.save_slot >= 0) {
        at.window_before(place.save_after, saved);
        at.store(place.save_slot, saved);
    }
    at.store(place.slot, window);
}

/// Blocks of (generated sequence, channels).
template <int W>
__global__ void __launch_bounds__(kConvThreads, 8)
    conv_generated(const __grid_constant__ ConvArgs args) {
    const auto block = static_cast<int32_t>(blockIdx.x);
    const int32_t channel = block % args.channel_blocks * kConvThreads + threadIdx.x;
    const Place place = place_of(args.batch, block / args.channel_blocks);
    if (channel >= args.channels || place.rows == 0 || place.begin < args.batch.prompt_rows) return;
    const ConvChannel<W> at{args, place, channel};
    float window[W];
    at.window_before(0, window);
    if (args.tentative) {
        // What will be accepted comes on top of the zeros that the sequence starts from.
        if (place.position == 0) at.store(place.slot, window);
        float* log = args.log + place.slot * args.log_stride + channel;
        for (int32_t row = 0; row < min(place.rows, args.log_rows); ++row)
            log[static_cast<int64_t>(row) * args.channels] = at.input(row);
    }
    convolve_rows(at, 0, place.rows, window);
    if (!args.tentative) at.store(place.slot, window);
}

}  // namespace tessera::cuda
