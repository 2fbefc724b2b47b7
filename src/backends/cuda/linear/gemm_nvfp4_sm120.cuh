#pragma once
// The product of NVFP4 and MXFP4 weights with NVFP4 rows on FP4 tensor cores (sm_120), which
// multiply 2048 pairs of numbers a clock and multiprocessor and apply the block scales themselves.
//
// A block of 384 threads keeps three stages or more of 128 columns in shared memory: four warps
// bring operands (the copy engine the codes, its threads the scales), eight multiply. Each of those
// has 32 rows of the weight (16 in the smaller tiles) and all tokens of the tile, because a word of
// a resident weight takes five instructions before it is an operand (whole_codes): so every word is
// seen by one warp alone, and a stage of 64 products takes 80 instructions for that and 23 loads.
// With 64 x 64 a warp it would be 160 and 19. Sums stay in place. Bound by tensor cores: a product
// is issued every 16 clocks a quarter of the multiprocessor.
//
// Gate and up in one launch: a tile has 128 rows of each, a warp 16 rows of gate and the same of
// up, so that a thread has both of a feature, and bf16 rows of act(gate) * up leave instead of
// twice the f32 ones. A pass rounds them further, as the scale of a row needs all of it.
//
// MXFP4: the instruction takes one kind of scale for both sides, and rows of x with powers of two
// for 32 columns would be coarser than they are (its form with ue8m0 was rejected for that). But
// powers of two are ue4m3 numbers, from 2^-9 to 2^8, so that loader warps make NVFP4 of the
// weights' scales and a power of two of each row (fp4_places.h).
//
// Template parameter Mma: the instruction, or what stands for it on other cards (ptx/fp4_mma.cuh).
// Rejected: a container of its own with operands in the order of fragments, which would double the
// memory of cards that also need the decoders' order; multicast, which these cards do not have.

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "backends/cuda/linear/fp4_places.h"
#include "backends/cuda/linear/gated_tiles.cuh"
#include "backends/cuda/linear/gemm_nvfp4_sm120.h"
#include "backends/cuda/linear/hopper_tiles.cuh"
#include "backends/cuda/ptx/fp4_mma.cuh"
#include "backends/cuda/ptx/load_matrices.cuh"
#include "backends/cuda/ptx/named_barrier.cuh"
#include "backends/cuda/ptx/tma.cuh"

namespace tessera::cuda {
namespace sm120 {

inline constexpr int kLoaders = 4, kProducers = 8;  ///< warps that bring operands, that multiply
inline constexpr int kThreads = 32 * (kLoaders + kProducers);
inline constexpr int kSharedBytes = 101376;  ///< what a block of sm_120 may have
static_assert(kThreads == hopper::kThreads, "the shares of registers are for so many threads");
static_assert(kFragmentRows == 16 * kProducers && kFragmentRows == 32 * kLoaders);

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

struct Operands {
    hopper::Operands base;  ///< `token_tiles` and `items` say how the tiles are cut
    const uint8_t* x_scales;
    const float* row_scales;
    const float* row_factors;  ///< of the weight, MXFP4 alone, else null
    // Gated alone:
    const float* up_row_factors;
    __nv_bfloat16* gated;  ///< [rows, n]
};

/// Tokens from `token` against features from `feature`.
struct Item {
    int32_t token, feature;
};
template <class Tile, bool kGated>
__device__ __forceinline__ Item item_of(const hopper::Operands& p, int index) {
    constexpr int kOwn = kGated ? Tile::kFeatures / 2 : Tile::kFeatures;
    // Tiles that run together share their features, of which there is more than of tokens.
    return {index % p.token_tiles * Tile::kTokens, index / p.token_tiles * kOwn};
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

/// What the loader warps do.
template <DType F, bool kGated, class Mma, class Tile>
__device__ __forceinline__ void produce(const hopper::Maps& maps,
                                        const Operands& operands,
                                        Shared<Tile>& shared) {
    constexpr int kOwnRows = Tile::kFragments;
    constexpr uint32_t kBytes = (Tile::kFeatures + Tile::kTokens) * kRowBytes;
    const hopper::Operands& p = operands.base;
    const int thread = static_cast<int>(threadIdx.x);
    const bool has_token = thread < Tile::kTokens;
    Ring<Tile::kStages> ring;
    for (int index = static_cast<int>(blockIdx.x); index < p.items;
         index += static_cast<int>(gridDim.x)) {
        const Item item = item_of<Tile, kGated>(p, index);
        // Codes of rows that are not there arrive as zeros: any scale will do for them.
        WeightScales<F> rows[kOwnRows];
        RowScales<F> next[kOwnRows];
        RowScales<DType::kNVFP4> next_x{};
#pragma unroll
        for (int i = 0; i < kOwnRows; ++i) {
            const int64_t row = item.feature + thread + (kGated ? 0 : kFragmentRows * i);
            rows[i].start(operands, /*up=*/kGated && i == 1, row < p.n ? row : p.n - 1);
            next[i] = RowScales<F>::load(rows[i].scales, 0, p.units);
        }
        const int64_t token = item.token + thread;
        const uint8_t* x_row =
            operands.x_scales + (token < p.rows ? token : p.rows - 1) * p.units * 2;
        if (has_token) next_x = RowScales<DType::kNVFP4>::load(x_row, 0, p.units);
        for (int step = 0; step < p.steps; ++step) {
            RowScales<F> own[kOwnRows];
            const RowScales<DType::kNVFP4> own_x = next_x;
#pragma unroll
            for (int i = 0; i < kOwnRows; ++i) {
                own[i] = next[i];
                next[i] = RowScales<F>::load(rows[i].scales, step + 1, p.units);
            }
            if (has_token) next_x = RowScales<DType::kNVFP4>::load(x_row, step + 1, p.units);
            const int stage = ring.slot;
            barrier_wait(&shared.empty[stage], ring.parity ^ 1);
            Mma::pause(static_cast<uint32_t>(step));
            Barrier* full = &shared.full[stage];
            if (thread == 0) {
                barrier_arrive_expect(full, kBytes);
                uint8_t* const weights = shared.weights[stage];
                copy_box(weights, &maps.weights, step * kRowBytes, item.feature, full);
                if constexpr (kGated)
                    copy_box(weights + kFragmentRows * kRowBytes, &maps.up, step * kRowBytes,
                             item.feature, full);
                copy_box(shared.x[stage], &maps.x, step * kRowBytes, item.token, full);
            }
            __syncwarp();
#pragma unroll
            for (uint32_t half = 0; half < kHalves; ++half) {
                uint32_t words[kOwnRows];
#pragma unroll
                for (int i = 0; i < kOwnRows; ++i) words[i] = rows[i].of(own[i].halves[half]);
                const auto own_row = static_cast<uint32_t>(thread);
                put_words(shared.weight_scales[stage] +
                              weight_scale_place(own_row, half, Tile::kFragments),
                          words);
                if (has_token)
                    *reinterpret_cast<uint32_t*>(shared.x_scales[stage] +
                                                 token_scale_place(own_row, half)) =
                        own_x.halves[half];
            }
            barrier_arrive_warp(full);
            ring.next();
        }
    }
}

/// Calls work.operator()<0>() to <N - 1>(): indices that instructions take as constants.
template <class Work, int... I>
__device__ __forceinline__ void each(std::integer_sequence<int, I...>, const Work& work) {
    (work.template operator()<I>(), ...);
}
template <int N, class Work>
__device__ __forceinline__ void each(const Work& work) {
    each(std::make_integer_sequence<int, N>{}, work);
}

/// What whole_codes() is made of.
struct DeviceBits {
    static __device__ __forceinline__ uint32_t pick_bytes(uint32_t low,
                                                          uint32_t high,
                                                          uint32_t selector) {
        return cuda::pick_bytes(low, high, selector);
    }
    static __device__ __forceinline__ uint32_t choose_bits(uint32_t mask, uint32_t a, uint32_t b) {
        return cuda::choose_bits(mask, a, b);
    }
};

/// Sums of one stage.
template <class Mma, class Tile>
__device__ __forceinline__ void multiply(const Shared<Tile>& shared,
                                         int stage,
                                         const Places<Tile::kFragments>& places,
                                         float (&sums)[Tile::kFragments][Tile::kTokens / 2]) {
    constexpr int kGroups = Tile::kTokens / kScaleGroup;
    const uint32_t weights = shared_address(shared.weights[stage]);
    const uint32_t tokens = shared_address(shared.x[stage]);
    uint32_t weight_scales[2];
    const uint32_t from = shared_address(shared.weight_scales[stage]) + places.weight_scales;
    if constexpr (Tile::kFragments == 2) {
        const uint2 two = load_shared_two(from);
        weight_scales[0] = two.x;
        weight_scales[1] = two.y;
    } else {
        weight_scales[0] = load_shared(from);
    }
    uint4 token_scales[kGroups];
#pragma unroll
    for (int i = 0; i < kGroups; ++i)
        token_scales[i] = load_shared_four(shared_address(shared.x_scales[stage]) +
                                           places.token_scales_of(static_cast<uint32_t>(i)));
    each<kHalves>([&]<int Half>() {
        uint32_t a[Tile::kFragments][4];
#pragma unroll
        for (int i = 0; i < Tile::kFragments; ++i) {
            load_matrices_at(a[i], weights + places.weights_of(static_cast<uint32_t>(i), Half));
#pragma unroll
            for (int j = 0; j < 4; ++j) a[i][j] = whole_codes(a[i][j], DeviceBits{});
        }
        each<Tile::kTokens / 8>([&]<int Fragment>() {
            // Tokens of two fragments come together.
            if constexpr (Fragment % 2 == 0) {
                uint32_t two[4];
                load_matrices_at(two, tokens + places.tokens_of(8 * Fragment, Half));
                each<2>([&]<int Other>() {
                    constexpr int kOf = Fragment + Other;
                    constexpr int kInGroup = kOf % (kScaleGroup / 8);
                    const uint32_t b[2] = {two[2 * Other], two[2 * Other + 1]};
                    const uint32_t scales =
                        word_of(token_scales[kOf / (kScaleGroup / 8)], token_scale_word(kInGroup));
#pragma unroll
                    for (int i = 0; i < Tile::kFragments; ++i)
                        Mma::template run<weight_selector(Half), token_selector(Half, kInGroup)>(
                            &sums[i][4 * kOf], a[i], b, weight_scales[i], scales);
                });
            }
        });
    });
}

/// What sums of a row of the weight are multiplied by; row_factors may be null.
__device__ __forceinline__ float factor_of(const float* outer,
                                           const float* row_factors,
                                           int64_t row,
                                           int64_t rows) {
    if (row_factors == nullptr) return outer[0];
    return __fmul_rn(outer[0], row_factors[row < rows ? row : rows - 1]);
}

/// Stores a warp's part of a tile, f32; `tokens` as TileFactors has them.
template <class Tile>
__device__ __forceinline__ void store_plain(
    const Operands& operands,
    const Item& item,
    int warp,
    const float* tokens,
    const float (&sums)[Tile::kFragments][Tile::kTokens / 2]) {
    const hopper::Operands& p = operands.base;
    const int group = static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int i = 0; i < Tile::kFragments; ++i) {
        const int64_t feature = item.feature + i * kFragmentRows + warp * 16;
        hopper::TileFactors factors{{}, tokens};
#pragma unroll
        for (int half = 0; half < 2; ++half)
            factors.features[half] =
                factor_of(p.outer, operands.row_factors, feature + group + 8 * half, p.n);
        if (p.add)
            hopper::store_tile<Tile::kTokens, true>(p, item.token, feature, p.bias, factors,
                                                    sums[i]);
        else
            hopper::store_tile<Tile::kTokens, false>(p, item.token, feature, p.bias, factors,
                                                     sums[i]);
    }
}

/// Stores act(gate) * up of a warp's 16 features, bf16: sums[0] are gate's, sums[1] up's.
template <class Tile>
__device__ __forceinline__ void store_gated(const Operands& operands,
                                            const Item& item,
                                            int warp,
                                            const float* tokens,
                                            float (&sums)[Tile::kFragments][Tile::kTokens / 2]) {
    constexpr int kRounds = 2;  ///< of 32 tokens between moves of the sums
    const hopper::Operands& p = operands.base;
    const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4;
    const bool odd = group % 2 == 1;
    const int64_t feature = item.feature + warp * 16;
    if (feature >= p.n) return;  // a warp's features are all there or none
    hopper::TileFactors factors[2];
    __nv_bfloat16* out[2];  ///< of a pair of features, at the thread's first token
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int64_t own = feature + group + 8 * half, even = own - group % 2;
        factors[half] = {{factor_of(p.outer, operands.row_factors, own, p.n),
                          factor_of(p.up_outer, operands.up_row_factors, own, p.n)},
                         tokens};
        out[half] = operands.gated + (item.token + lane % 4 * 2 + group % 2) * p.n +
                    (p.out_pairs ? transposed_pair_place(even) : even);
    }
    int64_t left = p.rows - item.token - lane % 4 * 2 - group % 2;
    // A loop, as the activation is long: the sums move instead of the places that are read.
#pragma unroll 1
    for (int first = 0; first < Tile::kTokens; first += 32 * kRounds) {
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int at = 16 * round + 2 * half;
                float values[8];
                hopper::gate_values(p.glu, factors[half], first + 32 * round, sums[0] + at,
                                    sums[1] + at, values);
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const __nv_bfloat162 pair = hopper::gated_pair(values, j, odd);
                    if (32 * round + 8 * j < left)
                        *reinterpret_cast<__nv_bfloat162*>(out[half] + (32 * round + 8 * j) * p.n) =
                            pair;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            out[i] += 32 * kRounds * p.n;
#pragma unroll
            for (int j = 0; j + 16 * kRounds < Tile::kTokens / 2; ++j)
                sums[i][j] = sums[i][j + 16 * kRounds];
        }
        left -= 32 * kRounds;
    }
}

/// What the warps that multiply do.
template <bool kGated, class Mma, class Tile>
__device__ __forceinline__ void consume(const Operands& operands, Shared<Tile>& shared) {
    const hopper::Operands& p = operands.base;
    const int thread = static_cast<int>(threadIdx.x) - 32 * kLoaders;
    const int lane = thread % 32, warp = thread / 32;
    Places<Tile::kFragments> places(static_cast<uint32_t>(warp), static_cast<uint32_t>(lane));
    // Else they are worked out anew with every stage.
    make_opaque(places.weights);
    make_opaque(places.tokens);
    make_opaque(places.weight_scales);
    make_opaque(places.token_scales);
    Ring<Tile::kStages> ring;
    for (int index = static_cast<int>(blockIdx.x); index < p.items;
         index += static_cast<int>(gridDim.x)) {
        const Item item = item_of<Tile, kGated>(p, index);
        // Nobody reads the scales of the tile before any more.
        named_sync(1, 32 * kProducers);
        for (int i = thread; i < Tile::kTokens; i += 32 * kProducers)
            shared.row_scales[i] =
                item.token + i < p.rows ? operands.row_scales[item.token + i] : 0.0f;
        named_sync(1, 32 * kProducers);
        float sums[Tile::kFragments][Tile::kTokens / 2] = {};
        for (int step = 0; step < p.steps; ++step) {
            barrier_wait(&shared.full[ring.slot], ring.parity);
            Mma::pause(static_cast<uint32_t>(step));
            multiply<Mma>(shared, ring.slot, places, sums);
            barrier_arrive_warp(&shared.empty[ring.slot]);
            ring.next();
        }
        const float* const tokens = shared.row_scales + lane % 4 * 2;
        if constexpr (kGated)
            store_gated<Tile>(operands, item, warp, tokens, sums);
        else
            store_plain<Tile>(operands, item, warp, tokens, sums);
    }
}

template <class Mma, class Tile, bool kGated>
__global__ void __launch_bounds__(kThreads, 1)
    kernel(const __grid_constant__ hopper::Maps maps, const __grid_constant__ Operands p) {
    static_assert(sizeof(Shared<Tile>) <= kSharedBytes);
    if constexpr (Mma::kAvailable) {
        extern __shared__ __align__(1024) unsigned char memory[];
        auto& shared = *reinterpret_cast<Shared<Tile>*>(memory);
        if (threadIdx.x == 0) {
            for (int i = 0; i < Tile::kStages; ++i) {
                barrier_init(&shared.full[i], 1 + kLoaders * kWarpArrivals);
                barrier_init(&shared.empty[i], kProducers * kWarpArrivals);
            }
            barrier_init_fence();
        }
        __syncthreads();
        if (threadIdx.x < 32 * kLoaders) {
            fewer_registers<hopper::kLoaderRegisters>();
            if (p.base.format == DType::kNVFP4)
                produce<DType::kNVFP4, kGated, Mma>(maps, p, shared);
            else
                produce<DType::kMXFP4, kGated, Mma>(maps, p, shared);
        } else {
            more_registers<hopper::kProductRegisters>();
            consume<kGated, Mma>(p, shared);
        }
    }
}

/// Boxes of so many rows of a stage.
inline CUtensorMap codes_map(const uint8_t* codes, int64_t row_bytes, int64_t rows, int box) {
    return tensor_map({.type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
                       .swizzle = CU_TENSOR_MAP_SWIZZLE_64B,
                       .data = codes,
                       .axes = 2,
                       .shape = {static_cast<uint64_t>(row_bytes), static_cast<uint64_t>(rows)},
                       .stride_bytes = {static_cast<uint64_t>(row_bytes)},
                       .box = {kRowBytes, static_cast<uint32_t>(box)}});
}

/// `up`: codes of gated products, else null.
template <class Mma, class Tile, bool kGated>
void launch(
    Device& device, const Product& product, const uint8_t* up, const Fp4Rows& x, Operands p) {
    constexpr int kOwn = kGated ? Tile::kFeatures / 2 : Tile::kFeatures;
    p.base.steps = static_cast<int32_t>(ceil_div(product.k, kStageColumns));
    p.base.token_tiles = static_cast<int32_t>(ceil_div(product.rows, Tile::kTokens));
    p.base.items = static_cast<int32_t>(p.base.token_tiles * ceil_div(product.n, int64_t{kOwn}));
    const int64_t row_bytes = product.units * kPieceBytes;
    hopper::Maps maps{};
    maps.x = codes_map(x.codes, row_bytes, product.rows, Tile::kTokens);
    maps.weights = codes_map(product.codes, row_bytes, product.n, kOwn);
    if constexpr (kGated) maps.up = codes_map(up, row_bytes, product.n, kOwn);
    const int blocks = std::min(p.base.items, device.multiprocessors());
    device.launch(kGated ? "gemm_nvfp4_sm120_glu" : "gemm_nvfp4_sm120", kernel<Mma, Tile, kGated>,
                  dim3(static_cast<unsigned>(blocks)), dim3(kThreads), sizeof(Shared<Tile>), maps,
                  p);
}

/// What a tile takes by the count of its products, with what it has to hide besides.
struct TileChoice {
    int features, tokens, cost;
};
inline constexpr TileChoice kTiles[] = {{256, 128, 100}, {128, 128, 55}, {128, 64, 32}};

/// The fastest of kTiles: whole waves of blocks count.
inline TileChoice choose_tile(int64_t n, int64_t rows, int multiprocessors) {
    TileChoice best = kTiles[0];
    int64_t least = INT64_MAX;
    for (const TileChoice& tile : kTiles) {
        const int64_t tiles = ceil_div(n, tile.features) * ceil_div(rows, tile.tokens);
        const int64_t time = ceil_div(tiles, multiprocessors) * tile.cost;
        if (time >= least) continue;
        least = time;
        best = tile;
    }
    return best;
}

inline Operands operands_of(const Product& product, DType format, const Fp4Rows& x) {
    check(product.k % 64 == 0, "products of FP4: columns are multiples of 64");
    check(format == DType::kNVFP4 || (format == DType::kMXFP4 && product.row_factors != nullptr),
          "products of FP4: NVFP4, or MXFP4 with factors of its rows");
    Operands p{};
    static_cast<hopper::ProductOperands&>(p.base) = hopper::product_operands(product, format);
    p.x_scales = x.scales;
    p.row_scales = x.row_scales;
    p.row_factors = product.row_factors;
    return p;
}

/// The product in tiles of one size.
template <class Mma>
void run_tiles(
    Device& device, const Product& product, DType format, const Fp4Rows& x, TileChoice tile) {
    const Operands p = operands_of(product, format, x);
    if (tile.features == 256)
        return launch<Mma, Tile<256, 128>, false>(device, product, nullptr, x, p);
    if (tile.tokens == 128)
        return launch<Mma, Tile<128, 128>, false>(device, product, nullptr, x, p);
    launch<Mma, Tile<128, 64>, false>(device, product, nullptr, x, p);
}

}  // namespace sm120

template <class Mma>
void run_gemm_nvfp4_sm120(Device& device, const Product& product, DType format, const Fp4Rows& x) {
    if (product.rows == 0) return;
    sm120::run_tiles<Mma>(device, product, format, x,
                          sm120::choose_tile(product.n, product.rows, device.multiprocessors()));
}

template <class Mma>
void run_glu_nvfp4_sm120(
    Device& device, const Product& gate, const GluProduct& with, DType format, const Fp4Rows& x) {
    check(gate.n % 32 == 0, "gated products of FP4: features are multiples of 32");
    if (gate.rows == 0) return;
    sm120::Operands p = sm120::operands_of(gate, format, x);
    hopper::add_up(p.base, gate, with);
    p.up_row_factors = with.row_factors;
    p.gated = static_cast<__nv_bfloat16*>(with.out);
    // Of one size: what is gained by smaller ones, where tokens are few, weights are read in.
    sm120::launch<Mma, sm120::Tile<256, 128>, true>(device, gate, with.codes, x, p);
}

}  // namespace tessera::cuda
