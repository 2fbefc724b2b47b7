// Products with AVX2: two halves of eight rows.
#include "backends/cpu/isa/linear_kernels.h"

#if defined(__AVX2__)

#    include "backends/cpu/isa/linear_blocks.h"

namespace tessera::cpu {

const LinearKernels& linear_kernels_avx2() {
    static const LinearKernels kKernels = make_kernels<Wide256, RegisterBlocks<Wide256>>();
    return kKernels;
}

}  // namespace tessera::cpu

#endif
