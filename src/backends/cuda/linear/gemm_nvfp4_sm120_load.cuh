#pragma once
// The operands of gemm_nvfp4_sm120.cuh, and the warps that bring them.

#include <cstdint>
#include <type_traits>

#include "backends/cuda/linear/fp4_places.h"
#include "backends/cuda/linear/hopper_tiles.cuh"
#include "backends/cuda/linear/product.cuh"
#include "backends/cuda/ptx/bulk_copy.cuh"
#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/ptx/tma.cuh"

namespace tessera::cuda::sm120 {

inline constexpr int kLoaders = 4, kProducers = 8;  ///< warps that bring operands, that multiply
inline constexpr int kThreads = 32 * (kLoaders + kProducers);
inline constexpr int kSharedBytes = 101376;  ///< what a block of sm_120 may have
static_assert(kThreads == hopper::kThreads, "the shares of registers are for so many threads");
static_assert(kFragmentRows == 16 * kProducers && kFragmentRows == 32 * kLoaders);

/// What a product is: of one matrix or of gate and up, whose results are f32 or bf16; the same of
/// experts.
enum class Form : uint8_t { kPlain, kGated, kGrouped, kGatedGroups };
constexpr bool is_gated(Form form) {
    return form == Form::kGated || form == Form::kGatedGroups;
}
constexpr bool is_grouped(Form form) {
    return form == Form::kGrouped || form == Form::kGatedGroups;
}

template <int Features, int Tokens>
struct Tile {
    static constexpr int kFeatures = Features, kTokens = Tokens;
    static constexpr int kFragments = Features / kFragmentRows;  ///< of a warp
    static_assert(kFragments == 1 || kFragments == 2);
    static_assert(Tokens % kScaleGroup == 0 && Tokens <= 32 * kLoaders);
    static constexpr int kStageBytes = (Features + Tokens) * (kRowBytes + kRowScaleBytes);
    static constexpr int kStages = (kSharedBytes - 1024) / kStageBytes;
    static_assert(kStages >= 3, "a stage is read, one is full, one on its way");
};

template <class Tile>
struct Shared {
    static constexpr int kStages = Tile::kStages;
    uint8_t weights[kStages][Tile::kFeatures * kRowBytes];  ///< unit_place()
    uint8_t x[kStages][Tile::kTokens * kRowBytes];
    uint8_t weight_scales[kStages][Tile::kFeatures * kRowScaleBytes];  ///< weight_scale_place()
    uint8_t x_scales[kStages][Tile::kTokens * kRowScaleBytes];         ///< token_scale_place()
    float row_scales[Tile::kTokens];                                   ///< 0 behind the last row
    Barrier full[kStages], empty[kStages];
};

/// Which rows a tile of a grouped product has, beside the operands of its last stage.
template <int Tokens>
struct TileRows {
    int32_t expert;  ///< negative: no tile comes any more
    int32_t feature;
    float scales[Tokens];  ///< of rows of x
    int32_t out[Tokens];   ///< rows of the result; negative: none
};
template <class Tile>
struct GroupedShared : Shared<Tile> {
    TileRows<Tile::kTokens> tiles[Tile::kStages];
};
template <class Tile, Form kForm>
using SharedOf = std::conditional_t<is_grouped(kForm), GroupedShared<Tile>, Shared<Tile>>;

/// Features of a tile: of gate and as many of up where gated.
template <class Tile, Form kForm>
constexpr int kOwnFeatures = is_gated(kForm) ? Tile::kFeatures / 2 : Tile::kFeatures;

struct Operands {
    hopper::Operands base;  ///< `token_tiles` and `items` say how the tiles are cut
    const uint8_t* x_scales;
    const float* row_scales;
    const float* row_factors;  ///< of the weight, MXFP4 alone, else null
    // Gated alone:
    const float* up_row_factors;
    __nv_bfloat16* gated;  ///< [rows, n], grouped: [all pairs, n]
    // Grouped alone:
    Grouping grouping;
    const uint8_t* x;       ///< codes
    int32_t feature_tiles;  ///< of an expert
};

/// Tokens from `token` (grouped: of a group) against features from `feature` of an expert.
struct Item {
    int32_t token, feature, expert;
};
template <class Tile, Form kForm>
__device__ __forceinline__ Item item_of(const hopper::Operands& p, int index) {
    // Tiles that run together share their features, of which there is more than of tokens.
    return {index % p.token_tiles * Tile::kTokens,
            index / p.token_tiles * kOwnFeatures<Tile, kForm>, 0};
}

/// The scales of a stage of one row, as they lie in memory: those of two units for each half.
template <DType F>
struct RowScales {
    static constexpr int kUnitBytes = layout_of(F).group_bytes;
    static_assert(layout_of(F).group_units == 1 && kUnitBytes <= 2);
    using Word = std::conditional_t<kUnitBytes == 2, uint32_t, uint16_t>;
    uint32_t halves[kHalves];

    static __device__ __forceinline__ RowScales load(const uint8_t* row, int step, int64_t units) {
        RowScales out{};
#pragma unroll
        for (int i = 0; i < kHalves; ++i) {
            const int64_t unit = int64_t{step} * hopper::kStageUnits + kHalfUnits * i;
            if (unit < units) out.halves[i] = load_word<Word>(row + kUnitBytes * unit);
        }
        return out;
    }
};

/// A row of the weight as the loader warps see it.
template <DType F>
struct WeightScales {
    const uint8_t* scales;
    int32_t exponent;  ///< of the row's power of two, MXFP4 alone

    __device__ __forceinline__ void start(const Operands& operands, bool up, int64_t row) {
        const hopper::Operands& p = operands.base;
        scales = (up ? p.up_scales : p.scales) + row * p.units * RowScales<F>::kUnitBytes;
        exponent = 0;
        if constexpr (F == DType::kMXFP4) {
            const float* factors = up ? operands.up_row_factors : operands.row_factors;
            exponent = static_cast<int32_t>(__float_as_uint(factors[row]) >> 23);
        }
    }
    /// The four scales of a half.
    __device__ __forceinline__ uint32_t of(uint32_t half) const {
        return F == DType::kMXFP4 ? power_scales(half, exponent) : hopper::clean_scales(half);
    }
};

/// Puts the scales of a half of the rows that a loader thread has: words beside each other.
template <int Words>
__device__ __forceinline__ void put_words(uint8_t* place, const uint32_t (&words)[Words]) {
    if constexpr (Words == 2)
        *reinterpret_cast<uint2*>(place) = make_uint2(words[0], words[1]);
    else
        *reinterpret_cast<uint32_t*>(place) = words[0];
}

/// Rows of x of a tile that follow one another, as a loader thread brings them: the scales of one.
template <class Tile>
struct RowsInOrder {
    static constexpr bool kGathered = false;
    uint32_t row;
    bool there;  ///< a row of the tile, if not of x: those are zeros, whose scales are any
    const uint8_t* scales;

    __device__ __forceinline__ RowsInOrder(const Operands& operands, const Item& item)
        : row(threadIdx.x), there(threadIdx.x < Tile::kTokens) {
        const hopper::Operands& p = operands.base;
        const int64_t token = item.token + static_cast<int64_t>(row);
        scales = operands.x_scales + (token < p.rows ? token : p.rows - 1) * p.units * 2;
    }
    __device__ __forceinline__ void copy(const Operands&, Shared<Tile>&, int, int) const {}
    __device__ __forceinline__ void hand_over(Shared<Tile>&, int, const Item&) const {}
};

/// Rows of a group that lie anywhere: a warp gathers an equal share of them, four lanes a row, and
/// each lane has the scales of one at most.
template <class Tile>
struct GatheredRows {
    static constexpr bool kGathered = true;
    static constexpr int kOwn = Tile::kTokens / kLoaders;  ///< of a warp
    static constexpr int kCopies = kOwn / 8;
    static_assert(kOwn % 8 == 0 && kOwn <= 32 && kRowBytes == 4 * kUnitBytes);
    static_assert(unit_place(15, 2) == unit_place(7, 2) + 8 * kRowBytes,
                  "eight rows further, a unit is eight rows of bytes further");
    uint32_t row;
    bool there;
    const uint8_t* scales;
    float row_scale;
    int32_t out;
    int32_t units[kCopies];  ///< the first of each row, counted from the first of x; negative: none

    /// The lanes of a warp together.
    __device__ __forceinline__ GatheredRows(const Operands& operands, const Group& group) {
        const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        row = warp * kOwn + lane % kOwn;
        there = lane < kOwn;
        const RowPair pair = row_of(operands.grouping, group, static_cast<int>(row));
        const auto units_of_row = static_cast<int32_t>(operands.base.units);
        scales = operands.x_scales + max(pair.x, 0) * int64_t{units_of_row} * 2;
        row_scale = pair.x < 0 ? 0.0f : operands.row_scales[pair.x];
        out = pair.out;
        const int32_t first = pair.x < 0 ? -1 : pair.x * units_of_row;
#pragma unroll
        for (int i = 0; i < kCopies; ++i)
            units[i] = __shfl_sync(kAllLanes, first, 8 * i + static_cast<int>(lane) / 4);
    }
    /// Queues the copies of a stage, zeros for what is not there.
    __device__ __forceinline__ void copy(const Operands& operands,
                                         GroupedShared<Tile>& shared,
                                         int stage,
                                         int step) const {
        const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const auto unit = step * hopper::kStageUnits + static_cast<int32_t>(lane % 4);
        uint8_t* const target = shared.x[stage] + unit_place(warp * kOwn + lane / 4, lane % 4);
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
            const bool present = units[i] >= 0 && unit < operands.base.units;
            copy_16(target + i * 8 * kRowBytes,
                    operands.x + int64_t{kUnitBytes} * (present ? units[i] + unit : 0),
                    present ? kUnitBytes : 0);
        }
        barrier_arrive_after_copies(&shared.full[stage]);
    }
    /// Tells the warps that multiply what a tile is.
    __device__ __forceinline__ void hand_over(GroupedShared<Tile>& shared,
                                              int stage,
                                              const Item& item) const {
        TileRows<Tile::kTokens>& tile = shared.tiles[stage];
        if (threadIdx.x == 0) {
            tile.expert = item.expert;
            tile.feature = item.feature;
        }
        if (!there) return;
        tile.scales[row] = row_scale;
        tile.out[row] = out;
    }
};

/// Brings the operands of an item, stage by stage.
template <DType F, Form kForm, class Mma, class Tile, class Memory, class X>
__device__ __forceinline__ void bring(const hopper::Maps& maps,
                                      const Operands& operands,
                                      const Item& item,
                                      const X& x,
                                      Memory& shared,
                                      Ring<Tile::kStages>& ring) {
    constexpr bool kGated = is_gated(kForm);
    constexpr int kOwnRows = Tile::kFragments;
    constexpr uint32_t kBytes = (Tile::kFeatures + (X::kGathered ? 0 : Tile::kTokens)) * kRowBytes;
    const hopper::Operands& p = operands.base;
    const int thread = static_cast<int>(threadIdx.x);
    // Rows of other experts before this one's.
    const int64_t before = is_grouped(kForm) ? item.expert * p.n : 0;
    const auto first_row = static_cast<int32_t>(before) + item.feature;
    // Codes of rows that are not there arrive as zeros, those behind an expert's last are nobody's:
    // any scale will do for them.
    WeightScales<F> rows[kOwnRows];
    RowScales<F> next[kOwnRows];
    RowScales<DType::kNVFP4> next_x{};
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
        const int64_t row = item.feature + thread + (kGated ? 0 : kFragmentRows * i);
        rows[i].start(operands, /*up=*/kGated && i == 1, before + (row < p.n ? row : p.n - 1));
        next[i] = RowScales<F>::load(rows[i].scales, 0, p.units);
    }
    if (x.there) next_x = RowScales<DType::kNVFP4>::load(x.scales, 0, p.units);
    for (int step = 0; step < p.steps; ++step) {
        RowScales<F> own[kOwnRows];
        const RowScales<DType::kNVFP4> own_x = next_x;
#pragma unroll
        for (int i = 0; i < kOwnRows; ++i) {
            own[i] = next[i];
            next[i] = RowScales<F>::load(rows[i].scales, step + 1, p.units);
        }
        if (x.there) next_x = RowScales<DType::kNVFP4>::load(x.scales, step + 1, p.units);
        const int stage = ring.slot;
        barrier_wait(&shared.empty[stage], ring.parity ^ 1);
        Mma::pause(static_cast<uint32_t>(step));
        Barrier* full = &shared.full[stage];
        if (thread == 0) {
            barrier_arrive_expect(full, kBytes);
            uint8_t* const weights = shared.weights[stage];
            copy_box(weights, &maps.weights, step * kRowBytes, first_row, full);
            if constexpr (kGated)
                copy_box(weights + kFragmentRows * kRowBytes, &maps.up, step * kRowBytes, first_row,
                         full);
            if constexpr (!X::kGathered)
                copy_box(shared.x[stage], &maps.x, step * kRowBytes, item.token, full);
        }
        __syncwarp();
        x.copy(operands, shared, stage, step);
#pragma unroll
        for (uint32_t half = 0; half < kHalves; ++half) {
            uint32_t words[kOwnRows];
#pragma unroll
            for (int i = 0; i < kOwnRows; ++i) words[i] = rows[i].of(own[i].halves[half]);
            put_words(shared.weight_scales[stage] +
                          weight_scale_place(static_cast<uint32_t>(thread), half, Tile::kFragments),
                      words);
            if (x.there)
                *reinterpret_cast<uint32_t*>(shared.x_scales[stage] +
                                             token_scale_place(x.row, half)) = own_x.halves[half];
        }
        if (X::kGathered && step + 1 == p.steps) x.hand_over(shared, stage, item);
        barrier_arrive_warp(full);
        ring.next();
    }
}

/// What the loader warps do.
template <DType F, Form kForm, class Mma, class Tile>
__device__ __forceinline__ void produce(const hopper::Maps& maps,
                                        const Operands& operands,
                                        Shared<Tile>& shared) {
    Ring<Tile::kStages> ring;
    for (int index = static_cast<int>(blockIdx.x); index < operands.base.items;
         index += static_cast<int>(gridDim.x)) {
        const Item item = item_of<Tile, kForm>(operands.base, index);
        const RowsInOrder<Tile> x(operands, item);
        bring<F, kForm, Mma, Tile>(maps, operands, item, x, shared, ring);
    }
}

/// The same for groups of pairs, each warp for itself until a stage is full.
template <DType F, Form kForm, class Mma, class Tile>
__device__ __forceinline__ void produce(const hopper::Maps& maps,
                                        const Operands& operands,
                                        GroupedShared<Tile>& shared) {
    const Grouping& of = operands.grouping;
    const int32_t groups = count_groups(of, Tile::kTokens);
    Ring<Tile::kStages> ring;
    // Groups of an expert run beside each other: they share its weights.
    for (int index = static_cast<int>(blockIdx.x); index < groups * operands.feature_tiles;
         index += static_cast<int>(gridDim.x)) {
        const Group group = find_group(of, index % groups, Tile::kTokens);
        // The pairs of an expert ascend, so those of prompts come first.
        if (of.pairs[group.first] >= of.end_pair) continue;
        const GatheredRows<Tile> x(operands, group);
        const Item item{0, index / groups * kOwnFeatures<Tile, kForm>, group.expert};
        bring<F, kForm, Mma, Tile>(maps, operands, item, x, shared, ring);
    }
    Barrier* const full = &shared.full[ring.slot];
    barrier_wait(&shared.empty[ring.slot], ring.parity ^ 1);
    if (threadIdx.x == 0) {
        shared.tiles[ring.slot].expert = -1;
        barrier_arrive(full);  // instead of telling what copies it may expect
    }
    barrier_arrive_after_copies(full);
    barrier_arrive_warp(full);
    // A thread leaves behind its copies.
    commit_copies();
    wait_copies<0>();
}

}  // namespace tessera::cuda::sm120
