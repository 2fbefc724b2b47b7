#pragma once
// What the blocks of prompt_sm90.cuh are made of: the forms of the kernel, shared memory, the order
// of the tiles, and warpgroup 0. Its first warp brings keys and values; the others look at the
// values of pages that only some columns of the tile see, or make f16 of pages of 8-bit floats, in
// which every number of those is exact.

#include "backends/cuda/attention/prompt.cuh"
#include "backends/cuda/ptx/load_shared.cuh"
#include "backends/cuda/ptx/mbarrier.cuh"
#include "backends/cuda/ptx/named_barrier.cuh"
#include "backends/cuda/ptx/setmaxnreg.cuh"
#include "backends/cuda/ptx/tma.cuh"
#include "backends/cuda/ptx/wgmma.cuh"

namespace tessera::cuda {

constexpr int32_t kWideColumns = 128;
constexpr int32_t kWideThreads = 384;  ///< warpgroup 0 copies, 1 and 2 compute
constexpr int32_t kWarpgroup = 128;
constexpr int32_t kCleaners = 96;  ///< threads of warpgroup 0 that look at values

/// A form of the kernel.
template <int32_t kHead,
          int32_t kStep,
          int32_t kKeys,
          int32_t kValues,
          PageFormat kPageFormat,
          bool kInTurns>
struct WideForm {
    static_assert(kPageFormat == PageFormat::kF16 || kPageFormat == PageFormat::kBF16 ||
                  kPageFormat == PageFormat::kF8);
    static constexpr int32_t kHeadSize = kHead;       ///< 64, 128 or 256; heads may be smaller
    static constexpr int32_t kStepKeys = kStep;       ///< 64 or 128
    static constexpr int32_t kKeyStages = kKeys;      ///< steps of keys in shared memory
    static constexpr int32_t kValueStages = kValues;  ///< pages of values in shared memory
    /// The warpgroups give their products to the tensor cores in turns.
    static constexpr bool kTurns = kInTurns;
    static constexpr bool kHalf = kPageFormat != PageFormat::kBF16;  ///< operands f16, else bf16
    static constexpr bool kCoded = kPageFormat == PageFormat::kF8;   ///< pages are converted
    /// Pages under way to conversion.
    static constexpr int32_t kCodeStages = !kCoded ? 0 : kHeadSize > 128 ? 2 : 4;
    static constexpr int32_t kPages = kStepKeys / kPageTokens;  ///< of a step
    static constexpr int32_t kSlices = kHeadSize / 64;
};

/// The keys of a tile.
struct WideSpan {
    int32_t lowest, highest;  ///< positions of its columns
    int32_t first_step, end_step;

    /// Whether some column does not see some key of [first_key, first_key + count).
    __device__ __forceinline__ bool masks(int32_t first_key, int32_t count, int32_t window) const {
        return first_key + count - 1 > lowest || (window > 0 && highest - first_key >= window);
    }
};

/// What all roles know of a tile.
struct WideTile {
    PromptTile columns;
    int32_t kv_head;
    int32_t first_page, last_page;  ///< pages that some column sees
    WideSpan span;
};

/// A page of bytes in shared memory: slices of kWidth columns, a row of a slice being kWidth bytes,
/// swizzled by the copy engine so that eight rows' pieces of 16 bytes lie in different banks.
template <int32_t kHeadSize>
struct CodeTile {
    static constexpr int32_t kWidth = kHeadSize < 128 ? 64 : 128;
    static constexpr int32_t kSlices = kHeadSize / kWidth;
    static constexpr int32_t kBytes = kPageTokens * kHeadSize;
    /// Of elements [16 piece, 16 piece + 16) of a row.
    __device__ __forceinline__ static uint32_t place(uint32_t row, uint32_t piece) {
        constexpr uint32_t kRowPieces = kWidth / 16;
        const uint32_t turn = row * kWidth / 128 % kRowPieces;
        return (piece / kRowPieces * kPageTokens + row) * kWidth + (piece % kRowPieces ^ turn) * 16;
    }
};

/// Shared memory of a block: matrices in slices of 64 columns, a row of a slice being 128 bytes
/// swizzled as ptx/wgmma.cuh describes.
template <class Form>
struct WideShared {
    static constexpr int32_t kSlices = Form::kHeadSize / 64;
    static constexpr int32_t kCodeBarriers = Form::kCoded ? Form::kCodeStages : 1;
    uint16_t queries[2][kSlices][64 * 64];
    uint16_t keys[Form::kKeyStages][kSlices][Form::kStepKeys * 64];
    uint16_t values[Form::kValueStages][kSlices][kPageTokens * 64];
    /// Pages of bytes, in slices of CodeTile::kWidth columns.
    uint8_t codes[Form::kCoded ? Form::kCodeStages * kPageTokens * Form::kHeadSize : 16];
    Barrier codes_full[kCodeBarriers], codes_empty[kCodeBarriers];
    Barrier keys_full[Form::kKeyStages], keys_empty[Form::kKeyStages];
    Barrier values_full[Form::kValueStages], values_empty[Form::kValueStages];
    Barrier values_raw[Form::kValueStages];      ///< by number of the masked page; not coded
    uint32_t not_finite[Form::kValueStages][2];  ///< a bit a key; pages that are masked only
    Barrier tiles_full[2], tiles_empty[2];
    WideTile tiles[2];
    float factors[kWideColumns];
};

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
    tile.columns = find_tile<kWideColumns>(args, tiles - 1 - index / args.kv_heads);
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t first = tile.columns.first_column / args.group;
    const int32_t last =
        (min(tile.columns.first_column + kWideColumns, tile.columns.columns) - 1) / args.group;
    int32_t lowest = INT32_MAX, highest = 0;
    for (int32_t token = first + lane; token <= last; token += 32) {
        const int32_t position = args.batch.positions[tile.columns.first_row + token];
        lowest = min(lowest, position), highest = max(highest, position);
    }
    WideSpan& span = tile.span;
    span.lowest = __reduce_min_sync(0xffffffffu, lowest);
    span.highest = __reduce_max_sync(0xffffffffu, highest);
    const int32_t first_key = args.window > 0 ? max(0, span.lowest - args.window + 1) : 0;
    tile.first_page = first_key / kPageTokens;
    tile.last_page = span.highest / kPageTokens;
    span.first_step = first_key / kStepKeys;
    span.end_step = span.highest / kStepKeys + 1;
    return true;
}

__device__ __forceinline__ int32_t uniform(int32_t value) {
    return __reduce_max_sync(0xffffffffu, value);
}

/// The next tile of the block, shared.tiles[tiles.slot] up to end_tile(); false behind the last.
template <class Form>
__device__ __forceinline__ bool next_tile(WideShared<Form>& shared,
                                          const Ring<2>& tiles,
                                          WideSpan& span) {
    barrier_wait(&shared.tiles_full[tiles.slot], tiles.parity);
    const WideTile& tile = shared.tiles[tiles.slot];
    // The same for all lanes, in a form that lets the compiler know it.
    span.lowest = uniform(tile.span.lowest);
    span.highest = uniform(tile.span.highest);
    span.first_step = uniform(tile.span.first_step);
    span.end_step = uniform(tile.span.end_step);
    return uniform(tile.columns.columns) > 0;
}

/// The warp is through with the tile.
template <class Form>
__device__ __forceinline__ void end_tile(WideShared<Form>& shared, Ring<2>& tiles) {
    barrier_arrive_warp(&shared.tiles_empty[tiles.slot]);
    tiles.next();
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

/// What warp 0 copies, and where it stands in the rings.
template <class Form>
struct WideCopies {
    static constexpr uint32_t kPageBytes = kPageTokens * Form::kHeadSize * 2;
    const PromptArgs& args;
    const CUtensorMap* key_map;
    const CUtensorMap* value_map;
    WideShared<Form>& shared;
    bool leader;
    Ring<Form::kKeyStages> keys;
    Ring<Form::kValueStages> values, raw;
    Ring<Form::kCoded ? Form::kCodeStages : 1> codes;

    /// No lane may still look at a barrier when what the leader starts makes it go on.
    template <class Turn>
    __device__ __forceinline__ static void wait_empty(Barrier* empty, const Turn& turn) {
        barrier_wait(empty, turn.parity ^ 1u);
        __syncwarp();
    }
    /// A page as it stands, for convert_pages().
    __device__ __forceinline__ void copy_codes(const CUtensorMap* map,
                                               int32_t kv_head,
                                               int32_t place) {
        using Tile = CodeTile<Form::kHeadSize>;
        wait_empty(&shared.codes_empty[codes.slot], codes);
        Barrier* full = &shared.codes_full[codes.slot];
        if (leader) {
            barrier_arrive_expect(full, Tile::kBytes);
            uint8_t* target = shared.codes + codes.slot * Tile::kBytes;
#pragma unroll
            for (int32_t s = 0; s < Tile::kSlices; ++s)
                copy_box(target + s * kPageTokens * Tile::kWidth, map,
                         make_int4(Tile::kWidth * s, 0, kv_head, place), full);
        }
        codes.next();
    }
    /// The keys of a step.
    __device__ __forceinline__ void copy_keys(int32_t kv_head,
                                              const int32_t (&places)[Form::kPages]) {
        if constexpr (Form::kCoded) {
#pragma unroll
            for (int32_t p = 0; p < Form::kPages; ++p) copy_codes(key_map, kv_head, places[p]);
        } else {
            wait_empty(&shared.keys_empty[keys.slot], keys);
            Barrier* full = &shared.keys_full[keys.slot];
            if (leader) {
                barrier_arrive_expect(full, kPageBytes * Form::kPages);
#pragma unroll
                for (int32_t s = 0; s < Form::kSlices; ++s)
#pragma unroll
                    for (int32_t p = 0; p < Form::kPages; ++p)
                        copy_box(shared.keys[keys.slot][s] + p * kPageTokens * 64, key_map,
                                 make_int4(64 * s, 0, kv_head, places[p]), full);
            }
            keys.next();
        }
    }
    /// A page of values.
    __device__ __forceinline__ void copy_values(const WideTile& tile, int32_t page, int32_t place) {
        if constexpr (Form::kCoded) {
            copy_codes(value_map, tile.kv_head, place);
        } else {
            wait_empty(&shared.values_empty[values.slot], values);
            const bool masked = tile.span.masks(page * kPageTokens, kPageTokens, args.window);
            Barrier* full =
                masked ? &shared.values_raw[raw.slot] : &shared.values_full[values.slot];
            if (leader) {
                barrier_arrive_expect(full, kPageBytes);
#pragma unroll
                for (int32_t s = 0; s < Form::kSlices; ++s)
                    copy_box(shared.values[values.slot][s], value_map,
                             make_int4(64 * s, 0, tile.kv_head, place), full);
            }
            values.next();
            if (masked) raw.next();
        }
    }
};

/// Warp 0: keys and values to shared memory, in the order in which they are needed.
template <class Form>
__device__ __forceinline__ void copy_pages(const PromptArgs& args,
                                           const CUtensorMap* key_map,
                                           const CUtensorMap* value_map,
                                           WideShared<Form>& shared) {
    constexpr int32_t kPages = Form::kPages;
    WideCopies<Form> copies{.args = args,
                            .key_map = key_map,
                            .value_map = value_map,
                            .shared = shared,
                            .leader = threadIdx.x % 32 == 0};
    Ring<2> tiles;
    const auto blocks = static_cast<int32_t>(gridDim.x);
    const int32_t count = count_tiles(args);
    const int32_t rounds = (count * args.kv_heads + blocks - 1) / blocks;
    for (int32_t round = 0; round <= rounds; ++round) {
        WideTile tile = {};
        if (round < rounds && !find_wide_tile<Form::kStepKeys>(args, count, round, rounds, tile))
            continue;
        copies.wait_empty(&shared.tiles_empty[tiles.slot], tiles);
        if (copies.leader) {
            shared.tiles[tiles.slot] = tile;
            barrier_arrive(&shared.tiles_full[tiles.slot]);
        }
        tiles.next();
        if (round == rounds) return;
        prefetch_queries(args, tile);
        const int32_t* table = args.batch.table(tile.columns.sequence);
        const auto place_of = [&](int32_t page) {
            return table[min(max(page, tile.first_page), tile.last_page)];
        };
        const int32_t first_step = tile.span.first_step, end_step = tile.span.end_step;
        int32_t places[kPages] = {}, next_places[kPages];
#pragma unroll
        for (int32_t p = 0; p < kPages; ++p) next_places[p] = place_of(first_step * kPages + p);
        for (int32_t step = first_step; step <= end_step; ++step) {
            int32_t last_places[kPages];
#pragma unroll
            for (int32_t p = 0; p < kPages; ++p)
                last_places[p] = places[p], places[p] = next_places[p],
                next_places[p] = place_of((step + 1) * kPages + p);
            if (step < end_step) copies.copy_keys(tile.kv_head, places);
            if (step == first_step) continue;
#pragma unroll
            for (int32_t p = 0; p < kPages; ++p)
                copies.copy_values(tile, (step - 1) * kPages + p, last_places[p]);
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
    Ring<Form::kValueStages> values, raw;
    Ring<2> tiles;
    for (WideSpan tile; next_tile(shared, tiles, tile); end_tile(shared, tiles)) {
        for (int32_t page = tile.first_step * kPages; page < tile.end_step * kPages; ++page) {
            const int32_t slot = values.slot, first_key = page * kPageTokens;
            values.next();
            if (!tile.masks(first_key, kPageTokens, window)) continue;
            barrier_wait(&shared.values_raw[raw.slot], raw.parity);
            raw.next();
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
            // By the thread that arrives when nothing is to be cleaned.
            if (thread == 0) shared.not_finite[slot][0] = shared.not_finite[slot][1] = 0;
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

/// What numbers of coded pages are divided by where they are multiplied.
constexpr float kCodeUnit = 256.0f;

/// Two of a word's codes, divided by kCodeUnit, as f16: fields moved to their places, whose
/// exponent counts from a power 2^8 lower. The kernel takes 12% longer with the instruction for it
/// (F2FP). NaN is not one here.
__device__ __forceinline__ uint32_t f16_pair_of_codes(uint32_t word, bool upper) {
    const uint32_t spread = __byte_perm(word, 0, upper ? 0x4342 : 0x4140);  // a code a half
    return (spread + (spread & 0x00800080u)) * 128u;
}

/// Sixteen codes as f16, divided by kCodeUnit. Returns bits 7, 15, 23 and 31 of which one is set if
/// a code stands for NaN.
__device__ __forceinline__ uint32_t f16_of_codes(uint4 codes, uint32_t (&pairs)[8]) {
    const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
    uint32_t nan = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
        nan |= (words[i] & 0x7f7f7f7fu) + 0x01010101u;
        pairs[2 * i] = f16_pair_of_codes(words[i], false);
        pairs[2 * i + 1] = f16_pair_of_codes(words[i], true);
    }
    return nan;
}

/// NaN where the codes say so.
__device__ __forceinline__ void set_nan(uint4 codes, uint32_t (&pairs)[8]) {
    constexpr uint32_t kNan = 0x7fffu;
    const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
        const uint32_t two = words[i / 2] >> i % 2 * 16;
        if ((two & 0x7fu) == 0x7fu) pairs[i] |= kNan;
        if ((two >> 8 & 0x7fu) == 0x7fu) pairs[i] |= kNan << 16;
    }
}

/// This warp's part of a page in f16, to `target` on, whose slices are kSliceRows rows apart: every
/// third column of pieces of 16 elements, a lane taking rows `lane` and `lane + 32`. `clean` is
/// given a row's number, its codes and its elements on the way. Returns the marks of
/// f16_of_codes().
template <int32_t kHeadSize, uint32_t kSliceRows, class Clean>
__device__ __forceinline__ uint32_t convert_page(const uint8_t* codes,
                                                 uint16_t* target,
                                                 Clean clean) {
    static_assert(kPageTokens == 64);
    const uint32_t lane = threadIdx.x % 32;
    uint32_t nan = 0;
#pragma unroll 1
    for (uint32_t piece = threadIdx.x / 32 - 1; piece < kHeadSize / 16; piece += kCleaners / 32) {
        const uint32_t source = shared_address(codes + CodeTile<kHeadSize>::place(lane, piece));
        const uint32_t out = shared_address(target + (piece / 4 * kSliceRows + lane) * 64 +
                                            (piece % 4 * 2 ^ lane % 8) * 8);
        uint4 raw[2];
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i)
            raw[i] = load_shared_four(source + i * 32 * CodeTile<kHeadSize>::kWidth);
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
            uint32_t pairs[8];
            nan |= f16_of_codes(raw[i], pairs);
            clean(static_cast<int32_t>(lane + 32 * i), raw[i], pairs);
            const uint32_t place = out + i * 32 * 128;
            store_shared_four(place, pairs[0], pairs[1], pairs[2], pairs[3]);
            store_shared_four(place ^ 16u, pairs[4], pairs[5], pairs[6], pairs[7]);
        }
    }
    return nan;
}

/// The same of a page that all columns see: NaN as it stands.
template <int32_t kHeadSize, uint32_t kSliceRows>
__device__ __forceinline__ void convert_whole_page(const uint8_t* codes, uint16_t* target) {
    const uint32_t nan = convert_page<kHeadSize, kSliceRows>(
        codes, target, [](int32_t, uint4, const uint32_t(&)[8]) {});
    // Seldom: once more, with more care.
    if ((nan & 0x80808080u) != 0)
        convert_page<kHeadSize, kSliceRows>(
            codes, target, [](int32_t, uint4 raw, uint32_t(&pairs)[8]) { set_nan(raw, pairs); });
}

/// Warps 1 to 3, for pages of 8-bit floats: keys and values in f16 to where the others multiply
/// them; of masked pages of values without what must not be multiplied.
template <class Form>
struct WideConversions {
    const PromptArgs& args;
    WideShared<Form>& shared;
    Ring<Form::kKeyStages> keys;
    Ring<Form::kValueStages> values;
    Ring<Form::kCodeStages> codes;

    __device__ __forceinline__ const uint8_t* wait_codes() {
        barrier_wait(&shared.codes_full[codes.slot], codes.parity);
        return shared.codes + codes.slot * CodeTile<Form::kHeadSize>::kBytes;
    }
    /// The warp has read a page of codes.
    __device__ __forceinline__ void end_codes() {
        barrier_arrive_warp(&shared.codes_empty[codes.slot]);
        codes.next();
    }
    __device__ __forceinline__ void convert_keys() {
        barrier_wait(&shared.keys_empty[keys.slot], keys.parity ^ 1u);
#pragma unroll 1
        for (int32_t p = 0; p < Form::kPages; ++p) {
            convert_whole_page<Form::kHeadSize, Form::kStepKeys>(
                wait_codes(), shared.keys[keys.slot][0] + p * kPageTokens * 64);
            end_codes();
        }
        fence_async_proxy();
        barrier_arrive_warp(&shared.keys_full[keys.slot]);
        keys.next();
    }
    /// The values of a step.
    __device__ __forceinline__ void convert_values(const WideSpan& span, int32_t step) {
        auto turn = values;
#pragma unroll 1
        for (int32_t p = 0; p < Form::kPages; ++p) {
            barrier_wait(&shared.values_empty[turn.slot], turn.parity ^ 1u);
            const int32_t first_key = (step * Form::kPages + p) * kPageTokens;
            if (span.masks(first_key, kPageTokens, args.window))
                convert_masked(span, first_key, turn.slot);
            else
                convert_whole_page<Form::kHeadSize, kPageTokens>(wait_codes(),
                                                                 shared.values[turn.slot][0]);
            end_codes();
            turn.next();
        }
        fence_async_proxy();
#pragma unroll
        for (int32_t p = 0; p < Form::kPages; ++p) {
            barrier_arrive_warp(&shared.values_full[values.slot]);
            values.next();
        }
    }
    __device__ __forceinline__ void convert_masked(const WideSpan& span,
                                                   int32_t first_key,
                                                   int32_t slot) {
        const auto thread = static_cast<int32_t>(threadIdx.x) - 32;
        if (thread < 2) shared.not_finite[slot][thread] = 0;
        named_sync(1, kCleaners);
        const int32_t begin = args.window > 0 ? span.lowest - args.window + 1 - first_key : 0;
        const int32_t end = span.highest + 1 - first_key;
        convert_page<Form::kHeadSize, kPageTokens>(
            wait_codes(), shared.values[slot][0], [&](int32_t row, uint4 raw, uint32_t(&pairs)[8]) {
                set_nan(raw, pairs);
                const bool unseen = row < begin || row >= end;
                uint32_t any = 0;
#pragma unroll
                for (int32_t i = 0; i < 8; ++i) {
                    const uint32_t bad = not_finite_pair<true>(pairs[i]);
                    pairs[i] = unseen ? 0 : pairs[i] & ~bad;
                    any |= bad;
                }
                if (any != 0 && !unseen)
                    atomicOr(&shared.not_finite[slot][row / 32], 1u << row % 32);
            });
    }
};

template <class Form>
__device__ __forceinline__ void convert_pages(const PromptArgs& args, WideShared<Form>& shared) {
    WideConversions<Form> turn{.args = args, .shared = shared};
    Ring<2> tiles;
    for (WideSpan span; next_tile(shared, tiles, span); end_tile(shared, tiles)) {
#pragma unroll 1
        for (int32_t step = span.first_step; step <= span.end_step; ++step) {
            if (step < span.end_step) turn.convert_keys();
            if (step > span.first_step) turn.convert_values(span, step - 1);
        }
    }
}

}  // namespace tessera::cuda
