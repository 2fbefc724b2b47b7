#pragma once
// The way back of load_matrices (mma.cuh), from registers to shared memory (sm_90).

#include <cstdint>

#include "backends/cuda/ptx/shared_address.cuh"

namespace tessera::cuda {

/// Four 8 x 8 matrices of 16-bit elements, transposed: `row` of lane l is where column l % 8 of
/// matrix l / 8 goes, as 16 bytes. With g = lane / 4 and t = lane % 4, in[i] is columns 2t and
/// 2t + 1 of row g of matrix i.
__device__ __forceinline__ void store_matrices_transposed(void* row, const uint32_t (&in)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     shared_address(row)),
                 "r"(in[0]), "r"(in[1]), "r"(in[2]), "r"(in[3])
                 : "memory");
}

}  // namespace tessera::cuda
