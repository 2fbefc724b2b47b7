#pragma once
// Attention of prompt rows on tensor cores, after FlashAttention-2 (arXiv 2307.08691). A block
// takes one kv head and 128 query columns of one sequence, column c being head c % group of token c
// / group; a warp takes 16 of them. Steps of 32 keys go by in rising order, with a running
// maximum and total a column. Values of a step come in beside its scores, keys of the next step
// beside its sums. Four warps a block would read all keys and values twice as often, and with heads
// of 256 leave nothing that hides a warp's softmax. Operands are 16 bits wide: the cache's own f16
// or bf16 copied as it stands, anything else rounded to bf16. f16 queries are first scaled by a
// power of two into [-2, 2), so that none overflows.
// Bound: 4 * d products a visible (query, key) pair on tensor cores. On an H200, whose mma.sync
// takes 6.5 clocks, they are 38% of the time with heads of 256 and 44% with heads of 128; on an RTX
// 5090, where it takes 32, 87% and 97% are predicted (docs/blackwell.md).
//
// A column's result depends on nothing but the column: steps lie at absolute positions, and a step
// that the column does not see leaves maximum, total and sums as they were, bit for bit (the factor
// is exp2(0) = 1, the probabilities are 0, keys and values that nobody in the block sees are
// zeros). Scores are rounded before use so that no fused form of them can arise on one path alone.
// Values that are not finite would spoil the columns that do not see them, 0 times them being NaN:
// steps that some column sees in part are searched for them, see take_bad_values().

#include <cstdint>

#include "backends/cuda/attention/prompt_tile.cuh"
#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/ptx/exp2.cuh"
#include "backends/cuda/ptx/mma.cuh"
#include "backends/cuda/ptx/mma_f16.cuh"
#include "backends/cuda/ptx/opaque.cuh"

namespace tessera::cuda {

/// What a lane keeps of the two rows g and g + 8 of its warp's columns.
struct RowState {
    float largest[2];  ///< score in powers of 2
    float total[2];    ///< of this lane's keys
};

/// The column of the tile that a lane's row `half` is.
__device__ __forceinline__ int32_t own_column(int32_t half) {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    return thread / 32 * 16 + thread % 32 / 4 + 8 * half;
}

/// Heads that are shorter than the tile are filled up with zeros; of the largest tile the last 64
/// columns are left out where nobody needs them: a jump for each product would keep loads from
/// passing products.
constexpr int32_t kColumnStep = 64;
template <int32_t kHeadSize>
__device__ __forceinline__ bool is_needed(int32_t first_column, int32_t head_size) {
    return kHeadSize <= 2 * kColumnStep || first_column < kHeadSize - kColumnStep ||
           first_column < head_size;
}

/// scores (fragments of 8 keys) = queries keys^T. Unrolled in full, the largest heads would run out
/// of registers: their operands of the next 16 columns come in beside the products of these.
template <int32_t kHeadSize, bool kHalf>
__device__ __forceinline__ void multiply_keys(const PromptShared<kHeadSize>& shared,
                                              int32_t head_size,
                                              float (&scores)[kTileKeys / 8][4]) {
    constexpr bool kAhead = kHeadSize > 128;
    constexpr int32_t kPairs = kTileKeys / 16, kTogether = kColumnStep / 16;
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t query_place =
        tile_place<kHeadSize>(static_cast<int32_t>(threadIdx.x / 32) * 16 + lane % 16, lane / 16);
    const int32_t key_place = tile_place<kHeadSize>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (int32_t n = 0; n < kTileKeys / 8; ++n)
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) scores[n][i] = 0.0f;
    uint32_t a[1 + kAhead][4], b[1 + kAhead][kPairs][4];
    const auto load = [&](int32_t slot, int32_t first, int32_t pair) {
        load_matrices(a[slot], shared.queries + first + pair_place(query_place, pair));
#pragma unroll
        for (int32_t n = 0; n < kPairs; ++n)
            load_matrices(b[slot][n],
                          shared.keys + first + pair_place(key_place, pair) + 16 * n * kHeadSize);
    };
    if constexpr (kAhead) load(0, 0, 0);
#pragma unroll(kAhead ? 1 : kHeadSize / kColumnStep)
    for (int32_t first = 0; first < kHeadSize; first += kColumnStep) {
        if (!is_needed<kHeadSize>(first, head_size)) break;
#pragma unroll
        for (int32_t i = 0; i < kTogether; ++i) {
            const int32_t slot = kAhead ? i % 2 : 0;
            if constexpr (!kAhead) load(slot, first, i);
            // Behind the last columns some of these again, which nobody multiplies.
            const bool last = first + kColumnStep == kHeadSize;
            if constexpr (kAhead)
                load(1 - slot, i + 1 < kTogether || last ? first : first + kColumnStep,
                     (i + 1) % kTogether);
#pragma unroll
            for (int32_t n = 0; n < kPairs; ++n) {
                mma_16bit<kHalf>(scores[2 * n], a[slot], b[slot][n][0], b[slot][n][1]);
                mma_16bit<kHalf>(scores[2 * n + 1], a[slot], b[slot][n][2], b[slot][n][3]);
            }
        }
    }
}

__device__ __forceinline__ bool is_visible(const PromptArgs& args, int32_t position, int32_t key) {
    const int32_t age = position - key;
    return age >= 0 && (args.window <= 0 || age < args.window);
}

/// What the sums of a row are multiplied by in the end: 1 / total, or with one more score, a sink,
/// whose values are 0 and which may be the largest.
__device__ __forceinline__ float inverse_total(const PromptArgs& args,
                                               int64_t head,
                                               float total,
                                               float largest) {
    float inverse = 1.0f / total;
    if (args.sinks != nullptr) {
        const float sink = __fmul_rn(args.sinks[head], 1.44269504f);
        const float level = fmaxf(largest, sink);
        const float shrink = exp2f(largest - level);
        inverse = shrink / fmaf(total, shrink, exp2f(sink - level));
    }
    return inverse;
}

/// Products to scores in powers of 2; -inf where `masked` and the column does not see the key.
template <int32_t kHeadSize>
__device__ __forceinline__ void finish_scores(const PromptArgs& args,
                                              const PromptShared<kHeadSize>& shared,
                                              int32_t first_key,
                                              bool masked,
                                              float (&scores)[kTileKeys / 8][4]) {
    constexpr float kLog2E = 1.44269504f;
    const float cap = args.softcap;
    const float factors[2] = {shared.factors[own_column(0)], shared.factors[own_column(1)]};
    if (cap > 0.0f) [[unlikely]] {
#pragma unroll
        for (int32_t n = 0; n < kTileKeys / 8; ++n)
#pragma unroll
            for (int32_t i = 0; i < 4; ++i) {
                const float score = __fmul_rn(scores[n][i], factors[i / 2]);
                scores[n][i] = __fmul_rn(cap * kLog2E, tanhf(score / cap));
            }
    } else {
#pragma unroll
        for (int32_t n = 0; n < kTileKeys / 8; ++n)
#pragma unroll
            for (int32_t i = 0; i < 4; ++i)
                scores[n][i] = __fmul_rn(scores[n][i], factors[i / 2] * kLog2E);
    }
    if (!masked) return;
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
        const int32_t position = shared.positions[own_column(half)];
#pragma unroll
        for (int32_t i = 0; i < kTileKeys / 4; ++i) {
            const int32_t key = first_key + i / 2 * 8 + lane % 4 * 2 + i % 2;
            if (!is_visible(args, position, key)) scores[i / 2][2 * half + i % 2] = -INFINITY;
        }
    }
}

/// Scores to exp2(score - new maximum); total to match. Returns what the sums must be multiplied
/// by.
__device__ __forceinline__ float2 advance_softmax(RowState& state,
                                                  float (&scores)[kTileKeys / 8][4]) {
    float factors[2];
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
        float largest = state.largest[half];
#pragma unroll
        for (int32_t n = 0; n < kTileKeys / 8; ++n)
            largest = fmaxf(largest, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
        // Nothing seen yet: any finite number keeps -inf - -inf away.
        const float level = largest == -INFINITY ? 0.0f : largest;
        factors[half] = fast_exp2(state.largest[half] - level);
        state.largest[half] = largest;
        float total = 0.0f;
#pragma unroll
        for (int32_t n = 0; n < kTileKeys / 8; ++n) {
            scores[n][2 * half] = fast_exp2(scores[n][2 * half] - level);
            scores[n][2 * half + 1] = fast_exp2(scores[n][2 * half + 1] - level);
            total += scores[n][2 * half] + scores[n][2 * half + 1];
        }
        state.total[half] = fmaf(state.total[half], factors[half], total);
    }
    return {factors[0], factors[1]};
}

/// The top bit of each half of a pair of operands that is not finite.
template <bool kHalf>
__device__ __forceinline__ uint32_t not_finite(uint32_t pair) {
    constexpr uint32_t kExponents = kHalf ? 0x7c007c00u : 0x7f807f80u;
    constexpr uint32_t kOnes = kHalf ? 0x04000400u : 0x00800080u;  // their last bits
    return ((pair & kExponents) + kOnes) & 0x80008000u;
}

/// Calls body(piece) for the pieces of the values that this thread, one of kThreads, itself has
/// loaded.
template <int32_t kThreads, int32_t kHeadSize, class Body>
__device__ __forceinline__ void over_own_values(PromptShared<kHeadSize>& shared, const Body& body) {
    constexpr int32_t kPieces = kHeadSize / 8;
    auto thread = static_cast<int32_t>(threadIdx.x);
    make_opaque(thread);  // no registers for places in steps that are not searched
#pragma unroll 4
    for (int32_t at = thread; at < kTileKeys * kPieces; at += kThreads)
        body(*reinterpret_cast<uint4*>(shared.values +
                                       tile_place<kHeadSize>(at / kPieces, at % kPieces)));
}

/// Whether this thread has loaded a value that is not finite. Its own copies need no barrier.
template <int32_t kThreads, int32_t kHeadSize, bool kHalf>
__device__ __forceinline__ bool has_bad_values(PromptShared<kHeadSize>& shared) {
    uint32_t bad = 0;
    over_own_values<kThreads>(shared, [&](const uint4& piece) {
        bad |= not_finite<kHalf>(piece.x) | not_finite<kHalf>(piece.y) |
               not_finite<kHalf>(piece.z) | not_finite<kHalf>(piece.w);
    });
    return bad != 0;
}

/// A probability as the tensor cores would take it.
template <bool kHalf>
__device__ __forceinline__ float rounded_probability(float x) {
    const uint32_t bits = pack_pair<kHalf>(x, 0.0f) & 0xffffu;
    if constexpr (kHalf)
        return f32_of_f16(bits);
    else
        return __uint_as_float(bits << 16);
}

/// The rare path of a step with values that are not finite, and that some column sees in part: adds
/// these values, by key, to the sums of the columns that see them, and puts zeros in their places.
/// What is left for multiply_values() is bit for bit what the columns that see none of them have.
/// All threads of the block together.
template <int32_t kThreads, int32_t kHeadSize, bool kHalf>
__device__ __forceinline__ void take_bad_values(const PromptArgs& args,
                                                int32_t first_key,
                                                const float (&scores)[kTileKeys / 8][4],
                                                PromptShared<kHeadSize>& shared,
                                                float (&sums)[kHeadSize / 8][4]) {
    auto lane = static_cast<int32_t>(threadIdx.x % 32);
    make_opaque(lane);
#pragma unroll 1
    for (int32_t key = 0; key < kTileKeys; ++key) {
        float weights[2] = {};
        bool sees[2];
#pragma unroll
        for (int32_t half = 0; half < 2; ++half) {
#pragma unroll
            for (int32_t n = 0; n < kTileKeys / 8; ++n) {
                float weight = key % 2 == 0 ? scores[n][2 * half] : scores[n][2 * half + 1];
                make_opaque(weight);  // an array with a running index would stand in memory
                if (n == key / 8) weights[half] = weight;
            }
            weights[half] = rounded_probability<kHalf>(
                __shfl_sync(0xffffffffu, weights[half], lane / 4 * 4 + key % 8 / 2));
            sees[half] = is_visible(args, shared.positions[own_column(half)], first_key + key);
        }
#pragma unroll
        for (int32_t n = 0; n < kHeadSize / 8; ++n) {
            const uint32_t pair = *reinterpret_cast<const uint32_t*>(
                shared.values + tile_place<kHeadSize>(key, n) + lane % 4 * 2);
            const uint32_t bad = not_finite<kHalf>(pair);
            if (bad == 0) continue;
#pragma unroll
            for (int32_t i = 0; i < 2; ++i) {
                const uint32_t bits = i == 0 ? pair & 0xffffu : pair >> 16;
                const float value = kHalf ? f32_of_f16(bits) : __uint_as_float(bits << 16);
                if ((i == 0 ? bad & 0xffffu : bad >> 16) == 0) continue;
#pragma unroll
                for (int32_t half = 0; half < 2; ++half)
                    if (sees[half])
                        sums[n][2 * half + i] = fmaf(weights[half], value, sums[n][2 * half + i]);
            }
        }
    }
    __syncthreads();  // all have read these values
    const auto clean = [](uint32_t& pair) { pair &= ~((not_finite<kHalf>(pair) >> 15) * 0xffffu); };
    over_own_values<kThreads>(shared, [&](uint4& piece) {
        clean(piece.x);
        clean(piece.y);
        clean(piece.z);
        clean(piece.w);
    });
    __syncthreads();  // zeros are in their places
}

/// sums += probabilities values.
template <int32_t kHeadSize, bool kHalf>
__device__ __forceinline__ void multiply_values(const PromptShared<kHeadSize>& shared,
                                                int32_t head_size,
                                                const float (&scores)[kTileKeys / 8][4],
                                                float (&sums)[kHeadSize / 8][4]) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t value_place = tile_place<kHeadSize>(lane % 16, lane / 16);
#pragma unroll
    for (int32_t k = 0; k < kTileKeys / 16; ++k) {
        const uint32_t a[4] = {pack_pair<kHalf>(scores[2 * k][0], scores[2 * k][1]),
                               pack_pair<kHalf>(scores[2 * k][2], scores[2 * k][3]),
                               pack_pair<kHalf>(scores[2 * k + 1][0], scores[2 * k + 1][1]),
                               pack_pair<kHalf>(scores[2 * k + 1][2], scores[2 * k + 1][3])};
#pragma unroll
        for (int32_t n = 0; n < kHeadSize / 16; ++n) {
            if (n * 16 % kColumnStep == 0 && !is_needed<kHeadSize>(n * 16, head_size)) break;
            uint32_t b[4];
            load_matrices_transposed(
                b, shared.values + pair_place(value_place, n) + 16 * k * kHeadSize);
            mma_16bit<kHalf>(sums[2 * n], a, b[0], b[1]);
            mma_16bit<kHalf>(sums[2 * n + 1], a, b[2], b[3]);
        }
    }
}

/// Once the largest scores have been seen, the factors are 1 for the rest of the keys.
template <int32_t kHeadSize>
__device__ __forceinline__ void scale_sums(float2 factors, float (&sums)[kHeadSize / 8][4]) {
    if (__any_sync(0xffffffffu, factors.x != 1.0f || factors.y != 1.0f) == 0) return;
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
        const int32_t column = tile.first_column + own_column(half);
        if (column >= tile.columns) continue;
        const int64_t token = tile.first_row + column / args.group;
        const int64_t head = int64_t{kv_head} * args.group + column % args.group;
        float* out = args.out + token * args.out_stride + head * args.head_size;
        const float inverse = inverse_total(args, head, total, state.largest[half]);
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

/// Lowest and highest position of a block's columns. Every warp finds them for itself.
template <int32_t kColumns>
__device__ __forceinline__ int2 position_range(const int32_t* positions) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    int32_t lowest = INT32_MAX, highest = -1;
#pragma unroll
    for (int32_t column = 0; column < kColumns; column += 32) {
        const int32_t position = positions[column + lane];
        lowest = min(lowest, position < 0 ? INT32_MAX : position);
        highest = max(highest, position);
    }
    return {__reduce_min_sync(0xffffffffu, lowest), __reduce_max_sync(0xffffffffu, highest)};
}

/// Blocks that a multiprocessor has registers for: conversions take more than 128.
template <int32_t kHeadSize, TileOperands kOperands>
constexpr int32_t kTileBlocks = kHeadSize*(kOperands == TileOperands::kConverted ? 2 : 1) > 128 ? 1
                                                                                                : 2;

/// Whether tiles may be halved (PromptCut). Where two blocks share a multiprocessor rounds are
/// short, and a half converts all keys: 1536 tokens behind 63,488 with fp8 pages took 6% longer.
template <int32_t kHeadSize, TileOperands kOperands>
constexpr bool kHalvesTiles =
    kTileBlocks<kHeadSize, kOperands> == 1 && kOperands != TileOperands::kConverted;

/// The columns of a block of kThreads threads, 16 a warp.
template <int32_t kThreads, int32_t kHeadSize, TileOperands kOperands>
__device__ __forceinline__ void attend_columns(const PromptArgs& args,
                                               const PromptTile& tile,
                                               int32_t kv_head,
                                               PromptShared<kHeadSize>& shared) {
    constexpr bool kHalf = kOperands == TileOperands::kF16;
    // What is converted does not come in beside the sums: behind them there are more registers.
    constexpr bool kInOrder = kOperands == TileOperands::kConverted;
    load_queries<kHeadSize, kHalf>(args, tile, kv_head, shared);
    __syncthreads();  // positions of all columns are there
    const int2 range = position_range<kThreads / 2>(shared.positions);
    const PromptKeys keys{.begin = args.window > 0 ? max(0, range.x - args.window + 1) : 0,
                          .end = range.y + 1,
                          .table = args.batch.table(tile.sequence),
                          .kv_head = kv_head};
    RowState state{.largest = {-INFINITY, -INFINITY}, .total = {}};
    float sums[kHeadSize / 8][4];
#pragma unroll
    for (int32_t n = 0; n < kHeadSize / 8; ++n)
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) sums[n][i] = 0.0f;

    constexpr int32_t kPageSteps = kPageTokens / kTileKeys;
    const int32_t last = range.y / kTileKeys;
    int32_t step = keys.begin / kTileKeys, page = keys.table[step / kPageSteps];
    const auto load = [&](const Pages& pages, int32_t of_step, int32_t of_page, uint16_t* to) {
        load_step<kThreads, kHeadSize, kOperands>(pages, keys, of_step, of_page, args.head_size,
                                                  to);
    };
    load(args.keys, step, page, shared.keys);
    for (; step <= last; ++step) {
        // Read now, so that copies do not wait for it.
        const int32_t next_page = keys.table[min(step + 1, last) / kPageSteps];
        wait_copies<0>();
        __syncthreads();  // keys are there; nobody reads the last step's values any more
        load(args.values, step, page, shared.values);
        float scores[kTileKeys / 8][4];
        multiply_keys<kHeadSize, kHalf>(shared, args.head_size, scores);
        const int32_t first_key = step * kTileKeys;
        const bool masked = first_key + kTileKeys - 1 > range.x ||
                            (args.window > 0 && range.y - first_key >= args.window);
        wait_copies<0>();
        // Values are there behind either barrier; nobody reads the keys any more.
        bool bad = false;
        if (masked || kInOrder)
            bad =
                __syncthreads_or(masked && has_bad_values<kThreads, kHeadSize, kHalf>(shared)) != 0;
        else
            __syncthreads();
        const auto load_next = [&] {
            if (step < last) load(args.keys, step + 1, next_page, shared.keys);
        };
        if (!kInOrder) load_next();
        finish_scores(args, shared, first_key, masked, scores);
        scale_sums<kHeadSize>(advance_softmax(state, scores), sums);
        if (bad) take_bad_values<kThreads, kHeadSize, kHalf>(args, first_key, scores, shared, sums);
        multiply_values<kHeadSize, kHalf>(shared, args.head_size, scores, sums);
        if (kInOrder) load_next();
        page = next_page;
    }
    write_tile<kHeadSize>(args, tile, kv_head, state, sums);
}

/// Grid: blocks of args.cut * kv heads, which may be more than there are columns for.
template <int32_t kHeadSize, TileOperands kOperands>
__global__ void __launch_bounds__(kPromptThreads, kTileBlocks<kHeadSize, kOperands>)
    attend_tile(const __grid_constant__ PromptArgs args) {
    constexpr bool kHalves = kHalvesTiles<kHeadSize, kOperands>;
    auto& shared = *reinterpret_cast<PromptShared<kHeadSize>*>(dynamic_shared());
    const auto kv_head = static_cast<int32_t>(blockIdx.x) % args.kv_heads;
    const auto turn = static_cast<int32_t>(blockIdx.x) / args.kv_heads;
    const PromptTile tile = find_columns<kHalves>(args, turn);
    if (tile.first_column >= tile.columns) return;
    if constexpr (kHalves) {
        if (args.cut.is_half(turn)) {
            // Half of the warps are enough for it: the others leave at once.
            if (threadIdx.x < kPromptThreads / 2)
                attend_columns<kPromptThreads / 2, kHeadSize, kOperands>(args, tile, kv_head,
                                                                         shared);
            return;
        }
    }
    attend_columns<kPromptThreads, kHeadSize, kOperands>(args, tile, kv_head, shared);
}

}  // namespace tessera::cuda
