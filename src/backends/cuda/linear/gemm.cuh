#pragma once
// Many rows of x: tensor core products of bf16 with f32 sums (two flops a weight and row; about 60
// % of the peak is what mma.sync can reach). A block of 8 warps computes kTokens rows of x against
// 128 rows of the weight in steps of 64 columns. Rows of x arrive through asynchronous copies some
// steps ahead; every thread fetches one unit of the weight two steps ahead and writes it decoded
// into the buffer of the next step, so a weight is decoded once a block. One half of the warps
// decodes before its products, the other half behind them, which leaves the tensor cores something
// to do at all times.
//
// Tensor cores cut off what they add, which builds up over a long sum: each step sums from zero and
// is added to the total with a proper rounding. The order depends on K alone.

#include <algorithm>

#include "backends/cuda/linear/product.cuh"
#include "backends/cuda/ptx/cp_async.cuh"

namespace tessera::cuda {
namespace gemm {

inline constexpr int kWeightRows = 128;
inline constexpr int kStep = 64;                ///< columns
inline constexpr int kRowBytes = kStep * 2;     ///< bf16 row of a step
inline constexpr int kChunks = kRowBytes / 16;  ///< 16-byte chunks of such a row
inline constexpr int kStepsOfMma = kStep / 16;
inline constexpr int kStages = 3;  ///< steps of x in shared memory

template <int Tokens>
struct Shared {
    uint4 x[kStages][Tokens * kChunks];
    uint4 weights[2][kWeightRows * kChunks];
    RowPair rows[Tokens];
};

/// Place of a chunk of a row: eight rows at one column lie in different banks.
__host__ __device__ __forceinline__ constexpr int chunk_place(int row, int chunk) {
    return row * kChunks + (chunk ^ (row % 8));
}

/// Queues the copy of a step of x, or copies it where rows start at odd addresses.
template <int Tokens>
__device__ __forceinline__ void fetch_x(const Product& p,
                                        const RowPair* rows,
                                        int64_t step,
                                        uint4* stage) {
    const int chunk = static_cast<int>(threadIdx.x) % kChunks;
    const int64_t k = step * kStep + chunk * 8;
    const int64_t left = p.k - k;
#pragma unroll
    for (int i = 0; i < Tokens * kChunks / kProductThreads; ++i) {
        const int row = static_cast<int>(threadIdx.x) / kChunks + i * (kProductThreads / kChunks);
        const bool present = rows[row].x >= 0 && left > 0;
        const auto* source = static_cast<const uint16_t*>(p.x);
        if (present) source += rows[row].x * p.x_stride + k;
        uint4* target = stage + chunk_place(row, chunk);
        if (p.x_aligned) {
            copy_16(target, source,
                    !present   ? 0u
                    : left < 8 ? static_cast<uint32_t>(left) * 2
                               : 16u);
            continue;
        }
        uint32_t words[4] = {};
        if (present) {
#pragma unroll
            for (int j = 0; j < 8; ++j)
                if (j < left) words[j / 2] |= uint32_t{source[j]} << (16 * (j % 2));
        }
        *target = {words[0], words[1], words[2], words[3]};
    }
}

/// Writes this thread's unit of a step to the buffer of the weight, its columns in the order of x.
template <DType F>
__device__ __forceinline__ void store_unit(const typename Format<F>::Raw& raw,
                                           bool present,
                                           bool paired,
                                           uint4* buffer) {
    const int row = static_cast<int>(threadIdx.x) / 2;
    const int first_chunk = static_cast<int>(threadIdx.x) % 2 * 4;
    uint32_t pairs[4][4] = {};
    // Whatever zeros decode to: columns that do not exist count as 0.
    if (present) {
#pragma unroll
        for (int q = 0; q < 4; ++q) decode_bf16<F>(raw, q, pairs[q]);
    }
#pragma unroll
    for (int c = 0; c < 4; ++c)
        buffer[chunk_place(row, first_chunk + c)] =
            paired ? uint4{pairs[0][c], pairs[1][c], pairs[2][c], pairs[3][c]}
                   : uint4{pairs[c][0], pairs[c][1], pairs[c][2], pairs[c][3]};
}

/// The part of a tile that a warp computes: kM x 16 rows of x by kN x 8 rows of the weight.
template <int Tokens>
struct WarpTile {
    static constexpr int kAcross = Tokens == 128 ? 4 : 8;  ///< warps along the rows of the weight
    static constexpr int kM = Tokens == 128 ? 4 : Tokens / 16;
    static constexpr int kN = kWeightRows / kAcross / 8;
};

/// sums += the products of one step.
template <int Tokens>
__device__ __forceinline__ void multiply_step(
    const uint4* x,
    const uint4* weights,
    int first_token,
    int first_weight,
    int lane,
    float (&sums)[WarpTile<Tokens>::kM][WarpTile<Tokens>::kN][4]) {
    using Tile = WarpTile<Tokens>;
    uint32_t b[kStepsOfMma][Tile::kN][2];
#pragma unroll
    for (int k = 0; k < kStepsOfMma; ++k) {
#pragma unroll
        for (int n = 0; n < Tile::kN; n += 2) {
            uint32_t four[4];
            const int row = first_weight + n * 8 + lane / 16 * 8 + lane % 8;
            load_matrices(four, weights + chunk_place(row, k * 2 + lane / 8 % 2));
            b[k][n][0] = four[0];
            b[k][n][1] = four[1];
            b[k][n + 1][0] = four[2];
            b[k][n + 1][1] = four[3];
        }
    }
#pragma unroll
    for (int m = 0; m < Tile::kM; ++m) {
        float part[Tile::kN][4] = {};
#pragma unroll
        for (int k = 0; k < kStepsOfMma; ++k) {
            uint32_t a[4];
            const int row = first_token + m * 16 + lane % 16;
            load_matrices(a, x + chunk_place(row, k * 2 + lane / 16));
#pragma unroll
            for (int n = 0; n < Tile::kN; ++n) mma_bf16(part[n], a, b[k][n]);
        }
#pragma unroll
        for (int n = 0; n < Tile::kN; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[m][n][i] += part[n][i];
    }
}

/// The scale of a row of x.
__device__ __forceinline__ float scale_of(const Product& p, const RowPair& row) {
    return p.x_scales != nullptr && row.x >= 0 ? p.x_scales[row.x] : 1.0f;
}

/// Writes two neighbouring results of a row, those that exist.
__device__ __forceinline__ void store_pair(
    const Product& p, int64_t row, int64_t n, float outer, float first, float second) {
    if (row < 0 || n >= p.n) return;
    float* out = p.out + row * p.out_stride + n;
    const bool both = n + 1 < p.n;
    first = finish(p, first, outer, n, p.add ? out[0] : 0.0f);
    if (both) second = finish(p, second, outer, n + 1, p.add ? out[1] : 0.0f);
    if (both && p.out_pairs) {
        *reinterpret_cast<float2*>(out) = {first, second};
        return;
    }
    out[0] = first;
    if (both) out[1] = second;
}

template <DType F, int Tokens>
__global__ void __launch_bounds__(kProductThreads) kernel(const __grid_constant__ Product p) {
    using Tile = WarpTile<Tokens>;
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared<Tokens>*>(memory);

    const Group group = find_group(p, blockIdx.x % p.groups, Tokens);
    // The same in all threads of the block.
    if (group.count <= 0) return;
    const int thread = static_cast<int>(threadIdx.x);
    RowPair own{-1, -1};
    if (thread < Tokens) shared.rows[thread] = own = row_of(p, group, thread);
    // The rows are there for all threads; a group without rows of this product has no work.
    if (__syncthreads_or(own.x >= 0) == 0) return;

    const int lane = thread % 32, warp = thread / 32;
    const int64_t first_n = static_cast<int64_t>(blockIdx.x / p.groups) * kWeightRows;
    const int64_t own_n = first_n + thread / 2 < p.n ? first_n + thread / 2 : p.n - 1;
    const WeightRow own_row = weight_row(p, layout_of(F), group.expert, own_n);
    const auto unit_of = [&](int64_t step) { return step * 2 + thread % 2; };
    const int64_t steps = (p.k + kStep - 1) / kStep;

#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) {
        if (stage < steps) fetch_x<Tokens>(p, shared.rows, stage, shared.x[stage]);
        commit_copies();
    }
    typename Format<F>::Raw raw = load_unit<F>(own_row, unit_of(0), p.units);
    store_unit<F>(raw, unit_of(0) < p.units, p.x_paired, shared.weights[0]);
    raw = load_unit<F>(own_row, unit_of(1), p.units);

    const int first_token = Tokens == 128 ? warp / Tile::kAcross * 64 : 0;
    const int first_weight = warp % Tile::kAcross * (kWeightRows / Tile::kAcross);
    float sums[Tile::kM][Tile::kN][4] = {};
    int stage = 0;
    for (int64_t step = 0; step < steps; ++step) {
        wait_copies<kStages - 2>();
        // This step's operands are there, and nobody reads the buffers of the step before.
        __syncthreads();
        const int free_stage = stage == 0 ? kStages - 1 : stage - 1;
        if (step + kStages - 1 < steps)
            fetch_x<Tokens>(p, shared.rows, step + kStages - 1, shared.x[free_stage]);
        commit_copies();
        const auto prepare_next = [&] {
            if (step + 1 >= steps) return;
            store_unit<F>(raw, unit_of(step + 1) < p.units, p.x_paired,
                          shared.weights[(step + 1) % 2]);
            raw = load_unit<F>(own_row, unit_of(step + 2), p.units);
        };
        const bool early = warp < kProductThreads / 64;
        if (early) prepare_next();
        multiply_step<Tokens>(shared.x[stage], shared.weights[step % 2], first_token, first_weight,
                              lane, sums);
        if (!early) prepare_next();
        stage = stage == kStages - 1 ? 0 : stage + 1;
    }

    const float outer = p.outer[group.expert];
#pragma unroll
    for (int m = 0; m < Tile::kM; ++m) {
        const int token = first_token + m * 16 + lane / 4;
        const int64_t upper = shared.rows[token].out, lower = shared.rows[token + 8].out;
        const float upper_outer = outer * scale_of(p, shared.rows[token]);
        const float lower_outer = outer * scale_of(p, shared.rows[token + 8]);
#pragma unroll
        for (int n = 0; n < Tile::kN; ++n) {
            const int64_t column = first_n + first_weight + n * 8 + lane % 4 * 2;
            const float(&four)[4] = sums[m][n];
            store_pair(p, upper, column, upper_outer, four[0], four[1]);
            store_pair(p, lower, column, lower_outer, four[2], four[3]);
        }
    }
}

template <DType F, int Tokens>
void launch(Device& device, Product& p) {
    static_assert(sizeof(Shared<Tokens>) <= 101376, "a block of sm_120 has 99 KiB");
    p.groups = p.pairs == nullptr ? ceil_div(p.rows, Tokens)
                                  : p.rows / Tokens + std::min<int64_t>(p.rows, p.experts);
    const int64_t tiles = ceil_div(p.n, kWeightRows);
    device.launch("gemm", kernel<F, Tokens>, dim3(static_cast<unsigned>(p.groups * tiles)),
                  dim3(kProductThreads), sizeof(Shared<Tokens>), p);
}

}  // namespace gemm

template <DType F>
void run_gemm(Device& device, Product& p) {
    // Both tiles give the same bits.
    const int64_t shared = rows_per_matrix(p);
    if (shared <= 64) return gemm::launch<F, 32>(device, p);
    return gemm::launch<F, 128>(device, p);
}

}  // namespace tessera::cuda
