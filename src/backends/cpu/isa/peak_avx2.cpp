// Peak of AVX2 with FMA.
#if defined(__x86_64__)

#    include <immintrin.h>

#    include <cstdint>

#    include "backends/cpu/isa/peak_kernels.h"

namespace tessera::cpu {
namespace {

/// Enough independent sums to hide the latency of two units; they fit in 16 registers.
constexpr int32_t kSums = 12;
constexpr int32_t kRounds = 1 << 17;

double f32_loop(float* sink) {
    __m256 sums[kSums];
    for (__m256& sum : sums) sum = _mm256_set1_ps(1.0f);
    const __m256 factor = _mm256_set1_ps(0.75f), addend = _mm256_set1_ps(0.25f);
    for (int32_t round = 0; round < kRounds; ++round)
        for (__m256& sum : sums) {
            sum = _mm256_fmadd_ps(sum, factor, addend);
            asm volatile("" : "+x"(sum));  // or equal sums would be computed once
        }
    for (const __m256& sum : sums) *sink += _mm256_cvtss_f32(sum);
    return 2.0 * 8 * kSums * kRounds;
}

}  // namespace

const PeakKernels& peak_kernels_avx2() {
    static constexpr PeakKernels kKernels{.f32 = f32_loop};
    return kKernels;
}

}  // namespace tessera::cpu

#endif
