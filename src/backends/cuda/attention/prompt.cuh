#pragma once
// Attention of prompt rows on tensor cores, after FlashAttention-2 (arXiv 2307.08691). A block
// takes one kv head and 64 query columns of one sequence, column c being head c % group of token c
// / group; a warp takes 16 of them. Pages of 64 keys go by in rising order, with a running maximum
// and total a column. Values of a page come in beside its scores, keys of the next page beside its
// sums. Operands are 16 bits wide: the cache's own f16 or bf16 copied as it stands, anything else
// rounded to bf16. f16 queries are first scaled by a power of two into [-2, 2), so that none
// overflows.
// Bound: 4 * d products a visible (query, key) pair on tensor cores.
//
// A column's result depends on nothing but the column: pages lie at absolute positions, and a page
// that the column does not see leaves maximum, total and sums as they were, bit for bit (the factor
// is exp2(0) = 1, the probabilities are 0, keys and values that nobody in the block sees are
// zeros). Scores are rounded before use so that no fused form of them can arise on one path alone.

#include <cstdint>

#include "backends/cuda/attention/pages.cuh"
#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/ptx/mma.cuh"
#include "backends/cuda/ptx/mma_f16.cuh"

namespace tessera::cuda {

constexpr int32_t kTileColumns = 64;
constexpr int32_t kPromptThreads = 128;

/// What the tensor cores multiply: the cache's bytes, or its values rounded to bf16.
enum class TileOperands { kBF16, kF16, kConverted };

struct PromptArgs {
    const float* q;  ///< [T, H, d]
    int64_t q_row_stride, q_head_stride;
    bool q_aligned;  ///< eight elements are two aligned float4
    BatchView batch;
    Pages keys, values;
    int32_t prompt_rows, kv_heads, group, head_size;
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
struct PromptShared {
    uint16_t queries[kTileColumns * kHeadSize];
    uint16_t keys[kPageTokens * kHeadSize];
    uint16_t values[kPageTokens * kHeadSize];
    float factors[kTileColumns];      ///< score = product * factor, in powers of 2
    int32_t positions[kTileColumns];  ///< -1: no such column
};

template <int32_t kHeadSize>
__host__ __device__ constexpr int32_t tile_place(int32_t row, int32_t piece) {
    return row * kHeadSize + (piece ^ (row % 8)) * 8;
}

/// Columns [first_column, columns) of a sequence whose first row is first_row.
struct PromptTile {
    int32_t sequence, first_row, columns, first_column;
};

/// The tile with this number; columns = 0 behind the last. All lanes of a warp together.
__device__ __forceinline__ PromptTile find_tile(const PromptArgs& args, int32_t index) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t sequences = args.batch.sequences;
    for (int32_t base = 0; base < sequences; base += 32) {
        const int32_t first = min(base + lane, sequences), last = min(first + 1, sequences);
        const int32_t begin = min(args.batch.seq_start[first], args.prompt_rows);
        const int32_t columns =
            (min(args.batch.seq_start[last], args.prompt_rows) - begin) * args.group;
        int32_t passed = (columns + kTileColumns - 1) / kTileColumns;
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
                    __shfl_sync(0xffffffffu, columns, owner), own_index * kTileColumns};
        }
        index -= __shfl_sync(0xffffffffu, passed, 31);
    }
    return {0, 0, 0, 0};
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

template <bool kHalf>
__device__ __forceinline__ void multiply(float (&c)[4],
                                         const uint32_t (&a)[4],
                                         uint32_t b0,
                                         uint32_t b1) {
    const uint32_t b[2] = {b0, b1};
    if constexpr (kHalf)
        mma_f16(c, a, b);
    else
        mma_bf16(c, a, b);
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
__device__ __forceinline__ void convert_page(
    const Pages& pages, const uint8_t* source, int32_t head_size, int2 live, uint16_t* tile) {
    constexpr int32_t kPieces = kHeadSize / 8;
    constexpr int32_t kTurns = kPageTokens * kPieces / kPromptThreads;
    constexpr int32_t kAtOnce = kHeadSize > 128 ? 2 : 4;  // bounded by registers
#pragma unroll 1
    for (int32_t turn = 0; turn < kTurns; turn += kAtOnce) {
        Eight<kFormat> raw[kAtOnce];
#pragma unroll
        for (int32_t i = 0; i < kAtOnce; ++i) {
            const int32_t at = (turn + i) * kPromptThreads + static_cast<int32_t>(threadIdx.x);
            const int32_t row = at / kPieces, piece = at % kPieces;
            raw[i] = {};
            if (row >= live.x && row < live.y && piece * 8 < head_size)
                raw[i].load(pages, source + row * pages.row_bytes, piece, head_size);
        }
#pragma unroll
        for (int32_t i = 0; i < kAtOnce; ++i) {
            const int32_t at = (turn + i) * kPromptThreads + static_cast<int32_t>(threadIdx.x);
            float x[8];
            raw[i].unpack(x);
            *reinterpret_cast<uint4*>(tile + tile_place<kHeadSize>(at / kPieces, at % kPieces)) =
                pack_eight<false>(x);
        }
    }
}

/// Page `index` of the sequence into a tile; zeros for keys that nobody sees. Copies as they stand
/// are under way when this returns.
template <int32_t kHeadSize, TileOperands kOperands>
__device__ __forceinline__ void load_page(
    const Pages& pages, const PromptKeys& keys, int32_t index, int32_t head_size, uint16_t* tile) {
    const uint8_t* source = pages.head(keys.table[index], keys.kv_head);
    const int2 live = {keys.begin - index * kPageTokens, keys.end - index * kPageTokens};
    if constexpr (kOperands != TileOperands::kConverted) {
        constexpr int32_t kPieces = kHeadSize / 8;
#pragma unroll 4
        for (int32_t at = static_cast<int32_t>(threadIdx.x); at < kPageTokens * kPieces;
             at += kPromptThreads) {
            const int32_t row = at / kPieces, piece = at % kPieces;
            const bool wanted = row >= live.x && row < live.y && piece * 8 < head_size;
            copy_16(tile + tile_place<kHeadSize>(row, piece),
                    wanted ? source + row * pages.row_bytes + piece * 16 : pages.data,
                    wanted ? 16u : 0u);
        }
        commit_copies();
    } else if (!pages.aligned) {
        convert_page<kHeadSize, PageFormat::kAny>(pages, source, head_size, live, tile);
    } else if (pages.format == PageFormat::kF32) {
        convert_page<kHeadSize, PageFormat::kF32>(pages, source, head_size, live, tile);
    } else if (pages.format == PageFormat::kQ8_0) {
        convert_page<kHeadSize, PageFormat::kQ8_0>(pages, source, head_size, live, tile);
    } else if (pages.format == PageFormat::kF8) {
        convert_page<kHeadSize, PageFormat::kF8>(pages, source, head_size, live, tile);
    } else if (pages.format == PageFormat::kF16) {
        convert_page<kHeadSize, PageFormat::kF16>(pages, source, head_size, live, tile);
    } else {
        convert_page<kHeadSize, PageFormat::kBF16>(pages, source, head_size, live, tile);
    }
}

/// What a lane keeps of the two rows g and g + 8 of its warp's columns.
struct RowState {
    int32_t position[2];
    float factor[2];
    float largest[2];  ///< score in powers of 2
    float total[2];    ///< of this lane's keys
};

/// scores (8 fragments of 8 keys) = queries keys^T. Unrolled in full, the largest heads would run
/// out of registers.
template <int32_t kHeadSize, bool kHalf>
__device__ __forceinline__ void multiply_keys(const PromptShared<kHeadSize>& shared,
                                              int32_t head_size,
                                              float (&scores)[8][4]) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t query_row = static_cast<int32_t>(threadIdx.x / 32) * 16 + lane % 16;
    const int32_t key_row = lane % 8 + lane / 16 * 8;
#pragma unroll
    for (int32_t n = 0; n < 8; ++n)
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) scores[n][i] = 0.0f;
#pragma unroll(kHeadSize > 128 ? 4 : kHeadSize / 16)
    for (int32_t k = 0; k < kHeadSize / 16; ++k) {
        if (k * 16 >= head_size) break;
        uint32_t a[4];
        load_matrices(a, shared.queries + tile_place<kHeadSize>(query_row, 2 * k + lane / 16));
#pragma unroll
        for (int32_t n = 0; n < 4; ++n) {
            uint32_t b[4];
            load_matrices(
                b, shared.keys + tile_place<kHeadSize>(16 * n + key_row, 2 * k + lane / 8 % 2));
            multiply<kHalf>(scores[2 * n], a, b[0], b[1]);
            multiply<kHalf>(scores[2 * n + 1], a, b[2], b[3]);
        }
    }
}

/// Products to scores in powers of 2; -inf where `masked` and the column does not see the key.
__device__ __forceinline__ void finish_scores(const PromptArgs& args,
                                              const RowState& state,
                                              int32_t first_key,
                                              bool masked,
                                              float (&scores)[8][4]) {
    constexpr float kLog2E = 1.44269504f;
    const float cap = args.softcap;
#pragma unroll
    for (int32_t n = 0; n < 8; ++n)
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
            if (cap > 0.0f) {
                const float score = __fmul_rn(scores[n][i], state.factor[i / 2]);
                scores[n][i] = __fmul_rn(cap * kLog2E, tanhf(score / cap));
            } else {
                scores[n][i] = __fmul_rn(scores[n][i], state.factor[i / 2] * kLog2E);
            }
        }
    if (!masked) return;
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
    for (int32_t n = 0; n < 8; ++n)
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
            const int32_t key = first_key + 8 * n + lane % 4 * 2 + i % 2;
            const int32_t age = state.position[i / 2] - key;
            if (age < 0 || (args.window > 0 && age >= args.window)) scores[n][i] = -INFINITY;
        }
}

/// Scores to exp2(score - new maximum); total to match. Returns what the sums must be multiplied
/// by.
__device__ __forceinline__ float2 advance_softmax(RowState& state, float (&scores)[8][4]) {
    float factors[2];
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
        float largest = state.largest[half];
#pragma unroll
        for (int32_t n = 0; n < 8; ++n)
            largest = fmaxf(largest, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
        // Nothing seen yet: any finite number keeps -inf - -inf away.
        const float level = largest == -INFINITY ? 0.0f : largest;
        factors[half] = exp2f(state.largest[half] - level);
        state.largest[half] = largest;
        float total = 0.0f;
#pragma unroll
        for (int32_t n = 0; n < 8; ++n) {
            scores[n][2 * half] = exp2f(scores[n][2 * half] - level);
            scores[n][2 * half + 1] = exp2f(scores[n][2 * half + 1] - level);
            total += scores[n][2 * half] + scores[n][2 * half + 1];
        }
        state.total[half] = fmaf(state.total[half], factors[half], total);
    }
    return {factors[0], factors[1]};
}

/// sums += probabilities values.
template <int32_t kHeadSize, bool kHalf>
__device__ __forceinline__ void multiply_values(const PromptShared<kHeadSize>& shared,
                                                int32_t head_size,
                                                const float (&scores)[8][4],
                                                float (&sums)[kHeadSize / 8][4]) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
    for (int32_t k = 0; k < 4; ++k) {
        const uint32_t a[4] = {pack_pair<kHalf>(scores[2 * k][0], scores[2 * k][1]),
                               pack_pair<kHalf>(scores[2 * k][2], scores[2 * k][3]),
                               pack_pair<kHalf>(scores[2 * k + 1][0], scores[2 * k + 1][1]),
                               pack_pair<kHalf>(scores[2 * k + 1][2], scores[2 * k + 1][3])};
#pragma unroll
        for (int32_t n = 0; n < kHeadSize / 16; ++n) {
            if (n * 16 >= head_size) break;
            uint32_t b[4];
            load_matrices_transposed(
                b, shared.values + tile_place<kHeadSize>(16 * k + lane % 16, 2 * n + lane / 16));
            multiply<kHalf>(sums[2 * n], a, b[0], b[1]);
            multiply<kHalf>(sums[2 * n + 1], a, b[2], b[3]);
        }
    }
}

template <int32_t kHeadSize>
__device__ __forceinline__ void scale_sums(float2 factors, float (&sums)[kHeadSize / 8][4]) {
#pragma unroll
    for (int32_t n = 0; n < kHeadSize / 8; ++n) {
        sums[n][0] *= factors.x, sums[n][1] *= factors.x;
        sums[n][2] *= factors.y, sums[n][3] *= factors.y;
    }
}

template <int32_t kHeadSize>
__device__ __forceinline__ void write_tile(const PromptArgs& args,
                                           const PromptTile& tile,
                                           int32_t kv_head,
                                           const RowState& state,
                                           const float (&sums)[kHeadSize / 8][4]) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
        float total = state.total[half];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        const int32_t column =
            tile.first_column + static_cast<int32_t>(threadIdx.x / 32) * 16 + lane / 4 + 8 * half;
        if (column >= tile.columns) continue;
        const int64_t token = tile.first_row + column / args.group;
        const int64_t head = int64_t{kv_head} * args.group + column % args.group;
        float* out = args.out + token * args.out_stride + head * args.head_size;
        float inverse = 1.0f / total;
        if (args.sinks != nullptr) {
            // One more score, whose values are 0, may be the largest.
            const float sink = __fmul_rn(args.sinks[head], 1.44269504f);
            const float level = fmaxf(state.largest[half], sink);
            const float shrink = exp2f(state.largest[half] - level);
            inverse = shrink / fmaf(total, shrink, exp2f(sink - level));
        }
#pragma unroll
        for (int32_t n = 0; n < kHeadSize / 8; ++n) {
            const int32_t element = 8 * n + lane % 4 * 2;
            const float2 pair = {sums[n][2 * half] * inverse, sums[n][2 * half + 1] * inverse};
            if (args.out_aligned && element + 2 <= args.head_size) {
                *reinterpret_cast<float2*>(out + element) = pair;
            } else {
                if (element < args.head_size) out[element] = pair.x;
                if (element + 1 < args.head_size) out[element + 1] = pair.y;
            }
        }
    }
}

/// Lowest and highest position of the tile's columns. Every warp finds them for itself.
__device__ __forceinline__ int2 position_range(const int32_t* positions) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t a = positions[lane], b = positions[lane + 32];
    int32_t lowest = min(a < 0 ? INT32_MAX : a, b < 0 ? INT32_MAX : b), highest = max(a, b);
#pragma unroll
    for (int32_t offset = 16; offset > 0; offset /= 2) {
        lowest = min(lowest, __shfl_xor_sync(0xffffffffu, lowest, offset));
        highest = max(highest, __shfl_xor_sync(0xffffffffu, highest, offset));
    }
    return {lowest, highest};
}

/// Grid: tiles * kv heads, where tiles may be more than there are.
template <int32_t kHeadSize, TileOperands kOperands>
__global__ void __launch_bounds__(kPromptThreads, kHeadSize > 64 ? 2 : 3)
    attend_tile(const __grid_constant__ PromptArgs args) {
    constexpr bool kHalf = kOperands == TileOperands::kF16;
    auto& shared = *reinterpret_cast<PromptShared<kHeadSize>*>(dynamic_shared());
    const auto kv_head = static_cast<int32_t>(blockIdx.x) % args.kv_heads;
    // Late tiles see the most keys: they start first, so that none of them is left alone at the
    // end.
    const auto blocks_behind = static_cast<int32_t>(gridDim.x - 1 - blockIdx.x);
    const PromptTile tile = find_tile(args, blocks_behind / args.kv_heads);
    if (tile.columns == 0) return;

    load_queries<kHeadSize, kHalf>(args, tile, kv_head, shared);
    __syncthreads();  // positions of all columns are there
    const int2 range = position_range(shared.positions);
    const PromptKeys keys{.begin = args.window > 0 ? max(0, range.x - args.window + 1) : 0,
                          .end = range.y + 1,
                          .table = args.batch.table(tile.sequence),
                          .kv_head = kv_head};
    const int32_t last_page = range.y / kPageTokens;
    RowState state;
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
        const int32_t row =
            static_cast<int32_t>(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4) + 8 * half;
        state.position[half] = shared.positions[row];
        state.factor[half] = shared.factors[row];
        state.largest[half] = -INFINITY;
        state.total[half] = 0.0f;
    }
    float sums[kHeadSize / 8][4];
#pragma unroll
    for (int32_t n = 0; n < kHeadSize / 8; ++n)
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) sums[n][i] = 0.0f;

    int32_t page = keys.begin / kPageTokens;
    load_page<kHeadSize, kOperands>(args.keys, keys, page, args.head_size, shared.keys);
    for (; page <= last_page; ++page) {
        wait_copies<0>();
        __syncthreads();  // keys are there; nobody reads the last page's values any more
        load_page<kHeadSize, kOperands>(args.values, keys, page, args.head_size, shared.values);
        float scores[8][4];
        multiply_keys<kHeadSize, kHalf>(shared, args.head_size, scores);
        wait_copies<0>();
        __syncthreads();  // values are there; nobody reads the keys any more
        if (page < last_page)
            load_page<kHeadSize, kOperands>(args.keys, keys, page + 1, args.head_size, shared.keys);
        const int32_t first_key = page * kPageTokens;
        const bool masked = first_key + kPageTokens - 1 > range.x ||
                            (args.window > 0 && range.y - first_key >= args.window);
        finish_scores(args, state, first_key, masked, scores);
        scale_sums<kHeadSize>(advance_softmax(state, scores), sums);
        multiply_values<kHeadSize, kHalf>(shared, args.head_size, scores, sums);
    }
    write_tile<kHeadSize>(args, tile, kv_head, state, sums);
}

}  // namespace tessera::cuda
