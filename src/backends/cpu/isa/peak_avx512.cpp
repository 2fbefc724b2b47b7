// Peak of AVX-512: f32 and, with VNNI, int8.
#if defined(__x86_64__)

#    include "backends/cpu/isa/peak_f32.h"

namespace tessera::cpu {
namespace {

constexpr int32_t kSums = 16;

double int8_loop(float* sink) {
    __m512i sums[kSums];
    for (__m512i& sum : sums) sum = _mm512_setzero_si512();
    const __m512i left = _mm512_set1_epi8(3), right = _mm512_set1_epi8(-5);
    for (int32_t round = 0; round < kPeakRounds; ++round)
        for (__m512i& sum : sums) {
            sum = _mm512_dpbusd_epi32(sum, left, right);
            asm volatile("" : "+v"(sum));
        }
    for (const __m512i& sum : sums)
        *sink += static_cast<float>(_mm_cvtsi128_si32(_mm512_castsi512_si128(sum)));
    return 2.0 * 64 * kSums * kPeakRounds;
}

}  // namespace

const PeakKernels& peak_kernels_avx512() {
    static constexpr PeakKernels kKernels{.f32 = f32_loop<Wide512, kSums>, .int8 = int8_loop};
    return kKernels;
}

}  // namespace tessera::cpu

#endif
