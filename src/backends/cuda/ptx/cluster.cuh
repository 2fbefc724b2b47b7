#pragma once
// Blocks that run at the same time on neighbouring multiprocessors (sm_90).

#include <cstdint>

namespace tessera::cuda {

__device__ __forceinline__ uint32_t block_in_cluster() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/// All threads of all blocks of the cluster meet.
__device__ __forceinline__ void cluster_meet() {
    asm volatile(
        "barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::
            : "memory");
}

}  // namespace tessera::cuda
