// The gated delta net for any machine; on ARM the compiler turns them into NEON.
#include "backends/cpu/isa/recurrent_chunk.h"

namespace tessera::cpu {

const RecurrentKernels& recurrent_kernels_scalar() {
    static constexpr RecurrentKernels kKernels = make_recurrent_kernels<Plain>();
    return kKernels;
}

}  // namespace tessera::cpu
