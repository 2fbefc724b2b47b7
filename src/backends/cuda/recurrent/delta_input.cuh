#pragma once
// Convolution, SiLU, L2 norm of the heads of q and k, and gates in one kernel. A warp takes a piece
// of columns (a head of q or k, or 128 columns of values), four columns a lane, and goes through
// the rows of a segment with the window in its registers; a head is normed while it is there.
// Blocks behind those take the gates.
//
// Only the warps that see the first rows of a sequence read its old memory, so they write the new
// one, which needs nothing else but the last inputs: to that end a segment that starts within the
// first W - 1 rows of a sequence leaves them to the segment before.
//
// Bound by bytes: 8 an element (and W - 1 of a segment's rows once more from the second cache); the
// rejected passes (convolution, memory, two norms, gates) move 8 bytes an element and 16 of each
// head. Bits are those of conv.cuh, norm.cuh and gates.cuh, whose functions these are.

#include "backends/cuda/recurrent/conv.cuh"
#include "backends/cuda/recurrent/gates.cuh"
#include "backends/cuda/rows/norm.cuh"

namespace tessera::cuda {

constexpr int32_t kPieceCols = 128;  ///< a warp's columns at most
constexpr int32_t kPieceWarps = 4;   ///< of a block, a piece each
constexpr int32_t kPieceAhead = 4;   ///< rows that are loaded, and worked on, together
static_assert(32 * kPieceWarps == kGateThreads, "blocks of gates are blocks of this kernel");

struct DeltaInputArgs {
    ConvArgs conv;
    GateArgs gates;
    float eps = 0.0f;
    int32_t key_pieces = 0;  ///< heads of q and k
    int32_t key_size = 0;
    int32_t pieces = 0;
    int32_t piece_blocks = 0;
    int32_t segment_rows = 0;
    int32_t prompt_blocks = 0;
    int32_t generated_blocks = 0;
};

/// What a warp works on.
struct Piece {
    int32_t first = 0, end = 0;  ///< columns
    bool normed = false;
};

__device__ __forceinline__ Piece piece_at(const DeltaInputArgs& args, int32_t index) {
    if (index < args.key_pieces) return {index * args.key_size, (index + 1) * args.key_size, true};
    const int32_t first = args.key_pieces * args.key_size + (index - args.key_pieces) * kPieceCols;
    return {first, min(first + kPieceCols, args.conv.channels), false};
}

/// Four columns of one sequence, from `column`, as far as they lie before `end`. kVector: rows of u
/// and qkv, taps and windows start at multiples of 16 bytes, and so do pieces; all four columns lie
/// before `end` then, or none.
template <int W, bool kVector>
struct FourColumns {
    const DeltaInputArgs& args;
    const Place& place;
    int32_t column, end;
    bool normed;

    /// Elements [i, i + 4) of `kEach` elements a column that lie behind each other from `data` on;
    /// zeros for columns from `end` on.
    template <int kEach>
    __device__ __forceinline__ rows::Four load(const float* data, int32_t i) const {
        const float* own = data + static_cast<int64_t>(column) * kEach;
        if constexpr (!kVector)
            return rows::load_four(own, i, static_cast<int64_t>(end - column) * kEach, false);
        rows::Four four{{0.0f, 0.0f, 0.0f, 0.0f}};
        if (column < end) four = rows::load_four(own, i, i + 4, true);
        return four;
    }
    template <int kEach>
    __device__ __forceinline__ void store(const rows::Four& four, float* data, int32_t i) const {
        float* own = data + static_cast<int64_t>(column) * kEach;
        if constexpr (!kVector)
            rows::store_four(four, i, static_cast<int64_t>(end - column) * kEach, false, own);
        else if (column < end)
            rows::store_four(four, i, i + 4, true, own);
    }

    __device__ __forceinline__ void load_taps(rows::Four (&taps)[W]) const {
        rows::Four flat[W];
#pragma unroll
        for (int32_t i = 0; i < W; ++i) flat[i] = load<W>(args.conv.taps, 4 * i);
#pragma unroll
        for (int32_t i = 0; i < 4 * W; ++i) taps[i % W].value[i / W] = flat[i / 4].value[i % 4];
    }
    __device__ __forceinline__ int64_t batch_row(int32_t row) const {
        return static_cast<int64_t>(place.begin) + row;
    }
    __device__ __forceinline__ rows::Four row_of(int32_t row) const {
        return load<1>(args.conv.u + batch_row(row) * args.conv.u_stride, 0);
    }
    __device__ __forceinline__ float* slot_memory(int32_t slot) const {
        return args.conv.memory + slot * args.conv.memory_stride;
    }
    /// Input `row` of the sequence, row > -W.
    __device__ __forceinline__ rows::Four input(int32_t row) const {
        if (row >= 0) return row_of(row);
        const float* old = slot_memory(place.slot) + static_cast<int64_t>(column) * (W - 1);
        rows::Four four;
#pragma unroll
        for (int32_t c = 0; c < 4; ++c) {
            const bool held = place.position != 0 && column + c < end;
            four.value[c] = held ? old[c * (W - 1) + row + W - 1] : 0.0f;
        }
        return four;
    }
    /// The W - 1 inputs before `row`, oldest first.
    __device__ __forceinline__ void window_before(int32_t row, rows::Four (&window)[W]) const {
#pragma unroll
        for (int32_t i = 0; i < W - 1; ++i) window[i] = input(row - (W - 1) + i);
    }
    __device__ __forceinline__ void store_memory(int32_t slot,
                                                 const rows::Four (&window)[W]) const {
        rows::Four flat[W - 1];
#pragma unroll
        for (int32_t i = 0; i < 4 * (W - 1); ++i)
            flat[i / 4].value[i % 4] = window[i % (W - 1)].value[i / (W - 1)];
#pragma unroll
        for (int32_t i = 0; i < W - 1; ++i) store<W - 1>(flat[i], slot_memory(slot), 4 * i);
    }
    /// Convolved fours of `count` rows to their places; zeros behind them.
    __device__ __forceinline__ void finish(int32_t row,
                                           int32_t count,
                                           rows::Four (&fours)[kPieceAhead]) const {
        if (normed) {
            float factors[kPieceAhead];
            rows::norm_factors<rows::NormKind::kL2>(fours, count, args.key_size, args.eps, factors);
#pragma unroll
            for (int32_t i = 0; i < kPieceAhead; ++i)
                rows::norm_scale(fours[i], factors[i], rows::Four{{1.0f, 1.0f, 1.0f, 1.0f}});
        }
#pragma unroll
        for (int32_t i = 0; i < kPieceAhead; ++i)
            if (i < count) put(row + i, fours[i]);
    }
    __device__ __forceinline__ void put(int32_t row, const rows::Four& four) const {
        store<1>(four, args.conv.out + batch_row(row) * args.conv.out_stride, 0);
    }
};

/// The output at the newest input of a window, which then moves on.
template <int W>
__device__ __forceinline__ rows::Four convolve_four(const rows::Four (&taps)[W],
                                                    const rows::Four& newest,
                                                    rows::Four (&window)[W]) {
    window[W - 1] = newest;
    rows::Four four;
#pragma unroll
    for (int32_t c = 0; c < 4; ++c) {
        float inputs[W], weights[W];
#pragma unroll
        for (int32_t j = 0; j < W; ++j) {
            inputs[j] = window[j].value[c];
            weights[j] = taps[j].value[c];
        }
        four.value[c] = convolved(inputs, weights);
    }
#pragma unroll
    for (int32_t j = 0; j + 1 < W; ++j) window[j] = window[j + 1];
    return four;
}

/// Rows [row, end) of a sequence.
template <int W, bool kVector>
__device__ __forceinline__ void convolve_columns(const FourColumns<W, kVector>& at,
                                                 int32_t row,
                                                 int32_t end) {
    rows::Four taps[W], window[W];
    at.load_taps(taps);
    at.window_before(row, window);
    rows::Four ahead[kPieceAhead];
#pragma unroll
    for (int32_t i = 0; i < kPieceAhead; ++i)
        if (row + i < end) ahead[i] = at.row_of(row + i);
    // Rows of a group do not wait for each other, the next ones are under way meanwhile.
    for (; row + kPieceAhead <= end; row += kPieceAhead) {
        rows::Four fours[kPieceAhead];
#pragma unroll
        for (int32_t i = 0; i < kPieceAhead; ++i) {
            fours[i] = convolve_four(taps, ahead[i], window);
            if (row + i + kPieceAhead < end) ahead[i] = at.row_of(row + i + kPieceAhead);
        }
        at.finish(row, kPieceAhead, fours);
    }
    if (row >= end) return;
    rows::Four fours[kPieceAhead];
#pragma unroll
    for (int32_t i = 0; i < kPieceAhead; ++i) {
        fours[i] = rows::Four{{0.0f, 0.0f, 0.0f, 0.0f}};
        if (row + i < end) fours[i] = convolve_four(taps, ahead[i], window);
    }
    at.finish(row, end - row, fours);
}

/// What the memory holds behind the rows of a sequence; those of a tentative one go to the log.
template <int W, bool kVector>
__device__ __forceinline__ void replace_memory(const FourColumns<W, kVector>& at) {
    const Place& place = at.place;
    const ConvArgs& conv = at.args.conv;
    rows::Four window[W];
    if (conv.tentative) {
        float* log = conv.log + place.slot * conv.log_stride;
        for (int32_t row = 0; row < min(place.rows, conv.log_rows); ++row)
            at.template store<1>(at.row_of(row), log + static_cast<int64_t>(row) * conv.channels,
                                 0);
        if (place.position > 0) return;
        // What will be accepted comes on top of the zeros that the sequence starts from.
        at.window_before(0, window);
        return at.store_memory(place.slot, window);
    }
    if (place.begin < conv.batch.prompt_rows && place.save_slot >= 0) {
        at.window_before(place.save_after, window);
        at.store_memory(place.save_slot, window);
    }
    at.window_before(place.rows, window);
    at.store_memory(place.slot, window);
}

/// Rows of the batch that a warp takes: of sequences s, s + 1, ...
struct Segment {
    int32_t sequence = 0, row = 0, end = 0;
};

__device__ __forceinline__ Segment segment_at(const DeltaInputArgs& args, int32_t block) {
    const BatchArgs& batch = args.conv.batch;
    if (block < args.prompt_blocks) {
        const int32_t row = block / args.piece_blocks * args.segment_rows;
        return {sequence_of_row(batch, row), row, min(row + args.segment_rows, batch.prompt_rows)};
    }
    const int32_t s = (block - args.prompt_blocks) / args.piece_blocks;
    const int32_t row = batch.seq_start[s];
    return {s, row, row < batch.prompt_rows ? row : batch.seq_start[s + 1]};
}

/// Blocks of (segment of prompt rows, pieces), then of (sequence, pieces) where there are generated
/// rows, then of gates.
template <int W, bool kVector>
__global__ void __launch_bounds__(32 * kPieceWarps, W <= 4 ? 4 : 3)
    delta_input_kernel(const __grid_constant__ DeltaInputArgs args) {
    const auto block = static_cast<int32_t>(blockIdx.x);
    const int32_t row_blocks = args.prompt_blocks + args.generated_blocks;
    if (block >= row_blocks)
        return delta_gate(args.gates,
                          static_cast<int64_t>(block - row_blocks) * kGateThreads + threadIdx.x);
    // Both numbers of row blocks are multiples of piece_blocks.
    const int32_t index =
        block % args.piece_blocks * kPieceWarps + static_cast<int32_t>(threadIdx.x) / 32;
    if (index >= args.pieces) return;  // a whole warp at a time
    const Piece piece = piece_at(args, index);
    const int32_t column = piece.first + 4 * (static_cast<int32_t>(threadIdx.x) % 32);

    auto [s, row, end] = segment_at(args, block);
    for (; row < end; ++s) {
        const Place place = place_of(args.conv.batch, s);
        if (place.rows == 0) continue;
        const FourColumns<W, kVector> at{args, place, column, piece.end, piece.normed};
        const bool start = row == place.begin;
        const int32_t shared_end = min(end - place.begin, place.rows);
        const int32_t from = start ? 0 : max(row - place.begin, W - 1);
        const int32_t to = start ? max(shared_end, min(W - 1, place.rows)) : shared_end;
        row = place.begin + shared_end;
        if (from < to) convolve_columns(at, from, to);
        if (start) replace_memory(at);
    }
}

}  // namespace tessera::cuda
