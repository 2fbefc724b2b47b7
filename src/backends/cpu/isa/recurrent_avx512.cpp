// The gated delta net, AVX-512.
#if defined(__x86_64__)

#    include "backends/cpu/isa/recurrent_chunk.h"

namespace tessera::cpu {

const RecurrentKernels& recurrent_kernels_avx512() {
    static constexpr RecurrentKernels kKernels = make_recurrent_kernels<Wide512>();
    return kKernels;
}

}  // namespace tessera::cpu

#endif
