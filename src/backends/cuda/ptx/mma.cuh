#pragma once
// Products of small matrices on tensor cores, and the loads that bring their operands from shared
// memory. All 32 lanes of a warp call these together. With g = lane / 4 and t = lane % 4, a lane's
// registers hold (two bf16 a register, the lower index in the lower half)
//   A (16 x 16): a[0] = (g, 2t..), a[1] = (g + 8, 2t..), a[2] = (g, 2t + 8..), a[3] = (g + 8,
//                2t + 8..)
//   B (16 x 8):  b[0] = (2t.., g), b[1] = (2t + 8.., g)
//   C (16 x 8):  c[0], c[1] = (g, 2t), (g, 2t + 1), c[2], c[3] = (g + 8, 2t), (g + 8, 2t + 1).

#include <cuda_bf16.h>

#include <cstdint>

#include "backends/cuda/ptx/shared_address.cuh"

namespace tessera::cuda {

/// c += a b for bf16 operands and f32 sums.
__device__ __forceinline__ void mma_bf16(float (&c)[4],
                                         const uint32_t (&a)[4],
                                         const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// Four 8 x 8 matrices of 16-bit numbers. Lane l gives the address of row l % 8 (16 bytes, aligned
/// to 16) of matrix l / 8; out[i] is this lane's part of matrix i: row g, columns 2t and 2t + 1.
/// A row-major A operand: lane l points at row l % 16, column (l / 16) * 8.
__device__ __forceinline__ void load_matrices(uint32_t (&out)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/// The same with every matrix transposed: out[i] is rows 2t and 2t + 1 of column g.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&out)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/// Two f32 to bf16, nearest even: `low` in the lower half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
}

/// Product of two pairs of bf16, rounded to nearest even, subnormals kept.
__device__ __forceinline__ uint32_t multiply_bf16(uint32_t a, uint32_t b) {
    uint32_t out;
    // An fma with -0 as third operand: sm_80 has no plain product of bf16.
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(0x80008000u));
    return out;
}

}  // namespace tessera::cuda
