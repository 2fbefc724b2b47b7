#pragma once
// The product of NVFP4 weights with NVFP4 rows on FP4 tensor cores (sm_120), which multiply 2048
// pairs of numbers a clock and multiprocessor and apply the block scales themselves.
//
// A block of 384 threads keeps three stages or more of 128 columns in shared memory: four warps
// bring operands (the copy engine the codes, its threads the scales), eight multiply. Each of those
// has 32 rows of the weight (16 in the smaller tiles) and all tokens of the tile, because a word of
// a resident weight takes five instructions before it is an operand (whole_codes): so every word is
// seen by one warp alone, and a stage of 64 products takes 80 instructions for that and 23 loads.
// With 64 x 64 a warp it would be 160 and 19. Sums stay in place. Bound by tensor cores: a product
// is issued every 16 clocks a quarter of the multiprocessor.
//
// Template parameter Mma: the instruction, or what stands for it on other cards (ptx/fp4_mma.cuh).
// Rejected: a container of its own with operands in the order of fragments, which would double the
// memory of cards that also need the decoders' order; multicast, which these cards do not have.

#include <algorithm>
#include <cstdint>
#include <utility>

#include "backends/cuda/linear/fp4_places.h"
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

template <int Features, int Tokens>
struct Tile {
    static constexpr int kFeatures = Features, kTokens = Tokens;
    static constexpr int kFragments = Features / kProducers / 16;  ///< of a warp
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
    float factors[Tile::kTokens];
    Barrier full[kStages], empty[kStages];
};

struct Operands {
    hopper::Operands base;  ///< `tile`, `token_tiles` and `items` say how the tiles are cut
    const uint8_t* x_scales;
    const float* row_scales;
};

/// Tokens from `token` against features from `feature`.
struct Item {
    int32_t token, feature;
};
template <class Tile>
__device__ __forceinline__ Item item_of(const hopper::Operands& p, int index) {
    // Tiles that run together share their features, of which there is more than of tokens.
    return {index % p.token_tiles * Tile::kTokens, index / p.token_tiles * Tile::kFeatures};
}

/// The scales of a stage of one row, four for each half.
struct RowScales {
    uint32_t halves[kHalves];

    static __device__ __forceinline__ RowScales load(const uint8_t* row, int step, int64_t units) {
        RowScales out{};
#pragma unroll
        for (int i = 0; i < kHalves; ++i) {
            const int64_t unit = int64_t{step} * hopper::kStageUnits + kHalfUnits * i;
            if (unit < units) out.halves[i] = load_word<uint32_t>(row + 2 * unit);
        }
        return out;
    }
};

/// What the loader warps do.
template <class Mma, class Tile>
__device__ __forceinline__ void produce(const CUtensorMap* x_map,
                                        const CUtensorMap* weight_map,
                                        const Operands& operands,
                                        Shared<Tile>& shared) {
    constexpr int kOwnRows = Tile::kFeatures / (32 * kLoaders);
    constexpr uint32_t kBytes = (Tile::kFeatures + Tile::kTokens) * kRowBytes;
    const hopper::Operands& p = operands.base;
    const int thread = static_cast<int>(threadIdx.x);
    const bool has_token = thread < Tile::kTokens;
    Ring<Tile::kStages> ring;
    for (int index = static_cast<int>(blockIdx.x); index < p.items;
         index += static_cast<int>(gridDim.x)) {
        const Item item = item_of<Tile>(p, index);
        // Codes of rows that are not there arrive as zeros: any scale will do for them.
        const uint8_t* rows[kOwnRows];
        RowScales next[kOwnRows], next_x{};
#pragma unroll
        for (int i = 0; i < kOwnRows; ++i) {
            const int64_t row = item.feature + thread + 32 * kLoaders * i;
            rows[i] = p.scales + (row < p.n ? row : p.n - 1) * p.units * 2;
            next[i] = RowScales::load(rows[i], 0, p.units);
        }
        const int64_t token = item.token + thread;
        const uint8_t* x_row =
            operands.x_scales + (token < p.rows ? token : p.rows - 1) * p.units * 2;
        if (has_token) next_x = RowScales::load(x_row, 0, p.units);
        for (int step = 0; step < p.steps; ++step) {
            RowScales own[kOwnRows];
            const RowScales own_x = next_x;
#pragma unroll
            for (int i = 0; i < kOwnRows; ++i) {
                own[i] = next[i];
                next[i] = RowScales::load(rows[i], step + 1, p.units);
            }
            if (has_token) next_x = RowScales::load(x_row, step + 1, p.units);
            const int stage = ring.slot;
            barrier_wait(&shared.empty[stage], ring.parity ^ 1);
            Mma::pause(static_cast<uint32_t>(step));
            Barrier* full = &shared.full[stage];
            if (thread == 0) {
                barrier_arrive_expect(full, kBytes);
                copy_box(shared.weights[stage], weight_map, step * kRowBytes, item.feature, full);
                copy_box(shared.x[stage], x_map, step * kRowBytes, item.token, full);
            }
            __syncwarp();
#pragma unroll
            for (uint32_t half = 0; half < kHalves; ++half) {
#pragma unroll
                for (int i = 0; i < kOwnRows; ++i) {
                    const auto row = static_cast<uint32_t>(thread + 32 * kLoaders * i);
                    const uint32_t place = weight_scale_place(row, half, Tile::kFragments);
                    *reinterpret_cast<uint32_t*>(shared.weight_scales[stage] + place) =
                        hopper::clean_scales(own[i].halves[half]);
                }
                const uint32_t place = token_scale_place(static_cast<uint32_t>(thread), half);
                if (has_token)
                    *reinterpret_cast<uint32_t*>(shared.x_scales[stage] + place) =
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

/// What the sums of a tile are multiplied by; `tokens` in shared memory, from the thread's first.
struct TokenFactors {
    const float* tokens;
    __device__ __forceinline__ float2 of_tokens(int place) const {
        return *reinterpret_cast<const float2*>(tokens + place);
    }
    __device__ __forceinline__ float of(int, float token) const { return token; }
};

/// What the warps that multiply do.
template <class Mma, class Tile>
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
    const float outer = p.outer[0];
    Ring<Tile::kStages> ring;
    for (int index = static_cast<int>(blockIdx.x); index < p.items;
         index += static_cast<int>(gridDim.x)) {
        const Item item = item_of<Tile>(p, index);
        // Nobody reads the factors of the tile before any more.
        named_sync(1, 32 * kProducers);
        for (int i = thread; i < Tile::kTokens; i += 32 * kProducers)
            shared.factors[i] = item.token + i < p.rows
                                    ? __fmul_rn(outer, operands.row_scales[item.token + i])
                                    : 0.0f;
        named_sync(1, 32 * kProducers);
        float sums[Tile::kFragments][Tile::kTokens / 2] = {};
        for (int step = 0; step < p.steps; ++step) {
            barrier_wait(&shared.full[ring.slot], ring.parity);
            Mma::pause(static_cast<uint32_t>(step));
            multiply<Mma>(shared, ring.slot, places, sums);
            barrier_arrive_warp(&shared.empty[ring.slot]);
            ring.next();
        }
        const TokenFactors factors{shared.factors + lane % 4 * 2};
#pragma unroll
        for (int i = 0; i < Tile::kFragments; ++i) {
            const int64_t feature = item.feature + (warp * Tile::kFragments + i) * 16;
            if (p.add)
                hopper::store_tile<Tile::kTokens, true>(p, item.token, feature, p.bias, factors,
                                                        sums[i]);
            else
                hopper::store_tile<Tile::kTokens, false>(p, item.token, feature, p.bias, factors,
                                                         sums[i]);
        }
    }
}

template <class Mma, class Tile>
__global__ void __launch_bounds__(kThreads, 1)
    kernel(const __grid_constant__ CUtensorMap x_map,
           const __grid_constant__ CUtensorMap weight_map,
           const __grid_constant__ Operands p) {
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
            produce<Mma>(&x_map, &weight_map, p, shared);
        } else {
            more_registers<hopper::kProductRegisters>();
            consume<Mma>(p, shared);
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

template <class Mma, class Tile>
void launch(Device& device, const Product& product, const Fp4Rows& x, Operands p) {
    const int64_t row_bytes = product.units * kPieceBytes;
    const int blocks = std::min(p.base.items, device.multiprocessors());
    device.launch("gemm_nvfp4_sm120", kernel<Mma, Tile>, dim3(static_cast<unsigned>(blocks)),
                  dim3(kThreads), sizeof(Shared<Tile>),
                  codes_map(x.codes, row_bytes, product.rows, Tile::kTokens),
                  codes_map(product.codes, row_bytes, product.n, Tile::kFeatures), p);
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

/// The product in tiles of one size.
template <class Mma>
void run_tiles(Device& device, const Product& product, const Fp4Rows& x, TileChoice tile) {
    Operands p{};
    p.base.scales = product.scales;
    p.base.outer = product.outer;
    p.base.bias = product.bias;
    p.base.out = product.out;
    p.base.out_stride = product.out_stride;
    p.base.n = product.n;
    p.base.rows = product.rows;
    p.base.units = product.units;
    p.base.add = product.add;
    p.base.steps = static_cast<int32_t>(ceil_div(product.k, kStageColumns));
    p.base.tile = tile.tokens;
    p.base.token_tiles = static_cast<int32_t>(ceil_div(product.rows, tile.tokens));
    p.base.items =
        static_cast<int32_t>(p.base.token_tiles * ceil_div(product.n, int64_t{tile.features}));
    p.x_scales = x.scales;
    p.row_scales = x.row_scales;
    if (tile.features == 256) return launch<Mma, Tile<256, 128>>(device, product, x, p);
    if (tile.tokens == 128) return launch<Mma, Tile<128, 128>>(device, product, x, p);
    launch<Mma, Tile<128, 64>>(device, product, x, p);
}

}  // namespace sm120

template <class Mma>
void run_gemm_nvfp4_sm120(Device& device, const Product& product, const Fp4Rows& x) {
    check(product.k % 64 == 0, "products of FP4: columns are multiples of 64");
    if (product.rows == 0) return;
    sm120::run_tiles<Mma>(device, product, x,
                          sm120::choose_tile(product.n, product.rows, device.multiprocessors()));
}

}  // namespace tessera::cuda
