#pragma once
// One vocabulary over the vector registers of each instruction set, so that formats and kernels
// are written once as templates: `Float` and `Int` hold kLanes 32-bit elements. Everything has
// internal linkage: each file compiles its own copies with its own instruction set, and no linker
// may merge them. The plain wrapper uses the compiler's vector extension (SSE2, NEON or scalar
// code, whatever the base architecture has).

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#    include <immintrin.h>
#endif
#if defined(__ARM_NEON)
#    include <arm_neon.h>
#endif

#define TESSERA_INLINE __attribute__((always_inline)) inline

namespace tessera::cpu {
namespace {

template <class T>
TESSERA_INLINE T load_as(const void* source) {
    T value;
    std::memcpy(&value, source, sizeof(T));
    return value;
}

/// Half to single precision without hardware help; exact, subnormals, infinities and NaN included.
TESSERA_INLINE float half_to_float(uint16_t half) {
    const uint32_t magnitude = half & 0x7fffu;
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    uint32_t bits = magnitude << 13;
    float value;
    if (magnitude >= 0x7c00u) {
        bits |= 0x7f800000u;
        std::memcpy(&value, &bits, 4);
    } else {
        // 2^112 moves the exponent bias from 15 to 127 and normalises subnormals.
        std::memcpy(&value, &bits, 4);
        value *= 5.192296858534828e33f;
    }
    std::memcpy(&bits, &value, 4);
    bits |= sign;
    std::memcpy(&value, &bits, 4);
    return value;
}

/// f32_from_e4m3 of core/numeric.h with internal linkage.
TESSERA_INLINE float e4m3_to_float(uint8_t code) {
    const uint32_t shifted = static_cast<uint32_t>(code & 0x7fu) << 20;
    uint32_t bits = shifted + (shifted < 0x00800000u ? 0x3c800000u : 0x3c000000u);
    float value;
    std::memcpy(&value, &bits, 4);
    if (shifted < 0x00800000u) value -= 0x1p-6f;
    std::memcpy(&bits, &value, 4);
    if (shifted == 0x07f00000u) bits = 0x7fc00000u;
    bits |= static_cast<uint32_t>(code & 0x80u) << 24;
    std::memcpy(&value, &bits, 4);
    return value;
}

#if defined(__AVX512F__)
struct Wide512 {
    using Float = __m512;
    using Int = __m512i;
    using Table = __m512;
    using ByteTable = __m512i;
    static constexpr int kLanes = 16;
    static constexpr int kTokens = 8;

    static TESSERA_INLINE Float zero() { return _mm512_setzero_ps(); }
    static TESSERA_INLINE Float set(float x) { return _mm512_set1_ps(x); }
    static TESSERA_INLINE Int set_int(int32_t x) { return _mm512_set1_epi32(x); }
    static TESSERA_INLINE Float load(const float* p) { return _mm512_loadu_ps(p); }
    static TESSERA_INLINE void store(float* p, Float v) { _mm512_storeu_ps(p, v); }
    static TESSERA_INLINE Int load_int(const void* p) { return _mm512_loadu_si512(p); }
    static TESSERA_INLINE Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
    static TESSERA_INLINE Float sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
    static TESSERA_INLINE Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
    static TESSERA_INLINE Float div(Float a, Float b) { return _mm512_div_ps(a, b); }
    static TESSERA_INLINE Float fmadd(Float a, Float b, Float c) {
        return _mm512_fmadd_ps(a, b, c);
    }
    static TESSERA_INLINE Float round(Float a) {
        return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    /// The second operand where one is NaN.
    static TESSERA_INLINE Float min(Float a, Float b) { return _mm512_min_ps(a, b); }
    static TESSERA_INLINE Float max(Float a, Float b) { return _mm512_max_ps(a, b); }
    /// a < b ? yes : no.
    static TESSERA_INLINE Float select_less(Float a, Float b, Float yes, Float no) {
        return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
    }
    static TESSERA_INLINE Int bits(Float a) { return _mm512_castps_si512(a); }
    static TESSERA_INLINE Float from_bits(Int a) { return _mm512_castsi512_ps(a); }
    static TESSERA_INLINE Float to_float(Int a) { return _mm512_cvtepi32_ps(a); }
    static TESSERA_INLINE Int to_int(Float a) { return _mm512_cvtps_epi32(a); }
    static TESSERA_INLINE Int and_bits(Int a, Int b) { return _mm512_and_si512(a, b); }
    static TESSERA_INLINE Int or_bits(Int a, Int b) { return _mm512_or_si512(a, b); }
    static TESSERA_INLINE Int add_int(Int a, Int b) { return _mm512_add_epi32(a, b); }
    static TESSERA_INLINE Int sub_int(Int a, Int b) { return _mm512_sub_epi32(a, b); }
    static TESSERA_INLINE Int sub_bytes(Int a, Int b) { return _mm512_sub_epi8(a, b); }
    static TESSERA_INLINE Int max_u32(Int a, Int b) { return _mm512_max_epu32(a, b); }
    template <int N>
    static TESSERA_INLINE Int left(Int a) {
        return _mm512_slli_epi32(a, N);
    }
    template <int N>
    static TESSERA_INLINE Int right(Int a) {
        return _mm512_srli_epi32(a, N);
    }
    template <int N>
    static TESSERA_INLINE Int right_signed(Int a) {
        return _mm512_srai_epi32(a, N);
    }
    static TESSERA_INLINE Float load_half(const void* p) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
    }
    static TESSERA_INLINE Int load_u8(const void* p) {
        return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    }
    static TESSERA_INLINE Int load_i8(const void* p) {
        return _mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    }
    static TESSERA_INLINE Table table(const float* values) { return _mm512_loadu_ps(values); }
    /// values[index & 15]; higher bits of the index are ignored.
    static TESSERA_INLINE Float lookup(Table t, Int index) {
        return _mm512_permutexvar_ps(index, t);
    }
    static TESSERA_INLINE ByteTable byte_table(const uint8_t* values) {
        return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)));
    }
    /// values[byte] of every byte, all < 16.
    static TESSERA_INLINE Int lookup_bytes(ByteTable t, Int index) {
        return _mm512_shuffle_epi8(t, index);
    }
    /// Rows of 4 x 16 bytes [k][row] from row 0 on to lanes [row][k].
    static TESSERA_INLINE Int load_transposed(const void* p) {
        alignas(64) static constexpr uint8_t kOrder[64] = {
            0,  16, 32, 48, 1,  17, 33, 49, 2,  18, 34, 50, 3,  19, 35, 51, 4,  20, 36, 52, 5,  21,
            37, 53, 6,  22, 38, 54, 7,  23, 39, 55, 8,  24, 40, 56, 9,  25, 41, 57, 10, 26, 42, 58,
            11, 27, 43, 59, 12, 28, 44, 60, 13, 29, 45, 61, 14, 30, 46, 62, 15, 31, 47, 63};
        return _mm512_permutexvar_epi8(_mm512_load_si512(kOrder), _mm512_loadu_si512(p));
    }
    /// acc + sum over the 4 bytes of a lane of u8 a * s8 b; |a * b| sums of two must fit 16 bits.
    static TESSERA_INLINE Int dot_bytes(Int acc, Int a, Int b) {
        return _mm512_dpbusd_epi32(acc, a, b);
    }
    /// Whether dot_signed wants acc to hold -128 * sum(b) more.
    static constexpr bool kSignedBias = true;
    /// The same for s8 a.
    static TESSERA_INLINE Int dot_signed(Int acc, Int a, Int b) {
        const Int top = _mm512_set1_epi32(static_cast<int32_t>(0x80808080u));
        return _mm512_dpbusd_epi32(acc, _mm512_xor_si512(a, top), b);
    }
};
#endif

#if defined(__AVX2__)
struct Wide256 {
    using Float = __m256;
    using Int = __m256i;
    struct Table {
        __m256 low, high;
    };
    using ByteTable = __m256i;
    static constexpr int kLanes = 8;
    static constexpr int kTokens = 4;

    static TESSERA_INLINE Float zero() { return _mm256_setzero_ps(); }
    static TESSERA_INLINE Float set(float x) { return _mm256_set1_ps(x); }
    static TESSERA_INLINE Int set_int(int32_t x) { return _mm256_set1_epi32(x); }
    static TESSERA_INLINE Float load(const float* p) { return _mm256_loadu_ps(p); }
    static TESSERA_INLINE void store(float* p, Float v) { _mm256_storeu_ps(p, v); }
    static TESSERA_INLINE Int load_int(const void* p) {
        return _mm256_loadu_si256(static_cast<const __m256i*>(p));
    }
    static TESSERA_INLINE Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
    static TESSERA_INLINE Float sub(Float a, Float b) { return _mm256_sub_ps(a, b); }
    static TESSERA_INLINE Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
    static TESSERA_INLINE Float div(Float a, Float b) { return _mm256_div_ps(a, b); }
    static TESSERA_INLINE Float fmadd(Float a, Float b, Float c) {
        return _mm256_fmadd_ps(a, b, c);
    }
    static TESSERA_INLINE Float round(Float a) {
        return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    static TESSERA_INLINE Float min(Float a, Float b) { return _mm256_min_ps(a, b); }
    static TESSERA_INLINE Float max(Float a, Float b) { return _mm256_max_ps(a, b); }
    static TESSERA_INLINE Float select_less(Float a, Float b, Float yes, Float no) {
        return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
    }
    static TESSERA_INLINE Int bits(Float a) { return _mm256_castps_si256(a); }
    static TESSERA_INLINE Float from_bits(Int a) { return _mm256_castsi256_ps(a); }
    static TESSERA_INLINE Float to_float(Int a) { return _mm256_cvtepi32_ps(a); }
    static TESSERA_INLINE Int to_int(Float a) { return _mm256_cvtps_epi32(a); }
    static TESSERA_INLINE Int and_bits(Int a, Int b) { return _mm256_and_si256(a, b); }
    static TESSERA_INLINE Int or_bits(Int a, Int b) { return _mm256_or_si256(a, b); }
    static TESSERA_INLINE Int add_int(Int a, Int b) { return _mm256_add_epi32(a, b); }
    static TESSERA_INLINE Int sub_int(Int a, Int b) { return _mm256_sub_epi32(a, b); }
    static TESSERA_INLINE Int sub_bytes(Int a, Int b) { return _mm256_sub_epi8(a, b); }
    static TESSERA_INLINE Int max_u32(Int a, Int b) { return _mm256_max_epu32(a, b); }
    template <int N>
    static TESSERA_INLINE Int left(Int a) {
        return _mm256_slli_epi32(a, N);
    }
    template <int N>
    static TESSERA_INLINE Int right(Int a) {
        return _mm256_srli_epi32(a, N);
    }
    template <int N>
    static TESSERA_INLINE Int right_signed(Int a) {
        return _mm256_srai_epi32(a, N);
    }
    static TESSERA_INLINE Float load_half(const void* p) {
        return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    }
    static TESSERA_INLINE Int load_u8(const void* p) {
        return _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
    }
    static TESSERA_INLINE Int load_i8(const void* p) {
        return _mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
    }
    static TESSERA_INLINE Table table(const float* values) {
        return {_mm256_loadu_ps(values), _mm256_loadu_ps(values + 8)};
    }
    static TESSERA_INLINE Float lookup(const Table& t, Int index) {
        // Bit 3 of the index, moved to the sign, chooses the half.
        return _mm256_blendv_ps(_mm256_permutevar8x32_ps(t.low, index),
                                _mm256_permutevar8x32_ps(t.high, index),
                                _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
    }
    static TESSERA_INLINE ByteTable byte_table(const uint8_t* values) {
        return _mm256_broadcastsi128_si256(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(values)));
    }
    static TESSERA_INLINE Int lookup_bytes(ByteTable t, Int index) {
        return _mm256_shuffle_epi8(t, index);
    }
    static TESSERA_INLINE Int load_transposed(const void* p) {
        const char* bytes = static_cast<const char*>(p);
        const auto row = [bytes](int k) __attribute__((always_inline)) {
            return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes + 16 * k));
        };
        const __m128i first = _mm_unpacklo_epi8(row(0), row(1));
        const __m128i second = _mm_unpacklo_epi8(row(2), row(3));
        return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi16(first, second)),
                                       _mm_unpackhi_epi16(first, second), 1);
    }
    static TESSERA_INLINE Int dot_bytes(Int acc, Int a, Int b) {
        const Int pairs = _mm256_maddubs_epi16(a, b);
        return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    static constexpr bool kSignedBias = false;
    static TESSERA_INLINE Int dot_signed(Int acc, Int a, Int b) {
        // |a| * (b with the sign of a): 2 * 128 * 127 fits 16 bits.
        return dot_bytes(acc, _mm256_abs_epi8(a), _mm256_sign_epi8(b, a));
    }
};
#endif

/// Four lanes of the compiler's vector extension. No fused multiply-add: the base architecture may
/// lack it, and a library call for each would be far slower than two roundings.
struct Plain {
    using Float = float __attribute__((vector_size(16)));
    using Int = int32_t __attribute__((vector_size(16)));
    using Unsigned = uint32_t __attribute__((vector_size(16)));
    using Table = const float*;
    using ByteTable = const uint8_t*;
    static constexpr int kLanes = 4;
    static constexpr int kTokens = 4;

    static TESSERA_INLINE Float set(float x) { return Float{x, x, x, x}; }
    static TESSERA_INLINE Int set_int(int32_t x) { return Int{x, x, x, x}; }
    static TESSERA_INLINE Float zero() { return set(0.0f); }
    static TESSERA_INLINE Float load(const float* p) { return load_as<Float>(p); }
    static TESSERA_INLINE void store(float* p, Float v) { std::memcpy(p, &v, sizeof v); }
    static TESSERA_INLINE Int load_int(const void* p) { return load_as<Int>(p); }
    static TESSERA_INLINE Float add(Float a, Float b) { return a + b; }
    static TESSERA_INLINE Float sub(Float a, Float b) { return a - b; }
    static TESSERA_INLINE Float mul(Float a, Float b) { return a * b; }
    static TESSERA_INLINE Float div(Float a, Float b) { return a / b; }
    static TESSERA_INLINE Float fmadd(Float a, Float b, Float c) {
#if defined(__ARM_NEON)
        return vfmaq_f32(c, a, b);
#else
        return a * b + c;
#endif
    }
    static TESSERA_INLINE Float round(Float a) {
        // Exact for |a| < 2^22: the adder rounds at its last place.
        const Float shift = set(12582912.0f);
        return (a + shift) - shift;
    }
    static TESSERA_INLINE Float min(Float a, Float b) {
        return a < b ? a : b;
    }
    static TESSERA_INLINE Float max(Float a, Float b) {
        return a > b ? a : b;
    }
    static TESSERA_INLINE Float select_less(Float a, Float b, Float yes, Float no) {
        return a < b ? yes : no;
    }
    static TESSERA_INLINE Int bits(Float a) {
        return reinterpret_cast<Int>(a);
    }
    static TESSERA_INLINE Float from_bits(Int a) {
        return reinterpret_cast<Float>(a);
    }
    static TESSERA_INLINE Float to_float(Int a) {
        return __builtin_convertvector(a, Float);
    }
    static TESSERA_INLINE Int to_int(Float a) {
        return __builtin_convertvector(round(a), Int);
    }
    static TESSERA_INLINE Int and_bits(Int a, Int b) {
        return a & b;
    }
    static TESSERA_INLINE Int or_bits(Int a, Int b) {
        return a | b;
    }
    static TESSERA_INLINE Int add_int(Int a, Int b) {
        return reinterpret_cast<Int>(reinterpret_cast<Unsigned>(a) + reinterpret_cast<Unsigned>(b));
    }
    static TESSERA_INLINE Int sub_int(Int a, Int b) {
        return reinterpret_cast<Int>(reinterpret_cast<Unsigned>(a) - reinterpret_cast<Unsigned>(b));
    }
    static TESSERA_INLINE Int sub_bytes(Int a, Int b) {
        using Bytes = int8_t __attribute__((vector_size(16)));
        return reinterpret_cast<Int>(reinterpret_cast<Bytes>(a) - reinterpret_cast<Bytes>(b));
    }
    static TESSERA_INLINE Int max_u32(Int a, Int b) {
        return reinterpret_cast<Unsigned>(a) > reinterpret_cast<Unsigned>(b) ? a : b;
    }
    template <int N>
    static TESSERA_INLINE Int left(Int a) {
        return reinterpret_cast<Int>(reinterpret_cast<Unsigned>(a) << N);
    }
    template <int N>
    static TESSERA_INLINE Int right(Int a) {
        return reinterpret_cast<Int>(reinterpret_cast<Unsigned>(a) >> N);
    }
    template <int N>
    static TESSERA_INLINE Int right_signed(Int a) {
        return a >> N;
    }
    static TESSERA_INLINE Float load_half(const void* p) {
        const auto* h = static_cast<const char*>(p);
        return Float{half_to_float(load_as<uint16_t>(h)), half_to_float(load_as<uint16_t>(h + 2)),
                     half_to_float(load_as<uint16_t>(h + 4)),
                     half_to_float(load_as<uint16_t>(h + 6))};
    }
    static TESSERA_INLINE Int load_u8(const void* p) {
        const auto* b = static_cast<const uint8_t*>(p);
        return Int{b[0], b[1], b[2], b[3]};
    }
    static TESSERA_INLINE Int load_i8(const void* p) {
        const auto* b = static_cast<const int8_t*>(p);
        return Int{b[0], b[1], b[2], b[3]};
    }
    static TESSERA_INLINE Table table(const float* values) {
        return values;
    }
    static TESSERA_INLINE Float lookup(Table t, Int index) {
        return Float{t[index[0] & 15], t[index[1] & 15], t[index[2] & 15], t[index[3] & 15]};
    }
    static TESSERA_INLINE ByteTable byte_table(const uint8_t* values) {
        return values;
    }
    static TESSERA_INLINE Int lookup_bytes(ByteTable t, Int index) {
#if defined(__aarch64__)
        return vreinterpretq_s32_u8(vqtbl1q_u8(vld1q_u8(t), vreinterpretq_u8_s32(index)));
#else
        using Bytes = uint8_t __attribute__((vector_size(16)));
        Bytes bytes = reinterpret_cast<Bytes>(index);
        for (int i = 0; i < 16; ++i) bytes[i] = t[bytes[i]];
        return reinterpret_cast<Int>(bytes);
#endif
    }
    static TESSERA_INLINE Int load_transposed(const void* p) {
        using Bytes = uint8_t __attribute__((vector_size(16)));
        const auto* b = static_cast<const uint8_t*>(p);
        return reinterpret_cast<Int>(Bytes{b[0], b[16], b[32], b[48], b[1], b[17], b[33], b[49],
                                           b[2], b[18], b[34], b[50], b[3], b[19], b[35], b[51]});
    }
    static TESSERA_INLINE Int dot_bytes(Int acc, Int a, Int b) {
        // Even and odd bytes as 32-bit products; a is unsigned, b signed.
        const Int low = set_int(0xff);
        Int sum = acc + (a & low) * right_signed<24>(left<24>(b));
        sum += (right<8>(a) & low) * right_signed<24>(left<16>(b));
        sum += (right<16>(a) & low) * right_signed<24>(left<8>(b));
        return sum + right<24>(a) * right_signed<24>(b);
    }
    static constexpr bool kSignedBias = false;
    static TESSERA_INLINE Int dot_signed(Int acc, Int a, Int b) {
        Int sum = acc + right_signed<24>(left<24>(a)) * right_signed<24>(left<24>(b));
        sum += right_signed<24>(left<16>(a)) * right_signed<24>(left<16>(b));
        sum += right_signed<24>(left<8>(a)) * right_signed<24>(left<8>(b));
        return sum + right_signed<24>(a) * right_signed<24>(b);
    }
};

}  // namespace
}  // namespace tessera::cpu
