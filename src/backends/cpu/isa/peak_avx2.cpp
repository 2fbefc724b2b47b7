// Peak of AVX2 with FMA.
#if defined(__x86_64__)

#    include "backends/cpu/isa/peak_f32.h"

namespace tessera::cpu {

const PeakKernels& peak_kernels_avx2() {
    static constexpr PeakKernels kKernels{.f32 = f32_loop<Wide256, 12>};
    return kKernels;
}

}  // namespace tessera::cpu

#endif
