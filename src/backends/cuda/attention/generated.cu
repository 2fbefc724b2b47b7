// Launches of generated.cuh.
#include <algorithm>

#include "backends/cuda/attention/attention_call.h"
#include "backends/cuda/attention/generated.cuh"

namespace tessera::cuda {
namespace {

/// Memory for partial sums, unless one row needs more: rows beyond it come in another pass.
constexpr int64_t kPartialBytes = int64_t{64} << 20;

int32_t padded_size(const AttentionCall& call) {
    return (call.head_size() + 3) / 4 * 4;
}

template <int32_t kHeads>
void launch_splits(Device& device, const GeneratedArgs& args, int32_t rows) {
    const int64_t queries = int64_t{kHeads} * ceil_div(args.head_size, kChunk) * kChunk;
    const size_t bytes = sizeof(SplitShared<kHeads>) + static_cast<size_t>(queries) * 4;
    const dim3 grid(static_cast<uint32_t>(rows * args.kv_heads * args.head_chunks),
                    static_cast<uint32_t>(args.splits));
    const auto launch = [&](auto* kernel) {
        device.launch("attend_split", kernel, grid, dim3(kSplitThreads), bytes, args);
    };
    using F = PageFormat;
    const bool alike = args.keys.format == args.values.format && args.keys.aligned &&
                       args.values.aligned && args.keys.format != F::kF32;
    if (!alike)
        launch(attend_split<kHeads, F::kAny, F::kAny>);
    else if (args.keys.format == F::kF16)
        launch(attend_split<kHeads, F::kF16, F::kF16>);
    else if (args.keys.format == F::kBF16)
        launch(attend_split<kHeads, F::kBF16, F::kBF16>);
    else if (args.keys.format == F::kF8)
        launch(attend_split<kHeads, F::kF8, F::kF8>);
    else
        launch(attend_split<kHeads, F::kQ8_0, F::kQ8_0>);
}

void launch_pass(Device& device, GeneratedArgs args, int32_t rows) {
    // The instance with the fewest heads that holds the group; groups over eight are shared out.
    const int32_t heads = args.group > 4 ? 8 : args.group > 2 ? 4 : args.group;
    args.head_chunks = static_cast<int32_t>(ceil_div(args.group, heads));
    if (heads == 8)
        launch_splits<8>(device, args, rows);
    else if (heads == 4)
        launch_splits<4>(device, args, rows);
    else if (heads == 2)
        launch_splits<2>(device, args, rows);
    else
        launch_splits<1>(device, args, rows);
    device.launch("combine_splits", combine_splits,
                  dim3(static_cast<uint32_t>(rows * args.kv_heads * args.group)),
                  dim3(kCombineThreads),
                  static_cast<size_t>(kCombineWarps * args.padded_size) * sizeof(float), args);
}

}  // namespace

SplitScratch allocate_splits(Arena& arena, const AttentionCall& call, int32_t rows) {
    SplitScratch scratch;
    scratch.splits = split_of(std::max(call.batch.max_visible, 1) - 1) + 1;
    const int64_t marks = int64_t{call.heads()} * scratch.splits * 2;
    const int64_t sums = int64_t{call.heads()} * scratch.splits * padded_size(call);
    const int64_t row_bytes = (marks + sums) * 4;
    scratch.rows_a_pass =
        static_cast<int32_t>(std::clamp<int64_t>(kPartialBytes / row_bytes, 1, rows));
    // Not rows_a_pass * row_bytes: rounding down, a shorter context than the planned one could need
    // more than the plan.
    const int64_t bytes = std::min(rows * row_bytes, std::max(kPartialBytes, row_bytes));
    std::byte* memory = arena.allocate_bytes(static_cast<size_t>(bytes));
    if (memory == nullptr) return scratch;
    // Sums are whole multiples of 16 bytes, so the marks behind them are aligned too.
    scratch.sums = reinterpret_cast<float*>(memory);
    scratch.marks = scratch.sums + scratch.rows_a_pass * sums;
    return scratch;
}

void attend_generated(Device& device,
                      const AttentionCall& call,
                      int32_t first_row,
                      const SplitScratch& scratch) {
    GeneratedArgs args{.q = call.q.as<float>(),
                       .q_row_stride = call.q.stride[0],
                       .q_head_stride = call.q.stride[1],
                       .batch = BatchView(call.batch),
                       .keys = pages_of(call.cache.keys),
                       .values = pages_of(call.cache.values),
                       .kv_heads = call.kv_heads(),
                       .group = call.group(),
                       .head_size = call.head_size(),
                       .head_chunks = 1,
                       .first_row = first_row,
                       .window = call.params.window,
                       .scale = call.params.scale,
                       .softcap = call.params.softcap,
                       .sinks = call.sinks(),
                       .splits = scratch.splits,
                       .padded_size = padded_size(call),
                       .sums = scratch.sums,
                       .marks = scratch.marks,
                       .out = call.out.as<float>(),
                       .out_stride = call.out.stride[0]};
    const auto end = static_cast<int32_t>(call.q.rows());
    for (; args.first_row < end; args.first_row += scratch.rows_a_pass)
        launch_pass(device, args, std::min(scratch.rows_a_pass, end - args.first_row));
}

}  // namespace tessera::cuda
