#pragma once
// What the kernels along rows need of a register beyond isa/vector.h: sums and maxima over lanes,
// half-precision stores, f64 sums of squares. Internal linkage throughout: see isa/vector.h.

#include <cstdint>

#include "backends/cpu/isa/vector.h"
#include "backends/cpu/isa/vector_math.h"
#include "core/numeric.h"

namespace tessera::cpu {
namespace {

/// kTile: rows of a register tile in attention; kHeads: query heads that share a loaded key.
template <class V>
struct Lane;

template <>
struct Lane<Plain> {
    using Float = Plain::Float;
    static constexpr int32_t kTile = 4;
    static constexpr int32_t kHeads = 2;

    /// yes where low < key <= high.
    static TESSERA_INLINE Float between(Float low, Float key, Float high, Float yes, Float no) {
        return ((low < key) & (key <= high)) ? yes : no;
    }
    static TESSERA_INLINE bool any_differs(Float a, Float b) {
        const Plain::Int differs = a != b;
        return (differs[0] | differs[1] | differs[2] | differs[3]) != 0;
    }
    static TESSERA_INLINE bool any_at_least(Float a, Float b) {
        const Plain::Int passes = a >= b;
        return (passes[0] | passes[1] | passes[2] | passes[3]) != 0;
    }
    static TESSERA_INLINE float sum(Float a) { return (a[0] + a[2]) + (a[1] + a[3]); }
    static TESSERA_INLINE float largest(Float a) {
        const float even = a[0] > a[2] ? a[0] : a[2];
        const float odd = a[1] > a[3] ? a[1] : a[3];
        return even > odd ? even : odd;
    }
    /// The sums of four registers.
    static TESSERA_INLINE void sum4(Float a, Float b, Float c, Float d, float* out) {
        const Float sums = {sum(a), sum(b), sum(c), sum(d)};
        Plain::store(out, sums);
    }
    /// (x1, x0, x3, x2, ...).
    static TESSERA_INLINE Float swap_pairs(Float a) { return Float{a[1], a[0], a[3], a[2]}; }
    static TESSERA_INLINE Float load_bf16(const uint16_t* p) {
        return Plain::from_bits(Plain::left<16>(Plain::Int{p[0], p[1], p[2], p[3]}));
    }
    /// As e4m3_to_float.
    static TESSERA_INLINE Float load_e4m3(const uint8_t* p) {
        const Plain::Int codes = Plain::load_u8(p);
        const Plain::Int shifted = Plain::left<20>(codes & 0x7f);
        const Float normal = Plain::from_bits(shifted + 0x3c000000);
        const Float subnormal = Plain::from_bits(shifted + 0x3c800000) - 0x1p-6f;
        const Float small = normal < 0x1p-6f ? subnormal : normal;
        const Float value = small > 448.0f ? Plain::from_bits(Plain::set_int(0x7fc00000)) : small;
        return Plain::from_bits(Plain::bits(value) | Plain::left<24>(codes & 0x80));
    }
    static TESSERA_INLINE void store_f16(uint16_t* p, Float a) {
        for (int i = 0; i < 4; ++i) p[i] = f16_from_f32(a[i]);
    }
    static TESSERA_INLINE void store_bf16(uint16_t* p, Float a) {
        for (int i = 0; i < 4; ++i) p[i] = bf16_from_f32(a[i]);
    }
    /// Sum of the squares of whole registers in f64, by lane, the lanes added in a fixed order.
    static TESSERA_INLINE double square_sum(const float* x, int64_t registers) {
        double lanes[4] = {};
        for (int64_t j = 0; j < registers; ++j)
            for (int i = 0; i < 4; ++i) {
                const double value = x[4 * j + i];
                lanes[i] += value * value;
            }
        return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
    }
};

#if defined(__AVX2__)

template <>
struct Lane<Wide256> {
    static constexpr int32_t kTile = 4;
    static constexpr int32_t kHeads = 2;

    static TESSERA_INLINE __m256
    between(__m256 low, __m256 key, __m256 high, __m256 yes, __m256 no) {
        const __m256 above = _mm256_cmp_ps(low, key, _CMP_LT_OQ);
        const __m256 inside = _mm256_and_ps(above, _mm256_cmp_ps(key, high, _CMP_LE_OQ));
        return _mm256_blendv_ps(no, yes, inside);
    }
    static TESSERA_INLINE bool any_differs(__m256 a, __m256 b) {
        return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NEQ_UQ)) != 0;
    }
    static TESSERA_INLINE bool any_at_least(__m256 a, __m256 b) {
        return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)) != 0;
    }
    static TESSERA_INLINE float sum(__m256 a) {
        __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        half = _mm_add_ps(half, _mm_movehl_ps(half, half));
        return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
    }
    static TESSERA_INLINE float largest(__m256 a) {
        __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        half = _mm_max_ps(half, _mm_movehl_ps(half, half));
        return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
    }
    static TESSERA_INLINE void sum4(__m256 a, __m256 b, __m256 c, __m256 d, float* out) {
        const __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
        const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
        const __m256 all =
            _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
        _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
    }
    static TESSERA_INLINE __m256 swap_pairs(__m256 a) { return _mm256_permute_ps(a, 0xb1); }
    static TESSERA_INLINE __m256 load_bf16(const uint16_t* p) {
        const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
    }
    static TESSERA_INLINE __m256 load_e4m3(const uint8_t* p) {
        const __m128i codes =
            _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
        // Sign, exponent and fraction to their places in half precision, whose bias is larger by 8.
        const __m128i bits = _mm_and_si128(_mm_slli_epi16(codes, 7), _mm_set1_epi16(-0x4080));
        const __m128i magnitude = _mm_and_si128(codes, _mm_set1_epi16(0x7f));
        const __m128i nan =
            _mm_and_si128(_mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f)), _mm_set1_epi16(0x7c00));
        return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(bits, nan)), _mm256_set1_ps(256.0f));
    }
    static TESSERA_INLINE void store_f16(uint16_t* p, __m256 a) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                         _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
    static TESSERA_INLINE void store_bf16(uint16_t* p, __m256 a) {
        const __m256i bits = _mm256_castps_si256(a);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i rounded =
            _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
        const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
        const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
        const __m256i upper = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
        const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(upper, upper), 0x08);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
    }
    static TESSERA_INLINE double square_sum(const float* x, int64_t registers) {
        __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();
        for (int64_t j = 0; j < registers; ++j) {
            const __m256d a = _mm256_cvtps_pd(_mm_loadu_ps(x + 8 * j));
            const __m256d b = _mm256_cvtps_pd(_mm_loadu_ps(x + 8 * j + 4));
            low = _mm256_fmadd_pd(a, a, low);
            high = _mm256_fmadd_pd(b, b, high);
        }
        alignas(32) double lanes[4];
        _mm256_store_pd(lanes, _mm256_add_pd(low, high));
        return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
    }
};

#endif

#if defined(__AVX512F__)

template <>
struct Lane<Wide512> {
    static constexpr int32_t kTile = 8;
    static constexpr int32_t kHeads = 4;

    static TESSERA_INLINE __m512
    between(__m512 low, __m512 key, __m512 high, __m512 yes, __m512 no) {
        const __mmask16 above = _mm512_cmp_ps_mask(low, key, _CMP_LT_OQ);
        return _mm512_mask_blend_ps(_mm512_mask_cmp_ps_mask(above, key, high, _CMP_LE_OQ), no, yes);
    }
    static TESSERA_INLINE bool any_differs(__m512 a, __m512 b) {
        return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ) != 0;
    }
    static TESSERA_INLINE bool any_at_least(__m512 a, __m512 b) {
        return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ) != 0;
    }
    static TESSERA_INLINE float sum(__m512 a) {
        return Lane<Wide256>::sum(
            _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)));
    }
    static TESSERA_INLINE float largest(__m512 a) {
        return Lane<Wide256>::largest(
            _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)));
    }
    static TESSERA_INLINE void sum4(__m512 a, __m512 b, __m512 c, __m512 d, float* out) {
        const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
        const __m512 all =
            _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
        const __m256 half =
            _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
        _mm_storeu_ps(out,
                      _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
    }
    static TESSERA_INLINE __m512 swap_pairs(__m512 a) { return _mm512_permute_ps(a, 0xb1); }
    static TESSERA_INLINE __m512 load_bf16(const uint16_t* p) {
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
    }
    static TESSERA_INLINE __m512 load_e4m3(const uint8_t* p) {
        const __m256i codes =
            _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        const __m256i bits =
            _mm256_and_si256(_mm256_slli_epi16(codes, 7), _mm256_set1_epi16(-0x4080));
        const __m256i magnitude = _mm256_and_si256(codes, _mm256_set1_epi16(0x7f));
        const __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f)),
                                             _mm256_set1_epi16(0x7c00));
        return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(bits, nan)), _mm512_set1_ps(256.0f));
    }
    static TESSERA_INLINE void store_f16(uint16_t* p, __m512 a) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                            _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
    /// As bf16_from_f32; the instruction for it would flush subnormals.
    static TESSERA_INLINE void store_bf16(uint16_t* p, __m512 a) {
        const __m512i bits = _mm512_castps_si512(a);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        const __m512i rounded =
            _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
        const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
        const __m512i value = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                            _mm512_cvtepi32_epi16(_mm512_srli_epi32(value, 16)));
    }
    static TESSERA_INLINE double square_sum(const float* x, int64_t registers) {
        __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
        for (int64_t j = 0; j < registers; ++j) {
            const __m512d a = _mm512_cvtps_pd(_mm256_loadu_ps(x + 16 * j));
            const __m512d b = _mm512_cvtps_pd(_mm256_loadu_ps(x + 16 * j + 8));
            low = _mm512_fmadd_pd(a, a, low);
            high = _mm512_fmadd_pd(b, b, high);
        }
        alignas(64) double lanes[8];
        _mm512_store_pd(lanes, _mm512_add_pd(low, high));
        return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
               ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
    }
};

#endif

}  // namespace
}  // namespace tessera::cpu
