// The products of packed rows as cards with FP4 tensor cores have them, on Hopper: everything but
// the instruction is the same. For checks of the kernel and of whole models, not for speed.
#include "backends/cuda/linear/gemm_nvfp4_sm120.cuh"

namespace tessera::cuda {

template void run_gemm_nvfp4_sm120<EmulatedFp4Mma>(Device&, const Product&, DType, const Fp4Rows&);
template void run_glu_nvfp4_sm120<EmulatedFp4Mma>(
    Device&, const Product&, const GluProduct&, DType, const Fp4Rows&);

}  // namespace tessera::cuda
