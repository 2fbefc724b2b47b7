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

/// Arrivals of a warp that tells what all of its lanes have done: of one lane. racecheck follows a
/// thread to its own arrivals, but not over a meeting of the warp to those of another lane; the
/// library for it is compiled so that all lanes arrive.
#ifdef TESSERA_EVERY_LANE_ARRIVES
inline constexpr bool kEveryLaneArrives = true;
#else
inline constexpr bool kEveryLaneArrives = false;
#endif
inline constexpr uint32_t kWarpArrivals = kEveryLaneArrives ? 32 : 1;
__device__ __forceinline__ bool lane_arrives() {
    return kEveryLaneArrives || threadIdx.x % 32 == 0;
}
/// Arrives for this warp, all lanes of which have done what the arrival is about.
__device__ __forceinline__ void barrier_arrive_warp(Barrier* barrier) {
    __syncwarp();
    if (lane_arrives()) barrier_arrive(barrier);
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

/// Arrives for this warp on the barrier at the same place of each of `Blocks` blocks of the
/// cluster.
template <uint32_t Blocks>
__device__ __forceinline__ void barrier_arrive_warp_at_all(Barrier* barrier) {
    const uint32_t lane = threadIdx.x % 32;
    __syncwarp();
    if constexpr (kEveryLaneArrives) {
        for (uint32_t block = 0; block < Blocks; ++block) barrier_arrive_at(barrier, block);
    } else if (lane < Blocks) {
        barrier_arrive_at(barrier, lane);
    }
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

/// Where a role stands in a ring of slots, each with barriers of its own.
template <int Slots>
struct Ring {
    int slot = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void next() {
        if (++slot == Slots) {
            slot = 0;
            parity ^= 1;
        }
    }
    __device__ __forceinline__ int before() const { return slot == 0 ? Slots - 1 : slot - 1; }
};

}  // namespace tessera::cuda
