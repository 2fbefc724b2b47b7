#pragma once
// Many rows of x against weights of any format but the four-bit floats on Hopper (wgmma multiplies
// 2048 pairs of bf16 a clock and multiprocessor). Those decode in registers beside their products
// (gemm_sm90.cuh); others would take too many instructions there, or more than the word of a unit
// that a lane has. Here a warpgroup decodes to bf16 in shared memory for two that multiply: for
// 128 features x 64 columns about 250 instructions a thread, while their products with 256 tokens
// take 1024 clocks. One kernel for all formats: only the decoding warpgroup knows them. Bound: the
// products; with fewer tokens, and with Q6_K always, decoding. H200, 17408x5120 x 2048 tokens: 547
// TFLOP/s with Q8_0, 490 with Q4_K, where NVFP4 reaches 807.
//
// Tiles of 128 features x 256 tokens (128 and 64 where there would be too few), two blocks of a
// cluster on the same tokens, each bringing half of them to both. The order of a sum is that of
// the columns, whatever the tile. Tensor cores cut off what they add: 2e-5 of the result in 17408
// columns.

#include <algorithm>
#include <cstdint>

#include "backends/cuda/linear/hopper_tiles.cuh"

namespace tessera::cuda {
namespace sm90_decoded {

using hopper::kBlocks;
using hopper::kBoxRows;
using hopper::kFeatures;
using hopper::kThreads;
using hopper::kWarpgroups;

inline constexpr int kColumns = 64;  ///< of a stage: a row of hopper::x_map
inline constexpr int kStageUnits = kColumns / kUnit;
inline constexpr int kRowBytes = kColumns * 2;
inline constexpr int kStepsOfWgmma = kColumns / 16;
inline constexpr int kStages = 4;
inline constexpr int kMostTokens = 256;
inline constexpr int kOwnUnits = 2;  ///< of a stage, that a thread decodes
inline constexpr int kOwnRows = 64;  ///< features between them
/// Registers of a thread that decodes and of one that multiplies; see hopper_tiles.cuh.
inline constexpr int kDecoderRegisters = 104, kProductRegisters = 200;
static_assert(kDecoderRegisters + kWarpgroups * kProductRegisters <=
              (1 + kWarpgroups) * hopper::kLaunchRegisters);

struct Operands {
    Product product;
    DType format;
    int32_t steps;  ///< stages of K, an even number
    int32_t tile;   ///< tokens of a tile
    int32_t token_tiles;
    int32_t items;
};

struct Shared {
    uint8_t x[kStages][kMostTokens * kRowBytes];
    uint8_t weights[kStages][kFeatures * kRowBytes];
    Barrier full[kStages], empty[kStages];
};

/// Place of a 16-byte chunk of a row of weights: eight rows at one column lie in different banks.
__device__ __forceinline__ int chunk_place(int row, int chunk) {
    return row * kRowBytes + (chunk ^ (row % 8)) * 16;
}

/// Writes a unit in the order in which x has its columns.
template <DType F>
__device__ __forceinline__ void store_unit(
    const typename Format<F>::Raw& raw, bool paired, uint8_t* weights, int row, int unit) {
    uint32_t pairs[4][4];
#pragma unroll
    for (int q = 0; q < 4; ++q) decode_bf16<F>(raw, q, pairs[q]);
#pragma unroll
    for (int c = 0; c < 4; ++c)
        *reinterpret_cast<uint4*>(weights + chunk_place(row, unit * 4 + c)) =
            paired ? uint4{pairs[0][c], pairs[1][c], pairs[2][c], pairs[3][c]}
                   : uint4{pairs[c][0], pairs[c][1], pairs[c][2], pairs[c][3]};
}

/// Starts the copies of this block's part of a stage of x, to both blocks of the cluster.
__device__ __forceinline__ void copy_tokens(
    const CUtensorMap* x_map, uint8_t* x, Barrier* full, int column, int token, int count) {
    const int part = count / kBlocks, first = static_cast<int>(block_in_cluster()) * part;
    barrier_arrive_expect(full, static_cast<uint32_t>(count * kRowBytes));
    for (int at = first; at < first + part; at += kBoxRows)
        copy_box_multicast(x + at * kRowBytes, x_map, column, token + at, full,
                           uint16_t{(1 << kBlocks) - 1});
}

template <DType F>
__device__ __forceinline__ void produce(const CUtensorMap* x_map,
                                        const Operands& p,
                                        Shared& shared) {
    Ring<kStages> ring;
    const int thread = static_cast<int>(threadIdx.x);
    const int own_row = thread / kStageUnits, own_unit = thread % kStageUnits;
    for (int index = static_cast<int>(blockIdx.x) / kBlocks; index < p.items;
         index += static_cast<int>(gridDim.x) / kBlocks) {
        const int token = index % p.token_tiles * p.tile;
        const int64_t feature =
            (int64_t{index / p.token_tiles} * kBlocks + block_in_cluster()) * kFeatures + own_row;
        WeightRow rows[kOwnUnits];
        typename Format<F>::Raw ahead[kOwnUnits];
#pragma unroll
        for (int i = 0; i < kOwnUnits; ++i) {
            // Features behind the last are the last: nobody stores what comes of them.
            const int64_t n = std::min<int64_t>(feature + i * kOwnRows, p.product.n - 1);
            rows[i] = weight_row(p.product, layout_of(F), 0, n);
            ahead[i] = load_unit<F>(rows[i], own_unit, p.product.units);
        }
#pragma unroll 1
        for (int step = 0; step < p.steps; ++step) {
            const int64_t unit = int64_t{step} * kStageUnits + own_unit;
            typename Format<F>::Raw raw[kOwnUnits];
#pragma unroll
            for (int i = 0; i < kOwnUnits; ++i) {
                raw[i] = ahead[i];
                ahead[i] = load_unit<F>(rows[i], unit + kStageUnits, p.product.units);
            }
            const int stage = ring.slot;
            barrier_wait(&shared.empty[stage], ring.parity ^ 1);
            if (thread == 0)
                copy_tokens(x_map, shared.x[stage], &shared.full[stage], step * kColumns, token,
                            p.tile);
            __syncwarp();
            // Units that do not exist are zeros, whatever the format makes of a unit of zeros: x
            // has zeros there.
#pragma unroll
            for (int i = 0; i < kOwnUnits; ++i)
                store_unit<F>(raw[i], p.product.x_paired, shared.weights[stage],
                              own_row + i * kOwnRows, own_unit);
            barrier_arrive_warp(&shared.full[stage]);
            ring.next();
        }
    }
}

__device__ __forceinline__ void produce_format(const CUtensorMap* x_map,
                                               const Operands& p,
                                               Shared& shared) {
    switch (p.format) {
        case DType::kF16:
            return produce<DType::kF16>(x_map, p, shared);
        case DType::kBF16:
            return produce<DType::kBF16>(x_map, p, shared);
        case DType::kQ4_0:
            return produce<DType::kQ4_0>(x_map, p, shared);
        case DType::kQ4_1:
            return produce<DType::kQ4_1>(x_map, p, shared);
        case DType::kQ5_0:
            return produce<DType::kQ5_0>(x_map, p, shared);
        case DType::kQ5_1:
            return produce<DType::kQ5_1>(x_map, p, shared);
        case DType::kQ8_0:
            return produce<DType::kQ8_0>(x_map, p, shared);
        case DType::kQ4_K:
            return produce<DType::kQ4_K>(x_map, p, shared);
        case DType::kQ5_K:
            return produce<DType::kQ5_K>(x_map, p, shared);
        default:
            return produce<DType::kQ6_K>(x_map, p, shared);
    }
}

/// Stores this thread's part of a tile; with Add to what is there, which is loaded in batches.
template <int Tokens, bool Add>
__device__ __forceinline__ void store_tile(const Product& p,
                                           int64_t token,
                                           int64_t feature,
                                           const float (&sums)[Tokens / 2]) {
    constexpr int kBatch = 4;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t n = feature + lane / 4, first = token + lane % 4 * 2;
    const float outer = p.outer[0];
    const auto stored = [&](int64_t row, int half) { return row < p.rows && n + 8 * half < p.n; };
#pragma unroll
    for (int batch = 0; batch < Tokens / 8; batch += kBatch) {
        float before[kBatch][4] = {};
        if constexpr (Add) {
#pragma unroll
            for (int j = 0; j < kBatch; ++j)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int64_t row = first + 8 * (batch + j) + i % 2;
                    if (stored(row, i / 2))
                        before[j][i] = p.out[row * p.out_stride + n + i / 2 * 8];
                }
        }
#pragma unroll
        for (int j = 0; j < kBatch; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int64_t row = first + 8 * (batch + j) + i % 2;
                if (!stored(row, i / 2)) continue;
                const int64_t column = n + i / 2 * 8;
                p.out[row * p.out_stride + column] =
                    finish(p, sums[4 * (batch + j) + i], outer, column, before[j][i]);
            }
    }
}

template <int Tokens>
__device__ __forceinline__ void multiply_item(
    const Operands& p, Shared& shared, Ring<kStages>& ring, int64_t token, int64_t feature) {
    const int thread = static_cast<int>(threadIdx.x) - 128;
    const int lane = thread % 32, warp = thread / 32;
    const int row = warp * 16 + lane % 16;
    float sums[Tokens / 2] = {};
    uint32_t a[2][kStepsOfWgmma][4];
    const auto load = [&](int stage, uint32_t(&to)[kStepsOfWgmma][4]) {
#pragma unroll
        for (int k = 0; k < kStepsOfWgmma; ++k)
            load_matrices(to[k], shared.weights[stage] + chunk_place(row, 2 * k + lane / 16));
    };
    barrier_wait(&shared.full[ring.slot], ring.parity);
    load(ring.slot, a[0]);
#pragma unroll 1
    for (int step = 0; step < p.steps; step += 2) {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
            const uint64_t x = wgmma_rows_from(wgmma_start(shared.x[ring.slot]));
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < kStepsOfWgmma; ++k)
                wgmma<false, false>(sums, a[odd][k], x + static_cast<uint64_t>(2 * k), true);
            wgmma_commit();
            wgmma_wait<1>();
            // All products of the stage before are done.
            if (step + odd > 0) hopper::release(&shared.empty[ring.before()]);
            ring.next();
            // The next stage's weights arrive during the products of this one.
            if (step + odd + 1 < p.steps) {
                barrier_wait(&shared.full[ring.slot], ring.parity);
                load(ring.slot, a[odd ^ 1]);
            }
        }
    }
    wgmma_wait<0>();
    hopper::release(&shared.empty[ring.before()]);
    if (p.product.add)
        store_tile<Tokens, true>(p.product, token, feature + warp * 16, sums);
    else
        store_tile<Tokens, false>(p.product, token, feature + warp * 16, sums);
}

__device__ __forceinline__ void consume(const Operands& p, Shared& shared) {
    Ring<kStages> ring;
    for (int index = static_cast<int>(blockIdx.x) / kBlocks; index < p.items;
         index += static_cast<int>(gridDim.x) / kBlocks) {
        const int64_t token = int64_t{index % p.token_tiles} * p.tile;
        const int64_t feature =
            (int64_t{index / p.token_tiles} * kBlocks + block_in_cluster()) * kFeatures;
        if (p.tile == 256)
            multiply_item<256>(p, shared, ring, token, feature);
        else if (p.tile == 128)
            multiply_item<128>(p, shared, ring, token, feature);
        else
            multiply_item<64>(p, shared, ring, token, feature);
    }
}

__global__ void __launch_bounds__(kThreads, 1) __cluster_dims__(kBlocks, 1, 1)
    kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ Operands p) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared*>(memory);
    hopper::init_barriers(shared.full, shared.empty);
    cluster_meet();
    if (threadIdx.x < 128) {
        fewer_registers<kDecoderRegisters>();
        produce_format(&x_map, p, shared);
    } else {
        more_registers<kProductRegisters>();
        consume(p, shared);
    }
    __syncwarp();
    // Shared memory stays until nobody writes to it any more.
    cluster_meet();
}

/// Tiles of the size that takes the least time in whole waves.
inline void cut_tiles(Operands& p, int clusters) {
    const int64_t features = ceil_div(p.product.n, int64_t{kFeatures} * kBlocks);
    // What a tile of 256, 128 and 64 tokens takes; below, decoding is the bound.
    const auto cost = [](int tokens) { return tokens == 256 ? 100 : tokens == 128 ? 58 : 50; };
    int64_t least = INT64_MAX;
    for (int tile = kMostTokens; tile >= 64; tile /= 2) {
        const int64_t tokens = ceil_div(p.product.rows, tile);
        const int64_t time = ceil_div(features * tokens, clusters) * cost(tile);
        if (time >= least) continue;
        least = time;
        p.tile = tile;
        p.token_tiles = static_cast<int32_t>(tokens);
        p.items = static_cast<int32_t>(features * tokens);
    }
}

}  // namespace sm90_decoded

void run_decoded_sm90(Device& device, DType format, const Product& product) {
    namespace here = sm90_decoded;
    const int clusters = hopper::clusters_of(device.multiprocessors());
    here::Operands p{};
    p.product = product;
    p.format = format;
    p.steps = static_cast<int32_t>(2 * ceil_div(product.units, 2 * here::kStageUnits));
    here::cut_tiles(p, clusters);
    device.launch_hopper("gemm_decoded_sm90", here::kernel,
                         dim3(static_cast<unsigned>(std::min(p.items, clusters) * here::kBlocks)),
                         dim3(here::kThreads), sizeof(here::Shared), hopper::x_map<2>(product), p);
}

}  // namespace tessera::cuda
