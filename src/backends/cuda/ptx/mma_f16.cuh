#pragma once
// The product of mma.cuh for f16 operands: the same fragments.

#include <cuda_fp16.h>

#include <cstdint>

#include "backends/cuda/ptx/mma.cuh"

namespace tessera::cuda {

/// c += a b for f16 operands and f32 sums.
__device__ __forceinline__ void mma_f16(float (&c)[4],
                                        const uint32_t (&a)[4],
                                        const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// c += a b for operands in f16 or bf16.
template <bool kHalf>
__device__ __forceinline__ void mma_16bit(float (&c)[4],
                                          const uint32_t (&a)[4],
                                          uint32_t b0,
                                          uint32_t b1) {
    const uint32_t b[2] = {b0, b1};
    if constexpr (kHalf)
        mma_f16(c, a, b);
    else
        mma_bf16(c, a, b);
}

/// Two f32 to f16, nearest even: `low` in the lower half.
__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
}

}  // namespace tessera::cuda
