#pragma once
// The CUDA backend stands in a library of its own that is loaded when somebody asks for it.

#include <memory>

#include "backends/cuda/cuda_ops.h"

namespace tessera::cuda {

/// A backend on a card. UserError(kDevice) when the library is not beside the program (or in
/// ../lib), and as the constructor of CudaOps. The library stays loaded.
std::unique_ptr<Ops> make_cuda_ops(const CudaOptions& options);

/// Whether an NVIDIA driver offers a card on this machine, or fails where it should. Asks the
/// driver itself; needs no library of ours.
bool card_present();

}  // namespace tessera::cuda
