// Peak of AVX-512: f32 and, with VNNI, int8.
#if defined(__x86_64__)

#    include <immintrin.h>

#    include <cstdint>

#    include "backends/cpu/isa/peak_kernels.h"

namespace tessera::cpu {
namespace {

/// Enough independent sums to hide the latency of two units.
constexpr int32_t kSums = 16;
constexpr int32_t kRounds = 1 << 17;

double f32_loop(float* sink) {
    __m512 sums[kSums];
    for (__m512& sum : sums) sum = _mm512_set1_ps(1.0f);
    const __m512 factor = _mm512_set1_ps(0.75f), addend = _mm512_set1_ps(0.25f);
    for (int32_t round = 0; round < kRounds; ++round)
        for (__m512& sum : sums) {
            sum = _mm512_fmadd_ps(sum, factor, addend);
            asm volatile("" : "+v"(sum));  // or equal sums would be computed once
        }
    for (const __m512& sum : sums) *sink += _mm512_cvtss_f32(sum);
    return 2.0 * 16 * kSums * kRounds;
}

double int8_loop(float* sink) {
    __m512i sums[kSums];
    for (__m512i& sum : sums) sum = _mm512_setzero_si512();
    const __m512i left = _mm512_set1_epi8(3), right = _mm512_set1_epi8(-5);
    for (int32_t round = 0; round < kRounds; ++round)
        for (__m512i& sum : sums) {
            sum = _mm512_dpbusd_epi32(sum, left, right);
            asm volatile("" : "+v"(sum));
        }
    for (const __m512i& sum : sums)
        *sink += static_cast<float>(_mm_cvtsi128_si32(_mm512_castsi512_si128(sum)));
    return 2.0 * 64 * kSums * kRounds;
}

}  // namespace

const PeakKernels& peak_kernels_avx512() {
    static constexpr PeakKernels kKernels{.f32 = f32_loop, .int8 = int8_loop};
    return kKernels;
}

}  // namespace tessera::cpu

#endif
