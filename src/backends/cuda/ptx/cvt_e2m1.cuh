#pragma once
// Conversions from and to E2M1 of cards with FP4 tensor cores (PTX ISA, cvt.rn.satfinite.e2m1x2.f32
// and cvt.rn.f16x2.e2m1x2).

#include <cstdint>

namespace tessera::cuda {

/// Whether this machine code has the instructions on FP4 numbers: targets sm_120f, sm_120a and
/// sm_121a, but not plain ones.
#if defined(__CUDA_ARCH_FAMILY_SPECIFIC__)
#    if __CUDA_ARCH_FAMILY_SPECIFIC__ >= 1200 && __CUDA_ARCH_FAMILY_SPECIFIC__ < 1300
#        define TESSERA_NATIVE_FP4 1
#    endif
#endif
#ifndef TESSERA_NATIVE_FP4
#    define TESSERA_NATIVE_FP4 0
#endif

#if TESSERA_NATIVE_FP4

/// Two codes, that of `low` in the lower four bits of eight: nearest even, magnitudes over 6 become
/// 6, signs are kept, those of zeros, too; a NaN becomes +6.
__device__ __forceinline__ uint32_t e2m1_pair(float low, float high) {
    uint16_t out;
    asm("{ .reg .b8 pair; cvt.rn.satfinite.e2m1x2.f32 pair, %2, %1; mov.b16 %0, {pair, 0}; }"
        : "=h"(out)
        : "f"(low), "f"(high));
    return out;
}

/// Two codes (the lower eight bits), exactly, as f16: the lower one in the lower half.
__device__ __forceinline__ uint32_t f16_pair_of_e2m1(uint32_t codes) {
    uint32_t out;
    asm("{ .reg .b8 pair, rest; mov.b16 {pair, rest}, %1; cvt.rn.f16x2.e2m1x2 %0, pair; }"
        : "=r"(out)
        : "h"(static_cast<uint16_t>(codes)));
    return out;
}

#endif

}  // namespace tessera::cuda
