#pragma once
// What a block of prompt.cuh works on: its query columns, and its operands in shared memory.

#include <cstdint>

#include "backends/cuda/attention/pages.cuh"
#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/ptx/mma.cuh"
#include "backends/cuda/ptx/mma_f16.cuh"
#include "backends/cuda/ptx/opaque.cuh"

namespace tessera::cuda {

constexpr int32_t kTileColumns = 128;
constexpr int32_t kPromptThreads = 256;

/// Keys of a step. With a whole page, heads of 256 would not fit into the 99 KiB that a block has
/// on compute capability 12.x, nor two blocks with heads of 128 into the registers.
constexpr int32_t kTileKeys = kPageTokens / 2;

/// What the tensor cores multiply: the cache's bytes, or its values rounded to bf16.
enum class TileOperands { kBF16, kF16, kConverted };

/// How a launch deals out columns: tiles of kTileColumns, of which the first `halved`, which start
/// last, are two blocks each. A column's bits do not depend on it.
struct PromptCut {
    int32_t tiles = 0;  ///< of all sequences at most
    int32_t halved = 0;
    __host__ __device__ int32_t blocks() const { return tiles + halved; }  ///< a kv head
    __device__ bool is_half(int32_t turn) const { return turn >= tiles - halved; }
};

struct PromptArgs {
    const float* q;  ///< [T, H, d]
    int64_t q_row_stride, q_head_stride;
    bool q_aligned;  ///< eight elements are two aligned float4
    BatchView batch;
    Pages keys, values;
    int32_t prompt_rows, kv_heads, group, head_size;
    PromptCut cut;
    int32_t window;
    float scale, softcap;
    const float* sinks;  ///< by query head; null: none
    float* out;
    int64_t out_stride;
    bool out_aligned;  ///< two elements are one aligned float2
};

/// Shared memory of a block. Rows of a matrix are kHeadSize long, in pieces of eight elements;
/// piece p of row r stands at place p ^ (r % 8), which spreads a column of pieces over all banks.
template <int32_t kHeadSize>
struct alignas(128) PromptShared {
    uint16_t queries[kTileColumns * kHeadSize];
    uint16_t keys[kTileKeys * kHeadSize];
    uint16_t values[kTileKeys * kHeadSize];
    float factors[kTileColumns];      ///< score = product * factor, in powers of 2
    int32_t positions[kTileColumns];  ///< -1: no such column
};
static_assert(sizeof(PromptShared<256>) <= 99 * 1024, "a block of compute capability 12.x");
static_assert(2 * (sizeof(PromptShared<128>) + 1024) <= 100 * 1024,
              "two blocks, 1 KiB kept of each");

template <int32_t kHeadSize>
__host__ __device__ constexpr int32_t tile_place(int32_t row, int32_t piece) {
    return row * kHeadSize + (piece ^ (row % 8)) * 8;
}

/// The place of piece 2 * pair + i of a row from that of piece i, 0 or 1: the same few instructions
/// or none for all rows.
__host__ __device__ constexpr int32_t pair_place(int32_t place, int32_t pair) {
    return (place ^ pair % 4 * 16) + pair / 4 * 64;
}
static_assert(pair_place(tile_place<256>(13, 1), 14) == tile_place<256>(13, 29));

/// Columns [first_column, columns) of a sequence whose first row is first_row.
struct PromptTile {
    int32_t sequence, first_row, columns, first_column;
};

/// The tile of kColumns columns with this number; columns = 0 behind the last. All lanes of a warp
/// together.
template <int32_t kColumns>
__device__ __forceinline__ PromptTile find_tile(const PromptArgs& args, int32_t index) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t sequences = args.batch.sequences;
    for (int32_t base = 0; base < sequences; base += 32) {
        const int32_t first = min(base + lane, sequences), last = min(first + 1, sequences);
        const int32_t begin = min(args.batch.seq_start[first], args.prompt_rows);
        const int32_t columns =
            (min(args.batch.seq_start[last], args.prompt_rows) - begin) * args.group;
        int32_t passed = (columns + kColumns - 1) / kColumns;
        const int32_t tiles = passed;
#pragma unroll
        for (int32_t offset = 1; offset < 32; offset *= 2) {
            const int32_t before = __shfl_up_sync(0xffffffffu, passed, offset);
            if (lane >= offset) passed += before;
        }
        const int32_t owner = __popc(__ballot_sync(0xffffffffu, passed <= index));
        if (owner < 32) {
            const int32_t own_index = index - __shfl_sync(0xffffffffu, passed - tiles, owner);
            return {base + owner, __shfl_sync(0xffffffffu, begin, owner),
                    __shfl_sync(0xffffffffu, columns, owner), own_index * kColumns};
        }
        index -= __shfl_sync(0xffffffffu, passed, 31);
    }
    return {0, 0, 0, 0};
}

/// The columns of a block that starts as `turn`-th of its kv head; none where tile.columns <=
/// tile.first_column. Late tiles see the most keys: they start first, so that none of them is left
/// alone at the end.
template <bool kHalves>
__device__ __forceinline__ PromptTile find_columns(const PromptArgs& args, int32_t turn) {
    if constexpr (!kHalves) return find_tile<kTileColumns>(args, args.cut.tiles - 1 - turn);
    if (!args.cut.is_half(turn)) return find_tile<kTileColumns>(args, args.cut.tiles - 1 - turn);
    const int32_t half = turn - (args.cut.tiles - args.cut.halved);
    PromptTile tile = find_tile<kTileColumns>(args, args.cut.halved - 1 - half / 2);
    tile.first_column += half % 2 * (kTileColumns / 2);
    tile.columns = min(tile.columns, tile.first_column + kTileColumns / 2);
    return tile;
}

template <bool kHalf>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
    if constexpr (kHalf)
        return pack_f16(low, high);
    else
        return pack_bf16(low, high);
}

template <bool kHalf>
__device__ __forceinline__ uint4 pack_eight(const float (&x)[8]) {
    return {pack_pair<kHalf>(x[0], x[1]), pack_pair<kHalf>(x[2], x[3]),
            pack_pair<kHalf>(x[4], x[5]), pack_pair<kHalf>(x[6], x[7])};
}

/// Eight elements of a query from `element` on; zeros behind its end.
__device__ __forceinline__ void load_query(const PromptArgs& args,
                                           const float* query,
                                           int32_t element,
                                           float (&out)[8]) {
    if (args.q_aligned && element < args.head_size) {
        const auto* source = reinterpret_cast<const float4*>(query + element);
        const float4 low = source[0], high = source[1];
        out[0] = low.x, out[1] = low.y, out[2] = low.z, out[3] = low.w;
        out[4] = high.x, out[5] = high.y, out[6] = high.z, out[7] = high.w;
    } else {
#pragma unroll
        for (int32_t i = 0; i < 8; ++i)
            out[i] = element + i < args.head_size ? query[element + i] : 0.0f;
    }
}

/// The queries of the tile and what belongs to them; each warp loads the rows that it uses.
template <int32_t kHeadSize, bool kHalf>
__device__ __forceinline__ void load_queries(const PromptArgs& args,
                                             const PromptTile& tile,
                                             int32_t kv_head,
                                             PromptShared<kHeadSize>& shared) {
    constexpr int32_t kPieces = kHeadSize / 8;
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t piece = lane % kPieces;
    for (int32_t i = 0; i < 16; i += 32 / kPieces) {
        const int32_t row = static_cast<int32_t>(threadIdx.x / 32) * 16 + i + lane / kPieces;
        const int32_t column = tile.first_column + row;
        const bool live = column < tile.columns;
        const int32_t token = tile.first_row + column / args.group;
        float x[8] = {};
        if (live) {
            const int64_t head = int64_t{kv_head} * args.group + column % args.group;
            load_query(args, args.q + token * args.q_row_stride + head * args.q_head_stride,
                       piece * 8, x);
        }
        float factor = args.scale;
        if constexpr (kHalf) {
            float largest = 0.0f;
#pragma unroll
            for (int32_t j = 0; j < 8; ++j) largest = fmaxf(largest, fabsf(x[j]));
#pragma unroll
            for (int32_t offset = kPieces / 2; offset > 0; offset /= 2)
                largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
            // The exponent of the largest, kept where it and its negative are normal numbers.
            const uint32_t exponent = min(max(__float_as_uint(largest) >> 23, 1u), 253u);
            const float down = __uint_as_float((254u - exponent) << 23);
            factor *= __uint_as_float(exponent << 23);
#pragma unroll
            for (int32_t j = 0; j < 8; ++j) x[j] *= down;
        }
        *reinterpret_cast<uint4*>(shared.queries + tile_place<kHeadSize>(row, piece)) =
            pack_eight<kHalf>(x);
        if (piece == 0) {
            shared.factors[row] = factor;
            shared.positions[row] = live ? args.batch.positions[token] : -1;
        }
    }
}

/// Keys [begin, end) that some column of the block sees, and how to find them.
struct PromptKeys {
    int32_t begin, end;
    const int32_t* table;
    int64_t kv_head;
};

template <int32_t kHeadSize, PageFormat kFormat>
__device__ __forceinline__ void convert_step(
    const Pages& pages, const uint8_t* source, int32_t head_size, int2 live, uint16_t* tile) {
    constexpr int32_t kPieces = kHeadSize / 8;
    constexpr int32_t kTurns = kTileKeys * kPieces / kPromptThreads;
    constexpr int32_t kAtOnce = kHeadSize > 128 ? 2 : 1;  // bounded by registers
    auto thread = static_cast<int32_t>(threadIdx.x);
    make_opaque(thread);  // places are not kept from step to step
#pragma unroll 1
    for (int32_t turn = 0; turn < kTurns; turn += kAtOnce) {
        Eight<kFormat> raw[kAtOnce];
#pragma unroll
        for (int32_t i = 0; i < kAtOnce; ++i) {
            const int32_t at = (turn + i) * kPromptThreads + thread;
            const int32_t row = at / kPieces, piece = at % kPieces;
            raw[i] = {};
            if (row >= live.x && row < live.y && piece * 8 < head_size)
                raw[i].load(pages, source + row * pages.row_bytes, piece, head_size);
        }
#pragma unroll
        for (int32_t i = 0; i < kAtOnce; ++i) {
            const int32_t at = (turn + i) * kPromptThreads + thread;
            float x[8];
            raw[i].unpack(x);
            *reinterpret_cast<uint4*>(tile + tile_place<kHeadSize>(at / kPieces, at % kPieces)) =
                pack_eight<false>(x);
        }
    }
}

/// By kThreads threads, the keys or values of step `step`, which stand in page `page` of the pool,
/// into a tile; zeros for keys that nobody sees. Copies as they stand are under way when this
/// returns.
template <int32_t kThreads, int32_t kHeadSize, TileOperands kOperands>
__device__ __forceinline__ void load_step(const Pages& pages,
                                          const PromptKeys& keys,
                                          int32_t step,
                                          int32_t page,
                                          int32_t head_size,
                                          uint16_t* tile) {
    const int32_t first_key = step * kTileKeys;
    const uint8_t* source =
        pages.head(page, keys.kv_head) + first_key % kPageTokens * pages.row_bytes;
    const int2 live = {keys.begin - first_key, keys.end - first_key};
    static_assert(kOperands != TileOperands::kConverted || kThreads == kPromptThreads);
    if constexpr (kOperands != TileOperands::kConverted) {
        constexpr int32_t kPieces = kHeadSize / 8, kRows = kThreads / kPieces;  // at once
        const int32_t first = static_cast<int32_t>(threadIdx.x) / kPieces;
        const int32_t piece = static_cast<int32_t>(threadIdx.x) % kPieces;
        const uint8_t* from = source + first * pages.row_bytes + piece * 16;
        const int64_t stride = int64_t{kRows} * pages.row_bytes;
        // Copies of a length that is known take a sixth of the instructions.
        if (live.x <= 0 && live.y >= kTileKeys && head_size == kHeadSize) {
#pragma unroll
            for (int32_t row = 0; row < kTileKeys; row += kRows, from += stride)
                copy_16(tile + tile_place<kHeadSize>(first + row, piece), from);
        } else {
#pragma unroll 1
            for (int32_t row = first; row < kTileKeys; row += kRows, from += stride)
                copy_16(tile + tile_place<kHeadSize>(row, piece), from,
                        row >= live.x && row < live.y && piece * 8 < head_size ? 16u : 0u);
        }
        commit_copies();
    } else if (!pages.aligned) {
        convert_step<kHeadSize, PageFormat::kAny>(pages, source, head_size, live, tile);
    } else if (pages.format == PageFormat::kF32) {
        convert_step<kHeadSize, PageFormat::kF32>(pages, source, head_size, live, tile);
    } else if (pages.format == PageFormat::kQ8_0) {
        convert_step<kHeadSize, PageFormat::kQ8_0>(pages, source, head_size, live, tile);
    } else if (pages.format == PageFormat::kF8) {
        convert_step<kHeadSize, PageFormat::kF8>(pages, source, head_size, live, tile);
    } else if (pages.format == PageFormat::kF16) {
        convert_step<kHeadSize, PageFormat::kF16>(pages, source, head_size, live, tile);
    } else {
        convert_step<kHeadSize, PageFormat::kBF16>(pages, source, head_size, live, tile);
    }
}

}  // namespace tessera::cuda
