#pragma once
// Loops that multiply what stands in registers and do nothing else: what a thread does at best.

namespace tessera::cpu {

/// Runs for some milliseconds at most; returns its operations (two a multiplication). `sink` gets
/// what keeps the compiler from leaving the loop out.
using PeakLoop = double (*)(float* sink);

/// Null: this instruction set has no such units, or no kernel of ours uses them.
struct PeakKernels {
    PeakLoop f32 = nullptr;
    PeakLoop bf16 = nullptr;
    PeakLoop int8 = nullptr;
};

const PeakKernels& peak_kernels_avx2();
const PeakKernels& peak_kernels_avx512();
const PeakKernels& peak_kernels_amx();

}  // namespace tessera::cpu
