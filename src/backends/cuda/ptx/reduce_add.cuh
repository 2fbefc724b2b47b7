#pragma once
// Additions that the second-level cache does by itself.

namespace tessera::cuda {

/// *global += value, rounded to nearest; subnormal numbers count as 0. Nobody waits for it.
__device__ __forceinline__ void reduce_add(float* global, float value) {
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(__cvta_generic_to_global(global)),
                 "f"(value)
                 : "memory");
}
/// The same sum of two registers.
__device__ __forceinline__ float add_flushing(float a, float b) {
    float sum;
    asm("add.rn.ftz.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
    return sum;
}

}  // namespace tessera::cuda
