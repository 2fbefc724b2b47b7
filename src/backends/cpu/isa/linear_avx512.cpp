// Products with AVX-512 (F, BW, DQ, VL, VNNI, VBMI): a row block fills a register.
//
// Four-bit codes with f32 activations cost three operations for 16 weights (shift, table lookup,
// multiply-add) on two ports: 10.7 weights a cycle. bf16 dot products are slower (VDPBF16PS takes
// both ports for a cycle and the pairs need another lookup); with int8 activations VPDPBUSD is
// bound by the decoding, about 30 weights a cycle.
#include "backends/cpu/isa/linear_kernels.h"

#if defined(__AVX512F__)

#    include "backends/cpu/isa/linear_blocks.h"

namespace tessera::cpu {

const LinearKernels& linear_kernels_avx512() {
    static const LinearKernels kKernels = make_kernels<Wide512, RegisterBlocks<Wide512>>();
    return kKernels;
}

}  // namespace tessera::cpu

#endif
