#pragma once
// load_matrices() of mma.cuh from an address of shared memory (shared_address).

#include <cstdint>

namespace tessera::cuda {

__device__ __forceinline__ void load_matrices_at(uint32_t (&out)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address)
                 : "memory");
}

}  // namespace tessera::cuda
