// Products with AVX-512 (F, BW, DQ, VL, VNNI, VBMI): a row block fills a register.
//
// Four-bit codes with f32 activations cost three operations for 16 weights (shift, table lookup,
// multiply-add) on two ports: at most 10.7 weights a cycle. Rejected: VDPBF16PS on pairs from a
// 16-bit lookup, 8.4 weights a cycle (the instruction alone takes two). With int8 activations the
// decoding of bytes is the limit, about twice as fast.
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
