// Attention for any machine; on ARM the compiler turns it into NEON.
#include "backends/cpu/isa/attention_split.h"

namespace tessera::cpu {

const PromptKernels& prompt_kernels_scalar(int32_t) {
    static constexpr PromptKernels kKernels = PromptAttention<Plain>::table();
    return kKernels;
}

const SplitKernels& split_kernels_scalar(int32_t) {
    static constexpr SplitKernels kKernels = SplitAttention<Plain>::table();
    return kKernels;
}

}  // namespace tessera::cpu
