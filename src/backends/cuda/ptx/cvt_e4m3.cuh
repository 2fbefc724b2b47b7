#pragma once
// 8-bit floats to half precision (PTX ISA, cvt.rn.f16x2.e4m3x2); cards before sm_89 lack the
// instruction and shift the fields instead.

#include <cuda_fp16.h>

#include <cstdint>

namespace tessera::cuda {

/// Two E4M3 codes, exactly, as f16: the lower byte in the lower half. 0x7f and 0xff give NaN.
__device__ __forceinline__ uint32_t f16_pair_of_e4m3(uint16_t codes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint32_t pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(codes));
    return pair;
#else
    const uint32_t spread = __byte_perm(codes, 0, 0x1404);  // each code in the upper byte of a half
    const uint32_t magnitude = spread & 0x7f007f00u;
    const uint32_t nan = (magnitude + 0x01000100u) & 0x80008000u;
    // Exponent and fraction to their places; the bias of half precision is larger by 8.
    const uint32_t bits = (spread & 0x80008000u) | magnitude >> 1 | nan >> 1;
    const __half2 scaled =
        __hmul2(*reinterpret_cast<const __half2*>(&bits), __floats2half2_rn(256.0f, 256.0f));
    return *reinterpret_cast<const uint32_t*>(&scaled);
#endif
}

}  // namespace tessera::cuda
