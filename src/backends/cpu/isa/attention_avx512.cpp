// Attention in f32, AVX-512.
#if defined(__x86_64__)

#    include "backends/cpu/isa/attention_split.h"

namespace tessera::cpu {

const PromptKernels& prompt_kernels_avx512(int32_t) {
    static constexpr PromptKernels kKernels = PromptAttention<Wide512>::table();
    return kKernels;
}

const SplitKernels& split_kernels_avx512(int32_t head_size) {
    static constexpr SplitKernels kKernels = SplitAttention<Wide512>::table();
    if (head_size % 16 != 0) return split_kernels_avx2(head_size);
    return kKernels;
}

}  // namespace tessera::cpu

#endif
