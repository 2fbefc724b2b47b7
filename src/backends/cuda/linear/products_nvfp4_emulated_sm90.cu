// The product of NVFP4 with NVFP4 as cards with FP4 tensor cores have it, on Hopper: everything but
// the instruction is the same. For checks of the kernel and of whole models, not for speed.
#include "backends/cuda/linear/gemm_nvfp4_sm120.cuh"

namespace tessera::cuda {

template void run_gemm_nvfp4_sm120<EmulatedFp4Mma>(Device&, const Product&, const Fp4Rows&);

}  // namespace tessera::cuda
