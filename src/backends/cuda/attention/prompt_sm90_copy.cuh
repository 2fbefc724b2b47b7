#pragma once
// What the blocks of prompt_sm90.cuh are made of: the forms of the kernel, shared memory, the order
// of the tiles, and warpgroup 0, whose first warp brings keys and values while the others look at
// the values of pages that only some columns of the tile see.

#include "backends/cuda/attention/prompt.cuh"
#include "backends/cuda/ptx/mbarrier.cuh"
#include "backends/cuda/ptx/named_barrier.cuh"
#include "backends/cuda/ptx/setmaxnreg.cuh"
#include "backends/cuda/ptx/tma.cuh"
#include "backends/cuda/ptx/wgmma_attention.cuh"

namespace tessera::cuda {

constexpr int32_t kWideColumns = 128;
constexpr int32_t kWideThreads = 384;  ///< warpgroup 0 copies, 1 and 2 compute
constexpr int32_t kWarpgroup = 128;
constexpr int32_t kCleaners = 96;  ///< threads of warpgroup 0 that look at values

/// A form of the kernel.
template <int32_t kHead, int32_t kStep, int32_t kKeys, int32_t kValues, bool kF16, bool kInTurns>
struct WideForm {
    static constexpr int32_t kHeadSize = kHead;       ///< 64, 128 or 256; heads may be smaller
    static constexpr int32_t kStepKeys = kStep;       ///< 64 or 128
    static constexpr int32_t kKeyStages = kKeys;      ///< steps of keys in shared memory
    static constexpr int32_t kValueStages = kValues;  ///< pages of values in shared memory
    /// The warpgroups give their products to the tensor cores in turns.
    static constexpr bool kTurns = kInTurns;
    static constexpr bool kHalf = kF16;                         ///< operands are f16, else bf16
    static constexpr int32_t kPages = kStepKeys / kPageTokens;  ///< of a step
    static constexpr int32_t kSlices = kHeadSize / 64;
};

/// What all roles know of a tile.
struct WideTile {
    PromptTile columns;
    int32_t kv_head;
    int32_t lowest, highest;        ///< positions of its columns
    int32_t first_page, last_page;  ///< pages that some column sees
    int32_t first_step, end_step;

    /// Whether some column does not see some key of [first_key, first_key + count).
    __device__ __forceinline__ bool masks(int32_t first_key, int32_t count, int32_t window) const {
        return first_key + count - 1 > lowest || (window > 0 && highest - first_key >= window);
    }
};

/// Shared memory of a block: matrices in slices of 64 columns, a row of a slice being 128 bytes
/// swizzled as ptx/wgmma.cuh describes.
template <class Form>
struct WideShared {
    static constexpr int32_t kSlices = Form::kHeadSize / 64;
    uint16_t queries[2][kSlices][64 * 64];
    uint16_t keys[Form::kKeyStages][kSlices][Form::kStepKeys * 64];
    uint16_t values[Form::kValueStages][kSlices][kPageTokens * 64];
    Barrier keys_full[Form::kKeyStages], keys_empty[Form::kKeyStages];
    Barrier values_full[Form::kValueStages], values_empty[Form::kValueStages];
    Barrier values_raw[Form::kValueStages];      ///< by number of the masked page
    uint32_t not_finite[Form::kValueStages][2];  ///< a bit a key; pages that are masked only
    Barrier tiles_full[2], tiles_empty[2];
    WideTile tiles[2];
    float factors[kWideColumns];
};

/// Number of a use of a ring of slots.
struct Turn {
    int32_t slot = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void advance(int32_t slots) {
        if (++slot == slots) slot = 0, parity ^= 1u;
    }
};

/// The tile with this number; columns = 0 behind the last. All lanes of a warp together.
__device__ __forceinline__ PromptTile find_columns(const PromptArgs& args, int32_t index) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t sequences = args.batch.sequences;
    for (int32_t base = 0; base < sequences; base += 32) {
        const int32_t first = min(base + lane, sequences), last = min(first + 1, sequences);
        const int32_t begin = min(args.batch.seq_start[first], args.prompt_rows);
        const int32_t columns =
            (min(args.batch.seq_start[last], args.prompt_rows) - begin) * args.group;
        int32_t passed = (columns + kWideColumns - 1) / kWideColumns;
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
                    __shfl_sync(0xffffffffu, columns, owner), own_index * kWideColumns};
        }
        index -= __shfl_sync(0xffffffffu, passed, 31);
    }
    return {0, 0, 0, 0};
}

/// Tiles of all sequences, of one kv head. All lanes of a warp together.
__device__ __forceinline__ int32_t count_tiles(const PromptArgs& args) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t sequences = args.batch.sequences;
    int32_t tiles = 0;
    for (int32_t s = lane; s < sequences; s += 32) {
        const int32_t rows = min(args.batch.seq_start[s + 1], args.prompt_rows) -
                             min(args.batch.seq_start[s], args.prompt_rows);
        tiles += (rows * args.group + kWideColumns - 1) / kWideColumns;
    }
    return __reduce_add_sync(0xffffffffu, tiles);
}

/// The number of the block's tile in this round. Where every tile sees fewer keys than the one
/// before it, the blocks see about equally many: two rounds even each other out in opposite
/// directions, and an odd number of rounds starts with three whose numbers have equal sums.
__device__ __forceinline__ int32_t tile_number(int32_t round, int32_t rounds) {
    const auto blocks = static_cast<int32_t>(gridDim.x), block = static_cast<int32_t>(blockIdx.x);
    const int32_t half = blocks / 2, first = round * blocks;
    const bool three = rounds % 2 == 1 && rounds >= 3 && blocks % 2 == 0;
    if (three && round == 1) return first + (block + half) % blocks;
    if (three && round == 2) return first + blocks - 1 - 2 * (block % half) - (block >= half);
    const bool forward = (three && round >= 3 ? round - 3 : round) % 2 == 0;
    return first + (forward ? block : blocks - 1 - block);
}

/// The block's tile of this round, of so many `tiles` a kv head, the last tiles first; false when
/// there is none in it.
template <int32_t kStepKeys>
__device__ __forceinline__ bool find_wide_tile(
    const PromptArgs& args, int32_t tiles, int32_t round, int32_t rounds, WideTile& tile) {
    const int32_t index = tile_number(round, rounds);
    if (index >= tiles * args.kv_heads) return false;
    tile.kv_head = index % args.kv_heads;
    tile.columns = find_columns(args, tiles - 1 - index / args.kv_heads);
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t first = tile.columns.first_column / args.group;
    const int32_t last =
        (min(tile.columns.first_column + kWideColumns, tile.columns.columns) - 1) / args.group;
    int32_t lowest = INT32_MAX, highest = 0;
    for (int32_t token = first + lane; token <= last; token += 32) {
        const int32_t position = args.batch.positions[tile.columns.first_row + token];
        lowest = min(lowest, position), highest = max(highest, position);
    }
    tile.lowest = __reduce_min_sync(0xffffffffu, lowest);
    tile.highest = __reduce_max_sync(0xffffffffu, highest);
    const int32_t first_key = args.window > 0 ? max(0, tile.lowest - args.window + 1) : 0;
    tile.first_page = first_key / kPageTokens;
    tile.last_page = tile.highest / kPageTokens;
    tile.first_step = first_key / kStepKeys;
    tile.end_step = tile.highest / kStepKeys + 1;
    return true;
}

__device__ __forceinline__ int32_t uniform(int32_t value) {
    return __reduce_max_sync(0xffffffffu, value);
}

/// The next tile of the block; false behind the last.
template <class Form>
__device__ __forceinline__ bool next_tile(WideShared<Form>& shared, Turn& tiles, WideTile& tile) {
    barrier_wait(&shared.tiles_full[tiles.slot], tiles.parity);
    tile = shared.tiles[tiles.slot];
    // The same for all lanes, in a form that lets the compiler know it.
    tile.columns.columns = uniform(tile.columns.columns);
    tile.lowest = uniform(tile.lowest);
    tile.highest = uniform(tile.highest);
    tile.first_step = uniform(tile.first_step);
    tile.end_step = uniform(tile.end_step);
    __syncwarp();  // all lanes have read the rest too
    if (threadIdx.x % 32 == 0) barrier_arrive(&shared.tiles_empty[tiles.slot]);
    tiles.advance(2);
    return tile.columns.columns > 0;
}

/// Starts to bring the tile's queries to the second-level cache.
__device__ __forceinline__ void prefetch_queries(const PromptArgs& args, const WideTile& tile) {
    for (int32_t i = static_cast<int32_t>(threadIdx.x % 32); i < kWideColumns; i += 32) {
        const int32_t column = tile.columns.first_column + i;
        if (column >= tile.columns.columns) return;
        const int64_t token = tile.columns.first_row + column / args.group;
        const int64_t head = int64_t{tile.kv_head} * args.group + column % args.group;
        prefetch_bytes(args.q + token * args.q_row_stride + head * args.q_head_stride,
                       static_cast<uint32_t>(args.head_size) * 4);
    }
}

// ---- what warpgroup 0 does ----

/// Warp 0: keys and values to shared memory, in the order in which they are needed.
template <class Form>
__device__ __forceinline__ void copy_pages(const PromptArgs& args,
                                           const CUtensorMap* key_map,
                                           const CUtensorMap* value_map,
                                           WideShared<Form>& shared) {
    constexpr int32_t kPages = Form::kPages, kSlices = Form::kSlices;
    constexpr uint32_t kPageBytes = kPageTokens * Form::kHeadSize * 2;
    const bool leader = threadIdx.x % 32 == 0;
    Turn keys, values, raw, tiles;
    const auto copy_values = [&](const WideTile& tile, int32_t page, int32_t place) {
        barrier_wait(&shared.values_empty[values.slot], values.parity ^ 1u);
        const bool masked = tile.masks(page * kPageTokens, kPageTokens, args.window);
        Barrier* full = masked ? &shared.values_raw[raw.slot] : &shared.values_full[values.slot];
        if (leader) {
            barrier_arrive_expect(full, kPageBytes);
#pragma unroll
            for (int32_t s = 0; s < kSlices; ++s)
                copy_box(shared.values[values.slot][s], value_map,
                         make_int4(64 * s, 0, tile.kv_head, place), full);
        }
        values.advance(Form::kValueStages);
        if (masked) raw.advance(Form::kValueStages);
    };
    const auto blocks = static_cast<int32_t>(gridDim.x);
    const int32_t count = count_tiles(args);
    const int32_t rounds = (count * args.kv_heads + blocks - 1) / blocks;
    for (int32_t round = 0; round <= rounds; ++round) {
        WideTile tile = {};
        if (round < rounds && !find_wide_tile<Form::kStepKeys>(args, count, round, rounds, tile))
            continue;
        barrier_wait(&shared.tiles_empty[tiles.slot], tiles.parity ^ 1u);
        if (leader) {
            shared.tiles[tiles.slot] = tile;
            barrier_arrive(&shared.tiles_full[tiles.slot]);
        }
        tiles.advance(2);
        if (round == rounds) return;
        prefetch_queries(args, tile);
        const int32_t* table = args.batch.table(tile.columns.sequence);
        const auto place_of = [&](int32_t page) {
            return table[min(max(page, tile.first_page), tile.last_page)];
        };
        int32_t places[kPages] = {}, next_places[kPages];
#pragma unroll
        for (int32_t p = 0; p < kPages; ++p)
            next_places[p] = place_of(tile.first_step * kPages + p);
        for (int32_t step = tile.first_step; step <= tile.end_step; ++step) {
            int32_t last_places[kPages];
#pragma unroll
            for (int32_t p = 0; p < kPages; ++p)
                last_places[p] = places[p], places[p] = next_places[p],
                next_places[p] = place_of((step + 1) * kPages + p);
            if (step < tile.end_step) {
                barrier_wait(&shared.keys_empty[keys.slot], keys.parity ^ 1u);
                Barrier* full = &shared.keys_full[keys.slot];
                if (leader) {
                    barrier_arrive_expect(full, kPageBytes * kPages);
#pragma unroll
                    for (int32_t s = 0; s < kSlices; ++s)
#pragma unroll
                        for (int32_t p = 0; p < kPages; ++p)
                            copy_box(shared.keys[keys.slot][s] + p * kPageTokens * 64, key_map,
                                     make_int4(64 * s, 0, tile.kv_head, places[p]), full);
                }
                keys.advance(Form::kKeyStages);
            }
            if (step == tile.first_step) continue;
#pragma unroll
            for (int32_t p = 0; p < kPages; ++p)
                copy_values(tile, (step - 1) * kPages + p, last_places[p]);
        }
    }
}

/// All ones in the halves of `pair` that are infinite or NaN.
template <bool kHalf>
__device__ __forceinline__ uint32_t not_finite_pair(uint32_t pair) {
    constexpr uint32_t kExponents = kHalf ? 0x7c007c00u : 0x7f807f80u;
    return __vcmpeq2(pair & kExponents, kExponents);
}

/// sum + 0 * pair in halves: NaN from the first one on that is not finite.
template <bool kHalf>
__device__ __forceinline__ uint32_t add_zero_times(uint32_t pair, uint32_t sum) {
    if constexpr (kHalf) {
        const __half2 out = __hfma2(*reinterpret_cast<const __half2*>(&pair), __half2{0.0f, 0.0f},
                                    *reinterpret_cast<const __half2*>(&sum));
        return *reinterpret_cast<const uint32_t*>(&out);
    } else {
        const __nv_bfloat162 zero = __floats2bfloat162_rn(0.0f, 0.0f);
        const __nv_bfloat162 out = __hfma2(*reinterpret_cast<const __nv_bfloat162*>(&pair), zero,
                                           *reinterpret_cast<const __nv_bfloat162*>(&sum));
        return *reinterpret_cast<const uint32_t*>(&out);
    }
}

/// Warps 1 to 3: take out of masked pages of values what must not be multiplied.
template <class Form>
__device__ __forceinline__ void clean_values(const PromptArgs& args, WideShared<Form>& shared) {
    constexpr int32_t kPages = Form::kPages;
    constexpr int32_t kPieces = kPageTokens * Form::kHeadSize / 8;
    const int32_t thread = static_cast<int32_t>(threadIdx.x) - 32, window = args.window;
    Turn values, raw, tiles;
    for (WideTile tile; next_tile(shared, tiles, tile);) {
        for (int32_t page = tile.first_step * kPages; page < tile.end_step * kPages; ++page) {
            const int32_t slot = values.slot, first_key = page * kPageTokens;
            values.advance(Form::kValueStages);
            if (!tile.masks(first_key, kPageTokens, window)) continue;
            barrier_wait(&shared.values_raw[raw.slot], raw.parity);
            raw.advance(Form::kValueStages);
            auto* pieces = reinterpret_cast<uint4*>(shared.values[slot][0]);
            uint32_t sum = 0;
#pragma unroll 3
            for (int32_t i = thread; i < kPieces; i += kCleaners) {
                const uint4 piece = pieces[i];
                sum = add_zero_times<Form::kHalf>(piece.x, sum);
                sum = add_zero_times<Form::kHalf>(piece.y, sum);
                sum = add_zero_times<Form::kHalf>(piece.z, sum);
                sum = add_zero_times<Form::kHalf>(piece.w, sum);
            }
            if (thread < 2) shared.not_finite[slot][thread] = 0;
            if (!named_any(1, kCleaners, not_finite_pair<Form::kHalf>(sum) != 0)) {
                if (thread == 0) barrier_arrive(&shared.values_full[slot]);
                continue;
            }
            const int32_t begin = window > 0 ? tile.lowest - window + 1 - first_key : 0;
            const int32_t end = tile.highest + 1 - first_key;
#pragma unroll 1
            for (int32_t i = thread; i < kPieces; i += kCleaners) {
                const int32_t key = i / 8 % kPageTokens;
                const uint4 piece = pieces[i];
                const uint4 bad = {
                    not_finite_pair<Form::kHalf>(piece.x), not_finite_pair<Form::kHalf>(piece.y),
                    not_finite_pair<Form::kHalf>(piece.z), not_finite_pair<Form::kHalf>(piece.w)};
                if (key < begin || key >= end) {
                    pieces[i] = {};
                } else if ((bad.x | bad.y | bad.z | bad.w) != 0) {
                    pieces[i] = {piece.x & ~bad.x, piece.y & ~bad.y, piece.z & ~bad.z,
                                 piece.w & ~bad.w};
                    atomicOr(&shared.not_finite[slot][key / 32], 1u << key % 32);
                }
            }
            fence_async_proxy();
            named_sync(1, kCleaners);
            if (thread == 0) barrier_arrive(&shared.values_full[slot]);
        }
    }
}

}  // namespace tessera::cuda
