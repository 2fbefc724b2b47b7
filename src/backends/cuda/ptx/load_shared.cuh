#pragma once
// Loads from and stores to addresses of shared memory (shared_address) that stay where they stand
// in the program.

#include <cstdint>

namespace tessera::cuda {

__device__ __forceinline__ uint32_t load_shared(uint32_t address) {
    uint32_t word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
    return word;
}
/// Two words, aligned to 8 bytes.
__device__ __forceinline__ uint2 load_shared_two(uint32_t address) {
    uint2 two;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(two.x), "=r"(two.y)
                 : "r"(address)
                 : "memory");
    return two;
}
/// Four words, aligned to 16 bytes.
__device__ __forceinline__ uint4 load_shared_four(uint32_t address) {
    uint4 four;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(four.x), "=r"(four.y), "=r"(four.z), "=r"(four.w)
                 : "r"(address)
                 : "memory");
    return four;
}
/// To 16 bytes, aligned so.
__device__ __forceinline__ void store_shared_four(
    uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}

}  // namespace tessera::cuda
