#pragma once
// accept_recurrent: the logged rows of a tentative batch pass through the token recurrence, which
// is the very function that decoding calls, and the windows of the convolution move on. Grids
// follow from shapes; how many rows count is read on the device.

#include "backends/cuda/recurrent/conv.cuh"
#include "backends/cuda/recurrent/token_rule.cuh"

namespace tessera::cuda {

struct ConvAcceptArgs {
    const int32_t* slots = nullptr;
    const int32_t* counts = nullptr;
    float* memory = nullptr;
    int64_t memory_stride = 0;
    const float* log = nullptr;
    int64_t log_stride = 0;
    int32_t held = 0;  ///< W - 1
    int32_t channels = 0;
    int32_t channel_blocks = 0;
};

/// Blocks of (slot, channels): the window moves on by counts[s] inputs of the log.
__global__ void __launch_bounds__(kConvThreads)
    conv_accept(const __grid_constant__ ConvAcceptArgs args) {
    const auto block = static_cast<int32_t>(blockIdx.x);
    const int32_t channel = block % args.channel_blocks * kConvThreads + threadIdx.x;
    const int32_t entry = block / args.channel_blocks;
    if (channel >= args.channels) return;
    const int32_t slot = args.slots[entry], count = args.counts[entry];
    float* window =
        args.memory + slot * args.memory_stride + static_cast<int64_t>(channel) * args.held;
    const float* log = args.log + slot * args.log_stride + channel;
    // Ascending: what is read stands at or behind what is written.
    for (int32_t i = 0; i < args.held; ++i) {
        const int32_t row = i + count - args.held;
        window[i] = row < 0 ? window[i + count] : log[static_cast<int64_t>(row) * args.channels];
    }
}

struct AcceptArgs {
    const int32_t* slots = nullptr;
    const int32_t* counts = nullptr;
    float* state = nullptr;
    int64_t state_stride = 0;
    const float* log = nullptr;
    int32_t log_rows = 0;
    int32_t log_floats = 0;
    int32_t key_heads = 0;
    int32_t key_size = 0;
    int32_t heads = 0;
    int32_t size = 0;
    int32_t row_blocks = 0;
};

/// Blocks of (slot, value head, kTokenBlockRows value rows): the first counts[s] rows of the log.
template <int kPart>
__global__ void __launch_bounds__(32 * kTokenWarps)
    accept_tokens(const __grid_constant__ AcceptArgs args) {
    const auto block = static_cast<int32_t>(blockIdx.x);
    const int32_t row = block % args.row_blocks * kTokenBlockRows +
                        static_cast<int32_t>(threadIdx.x) / 32 * kTokenRows;
    const int32_t head = block / args.row_blocks % args.heads;
    const int32_t entry = block / args.row_blocks / args.heads;
    const int32_t slot = args.slots[entry], count = args.counts[entry];
    if (count == 0 || row >= args.size) return;
    const int32_t rows = min(args.size - row, kTokenRows);
    float* state = args.state + slot * args.state_stride +
                   (static_cast<int64_t>(head) * args.size + row) * args.key_size;
    StateRows<kPart> s;
    load_state(state, rows, args.key_size, s);
    const int64_t first = static_cast<int64_t>(slot) * args.log_rows;
    for (int32_t i = 0; i < count; ++i) {
        const float* keys = args.log + (first + i) * args.log_floats;
        const float* values = keys + args.key_heads * args.key_size;
        const float* gates = values + args.heads * args.size;
        TokenInput<kPart> token;
        token.load(keys + head % args.key_heads * args.key_size, args.key_size,
                   values + head * args.size + row, rows);
        token.log_decay = gates[head];
        token.beta = gates[args.heads + head];
        advance(token, s);
    }
    store_state(s, rows, args.key_size, state);
}

}  // namespace tessera::cuda
