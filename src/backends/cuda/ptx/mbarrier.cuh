#pragma once
// Barriers in shared memory on which threads and asynchronous copies arrive (sm_90). A barrier
// completes a phase when its count of arrivals is there and the bytes it expects have come; phases
// alternate between parity 0 and 1, and a wait for a parity returns when the phase of that parity
// is complete. A new barrier is in phase 0, so that a wait for parity 1 returns at once.

#include <cstdint>

#include "backends/cuda/ptx/mma.cuh"

namespace tessera::cuda {

using Barrier = uint64_t;  ///< in shared memory, aligned to 8

__device__ __forceinline__ void barrier_init(Barrier* barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
}

/// Makes initialised barriers known to asynchronous copies and to the other blocks of a cluster.
__device__ __forceinline__ void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(Barrier* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

/// Arrives, and lets the phase wait for `bytes` of copies more.
__device__ __forceinline__ void barrier_arrive_expect(Barrier* barrier, uint32_t bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
}

/// Arrives on the barrier at the same place of block `block` of the cluster.
__device__ __forceinline__ void barrier_arrive_at(Barrier* barrier, uint32_t block) {
    asm volatile(
        "{\n\t.reg .b32 remote;\n\t"
        "mapa.shared::cluster.u32 remote, %0, %1;\n\t"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n\t}" ::"r"(shared_address(barrier)),
        "r"(block)
        : "memory");
}

__device__ __forceinline__ void barrier_wait(Barrier* barrier, uint32_t parity) {
    uint32_t done;
    do {
        asm volatile(
            "{\n\t.reg .pred p;\n\t"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t}"
            : "=r"(done)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
    } while (done == 0);
}

}  // namespace tessera::cuda
