#pragma once
// Loads and stores of global memory under a condition, without a branch:
// products of a warpgroup that are under way bear none.

#include <cstdint>

namespace tessera::cuda {

/// *address if `wanted`, else 0.
__device__ __forceinline__ float load_if(bool wanted, const float* address) {
    float out;
    asm volatile(
        "{ .reg .pred wanted; setp.ne.s32 wanted, %2, 0; mov.f32 %0, "
        "0f00000000;\n"
        "@wanted ld.global.f32 %0, [%1]; }"
        : "=f"(out)
        : "l"(__cvta_generic_to_global(address)), "r"(static_cast<int32_t>(wanted))
        : "memory");
    return out;
}
}  // namespace tessera::cuda
