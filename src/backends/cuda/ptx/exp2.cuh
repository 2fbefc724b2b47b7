#pragma once
// Powers of two and reciprocals by the special function unit, results below 2^-126 as 0.

namespace tessera::cuda {

/// 2^x to 2 ulp; exact for 0 (1), -inf (0) and inf.
__device__ __forceinline__ float fast_exp2(float x) {
    float out;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
}

/// 1 / x to 1 ulp; 0 for inf.
__device__ __forceinline__ float fast_reciprocal(float x) {
    float out;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
}

}  // namespace tessera::cuda
