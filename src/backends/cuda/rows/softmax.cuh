#pragma once
// Softmax of rows. Bound by bytes: a row is read three times (once from memory, then from caches)
// and written once. A block takes a row.

#include "backends/cuda/rows/rows.cuh"

namespace tessera::cuda::rows {

struct SoftmaxArguments {
    RowMap<const float> x;
    RowMap<float> out;
    const int32_t* visible = nullptr;  ///< null: all columns
    float scale = 1.0f;
    int64_t cols = 0;
    bool vector = false;
};

/// exp(scale x_i - largest) of four columns, 0 for those that are not seen. The product is not
/// rounded before the difference; that `largest` was concerns all columns alike and cancels.
__device__ __forceinline__ Four
powers(const float* row, int64_t column, int64_t seen, float largest, const SoftmaxArguments& a) {
    Four four = load_four(row, column, seen, a.vector);
#pragma unroll
    for (int32_t i = 0; i < 4; ++i)
        four.value[i] =
            column + i < seen ? expf(__fmaf_rn(a.scale, four.value[i], -largest)) : 0.0f;
    return four;
}

static __global__ void __launch_bounds__(1024)
    softmax_kernel(const __grid_constant__ SoftmaxArguments a) {
    const float* x = a.x.row(blockIdx.x);
    float* out = a.out.row(blockIdx.x);
    int64_t seen = a.cols;
    if (a.visible != nullptr && a.visible[blockIdx.x] < seen) seen = a.visible[blockIdx.x];
    const int64_t first = 4 * int64_t{threadIdx.x};
    const int64_t step = 4 * int64_t{blockDim.x};

    float largest = -INFINITY;
    for (int64_t column = first; column < seen; column += step) {
        const Four four = load_four(x, column, seen, a.vector);
#pragma unroll
        for (int32_t i = 0; i < 4; ++i)
            if (column + i < seen) largest = fmaxf(largest, __fmul_rn(a.scale, four.value[i]));
    }
    largest = reduce<false>(largest, -INFINITY, Largest{});

    float sum = 0.0f;
    for (int64_t column = first; column < seen; column += step) {
        const Four four = powers(x, column, seen, largest, a);
        sum += (four.value[0] + four.value[1]) + (four.value[2] + four.value[3]);
    }
    sum = reduce<false>(sum, 0.0f, Add{});

    // In place, a thread reads again only what it alone writes.
    for (int64_t column = first; column < a.cols; column += step) {
        Four four = powers(x, column, seen, largest, a);
#pragma unroll
        for (int32_t i = 0; i < 4; ++i)
            four.value[i] = column + i < seen ? four.value[i] / sum : 0.0f;
        store_four(four, column, a.cols, a.vector, out);
    }
}

}  // namespace tessera::cuda::rows
