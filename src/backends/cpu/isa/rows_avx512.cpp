// Row kernels, AVX-512.
#if defined(__x86_64__)

#    include "backends/cpu/isa/rows_generic.h"

namespace tessera::cpu {

const RowKernels& row_kernels_avx512() {
    static constexpr RowKernels kKernels = make_row_kernels<Wide512>();
    return kKernels;
}

}  // namespace tessera::cpu

#endif
