// The gated delta net, AVX2 with FMA.
#if defined(__x86_64__)

#    include "backends/cpu/isa/recurrent_chunk.h"

namespace tessera::cpu {

const RecurrentKernels& recurrent_kernels_avx2() {
    static constexpr RecurrentKernels kKernels = make_recurrent_kernels<Wide256>();
    return kKernels;
}

}  // namespace tessera::cpu

#endif
