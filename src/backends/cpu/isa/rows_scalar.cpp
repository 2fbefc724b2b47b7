// Row kernels for any machine; on ARM the compiler turns them into NEON.
#include "backends/cpu/isa/rows_generic.h"

namespace tessera::cpu {

const RowKernels& row_kernels_scalar() {
    static constexpr RowKernels kKernels = make_row_kernels<Plain>();
    return kKernels;
}

}  // namespace tessera::cpu
