#pragma once
// What the kernels of products share: their operands, and which rows a block works on. A product is
// plain (one matrix, the rows of an input in order) or grouped (matrices of experts, the pairs of
// an ExpertWork); a group is up to `tile` rows of one matrix.

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "backends/cuda/device.cuh"
#include "backends/cuda/linear/formats.cuh"
#include "backends/cuda/linear/linear.h"

namespace tessera::cuda {

inline constexpr int kProductThreads = 256;
inline constexpr unsigned kAllLanes = 0xffffffffu;

/// Which rows of x meet which matrix.
struct Grouping {
    int64_t rows;  ///< rows of a plain product; all pairs of a grouped one

    // Grouped products; `pairs` is null for plain ones.
    const int32_t* pairs;
    const int32_t* starts;
    int32_t experts;
    int32_t pairs_per_row;  ///< row of x of pair p: p / pairs_per_row - first_row
    int32_t first_row;
    int32_t first_pair;  ///< pairs [first_pair, end_pair) are this product's, others are skipped
    int32_t end_pair;
};

/// Operands of a product, all of them device memory.
struct Product : Grouping {
    const uint8_t* codes;
    const uint8_t* scales;
    const float* outer;  ///< per expert
    int64_t n;           ///< rows of a matrix
    int64_t k;
    int64_t units;  ///< of a row

    const void* x;  ///< row 0 of the view
    int64_t x_stride;
    bool x_f32;                     ///< else bf16
    bool x_aligned;                 ///< every row starts at a multiple of 16 bytes
    bool x_paired;                  ///< ActView::transposed_pairs
    const float* x_scales;          ///< e4m3 and nvfp4: per row of the view, else null
    const uint8_t* x_block_scales;  ///< where x is packed NVFP4 (ActFormat::kFp4), else null
    const float* row_factors;  ///< of the weight, where x is e4m3, or packed and the weight MXFP4

    const float* bias;  ///< [n] or null
    float* out;
    int64_t out_stride;
    bool add;
    bool out_pairs;  ///< every row of out starts at a multiple of 8 bytes

    std::byte* sums;  ///< memory for sums_bytes_sm90(), Hopper only

    int64_t groups;  ///< blocks along the rows: at least as many as there are groups
};

/// Rows [first, first + count) of the product, or places in `pairs`; count 0: nothing.
struct Group {
    int32_t expert;
    int32_t count;
    int64_t first;
};

/// Groups of an expert.
__device__ __forceinline__ int32_t groups_of(const Grouping& p, int32_t expert, int tile) {
    return (p.starts[expert + 1] - p.starts[expert] + tile - 1) / tile;
}
/// Groups of all experts; the lanes of a warp together.
__device__ __forceinline__ int32_t count_groups(const Grouping& p, int tile) {
    int32_t count = 0;
    for (auto expert = static_cast<int32_t>(threadIdx.x % 32); expert < p.experts; expert += 32)
        count += groups_of(p, expert, tile);
    return __reduce_add_sync(kAllLanes, count);
}

/// Group `index` of the product; the lanes of a warp together. Experts are few hundreds: each lane
/// counts the groups of a run of experts, then the run that holds the group is looked at closely.
__device__ __forceinline__ Group find_group(const Grouping& p, int64_t index, int tile) {
    if (p.pairs == nullptr) {
        const int64_t first = index * tile;
        const int64_t left = p.rows - first;
        return {0, static_cast<int32_t>(left < tile ? left : tile), first};
    }
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto scan = [&](int32_t value) {
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const int32_t other = __shfl_up_sync(kAllLanes, value, distance);
            if (lane >= distance) value += other;
        }
        return value;
    };
    int32_t wanted = static_cast<int32_t>(index);
    int32_t first = 0, count = p.experts;
    // Each round narrows [first, first + count) to a 32nd.
    while (true) {
        const int32_t run = (count + 31) / 32;
        const int32_t begin = min(first + lane * run, first + count);
        const int32_t end = min(begin + run, first + count);
        int32_t groups = 0;
        for (int32_t expert = begin; expert < end; ++expert) groups += groups_of(p, expert, tile);
        const int32_t through = scan(groups);
        const unsigned behind = __ballot_sync(kAllLanes, through > wanted);
        if (behind == 0) return {0, 0, 0};
        const int lane_of = __ffs(static_cast<int>(behind)) - 1;
        wanted -= __shfl_sync(kAllLanes, through - groups, lane_of);
        const int32_t chosen_begin = __shfl_sync(kAllLanes, begin, lane_of);
        count = __shfl_sync(kAllLanes, end, lane_of) - chosen_begin;
        first = chosen_begin;
        if (run == 1) break;
    }
    const int32_t start = p.starts[first] + wanted * tile;
    const int32_t left = p.starts[first + 1] - start;
    return {first, left < tile ? left : tile, start};
}

/// A row of x and of out; negative: none.
struct RowPair {
    int32_t x;
    int32_t out;
};

/// Row `index` of a group.
__device__ __forceinline__ RowPair row_of(const Grouping& p, const Group& group, int index) {
    if (index >= group.count) return {-1, -1};
    const auto row = static_cast<int32_t>(group.first) + index;
    if (p.pairs == nullptr) return {row, row};
    const int32_t pair = p.pairs[row];
    if (pair < p.first_pair || pair >= p.end_pair) return {-1, -1};
    return {pair / p.pairs_per_row - p.first_row, pair};
}

__device__ __forceinline__ WeightRow weight_row(const Product& p,
                                                FormatLayout layout,
                                                int32_t expert,
                                                int64_t row) {
    const int64_t index = expert * p.n + row;
    return {p.codes + index * row_code_bytes(layout, p.units),
            p.scales + index * row_scale_bytes(layout, p.units)};
}

/// One result: outer scale, bias, residual, in this order. Spelled out, so that no kernel contracts
/// them in its own way: all of them give a sum the same result.
__device__ __forceinline__ float finish(
    const Product& p, float sum, float outer, int64_t n, float before) {
    float value = __fmul_rn(sum, outer);
    if (p.bias != nullptr) value = __fadd_rn(value, p.bias[n]);
    if (p.add) value = __fadd_rn(value, before);
    return value;
}

/// Rows of x that share a matrix, on average: what the size of a tile should suit.
inline int64_t rows_per_matrix(const Grouping& p) {
    if (p.pairs == nullptr) return p.rows;
    return ceil_div(p.end_pair - p.first_pair, std::max(p.experts, 1));
}

/// The operands of a call.
Product product_of(const ProductCall& call);

/// Tiles of 128 rows of the weight by 128 or 32 rows of x, bf16 activations: gemm.cuh.
template <DType F>
void run_gemm(Device& device, Product& product);
/// The same on Hopper for plain products of NVFP4 and MXFP4 weights with rows of x whose pairs are
/// transposed, each aligned to 16 bytes: gemm_sm90.cuh.
void run_gemm_sm90(Device& device, const Product& product, DType format);
/// act(gate) * up of two such weights of one shape, `n` a multiple of 32, without bias, into
/// bf16 rows [rows, n]. kSwiGlu or kReGlu.
struct GluProduct {
    const uint8_t* codes;  ///< of up
    const uint8_t* scales;
    const float* outer;
    const float* row_factors;  ///< as Product::row_factors
    Glu kind;
    void* out;
    bool pairs;  ///< ActView::transposed_pairs
};
void run_glu_sm90(Device& device, const Product& gate, const GluProduct& with, DType format);
/// Bytes of Product::sums for products with a weight of this shape; rows 0: for gated ones.
size_t sums_bytes_sm90(int64_t rows, int64_t columns);
/// The same on Hopper for plain products of all other formats but F32, rows of x aligned:
/// gemm_decoded_sm90.cuh.
void run_decoded_sm90(Device& device, DType format, const Product& product);
/// The same for plain products whose x is e4m3 with transposed quads: gemm_sm90_fp8.cuh.
void run_gemm_sm90_fp8(Device& device, const Product& product, DType format);
/// Gated, as run_glu_sm90, of columns for which gated_sm90_fp8() is true.
void run_glu_sm90_fp8(Device& device, const Product& gate, const GluProduct& with, DType format);
bool gated_sm90_fp8(DType format, int64_t columns);
/// What that wants of a weight of `rows` rows, once: out[rows].
template <DType F>
void find_row_factors(
    Device& device, const uint8_t* scales, int64_t rows, int64_t units, float* out);
/// Products of packed rows, by FP4 tensor cores or what emulates them: gemm_nvfp4_sm120.h.
void run_fp4(Device& device, const Product& product, DType format);
void run_glu_fp4(Device& device, const Product& gate, const GluProduct& with, DType format);
/// Plain products of the same prompt rows with narrow weights of one format, up to
/// kMostNarrow of them in one launch: narrow.cuh.
inline constexpr size_t kMostNarrow = 4;
template <DType F>
void run_narrow(Device& device, std::span<const Product> products);
/// The same for a format that is known when it runs.
void launch_narrow(Device& device, DType format, std::span<const Product> products);
/// Rows of the weight against up to 8 rows of x, sums in f32 of exact weights: gemv.cuh.
template <DType F>
void run_gemv(Device& device, Product& product);

}  // namespace tessera::cuda
