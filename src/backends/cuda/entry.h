#pragma once
// How the program enters the library of the CUDA backend, which it loads at run time: a machine
// without driver, card or library still has everything else.

#include "backends/cuda/cuda_ops.h"

extern "C" {
/// A backend on options.device, owned by the caller. Throws UserError(kDevice or kMemory).
[[gnu::visibility("default")]] tessera::Ops* tessera_cuda_create(
    const tessera::cuda::CudaOptions& options);
/// The hash of the headers that both sides were compiled with.
[[gnu::visibility("default")]] const char* tessera_cuda_interface();
}
