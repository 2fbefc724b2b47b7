#pragma once
// Registers that the warps of a warpgroup give back or take (sm_90a). The kernel needs
// __launch_bounds__(threads, 1), its roles one branch each of a single if and else.
// more_registers() waits until others have given back what it asks for: roles that together want
// more than the block was launched with (65536 / threads a thread, rounded down to a multiple of
// eight) hang.

namespace tessera::cuda {

template <int Registers>
__device__ __forceinline__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ __forceinline__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

}  // namespace tessera::cuda
