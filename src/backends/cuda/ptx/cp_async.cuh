#pragma once
// Copies from global to shared memory that run beside the instructions after them. Copies belong to
// the group that the thread commits next; wait_copies<n>() returns when all but its newest n groups
// are there. What other threads copied is visible after a __syncthreads() that follows their wait.

#include <cstdint>

namespace tessera::cuda {

/// Copies 16 bytes, both addresses aligned to 16, past the first-level cache. Of the source only
/// `bytes` (0 to 16) are read, the rest becomes zeros; with 0 the address need not be readable.
__device__ __forceinline__ void copy_16(void* shared, const void* global, uint32_t bytes = 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes)
                 : "memory");
}

/// Copies 4 bytes, both addresses aligned to 4; `bytes` (0 to 4) as above.
__device__ __forceinline__ void copy_4(void* shared, const void* global, uint32_t bytes = 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(
                     static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes)
                 : "memory");
}

/// Copies 8 bytes, both addresses aligned to 8; `bytes` (0 to 8) as above.
__device__ __forceinline__ void copy_8(void* shared, const void* global, uint32_t bytes = 8) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(
                     static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes)
                 : "memory");
}

/// Closes this thread's group of copies; empty groups count.
__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most the newest `Pending` groups of this thread are under way.
template <int Pending>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

}  // namespace tessera::cuda
