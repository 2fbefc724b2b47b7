// Instances of the products for Hopper alone.
#include "backends/cuda/linear/gemm_sm90.cuh"

namespace tessera::cuda {

template void run_gemm_sm90<DType::kNVFP4>(Device&, Product&);
template void run_gemm_sm90<DType::kMXFP4>(Device&, Product&);

}  // namespace tessera::cuda
