#pragma once
// Copies of blocks of bytes by the copy engine (sm_90), and arrivals on barriers that go with them.

#include <cstdint>

#include "backends/cuda/ptx/mbarrier.cuh"

namespace tessera::cuda {

/// `bytes` (a multiple of 16, both addresses aligned to 16) to shared memory; they count on the
/// barrier.
__device__ __forceinline__ void copy_block(void* shared,
                                           const void* global,
                                           uint32_t bytes,
                                           Barrier* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(shared_address(shared)),
        "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

/// Arrives if `wanted`, without a branch: products of a warpgroup that are under way bear none.
__device__ __forceinline__ void barrier_arrive_if(bool wanted, Barrier* barrier) {
    asm volatile(
        "{ .reg .pred wanted; setp.ne.s32 wanted, %1, 0;\n"
        "@wanted mbarrier.arrive.shared::cta.b64 _, [%0]; }" ::"r"(shared_address(barrier)),
        "r"(static_cast<int32_t>(wanted))
        : "memory");
}

/// Arrives when all copies of cp_async.cuh that this thread has begun are there.
__device__ __forceinline__ void barrier_arrive_after_copies(Barrier* barrier) {
    asm volatile(
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
        : "memory");
}

}  // namespace tessera::cuda
