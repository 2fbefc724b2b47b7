// Instances of the products for some formats; several files, so that they compile side by side.
#include "backends/cuda/linear/gemm.cuh"
#include "backends/cuda/linear/gemv.cuh"

namespace tessera::cuda {

template void run_gemv<DType::kF32>(Device&, Product&);
template void run_gemm<DType::kF16>(Device&, Product&);
template void run_gemv<DType::kF16>(Device&, Product&);
template void run_gemm<DType::kBF16>(Device&, Product&);
template void run_gemv<DType::kBF16>(Device&, Product&);

}  // namespace tessera::cuda
