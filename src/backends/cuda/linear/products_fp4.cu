// Instances of the products for some formats; several files, so that they compile side by side.
#include "backends/cuda/linear/gemm.cuh"
#include "backends/cuda/linear/gemv.cuh"

namespace tessera::cuda {

template void run_gemm<DType::kNVFP4>(Device&, Product&);
template void run_gemv<DType::kNVFP4>(Device&, Product&);
template void run_gemm<DType::kMXFP4>(Device&, Product&);
template void run_gemv<DType::kMXFP4>(Device&, Product&);

}  // namespace tessera::cuda
