#pragma once
// Few rows of x: every weight is read once for up to 8 of them and multiplied in f32, so memory is
// the bound (NVFP4: 18 bytes per 32 weights; the decoder has to get by with four instructions a
// weight). A warp takes kRows rows of the weight, its lanes take neighbouring units. The rows of x
// lie in shared memory as f32, in steps of 1024 columns. A sum runs over the units of a lane (every
// 32nd of the row), then over the lanes: this order depends on nothing but K, so instances for
// other numbers of rows give the same bits.

#include <algorithm>

#include "backends/cuda/linear/product.cuh"

namespace tessera::cuda {
namespace gemv {

inline constexpr int kWarps = kProductThreads / 32;
inline constexpr int kStepCols = kStepUnits * kUnit;
inline constexpr int kStepQuads = kStepCols / 4;

/// Steps of x in shared memory: 16 to 32 KiB.
constexpr int steps_held(int x_rows) {
    return x_rows <= 2 ? 4 : 8 / x_rows;
}

/// Four columns as f32, zeros where there are none.
__device__ __forceinline__ float4 load_x(const Product& p, int64_t row, int64_t k) {
    float4 values = {0.0f, 0.0f, 0.0f, 0.0f};
    if (row < 0 || k >= p.k) return values;
    if (p.x_f32) {
        const float* x = static_cast<const float*>(p.x) + row * p.x_stride + k;
        if (p.x_aligned && k + 4 <= p.k) return *reinterpret_cast<const float4*>(x);
        values.x = x[0];
        if (k + 1 < p.k) values.y = x[1];
        if (k + 2 < p.k) values.z = x[2];
        if (k + 3 < p.k) values.w = x[3];
        return values;
    }
    const __nv_bfloat16* x = static_cast<const __nv_bfloat16*>(p.x) + row * p.x_stride + k;
    if (p.x_aligned && k + 4 <= p.k) {
        const uint2 bits = *reinterpret_cast<const uint2*>(x);
        return {__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xffff0000u),
                __uint_as_float(bits.y << 16), __uint_as_float(bits.y & 0xffff0000u)};
    }
    values.x = __bfloat162float(x[0]);
    if (k + 1 < p.k) values.y = __bfloat162float(x[1]);
    if (k + 2 < p.k) values.z = __bfloat162float(x[2]);
    if (k + 3 < p.k) values.w = __bfloat162float(x[3]);
    return values;
}

/// Place of quad j (of 8) of a lane's unit in a step: the lanes of a warp that read the same quad,
/// and eight threads that write a unit's quads, meet different banks.
__device__ __forceinline__ int quad_place(int lane, int j) {
    return j * kStepUnits + (lane ^ j);
}

/// sum += a . x for eight values.
__device__ __forceinline__ float dot8(const float (&a)[8], float4 x0, float4 x1, float sum) {
    sum = __fmaf_rn(a[0], x0.x, sum);
    sum = __fmaf_rn(a[1], x0.y, sum);
    sum = __fmaf_rn(a[2], x0.z, sum);
    sum = __fmaf_rn(a[3], x0.w, sum);
    sum = __fmaf_rn(a[4], x1.x, sum);
    sum = __fmaf_rn(a[5], x1.y, sum);
    sum = __fmaf_rn(a[6], x1.z, sum);
    return __fmaf_rn(a[7], x1.w, sum);
}

__device__ __forceinline__ float sum8(float4 x0, float4 x1) {
    return ((x0.x + x0.y) + (x0.z + x0.w)) + ((x1.x + x1.y) + (x1.z + x1.w));
}

/// Adds a unit of each of the warp's rows times its columns of every row of x to the sums.
template <DType F, int XRows, int Rows>
__device__ __forceinline__ void add_unit(const typename Format<F>::Raw (&raw)[Rows],
                                         const float4* x,
                                         int x_row_quads,
                                         int lane,
                                         float (&sums)[Rows][XRows]) {
    using Codes = Format<F>;
    float parts[Rows][XRows] = {};
    float x_sums[XRows] = {};
#pragma unroll
    for (int q = 0; q < 4; ++q) {
        float codes[Rows][8];
#pragma unroll
        for (int w = 0; w < Rows; ++w) Codes::codes(raw[w], q, codes[w]);
#pragma unroll
        for (int r = 0; r < XRows; ++r) {
            const float4 x0 = x[r * x_row_quads + quad_place(lane, 2 * q)];
            const float4 x1 = x[r * x_row_quads + quad_place(lane, 2 * q + 1)];
            if constexpr (Codes::kOffset) x_sums[r] += sum8(x0, x1);
#pragma unroll
            for (int w = 0; w < Rows; ++w) {
                float& part = Codes::kScaled ? parts[w][r] : sums[w][r];
                part = dot8(codes[w], x0, x1, part);
            }
        }
        if constexpr (Codes::kScaled) {
            if (q % 2 == 0) continue;
#pragma unroll
            for (int w = 0; w < Rows; ++w) {
                const float scale = Codes::scale(raw[w], q / 2);
#pragma unroll
                for (int r = 0; r < XRows; ++r) {
                    sums[w][r] = __fmaf_rn(scale, parts[w][r], sums[w][r]);
                    parts[w][r] = 0.0f;
                }
            }
        }
    }
    if constexpr (Codes::kOffset) {
#pragma unroll
        for (int w = 0; w < Rows; ++w) {
            const float offset = Codes::offset(raw[w]);
#pragma unroll
            for (int r = 0; r < XRows; ++r) sums[w][r] = __fmaf_rn(offset, x_sums[r], sums[w][r]);
        }
    }
}

/// Sum over the lanes, the same in all of them.
__device__ __forceinline__ float sum_lanes(float value) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        value += __shfl_xor_sync(kAllLanes, value, distance);
    return value;
}

/// Blocks that share a multiprocessor, which bounds the registers of a thread.
constexpr int blocks_at_once(int x_rows, int pieces) {
    return pieces == 8 ? 1 : x_rows == 1 ? 3 : 2;
}

template <DType F, int XRows, int Rows>
__global__ void __launch_bounds__(kProductThreads, blocks_at_once(XRows, layout_of(F).pieces))
    kernel(const __grid_constant__ Product p) {
    constexpr int kSteps = steps_held(XRows);
    // Registers allow more than one unit under way where codes are short and sums few.
    constexpr int kAhead = Format<F>::kE2m1 && XRows < 8 ? 2 : 1;
    __shared__ float4 x[XRows][kSteps * kStepQuads];
    __shared__ RowPair rows[XRows];

    const Group group = find_group(p, blockIdx.x % p.groups, XRows);
    // The same in all threads of the block.
    if (group.count <= 0) return;
    RowPair own{-1, -1};
    if (threadIdx.x < XRows)
        rows[threadIdx.x] = own = row_of(p, group, static_cast<int>(threadIdx.x));
    // The rows are there for all threads; a group without rows of this product has no work.
    if (__syncthreads_or(own.x >= 0) == 0) return;

    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int64_t first = (blockIdx.x / p.groups * kWarps + warp) * Rows;
    WeightRow weights[Rows];
#pragma unroll
    for (int w = 0; w < Rows; ++w)
        weights[w] =
            weight_row(p, layout_of(F), group.expert, first + w < p.n ? first + w : p.n - 1);
    typename Format<F>::Raw ahead[kAhead][Rows];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
#pragma unroll
        for (int w = 0; w < Rows; ++w)
            ahead[i][w] = load_unit<F>(weights[w], i * kStepUnits + lane, p.units);

    float sums[Rows][XRows] = {};
    const int64_t steps = (p.units + kStepUnits - 1) / kStepUnits;
    for (int64_t begin = 0; begin < steps; begin += kSteps) {
        // The last readers of x are done before it is overwritten, all is there before it is read.
        if (begin > 0) __syncthreads();
#pragma unroll
        for (int r = 0; r < XRows; ++r)
#pragma unroll
            for (int s = 0; s < kSteps; ++s) {
                const int quad = static_cast<int>(threadIdx.x);
                x[r][s * kStepQuads + quad_place(quad / 8, quad % 8)] =
                    load_x(p, rows[r].x, (begin + s) * kStepCols + quad * 4);
            }
        __syncthreads();
        const int count = static_cast<int>(steps - begin < kSteps ? steps - begin : kSteps);
        for (int s = 0; s < count; ++s) {
            typename Format<F>::Raw raw[Rows];
#pragma unroll
            for (int w = 0; w < Rows; ++w) {
                raw[w] = ahead[0][w];
                if constexpr (kAhead == 2) ahead[0][w] = ahead[1][w];
                ahead[kAhead - 1][w] =
                    load_unit<F>(weights[w], (begin + s + kAhead) * kStepUnits + lane, p.units);
            }
            add_unit<F, XRows, Rows>(raw, &x[0][s * kStepQuads], kSteps * kStepQuads, lane, sums);
        }
    }

    const float outer = p.outer[group.expert];
#pragma unroll
    for (int w = 0; w < Rows; ++w) {
#pragma unroll
        for (int r = 0; r < XRows; ++r) {
            const float sum = sum_lanes(sums[w][r]);
            if (lane != w * XRows + r || first + w >= p.n || rows[r].out < 0) continue;
            float* out = p.out + rows[r].out * p.out_stride + first + w;
            *out = finish(p, sum, outer, first + w, p.add ? *out : 0.0f);
        }
    }
}

template <DType F, int XRows, int Rows>
void launch(Device& device, Product& p) {
    p.groups = p.pairs == nullptr ? ceil_div(p.rows, XRows)
                                  : p.rows / XRows + std::min<int64_t>(p.rows, p.experts);
    const int64_t tiles = ceil_div(p.n, kWarps * Rows);
    device.launch("gemv", kernel<F, XRows, Rows>, dim3(static_cast<unsigned>(p.groups * tiles)),
                  dim3(kProductThreads), 0, p);
}

}  // namespace gemv

template <DType F>
void run_gemv(Device& device, Product& p) {
    // More than one row of the weight per warp saves reads of x, but takes registers that only the
    // short FP4 codes leave, and leaves a narrow matrix with too few warps.
    constexpr int kRows = Format<F>::kE2m1 ? 2 : 1;
    constexpr int64_t kWide = 8192;
    const int64_t shared = rows_per_matrix(p);
    if (shared <= 1)
        return p.pairs == nullptr && p.n > kWide ? gemv::launch<F, 1, kRows>(device, p)
                                                 : gemv::launch<F, 1, 1>(device, p);
    if (shared == 2) return gemv::launch<F, 2, kRows>(device, p);
    if (shared <= 4) return gemv::launch<F, 4, kRows>(device, p);
    return gemv::launch<F, 8, kRows>(device, p);
}

}  // namespace tessera::cuda
