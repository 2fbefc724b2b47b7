// Instances of the products for Hopper whose rows of x are e4m3.
#include "backends/cuda/linear/gemm_sm90_fp8.cuh"

namespace tessera::cuda {

template void run_gemm_sm90_fp8<DType::kNVFP4>(Device&, Product&);
template void run_gemm_sm90_fp8<DType::kMXFP4>(Device&, Product&);
template void find_row_factors<DType::kNVFP4>(Device&, const uint8_t*, int64_t, int64_t, float*);
template void find_row_factors<DType::kMXFP4>(Device&, const uint8_t*, int64_t, int64_t, float*);

}  // namespace tessera::cuda
