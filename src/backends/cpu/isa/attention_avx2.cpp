// Attention, AVX2 with FMA and F16C.
#if defined(__x86_64__)

#    include "backends/cpu/isa/attention_split.h"

namespace tessera::cpu {

const PromptKernels& prompt_kernels_avx2(int32_t) {
    static constexpr PromptKernels kKernels = PromptAttention<Wide256>::table();
    return kKernels;
}

const SplitKernels& split_kernels_avx2(int32_t head_size) {
    static constexpr SplitKernels kKernels = SplitAttention<Wide256>::table();
    if (head_size % 8 != 0) return split_kernels_scalar(head_size);
    return kKernels;
}

}  // namespace tessera::cpu

#endif
