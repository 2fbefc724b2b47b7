#pragma once
// Barriers of a block by number, for some of its warps, and the order of ordinary writes to shared
// memory before accesses by the copy engine and wgmma.

#include <cstdint>

namespace tessera::cuda {

/// Waits until `threads` threads have come to the barrier or announced themselves.
__device__ __forceinline__ void named_sync(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
/// Counts at the barrier without waiting.
__device__ __forceinline__ void named_arrive(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
/// named_sync(), and whether `condition` holds for any of the threads.
__device__ __forceinline__ bool named_any(int barrier, int threads, bool condition) {
    uint32_t any;
    asm volatile(
        "{\n\t.reg .pred p, q;\n\tsetp.ne.b32 p, %3, 0;\n\t"
        "barrier.red.or.pred q, %1, %2, p;\n\tselp.u32 %0, 1, 0, q;\n\t}"
        : "=r"(any)
        : "r"(barrier), "r"(threads), "r"(static_cast<int>(condition))
        : "memory");
    return any != 0;
}

/// This thread's writes to shared memory come before what the copy engine and wgmma do after the
/// next barrier.
__device__ __forceinline__ void fence_async_proxy() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace tessera::cuda
