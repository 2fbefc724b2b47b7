#pragma once
// Rounding to the E2M1 multiples of a block's scale, as core/codec_fp4.cpp does it: on any card,
// and by the instructions of cards with FP4 tensor cores. Both give the same bits, which
// tests/core/e2m1_quotient_test.cpp shows of the quotient and the self-test
// (linear/fp4_self_test.cuh) of the instructions.

#include <cuda_fp16.h>

#include <type_traits>

#include "backends/cuda/ptx/cvt_e2m1.cuh"
#include "backends/cuda/rows/e2m1_quotient.h"
#include "backends/cuda/rows/encode.cuh"

namespace tessera::cuda::rows {

/// By comparisons with products. `scale`: any ue4m3 number.
struct SoftwareE2m1 {
    static constexpr bool kAvailable = true;
    float scale;

    __device__ __forceinline__ explicit SoftwareE2m1(float of) : scale(of) {}

    /// Codes of four numbers up to 2^100, value i in bits 4i to 4i + 3: nearest even, the signs of
    /// zeros kept. A NaN is a zero; under a scale of 0 everything is +0.
    __device__ __forceinline__ uint32_t codes(const float (&values)[4]) const {
        uint32_t out = 0;
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) out |= nv_code(values[i], scale) << (4 * i);
        return scale == 0.0f ? 0 : out;
    }
    /// Squares of what rounding changes in them.
    __device__ __forceinline__ void squared_errors(const float (&values)[4],
                                                   float (&out)[4]) const {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
            const float magnitude = fabsf(values[i]);
            const float error = minus(mul(e2m1_value(nv_code(magnitude, scale)), scale), magnitude);
            out[i] = mul(error, error);
        }
    }
};

/// By quotients that the instruction rounds: 5 to 7 instructions a number instead of 20 and more.
struct NativeE2m1 {
    static constexpr bool kAvailable = TESSERA_NATIVE_FP4 == 1;
    float scale, inverse;

#if TESSERA_NATIVE_FP4
    /// Within a unit of the last place, which is more than e2m1_quotient() needs.
    __device__ __forceinline__ explicit NativeE2m1(float of) : scale(of) {
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(of));
    }

    __device__ __forceinline__ uint32_t codes(const float (&values)[4]) const {
        float quotients[4];
#    pragma unroll
        for (int32_t i = 0; i < 4; ++i)
            // fmaxf() makes zeros of NaNs.
            quotients[i] = copysignf(fmaxf(quotient(fabsf(values[i])), 0.0f), values[i]);
        const uint32_t out =
            e2m1_pair(quotients[0], quotients[1]) | e2m1_pair(quotients[2], quotients[3]) << 8;
        return scale == 0.0f ? 0 : out;
    }
    __device__ __forceinline__ void squared_errors(const float (&values)[4],
                                                   float (&out)[4]) const {
        // Under a scale of 0 codes mean nothing, and their products with it are zeros.
#    pragma unroll
        for (int32_t i = 0; i < 4; i += 2) {
            const float first = fabsf(values[i]), second = fabsf(values[i + 1]);
            const uint32_t pair = f16_pair_of_e2m1(e2m1_pair(quotient(first), quotient(second)));
            const float2 rounded = __half22float2(*reinterpret_cast<const __half2*>(&pair));
            // Of exact products, so that one rounding is left.
            const float first_error = __fmaf_rn(rounded.x, scale, -first);
            const float second_error = __fmaf_rn(rounded.y, scale, -second);
            out[i] = mul(first_error, first_error);
            out[i + 1] = mul(second_error, second_error);
        }
    }

  private:
    struct Arithmetic {
        static __device__ __forceinline__ float mul(float a, float b) { return __fmul_rn(a, b); }
        static __device__ __forceinline__ float fma(float a, float b, float c) {
            return __fmaf_rn(a, b, c);
        }
    };
    __device__ __forceinline__ float quotient(float x) const {
        return e2m1_quotient(x, scale, inverse, Arithmetic{});
    }
#endif
};

/// What this machine code has.
using NearestE2m1 = std::conditional_t<TESSERA_NATIVE_FP4 == 1, NativeE2m1, SoftwareE2m1>;

}  // namespace tessera::cuda::rows
