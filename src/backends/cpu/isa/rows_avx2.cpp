// Row kernels, AVX2 with FMA and F16C.
#if defined(__x86_64__)

#    include "backends/cpu/isa/rows_generic.h"

namespace tessera::cpu {

const RowKernels& row_kernels_avx2() {
    static constexpr RowKernels kKernels = make_row_kernels<Wide256>();
    return kKernels;
}

}  // namespace tessera::cpu

#endif
