// Instances of the products for some formats; several files, so that they compile side by side.
#include "backends/cuda/linear/gemm.cuh"
#include "backends/cuda/linear/gemv.cuh"

namespace tessera::cuda {

template void run_gemm<DType::kQ4_0>(Device&, Product&);
template void run_gemv<DType::kQ4_0>(Device&, Product&);
template void run_gemm<DType::kQ4_1>(Device&, Product&);
template void run_gemv<DType::kQ4_1>(Device&, Product&);
template void run_gemm<DType::kQ5_0>(Device&, Product&);
template void run_gemv<DType::kQ5_0>(Device&, Product&);
template void run_gemm<DType::kQ5_1>(Device&, Product&);
template void run_gemv<DType::kQ5_1>(Device&, Product&);
template void run_gemm<DType::kQ8_0>(Device&, Product&);
template void run_gemv<DType::kQ8_0>(Device&, Product&);

}  // namespace tessera::cuda
