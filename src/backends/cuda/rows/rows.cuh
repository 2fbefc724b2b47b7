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

/// Quotients by a number that is the same for many: n / d for n < 2^31, 0 < d < 2^31, without a
/// division (Granlund and Montgomery 1994: ceil(2^(31 + l) / d) with 2^l >= d).
struct Divider {
    uint32_t divisor = 1;
    uint32_t factor = 0;
    uint32_t shift = 0;

    Divider() = default;
    explicit Divider(uint32_t by) : divisor(by) {
        if (by <= 1) return;
        while ((1u << shift) < by) ++shift;
        factor = static_cast<uint32_t>(((uint64_t{1} << (31 + shift)) + by - 1) / by);
        --shift;
    }
    __host__ __device__ __forceinline__ uint32_t quotient(uint32_t n) const {
        if (divisor == 1) return n;
        return static_cast<uint32_t>(uint64_t{n} * factor >> 32) >> shift;
    }
};

/// Rows of a tensor: all axes but the last as one index, the outermost slowest. Axes are numbered
/// from inside; those that lie evenly behind each other have become one.
template <class T>
struct RowMap {
    T* data = nullptr;
    int64_t stride[3] = {0, 0, 0};
    Divider extent[2];  ///< of the inner two; both 1 when one stride tells it all

    /// Start of row `index` < 2^31.
    __host__ __device__ T* row(uint32_t index) const {
        if (extent[0].divisor == 1 && extent[1].divisor == 1) return data + index * stride[0];
        const uint32_t outer = extent[0].quotient(index);
        const uint32_t outmost = extent[1].quotient(outer);
        return data + (index - outer * extent[0].divisor) * stride[0] +
               (outer - outmost * extent[1].divisor) * stride[1] + outmost * stride[2];
    }
};

/// Four consecutive elements of a row, zeros behind its end.
struct Four {
    float value[4];
};

/// At a multiple of 16 bytes.
__device__ __forceinline__ Four load_whole_four(const float* four) {
    const float4 all = *reinterpret_cast<const float4*>(four);
    return {{all.x, all.y, all.z, all.w}};
}
/// The same of a four that nobody reads again: it makes room in the caches first.
__device__ __forceinline__ Four load_whole_four_once(const float* four) {
    const float4 all = __ldcs(reinterpret_cast<const float4*>(four));
    return {{all.x, all.y, all.z, all.w}};
}

/// `vector`: the row starts at a multiple of 16 bytes. `column` is a multiple of 4.
__device__ __forceinline__ Four load_four(const float* row,
                                          int64_t column,
                                          int64_t cols,
                                          bool vector) {
    if (vector && column + 4 <= cols) return load_whole_four(row + column);
    Four four;
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) four.value[i] = column + i < cols ? row[column + i] : 0.0f;
    return four;
}

/// The same of bf16; `vector`: the row starts at a multiple of 8 bytes.
__device__ __forceinline__ Four load_four(const __nv_bfloat16* row,
                                          int64_t column,
                                          int64_t cols,
                                          bool vector) {
    Four four;
    if (vector && column + 4 <= cols) {
        const uint2 packed = *reinterpret_cast<const uint2*>(row + column);
        const float2 low = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(packed.x));
        const float2 high = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(packed.y));
        return {{low.x, low.y, high.x, high.y}};
    }
#pragma unroll
    for (int32_t i = 0; i < 4; ++i)
        four.value[i] = column + i < cols ? __bfloat162float(row[column + i]) : 0.0f;
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

/// One row of a matrix input: what a kernel that holds (a part of) a row in registers ends with.
struct RowSink {
    float* exact = nullptr;
    __nv_bfloat16* rounded = nullptr;
    bool pairs = false;  ///< transposed pairs in `rounded`

    /// Stores columns [column, column + 4) as far as they lie before `end`. `vector`: `column` and
    /// the row's length are multiples of 4.
    __device__ __forceinline__ void store(const Four& four,
                                          int64_t column,
                                          int64_t end,
                                          bool vector) const {
        if (exact != nullptr) store_four(four, column, end, vector, exact);
        if (rounded == nullptr) return;
        if (pairs)
            store_pairs(four, column, end, vector, rounded);
        else
            store_four(four, column, end, vector, rounded);
    }
    /// The same of a whole four, `vector`.
    __device__ __forceinline__ void store_whole(const Four& four, int32_t column) const {
        if (exact != nullptr)
            *reinterpret_cast<float4*>(exact + column) =
                make_float4(four.value[0], four.value[1], four.value[2], four.value[3]);
        if (rounded == nullptr) return;
        const __nv_bfloat162 low = __floats2bfloat162_rn(four.value[0], four.value[1]);
        const __nv_bfloat162 high = __floats2bfloat162_rn(four.value[2], four.value[3]);
        const uint2 packed = make_uint2(reinterpret_cast<const uint32_t&>(low),
                                        reinterpret_cast<const uint32_t&>(high));
        if (pairs) {
            // transposed_pair_place() of multiples of 4.
            __nv_bfloat16* const place =
                rounded + ((column & ~31) | (column & 4) << 2 | (column & 24) >> 2);
            *reinterpret_cast<uint32_t*>(place) = packed.x;
            *reinterpret_cast<uint32_t*>(place + 8) = packed.y;
        } else {
            *reinterpret_cast<uint2*>(rounded + column) = packed;
        }
    }
};

/// The memory of a matrix input; null where a format is not wanted. Index 0: prompt rows.
struct InputSink {
    float* f32[2] = {nullptr, nullptr};
    __nv_bfloat16* bf16[2] = {nullptr, nullptr};
    bool transposed_pairs = false;  ///< in bf16[0] and nvfp4
    // Of prompt rows e4m3, or nvfp4 or fp4, with row_scales:
    uint8_t* e4m3 = nullptr;
    bool transposed_quads = false;   ///< in e4m3
    __nv_bfloat16* nvfp4 = nullptr;  ///< in the order of bf16[0]
    uint8_t* fp4 = nullptr;          ///< codes as Fp4Rows has them; columns a multiple of 64
    uint8_t* fp4_scales = nullptr;   ///< with fp4
    Nvfp4Policy policy = Nvfp4Policy::kAmax6;  ///< of nvfp4 or fp4
    float* row_scales = nullptr;
    uint32_t prompt_rows = 0;
    int64_t cols = 0;

    __device__ __forceinline__ RowSink row(uint32_t row) const {
        const bool generated = row >= prompt_rows;
        const int64_t start = (generated ? row - prompt_rows : row) * cols;
        float* const exact = generated ? f32[1] : f32[0];
        __nv_bfloat16* const rounded = generated ? bf16[1] : bf16[0];
        return {exact == nullptr ? nullptr : exact + start,
                rounded == nullptr ? nullptr : rounded + start, transposed_pairs && !generated};
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
        const auto lane = static_cast<int32_t>(threadIdx.x % 32);
        const auto warps = static_cast<int32_t>(blockDim.x / 32);
        if (lane == 0) partial[threadIdx.x / 32] = value;
        __syncthreads();  // every warp reads the sums of all
        // Every 2, 4, 8, 16 or 32 lanes have what the warps left, and join it.
        const int32_t mine = warps > 1 ? lane & (0x7fffffff >> (__clz(warps - 1) - 1)) : 0;
        value = mine < warps ? partial[mine] : nothing;
#pragma unroll
        for (int32_t mask = 16; mask > 0; mask /= 2)
            if (mask < warps) value = join(value, of_lane(value, mask));
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
    /// As `add` of the square, which is rounded with the sum only.
    __device__ __forceinline__ void add_square(float x) {
        const float sum = __fmaf_rn(x, x, high);
        const float part = __fsub_rn(sum, high);
        const float lost = __fadd_rn(__fsub_rn(high, __fsub_rn(sum, part)), __fmaf_rn(x, x, -part));
        low = __fadd_rn(low, lost);
        high = sum;
    }
    __device__ __forceinline__ float value() const { return __fadd_rn(high, low); }
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

/// reduce<true> of four values at once: lanes [8i, 8i + 8) get what values[i] of all lanes come to,
/// joined in the same order.
template <class T, class Join>
__device__ __forceinline__ T reduce_four(const T (&values)[4], Join join) {
    const bool upper = (threadIdx.x & 16) != 0, odd = (threadIdx.x & 8) != 0;
    // By value: a choice between places would need memory.
    const auto either = [](bool which, T yes, T no) { return which ? T(yes) : T(no); };
    const T first =
        join(either(upper, values[2], values[0]), of_lane(either(upper, values[0], values[2]), 16));
    const T second =
        join(either(upper, values[3], values[1]), of_lane(either(upper, values[1], values[3]), 16));
    T value = join(either(odd, second, first), of_lane(either(odd, first, second), 8));
#pragma unroll
    for (int32_t mask = 4; mask > 0; mask /= 2) value = join(value, of_lane(value, mask));
    return value;
}

struct Largest {
    __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/// Activation of a gated unit, in f32 but for the cubic of GeGLU.
__device__ __forceinline__ float activate(Glu kind, float x) {
    // Without the steps of an exact division: two units in the last place, and zero instead of
    // magnitudes below 2^-119 (as in the convolution before the delta rule).
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

/// x becomes act(gate) * x.
__device__ __forceinline__ void apply_gate(Four& four, const Four& gate, Glu kind = Glu::kSwiGlu) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) four.value[i] = activate(kind, gate.value[i]) * four.value[i];
}

}  // namespace tessera::cuda::rows
