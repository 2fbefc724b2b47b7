// The product of NVFP4 with NVFP4 as cards with FP4 tensor cores have it.
#include "backends/cuda/linear/gemm_nvfp4_sm120.cuh"

namespace tessera::cuda {

template void run_gemm_nvfp4_sm120<NativeFp4Mma>(Device&, const Product&, const Fp4Rows&);

}  // namespace tessera::cuda
