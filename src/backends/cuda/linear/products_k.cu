// Instances of the products for some formats; several files, so that they compile side by side.
#include "backends/cuda/linear/gemm.cuh"
#include "backends/cuda/linear/gemv.cuh"

namespace tessera::cuda {

template void run_gemm<DType::kQ4_K>(Device&, Product&);
template void run_gemv<DType::kQ4_K>(Device&, Product&);
template void run_gemm<DType::kQ5_K>(Device&, Product&);
template void run_gemv<DType::kQ5_K>(Device&, Product&);
template void run_gemm<DType::kQ6_K>(Device&, Product&);
template void run_gemv<DType::kQ6_K>(Device&, Product&);

}  // namespace tessera::cuda
