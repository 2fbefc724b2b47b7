// gated_delta_rule and accept_recurrent. Generated rows run the token recurrence; prompt rows the
// chunk form, in windows of chunks whose products fit in the arena: the host knows how many rows
// there are, so how many chunks there can be at most, but not where they lie.
#include <algorithm>
#include <cmath>
#include <string_view>

#include "backends/cuda/device.cuh"
#include "backends/cuda/recurrent/accept.cuh"
#include "backends/cuda/recurrent/chunk_scan.cuh"
#include "backends/cuda/recurrent/half_call.cuh"
#include "backends/cuda/recurrent/token_rule.cuh"
#include "ops/checks.h"

namespace tessera::cuda {
namespace {

/// Chunks of a window: at 16 key heads, 48 value heads and sizes of 128, 4 MiB each.
constexpr int64_t kWindowChunks = 34;
/// ... with 16-bit operands, 1.3 MiB each; more of them at once fill the card better.
constexpr int64_t kHalfWindowChunks = 128;
/// Key sizes above run prompts by the token recurrence: the operands of a chunk would not fit in
/// the shared memory of every card.
constexpr int64_t kMostChunkColumns = 128;

unsigned grid(int64_t blocks) {
    return static_cast<unsigned>(blocks);
}

HeadRows<const float> head_rows(const Tensor& x) {
    return {x.as<const float>(), x.stride[0], x.rank == 3 ? x.stride[1] : 1};
}

/// Chunks that the prompt rows can make at most: n rows of one sequence touch at most
/// (n + 126) / 64 chunks, and every chunk has a row.
int64_t most_chunks(const Batch& batch) {
    const int64_t rows = batch.prompt_rows;
    const int64_t sequences = std::min<int64_t>(batch.sequence_count(), rows);
    return std::min(rows, (rows + (2 * kChunk - 2) * sequences) / kChunk);
}

/// Columns of keys as the chunk form takes them.
int32_t chunk_columns(int64_t key_size) {
    return key_size <= 32 ? 32 : key_size <= 64 ? 64 : 128;
}

/// Scratch for `chunks` chunks; while planning, its size alone.
ChunkScratch allocate_scratch(Arena& arena, const DeltaArgs& delta, int64_t chunks) {
    ChunkScratch scratch{.columns = chunk_columns(delta.key_size)};
    const int64_t keys = chunks * delta.key_heads, heads = chunks * delta.heads;
    const auto take = [&](int64_t elements, size_t bytes) {
        return arena.allocate_bytes(static_cast<size_t>(elements) * bytes);
    };
    scratch.keys = reinterpret_cast<uint16_t*>(take(keys * 4 * kChunk * scratch.columns, 2));
    scratch.products = reinterpret_cast<float*>(take(keys * 2 * kSquareElements, 4));
    scratch.squares = reinterpret_cast<uint16_t*>(take(heads * 6 * kSquareElements, 2));
    scratch.gates = reinterpret_cast<float*>(take(heads * 2 * kChunk, 4));
    return scratch;
}

/// The same for chunks with 16-bit operands.
HalfScratch allocate_half_scratch(Arena& arena, const DeltaArgs& delta, int64_t chunks) {
    HalfScratch scratch{.count = static_cast<int32_t>(chunks)};
    const int64_t keys = chunks * delta.key_heads, heads = chunks * delta.heads;
    const auto take = [&](int64_t elements, size_t bytes) {
        return arena.allocate_bytes(static_cast<size_t>(elements) * bytes);
    };
    scratch.keys = reinterpret_cast<uint16_t*>(take(keys * kOneHead, 2));
    scratch.squares = reinterpret_cast<uint16_t*>(take(heads * 2 * kSquareElements, 2));
    scratch.gates = reinterpret_cast<float*>(take(heads * 2 * kChunk, 4));
    return scratch;
}

/// Warps of a block of chunk_scan: fewer when there are too few blocks to fill the card.
int64_t scan_warps(const DeltaArgs& delta, int64_t sequences, int32_t multiprocessors) {
    const int64_t all = ceil_div(delta.size, kWarpRows);
    int64_t warps = std::min<int64_t>(kScanWarps, all);
    while (warps > 1 && 2 * sequences * delta.heads * ceil_div(all, warps) <= multiprocessors)
        warps = ceil_div(warps, 2);
    return warps;
}

template <int kColumns>
void launch_scan(Device& device, const ChunkArgs& args, int64_t sequences, int64_t warps) {
    device.launch("chunk_scan", chunk_scan<kColumns>,
                  grid(sequences * args.delta.heads * args.slices), grid(32 * warps),
                  sizeof(ScanShared<kColumns>), args);
}

void run_prompts(Device& device, const DeltaArgs& delta, ChunkScratch scratch, int64_t chunks) {
    const int64_t sequences = std::min<int64_t>(delta.batch.sequences, delta.batch.prompt_rows);
    const int64_t warps = scan_warps(delta, sequences, device.multiprocessors());
    for (int64_t first = 0; first < chunks; first += kWindowChunks) {
        scratch.first = static_cast<int32_t>(first);
        scratch.count = static_cast<int32_t>(std::min(kWindowChunks, chunks - first));
        const ChunkArgs args{
            .delta = delta,
            .scratch = scratch,
            .slices = static_cast<int32_t>(ceil_div(ceil_div(delta.size, kWarpRows), warps))};
        device.launch("chunk_keys", chunk_keys, grid(int64_t{scratch.count} * delta.key_heads),
                      kKeyThreads, sizeof(ChunkKeysShared), args);
        device.launch("chunk_solve", chunk_solve, grid(int64_t{scratch.count} * delta.heads),
                      kSolveThreads, sizeof(ChunkSolveShared), args);
        const auto launch = scratch.columns == 32   ? launch_scan<32>
                            : scratch.columns == 64 ? launch_scan<64>
                                                    : launch_scan<128>;
        launch(device, args, sequences, warps);
    }
}

/// The instance of a kernel over parts of a key that holds `key_size` elements.
template <class Kernel>
Kernel by_key_size(int64_t key_size, Kernel one, Kernel two, Kernel four, Kernel eight) {
    return key_size <= 32 ? one : key_size <= 64 ? two : key_size <= 128 ? four : eight;
}

void run_tokens(Device& device, const DeltaArgs& delta) {
    const int64_t sequences = delta.batch.sequences;
    const auto kernel =
        by_key_size(delta.key_size, token_rule<1>, token_rule<2>, token_rule<4>, token_rule<8>);
    device.launch("token_rule", kernel, grid(sequences * delta.heads * delta.row_blocks),
                  32 * kTokenWarps, 0, delta);
    if (delta.tentative)
        device.launch("log_tokens", log_tokens, grid(sequences * delta.log_rows), kLogThreads, 0,
                      delta);
}

/// Why prompt rows do without the best form; empty where they have it. `wanted`: it is that of
/// plain 16-bit operands, `half`: these rows take it.
std::string_view why_general(const DeltaArgs& delta, bool wanted, bool half) {
    if (delta.prompts_too) return "keys over 128: token by token";
    return wanted && !half ? "key or value size without plain 16-bit operands: split ones" : "";
}

}  // namespace

DType CudaOps::delta_rule_operands() const {
    if (options_.act_prompt == ActFormat::kF32) return DType::kF32;
    return options_.delta_bf16 ? DType::kBF16 : DType::kF16;
}

void CudaOps::gated_delta_rule(Exec& ex,
                               const Tensor& q,
                               const Tensor& k,
                               const Tensor& v,
                               const Tensor& log_decay,
                               const Tensor& beta,
                               const Batch& batch,
                               const RecurrentView& memory,
                               const Tensor& out) {
    const int64_t rows = q.rows(), key_heads = q.shape[1], key_size = q.shape[2];
    const int64_t heads = v.shape[1], size = v.shape[2];
    check_delta_rule(q, k, v, log_decay, beta, memory, out);
    check(key_size <= kMostKeySize, "gated_delta_rule: key size");
    check(
        !batch.tentative || (memory.delta_log.contiguous() &&
                             memory.delta_log.cols() == key_heads * key_size + heads * (size + 2)),
        "gated_delta_rule: log");
    check_recurrent_batch(batch, rows);
    DeltaArgs delta{.q = head_rows(q),
                    .k = head_rows(k),
                    .v = head_rows(v),
                    .log_decay = head_rows(log_decay),
                    .beta = head_rows(beta),
                    .out = {out.as<float>(), out.stride[0], out.stride[1]},
                    .state = memory.state.as<float>(),
                    .state_stride = memory.state.stride[0],
                    .key_heads = static_cast<int32_t>(key_heads),
                    .key_size = static_cast<int32_t>(key_size),
                    .heads = static_cast<int32_t>(heads),
                    .size = static_cast<int32_t>(size),
                    .row_blocks = static_cast<int32_t>(ceil_div(size, kTokenBlockRows)),
                    .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(key_size))),
                    .tentative = batch.tentative,
                    .prompts_too = key_size > kMostChunkColumns};
    const Scope scope(ex.arena);
    const int64_t chunks = delta.prompts_too ? 0 : most_chunks(batch);
    const DType operands = delta_rule_operands();
    const bool wanted = operands != DType::kF32, half = wanted && half_rule_takes(delta);
    HalfScratch half_scratch{};
    ChunkScratch scratch{};
    if (half)
        half_scratch = allocate_half_scratch(ex.arena, delta, std::min(chunks, kHalfWindowChunks));
    else
        scratch = allocate_scratch(ex.arena, delta, std::min(chunks, kWindowChunks));
    if (ex.planning() || rows == 0) return;
    delta.batch = batch_args(batch);
    if (batch.tentative) {
        delta.log = memory.delta_log.as<float>();
        delta.log_rows = static_cast<int32_t>(memory.delta_log.shape[1]);
        delta.log_floats = static_cast<int32_t>(memory.delta_log.cols());
    }
    const auto products = static_cast<double>(rows * heads * size * key_size);
    const auto values = static_cast<double>(q.elements() + v.elements());
    const double states =
        static_cast<double>(batch.sequence_count()) * static_cast<double>(memory.state.stride[0]);
    const Timed timed(*this, "gated_delta_rule", 7 * products, 8 * (values + states));
    half_scratch.clamped = clamped_;
    if (chunks > 0 && half) run_half(*device_, delta, half_scratch, chunks, operands);
    if (chunks > 0) device_->note_operands(Operands::k16Bits);
    if (batch.prompt_rows > 0) device_->note_fallback(why_general(delta, wanted, half));
    if (chunks > 0 && !half) run_prompts(*device_, delta, scratch, chunks);
    if (batch.prompt_rows < rows || delta.prompts_too) run_tokens(*device_, delta);
}

void CudaOps::accept_recurrent(Exec& ex,
                               const Tensor& slots,
                               const Tensor& counts,
                               const RecurrentView& memory) {
    const int64_t heads = memory.state.shape[1], size = memory.state.shape[2];
    const int64_t key_size = memory.state.shape[3];
    const int64_t channels = memory.conv.shape[1];
    const int64_t log_floats = memory.delta_log.cols();
    const int64_t key_heads = (log_floats - heads * (size + 2)) / key_size;
    check(slots.rows() == counts.rows() && memory.conv_log.cols() == channels &&
              log_floats == key_heads * key_size + heads * (size + 2) && key_size <= kMostKeySize,
          "accept_recurrent: shapes");
    check(dense_slots(memory.state) && dense_slots(memory.conv) && dense_slots(memory.conv_log) &&
              memory.delta_log.contiguous(),
          "accept_recurrent: memory");
    if (ex.planning() || slots.rows() == 0) return;
    const auto floats = static_cast<double>(slots.rows() * heads * size * key_size);
    const Timed timed(*this, "accept_recurrent", 5 * floats, 8 * floats);
    const ConvAcceptArgs window{
        .slots = slots.as<int32_t>(),
        .counts = counts.as<int32_t>(),
        .memory = memory.conv.as<float>(),
        .memory_stride = memory.conv.stride[0],
        .log = memory.conv_log.as<float>(),
        .log_stride = memory.conv_log.stride[0],
        .held = static_cast<int32_t>(memory.conv.shape[2]),
        .channels = static_cast<int32_t>(channels),
        .channel_blocks = static_cast<int32_t>(ceil_div(channels, kConvThreads))};
    device_->launch("conv_accept", conv_accept, grid(slots.rows() * window.channel_blocks),
                    kConvThreads, 0, window);
    const AcceptArgs state{.slots = slots.as<int32_t>(),
                           .counts = counts.as<int32_t>(),
                           .state = memory.state.as<float>(),
                           .state_stride = memory.state.stride[0],
                           .log = memory.delta_log.as<float>(),
                           .log_rows = static_cast<int32_t>(memory.delta_log.shape[1]),
                           .log_floats = static_cast<int32_t>(log_floats),
                           .key_heads = static_cast<int32_t>(key_heads),
                           .key_size = static_cast<int32_t>(key_size),
                           .heads = static_cast<int32_t>(heads),
                           .size = static_cast<int32_t>(size),
                           .row_blocks = static_cast<int32_t>(ceil_div(size, kTokenBlockRows))};
    const auto kernel = by_key_size(key_size, accept_tokens<1>, accept_tokens<2>, accept_tokens<4>,
                                    accept_tokens<8>);
    device_->launch("accept_tokens", kernel, grid(slots.rows() * heads * state.row_blocks),
                    32 * kTokenWarps, 0, state);
}

}  // namespace tessera::cuda
