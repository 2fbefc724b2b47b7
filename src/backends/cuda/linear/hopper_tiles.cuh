#pragma once
// What the products for Hopper share, whatever x is made of: tiles and how they are cut, the warps
// that bring operands, the ends of tiles.

#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "backends/cuda/linear/hopper_blocks.h"
#include "backends/cuda/linear/product.cuh"
#include "backends/cuda/ptx/cluster.cuh"
#include "backends/cuda/ptx/load_shared.cuh"
#include "backends/cuda/ptx/mbarrier.cuh"
#include "backends/cuda/ptx/opaque.cuh"
#include "backends/cuda/ptx/permute.cuh"
#include "backends/cuda/ptx/setmaxnreg.cuh"
#include "backends/cuda/ptx/tma.cuh"
#include "backends/cuda/ptx/wgmma.cuh"
#include "backends/cuda/tensor_map.h"

namespace tessera::cuda::hopper {

inline constexpr int kStageUnits = kStageColumns / kUnit;
inline constexpr int kWeightRowBytes = kStageUnits * kPieceBytes;
/// Registers of a thread that brings operands and of one that multiplies. A block owns those it was
/// launched with, an equal share a thread in units of eight: asking for more waits for ever.
inline constexpr int kLoaderRegisters = 40, kProductRegisters = 232;
inline constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
static_assert(kLoaderRegisters + kWarpgroups * kProductRegisters <=
              (1 + kWarpgroups) * kLaunchRegisters);

/// Features of a block: its rows of weights, or half of them where gate and up share them.
template <bool kGated>
inline constexpr int kOwnFeatures = kGated ? kFeatures / 2 : kFeatures;

/// Operands of the copy engine.
struct Maps {
    CUtensorMap x;
    CUtensorMap weights;
    CUtensorMap up;   ///< gated alone
    CUtensorMap out;  ///< gated alone
};

/// What kernels take of a Product.
struct ProductOperands {
    const uint8_t* scales;
    const float* outer;
    const float* bias;
    float* out;
    int64_t out_stride;
    int64_t n;
    int64_t rows;
    int64_t units;
    bool add;
    bool scales_aligned;
    DType format;
    // Gated alone:
    Glu glu;
    bool out_pairs;  ///< pairs of features stand transposed
    const uint8_t* up_scales;
    const float* up_outer;
};

/// The same, and how the tiles are cut.
struct Operands : ProductOperands {
    int32_t steps;
    int32_t tile;         ///< tokens of a tile
    int32_t token_tiles;  ///< of this size
    int32_t whole;        ///< tiles that stay whole, the others are cut into `pieces`
    int32_t pieces;
    int32_t items;
};

/// Tokens [token, token + count) against features from `feature`.
struct Item {
    int32_t token, count, feature;
};
__device__ __forceinline__ Item item_of(const Operands& p, int index) {
    int tile = index, piece = 0, count = p.tile;
    if (index >= p.whole) {
        tile = p.whole + (index - p.whole) / p.pieces;
        piece = (index - p.whole) % p.pieces;
        count /= p.pieces;
    }
    return {tile % p.token_tiles * p.tile + piece * count, count, tile / p.token_tiles};
}

/// Four scales of NVFP4 without signs, zero for those that are no numbers.
__device__ __forceinline__ uint32_t clean_scales(uint32_t scales) {
    const uint32_t codes = scales & 0x7f7f7f7fu;
    const uint32_t nan = (codes + 0x01010101u) & 0x80808080u;
    return codes & ~(nan - (nan >> 7));
}

/// Scales of the four units of a stage of one row, as they lie in memory.
template <DType F>
struct StageScales {
    static constexpr int kUnitBytes = layout_of(F).group_bytes;
    static constexpr int kBytes = kUnitBytes * kStageUnits;
    static_assert(layout_of(F).group_units == 1 && kBytes <= 8, "a scale or two a unit");
    uint32_t words[2];

    /// Units [unit, units) of a row; `aligned`: whole stages at multiples of kBytes.
    static __device__ __forceinline__ StageScales load(const uint8_t* row,
                                                       int64_t unit,
                                                       int64_t units,
                                                       bool aligned) {
        const uint8_t* from = row + kUnitBytes * unit;
        if (aligned) {
            if constexpr (kBytes == 8) {
                const uint2 two = __ldg(reinterpret_cast<const uint2*>(from));
                return {{two.x, two.y}};
            } else {
                return {{load_word<uint32_t>(from), 0}};
            }
        }
        StageScales out{};
#pragma unroll
        for (int i = 0; i < kBytes; ++i)
            if (unit + i / kUnitBytes < units)
                out.words[i / 4] |= load_word<uint8_t>(from + i) << (8 * (i % 4));
        return out;
    }
};

/// What the loader warps do. Form says what x is made of and what becomes of the scales:
/// kColumnBytes, row() with each new row of the weight, or of up, put() with the scales of a stage.
template <DType F, bool kGated, class Shared, class Form>
__device__ __forceinline__ void produce(const Maps& maps,
                                        const Operands& p,
                                        Shared& shared,
                                        Form form) {
    constexpr int kOwn = kOwnFeatures<kGated>;
    constexpr int kRowBytes = 128;
    constexpr int kParts = kStageColumns * Form::kColumnBytes / kRowBytes;
    Ring<Shared::kStages> ring;
    const int block = static_cast<int>(block_in_cluster());
    const int thread = static_cast<int>(threadIdx.x);
    for (int index = static_cast<int>(blockIdx.x) / kBlocks; index < p.items;
         index += static_cast<int>(gridDim.x) / kBlocks) {
        const Item item = item_of(p, index);
        if (item.token >= p.rows) continue;
        const int feature = (item.feature * kBlocks + block) * kOwn;
        // The blocks of a cluster share their tokens: each brings its part to all of them.
        const int part = item.count / kBlocks;
        const int first = block * part;
        const auto bytes =
            static_cast<uint32_t>(item.count * kParts * kRowBytes + kFeatures * kWeightRowBytes);
        const bool up = kGated && thread >= kOwn;
        const int64_t wanted = feature + thread % kOwn;
        const int64_t row = wanted < p.n ? wanted : p.n - 1;
        const uint8_t* scales =
            (up ? p.up_scales : p.scales) + row * p.units * StageScales<F>::kUnitBytes;
        form.row(row, up);
        for (int step = 0; step < p.steps; ++step) {
            const auto raw = StageScales<F>::load(scales, int64_t{step} * kStageUnits, p.units,
                                                  p.scales_aligned);
            const int stage = ring.slot;
            barrier_wait(&shared.empty[stage], ring.parity ^ 1);
            Barrier* full = &shared.full[stage];
            if (thread == 0) {
                barrier_arrive_expect(full, bytes);
                uint8_t* const weights = shared.weights[stage];
                copy_box_once(weights, &maps.weights, step * kWeightRowBytes, feature, full);
                if constexpr (kGated)
                    copy_box_once(weights + kOwn * kWeightRowBytes, &maps.up,
                                  step * kWeightRowBytes, feature, full);
                for (int i = 0; i < kParts; ++i) {
                    const int column = (step * kParts + i) * (kStageColumns / kParts);
                    uint8_t* target = shared.x[stage] + i * item.count * kRowBytes;
                    for (int at = first; at < first + part; at += kBoxRows) {
                        uint8_t* to = target + at * kRowBytes;
                        copy_box_multicast(to, &maps.x, column, item.token + at, full,
                                           uint16_t{(1 << kBlocks) - 1});
                    }
                }
            }
            __syncwarp();
            form.put(raw, stage, thread);
            barrier_arrive_warp(full);
            ring.next();
        }
    }
}

/// Makes the barriers of the stages; then the cluster has to meet.
template <int Stages>
__device__ __forceinline__ void init_barriers(Barrier (&full)[Stages], Barrier (&empty)[Stages]) {
    if (threadIdx.x == 0) {
#pragma unroll
        for (int i = 0; i < Stages; ++i) {
            barrier_init(&full[i], 1 + kLoaders * kWarpArrivals);
            barrier_init(&empty[i], kWarpgroups * 4 * kBlocks * kWarpArrivals);
        }
        barrier_init_fence();
    }
}

/// What the warps that multiply do: multiply<Tokens>(token, feature) with each item of their block,
/// of at most Max tokens.
template <int Max, bool kGated, class Multiply>
__device__ __forceinline__ void consume(const Operands& p, const Multiply& multiply) {
    const int block = static_cast<int>(block_in_cluster());
    for (int index = static_cast<int>(blockIdx.x) / kBlocks; index < p.items;
         index += static_cast<int>(gridDim.x) / kBlocks) {
        const Item item = item_of(p, index);
        if (item.token >= p.rows) continue;
        const int64_t feature =
            (static_cast<int64_t>(item.feature) * kBlocks + block) * kOwnFeatures<kGated>;
        if constexpr (Max == 256)
            if (item.count == 256) multiply.template operator()<256>(item.token, feature);
        if constexpr (Max >= 128)
            if (item.count == 128) multiply.template operator()<128>(item.token, feature);
        if (item.count == 64) multiply.template operator()<64>(item.token, feature);
    }
}

/// Tells the blocks that read the same tokens that this warp has read a stage.
__device__ __forceinline__ void release(Barrier* empty) {
    barrier_arrive_warp_at_all<kBlocks>(empty);
}

/// What the sums of a tile are multiplied by: two rows of the weight, which a thread has, times
/// `tokens` in shared memory, from the thread's first.
struct TileFactors {
    float features[2];
    const float* tokens;
    __device__ __forceinline__ float2 of_tokens(int place) const {
        return *reinterpret_cast<const float2*>(tokens + place);
    }
    __device__ __forceinline__ float of(int half, float token) const {
        return __fmul_rn(features[half], token);
    }
};

/// Stores this thread's part of a tile, with a bias or null; with Add to what is there, which is
/// loaded in batches.
template <int Tokens, bool Add, class Factors>
__device__ __forceinline__ void store_tile(const Operands& p,
                                           int64_t token,
                                           int64_t feature,
                                           const float* own_bias,
                                           const Factors& factors,
                                           const float (&sums)[Tokens / 2]) {
    constexpr int kBatch = Add ? 8 : 4;  // loads that are under way at once
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t n = feature + lane / 4, first = token + lane % 4 * 2;
    const int64_t rows = p.rows - first;
    const int left = rows < Tokens ? static_cast<int>(rows) : Tokens;
    const int left_of[2] = {n < p.n ? left : 0, n + 8 < p.n ? left : 0};
    float bias[2] = {-0.0f, -0.0f};  // adds nothing
#pragma unroll
    for (int half = 0; half < 2; ++half)
        if (own_bias != nullptr && left_of[half] > 0) bias[half] = own_bias[n + 8 * half];
    float* rows_of[2] = {p.out + first * p.out_stride + n, nullptr};
    rows_of[1] = rows_of[0] + p.out_stride;
    const int64_t step = 8 * p.out_stride;
#pragma unroll
    for (int batch = 0; batch < Tokens / 8; batch += kBatch) {
        float before[kBatch][2][2];
        if constexpr (Add) {
            const float* from[2] = {rows_of[0], rows_of[1]};
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        before[j][half][i] = 0.0f;
                        if (8 * (batch + j) + i < left_of[half])
                            before[j][half][i] = from[i][8 * half];
                    }
                    from[i] += step;
                    make_opaque(from[i]);
                }
            }
        }
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
            const float2 of_tokens = factors.of_tokens(8 * (batch + j));
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float factor = factors.of(half, i == 0 ? of_tokens.x : of_tokens.y);
                    const float sum = sums[4 * (batch + j) + 2 * half + i];
                    float value = __fadd_rn(__fmul_rn(sum, factor), bias[half]);
                    if constexpr (Add) value += before[j][half][i];
                    if (8 * (batch + j) + i < left_of[half]) rows_of[i][8 * half] = value;
                }
                rows_of[i] += step;
                make_opaque(rows_of[i]);
            }
        }
    }
}

/// Clusters that a card holds at a time.
inline int clusters_of(int multiprocessors) {
    return std::max(multiprocessors / kBlocks, 1);
}

/// Cuts the product into tiles of `own` features a block: waves of whole ones, the last tiles in
/// pieces where that is faster.
inline void cut_tiles(Operands& p, int own, int multiprocessors) {
    const int64_t clusters = clusters_of(multiprocessors);
    const int64_t features = ceil_div(p.n, int64_t{own} * kBlocks);
    // What a tile of 256, 128 and 64 tokens takes.
    const auto cost = [](int tokens) { return tokens == 256 ? 100 : tokens == 128 ? 61 : 50; };
    int64_t least = INT64_MAX;
    for (int tile = 256; tile >= 64; tile /= 2) {
        for (int pieces = 1; tile / pieces >= 64; pieces *= 2) {
            const int64_t tiles = features * ceil_div(p.rows, tile);
            const int64_t whole = pieces == 1 ? tiles : tiles / clusters * clusters;
            const int64_t items = whole + (tiles - whole) * pieces;
            const int64_t time = ceil_div(whole, clusters) * cost(tile) +
                                 ceil_div(items - whole, clusters) * cost(tile / pieces);
            if (time >= least) continue;
            least = time;
            p.tile = tile;
            p.pieces = pieces;
            p.token_tiles = static_cast<int32_t>(ceil_div(p.rows, tile));
            p.whole = static_cast<int32_t>(whole);
            p.items = static_cast<int32_t>(items);
        }
    }
}

/// Whether the scales of whole stages of a row are words of StageScales.
inline bool aligned_scales(const Product& product, DType format, const uint8_t* scales) {
    const auto bytes = static_cast<uintptr_t>(layout_of(format).group_bytes * kStageUnits);
    return product.units % kStageUnits == 0 && reinterpret_cast<uintptr_t>(scales) % bytes == 0;
}
inline ProductOperands product_operands(const Product& product, DType format) {
    ProductOperands p{};
    p.scales = product.scales;
    p.outer = product.outer;
    p.bias = product.bias;
    p.out = product.out;
    p.out_stride = product.out_stride;
    p.n = product.n;
    p.rows = product.rows;
    p.units = product.units;
    p.add = product.add;
    p.scales_aligned = aligned_scales(product, format, product.scales);
    p.format = format;
    return p;
}
/// What a product of gate needs of up.
inline void add_up(ProductOperands& p, const Product& gate, const GluProduct& with) {
    p.scales_aligned = p.scales_aligned && aligned_scales(gate, p.format, with.scales);
    p.up_scales = with.scales;
    p.up_outer = with.outer;
    p.glu = with.kind;
    p.out_pairs = with.pairs;
}

/// `own` features of a block.
inline Operands operands_of(const Product& product, DType format, int own, int multiprocessors) {
    Operands p{};
    static_cast<ProductOperands&>(p) = product_operands(product, format);
    p.steps = static_cast<int32_t>(ceil_div(product.units, kStageUnits));
    cut_tiles(p, own, multiprocessors);
    return p;
}

/// Boxes of rows of 128 bytes.
template <int kColumnBytes>
CUtensorMap x_map(const Product& product) {
    return tensor_map(
        {.type =
             kColumnBytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8,
         .swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
         .data = product.x,
         .axes = 2,
         .shape = {static_cast<uint64_t>(product.k), static_cast<uint64_t>(product.rows)},
         .stride_bytes = {static_cast<uint64_t>(product.x_stride) * kColumnBytes},
         .box = {128 / kColumnBytes, kBoxRows}});
}
/// Boxes of so many features, of codes in the form of the product's own.
inline CUtensorMap weight_map(const Product& product, const uint8_t* codes, uint32_t features) {
    const auto bytes = static_cast<uint64_t>(product.units) * kPieceBytes;
    return tensor_map({.type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
                       .swizzle = CU_TENSOR_MAP_SWIZZLE_64B,
                       .data = codes,
                       .axes = 2,
                       .shape = {bytes, static_cast<uint64_t>(product.n)},
                       .stride_bytes = {bytes},
                       .box = {kWeightRowBytes, features}});
}
/// Boxes of 32 tokens of 32 gated values.
inline CUtensorMap out_map(const Product& product, void* out) {
    return tensor_map(
        {.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
         .swizzle = CU_TENSOR_MAP_SWIZZLE_NONE,
         .data = out,
         .axes = 2,
         .shape = {static_cast<uint64_t>(product.n), static_cast<uint64_t>(product.rows)},
         .stride_bytes = {static_cast<uint64_t>(product.n) * 2},
         .box = {32, 32}});
}

}  // namespace tessera::cuda::hopper
