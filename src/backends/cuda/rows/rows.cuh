#pragma once
// What the kernels along rows share: how a row is found, how its elements are read four at a time
// whatever their alignment, sums that do not depend on anything but the row, and the formats of
// matrix inputs.
//
// Which elements a thread takes follows from the number of columns alone. Alignment only decides
// whether it takes its four with one instruction or with four, so that cutting a batch elsewhere
// (which moves the first row in memory) changes no bit of any row.

#include <cuda_bf16.h>

#include <cstdint>

#include "backends/cuda/device.cuh"

namespace tessera::cuda::rows {

/// Rows of a tensor: all axes but the last as one index, the outermost slowest. Axes are numbered
/// from inside; those that lie evenly behind each other have become one.
template <class T>
struct RowMap {
    T* data = nullptr;
    int64_t stride[3] = {0, 0, 0};
    uint32_t extent[2] = {1, 1};  ///< of the inner two; both 1 when one stride tells it all

    /// Start of row `index`.
    __host__ __device__ T* row(uint32_t index) const {
        if (extent[0] == 1 && extent[1] == 1) return data + index * stride[0];
        const uint32_t outer = index / extent[0];
        return data + (index - outer * extent[0]) * stride[0] + outer % extent[1] * stride[1] +
               outer / extent[1] * stride[2];
    }
};

/// Four consecutive elements of a row, zeros behind its end.
struct Four {
    float value[4];
};

/// `vector`: the row starts at a multiple of 16 bytes. `column` is a multiple of 4.
__device__ __forceinline__ Four load_four(const float* row,
                                          int64_t column,
                                          int64_t cols,
                                          bool vector) {
    Four four;
    if (vector && column + 4 <= cols) {
        const float4 all = *reinterpret_cast<const float4*>(row + column);
        four.value[0] = all.x;
        four.value[1] = all.y;
        four.value[2] = all.z;
        four.value[3] = all.w;
        return four;
    }
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) four.value[i] = column + i < cols ? row[column + i] : 0.0f;
    return four;
}

__device__ __forceinline__ void store_four(
    const Four& four, int64_t column, int64_t cols, bool vector, float* row) {
    if (vector && column + 4 <= cols) {
        *reinterpret_cast<float4*>(row + column) =
            make_float4(four.value[0], four.value[1], four.value[2], four.value[3]);
        return;
    }
#pragma unroll
    for (int32_t i = 0; i < 4; ++i)
        if (column + i < cols) row[column + i] = four.value[i];
}

/// Rounded to nearest even; `vector`: the row starts at a multiple of 8 bytes.
__device__ __forceinline__ void store_four(
    const Four& four, int64_t column, int64_t cols, bool vector, __nv_bfloat16* row) {
    if (vector && column + 4 <= cols) {
        const __nv_bfloat162 low = __floats2bfloat162_rn(four.value[0], four.value[1]);
        const __nv_bfloat162 high = __floats2bfloat162_rn(four.value[2], four.value[3]);
        uint2 packed;
        packed.x = reinterpret_cast<const uint32_t&>(low);
        packed.y = reinterpret_cast<const uint32_t&>(high);
        *reinterpret_cast<uint2*>(row + column) = packed;
        return;
    }
#pragma unroll
    for (int32_t i = 0; i < 4; ++i)
        if (column + i < cols) row[column + i] = __float2bfloat16_rn(four.value[i]);
}

/// The same where pairs of columns stand transposed (ActView::transposed_pairs).
__device__ __forceinline__ void store_pairs(
    const Four& four, int64_t column, int64_t cols, bool vector, __nv_bfloat16* row) {
    if (vector && column + 4 <= cols) {
        __nv_bfloat16* const place = row + transposed_pair_place(column);
        *reinterpret_cast<__nv_bfloat162*>(place) =
            __floats2bfloat162_rn(four.value[0], four.value[1]);
        *reinterpret_cast<__nv_bfloat162*>(place + 8) =
            __floats2bfloat162_rn(four.value[2], four.value[3]);
        return;
    }
#pragma unroll
    for (int32_t i = 0; i < 4; ++i)
        if (column + i < cols)
            row[transposed_pair_place(column + i)] = __float2bfloat16_rn(four.value[i]);
}

/// The memory of a matrix input; null where a format is not wanted. Index 0: prompt rows.
struct InputSink {
    float* f32[2] = {nullptr, nullptr};
    __nv_bfloat16* bf16[2] = {nullptr, nullptr};
    bool transposed_pairs = false;  ///< in bf16[0] and nvfp4
    // Of prompt rows at most one, with row_scales:
    uint8_t* e4m3 = nullptr;
    bool transposed_quads = false;   ///< in e4m3
    __nv_bfloat16* nvfp4 = nullptr;  ///< in the order of bf16[0]
    float* row_scales = nullptr;
    uint32_t prompt_rows = 0;
    int64_t cols = 0;

    /// Stores columns [column, column + 4) of row `row` as far as they lie before `end`.
    /// `vector`: `column` and `cols` are multiples of 4.
    __device__ __forceinline__ void store(
        const Four& four, uint32_t row, int64_t column, int64_t end, bool vector) const {
        const bool generated = row >= prompt_rows;
        const int64_t start = (generated ? row - prompt_rows : row) * cols;
        float* const exact = generated ? f32[1] : f32[0];
        __nv_bfloat16* const rounded = generated ? bf16[1] : bf16[0];
        if (exact != nullptr) store_four(four, column, end, vector, exact + start);
        if (rounded == nullptr) return;
        if (transposed_pairs && !generated)
            store_pairs(four, column, end, vector, rounded + start);
        else
            store_four(four, column, end, vector, rounded + start);
    }
};

__device__ __forceinline__ float of_lane(float value, int32_t mask) {
    return __shfl_xor_sync(0xffffffffu, value, mask);
}
__device__ __forceinline__ double of_lane(double value, int32_t mask) {
    return __shfl_xor_sync(0xffffffffu, value, mask);
}

/// Joins the values of a warp, or of a whole block (`kWarp` false; block size a multiple of 32).
/// Every thread gets the result. `join` must be commutative bit for bit. A kernel may call it once
/// for each pair of T and Join: the shared memory of a call is not guarded against the next.
template <bool kWarp, class T, class Join>
__device__ __forceinline__ T reduce(T value, T nothing, Join join) {
#pragma unroll
    for (int32_t mask = 16; mask > 0; mask /= 2) value = join(value, of_lane(value, mask));
    if constexpr (kWarp) {
        return value;
    } else {
        __shared__ T partial[32];
        const uint32_t lane = threadIdx.x % 32;
        if (lane == 0) partial[threadIdx.x / 32] = value;
        __syncthreads();  // every warp reads the sums of all
        value = lane < blockDim.x / 32 ? partial[lane] : nothing;
#pragma unroll
        for (int32_t mask = 16; mask > 0; mask /= 2) value = join(value, of_lane(value, mask));
        return value;
    }
}

/// A sum as precise as in f64: what `high` rounds off is collected in `low`. Needs no f64 units,
/// of which most cards have few.
struct Sum {
    float high;
    float low;

    __device__ __forceinline__ void add(float term) {
        const float sum = __fadd_rn(high, term);
        const float part = __fsub_rn(sum, high);
        const float lost = __fadd_rn(__fsub_rn(high, __fsub_rn(sum, part)), __fsub_rn(term, part));
        low = __fadd_rn(low, lost);
        high = sum;
    }
    __device__ __forceinline__ void add_square(float x) {
        const float square = __fmul_rn(x, x);
        const float lost = __fmaf_rn(x, x, -square);
        add(square);
        low = __fadd_rn(low, lost);
    }
};

__device__ __forceinline__ Sum of_lane(const Sum& sum, int32_t mask) {
    Sum other;
    other.high = of_lane(sum.high, mask);
    other.low = of_lane(sum.low, mask);
    return other;
}

struct Add {
    __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
    __device__ __forceinline__ double operator()(double a, double b) const { return a + b; }
    /// What the sum of the high parts loses is exact, hence the same for (b, a).
    __device__ __forceinline__ Sum operator()(const Sum& a, const Sum& b) const {
        Sum sum = a;
        sum.low = __fadd_rn(a.low, b.low);
        sum.add(b.high);
        return sum;
    }
};

struct Largest {
    __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/// Activation of a gated unit, in f32 but for the cubic of GeGLU.
__device__ __forceinline__ float activate(Glu kind, float x) {
    // A division without the slow path of exact ones, which products would wait for: two units in
    // the last place.
    if (kind == Glu::kSwiGlu) return __fdividef(x, 1.0f + expf(-x));
    if (kind == Glu::kSigmoid) return 1.0f / (1.0f + expf(-x));
    if (kind == Glu::kReGlu) return x < 0.0f ? 0.0f : x;
    // (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)), which does not cancel for u < 0. An f32 exponent
    // would cost exp(-2u) as many last places as the exponent has units, hence two f32 numbers;
    // beyond the clamps the quotient is x or 0 all the same.
    constexpr double kTwiceRoot = 1.5957691216057308;  // 2 sqrt(2 / pi)
    const double wide = static_cast<double>(x);
    double exponent = -kTwiceRoot * (wide + 0.044715 * wide * wide * wide);
    exponent = fmin(fmax(exponent, -104.0), 88.0);
    const float high = static_cast<float>(exponent);
    const float low = static_cast<float>(exponent - static_cast<double>(high));
    const float power = expf(high);
    return x / (1.0f + fmaf(power, low, power));
}

}  // namespace tessera::cuda::rows
