#pragma once
// Conversions of two f32 to 16 bits, `low` in the lower half, nearest even,
// that saturate: what is beyond the largest finite number becomes that, NaN
// stays NaN.

#include <cstdint>

namespace tessera::cuda {

__device__ __forceinline__ uint32_t saturate_f16(float low, float high) {
    uint32_t out;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}
__device__ __forceinline__ uint32_t saturate_bf16(float low, float high) {
    uint32_t out;
    asm("cvt.rn.satfinite.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
/// To e4m3, 8 bits each, in the lower half of the result.
__device__ __forceinline__ uint32_t saturate_e4m3(float low, float high) {
    uint16_t out;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(out) : "f"(high), "f"(low));
    return out;
}
#endif

}  // namespace tessera::cuda
