#pragma once
// copy_box() of tma.cuh for kernels of sm_120. Its target there is said to lie in the block's own
// shared memory: of the form for clusters ptxas makes a call for sm_120f where the target may be
// another block's, and then ignores setmaxnreg.

#include <cuda.h>

#include <cstdint>

#include "backends/cuda/ptx/mbarrier.cuh"

namespace tessera::cuda {

/// Copies the box at column `x` and row `y` (in elements) of a matrix to `target`.
__device__ __forceinline__ void copy_box_own(
    void* target, const CUtensorMap* map, int32_t x, int32_t y, Barrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(target)),
        "l"(map), "r"(x), "r"(y), "r"(shared_address(barrier))
        : "memory");
}

}  // namespace tessera::cuda
