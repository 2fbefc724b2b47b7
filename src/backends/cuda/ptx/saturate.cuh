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

}  // namespace tessera::cuda
