#pragma once
// What becomes of the sums of gemm_nvfp4_sm120.cuh.

#include <cuda_bf16.h>

#include <cstdint>

#include "backends/cuda/linear/gated_tiles.cuh"
#include "backends/cuda/linear/gemm_nvfp4_sm120_load.cuh"
#include "backends/cuda/linear/hopper_tiles.cuh"

namespace tessera::cuda::sm120 {

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

/// Stores a warp's part of a tile of an expert, f32.
template <class Tile>
__device__ __forceinline__ void store_grouped(
    const Operands& operands,
    const TileRows<Tile::kTokens>& tile,
    int warp,
    const float (&sums)[Tile::kFragments][Tile::kTokens / 2]) {
    static_assert(Tile::kFragments == 1);
    const hopper::Operands& p = operands.base;
    const int lane = static_cast<int>(threadIdx.x) % 32, first = lane % 4 * 2;
    const int64_t feature = tile.feature + warp * 16 + lane / 4;
    const float* const row_factors =
        operands.row_factors == nullptr ? nullptr : operands.row_factors + tile.expert * p.n;
    hopper::TileFactors factors{{}, tile.scales + first};
#pragma unroll
    for (int half = 0; half < 2; ++half)
        factors.features[half] =
            factor_of(p.outer + tile.expert, row_factors, feature + 8 * half, p.n);
#pragma unroll
    for (int at = 0; at < Tile::kTokens; at += 8) {
        const float2 of_tokens = factors.of_tokens(at);
        const int2 rows = *reinterpret_cast<const int2*>(tile.out + first + at);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int32_t row = i == 0 ? rows.x : rows.y;
            float* const out = p.out + row * p.out_stride + feature;
#pragma unroll
            for (int half = 0; half < 2; ++half)
                if (row >= 0 && feature + 8 * half < p.n)
                    out[8 * half] = __fmul_rn(sums[0][at / 2 + 2 * half + i],
                                              factors.of(half, i == 0 ? of_tokens.x : of_tokens.y));
        }
    }
}

/// Rows of the result that follow one another: that of token `at` of a tile; negative: none.
struct RowsThere {
    int32_t first;
    int64_t rows;
    __device__ __forceinline__ int32_t operator()(int at) const {
        return first + at < rows ? first + at : -1;
    }
};
/// Rows of a group.
struct RowsOfGroup {
    const int32_t* out;
    __device__ __forceinline__ int32_t operator()(int at) const { return out[at]; }
};

/// Stores act(gate) * up of a warp's 16 features, bf16: sums[0] are gate's, sums[1] up's.
template <class Tile, class Rows>
__device__ __forceinline__ void store_gated(const Operands& operands,
                                            const Item& item,
                                            int warp,
                                            const float* tokens,
                                            const Rows& rows,
                                            float (&sums)[Tile::kFragments][Tile::kTokens / 2]) {
    constexpr int kRounds = 2;  ///< of 32 tokens between moves of the sums
    const hopper::Operands& p = operands.base;
    const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4;
    const bool odd = group % 2 == 1;
    const int64_t feature = item.feature + warp * 16;
    if (feature >= p.n) return;  // a warp's features are all there or none
    const auto factor = [&](const float* outer, const float* row_factors, int64_t row) {
        return factor_of(outer + item.expert,
                         row_factors == nullptr ? nullptr : row_factors + item.expert * p.n, row,
                         p.n);
    };
    hopper::TileFactors factors[2];
    int64_t column[2];  ///< of a pair of features
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int64_t own = feature + group + 8 * half, even = own - group % 2;
        factors[half] = {{factor(p.outer, operands.row_factors, own),
                          factor(p.up_outer, operands.up_row_factors, own)},
                         tokens};
        column[half] = p.out_pairs ? transposed_pair_place(even) : even;
    }
    const int own_token = lane % 4 * 2 + group % 2;
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
                    const int32_t row = rows(first + 32 * round + 8 * j + own_token);
                    if (row >= 0)
                        *reinterpret_cast<__nv_bfloat162*>(operands.gated + row * p.n +
                                                           column[half]) = pair;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int j = 0; j + 16 * kRounds < Tile::kTokens / 2; ++j)
                sums[i][j] = sums[i][j + 16 * kRounds];
    }
}

}  // namespace tessera::cuda::sm120
