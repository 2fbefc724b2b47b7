#pragma once
// The CUDA backend stands in a library of its own that is loaded when somebody asks for it.

#include <memory>

#include "backends/cuda/cuda_ops.h"

namespace tessera::cuda {

/// A backend on a card. UserError(kDevice) when the library is not beside the program (or in
/// ../lib), and as the constructor of CudaOps. The library stays loaded.
std::unique_ptr<Ops> make_cuda_ops(const CudaOptions& options);

}  // namespace tessera::cuda
