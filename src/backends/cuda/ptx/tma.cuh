#pragma once
// Copies of boxes of a tensor by the copy engine (sm_90 and later). One thread starts a copy; its
// bytes count on the barrier. What lies outside the tensor arrives as zeros, which count too.

#include <cuda.h>

#include <cstdint>

#include "backends/cuda/ptx/mbarrier.cuh"

namespace tessera::cuda {

/// Copies the box at column `x` and row `y` (in elements) of a matrix to `target` in the block's
/// own shared memory, which the instruction says: of the form for clusters ptxas makes a call for
/// sm_120f where the target may be another block's, and then ignores setmaxnreg.
__device__ __forceinline__ void copy_box(
    void* target, const CUtensorMap* map, int32_t x, int32_t y, Barrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(target)),
        "l"(map), "r"(x), "r"(y), "r"(shared_address(barrier))
        : "memory");
}

/// The same of what is soon read for the last time: it is the first to leave the second-level
/// cache.
__device__ __forceinline__ void copy_box_once(
    void* target, const CUtensorMap* map, int32_t x, int32_t y, Barrier* barrier) {
    asm volatile(
        "{\n\t.reg .b64 policy;\n\t"
        "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n\t"
        "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%2, %3}], [%4], policy;\n\t}" ::"r"(shared_address(target)),
        "l"(map), "r"(x), "r"(y), "r"(shared_address(barrier))
        : "memory");
}

/// The same of a tensor with four axes, the innermost first.
__device__ __forceinline__ void copy_box(void* target,
                                         const CUtensorMap* map,
                                         int4 at,
                                         Barrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cta.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(target)),
        "l"(map), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w), "r"(shared_address(barrier))
        : "memory");
}

/// The first copy_box() into every block of the cluster named in `blocks` (bit i: block i), at the
/// same place of its shared memory and on the same barrier of its own.
__device__ __forceinline__ void copy_box_multicast(
    void* target, const CUtensorMap* map, int32_t x, int32_t y, Barrier* barrier, uint16_t blocks) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(target)),
        "l"(map), "r"(x), "r"(y), "r"(shared_address(barrier)), "h"(blocks)
        : "memory");
}

/// Copies a box from shared memory to column `x` and row `y` of a matrix, as far as it lies inside;
/// belongs to the group that store_commit() closes.
__device__ __forceinline__ void store_box(const CUtensorMap* map,
                                          int32_t x,
                                          int32_t y,
                                          const void* shared) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
        "r"(x), "r"(y), "r"(shared_address(shared))
        : "memory");
}
__device__ __forceinline__ void store_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Waits until the copies of this thread's groups have read shared memory.
__device__ __forceinline__ void store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
/// Waits until they are through.
__device__ __forceinline__ void store_wait() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/// Starts to bring memory to the second-level cache; address and bytes are multiples of 16.
__device__ __forceinline__ void prefetch_bytes(const void* global, uint32_t bytes) {
    asm volatile(
        "cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(global)),
        "r"(bytes)
        : "memory");
}

__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

}  // namespace tessera::cuda
