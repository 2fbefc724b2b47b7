#pragma once
// Values that are not finite, in pages that some column of a block sees in part: the weight of a
// key that a column does not see is 0, and 0 times infinity is NaN. The tiles get a copy of the
// page with zeros in the places of such values; the columns that see them get them one by one.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "backends/cpu/isa/vector.h"
#include "ops/batch.h"

namespace tessera::cpu {
namespace {

/// Which of 32 elements of bf16 are not finite.
TESSERA_INLINE __mmask32 not_finite(__m512i elements) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    return _mm512_cmpeq_epi16_mask(_mm512_and_si512(elements, exponent), exponent);
}

/// The keys below `keys` (32 or 64) of V^T [head_size][64] in bf16 that have such values, by bit.
inline uint64_t bad_keys(const std::byte* values, int32_t keys, int32_t head_size) {
    uint64_t bad = 0;
    for (int32_t dim = 0; dim < head_size; ++dim)
        for (int32_t key = 0; key < keys; key += 32) {
            const std::byte* elements = values + (dim * kPageTokens + key) * 2;
            bad |= uint64_t{not_finite(_mm512_load_si512(elements))} << key;
        }
    return bad;
}

/// V^T to `copy`, 0 for what is not finite; returns `copy`.
inline const std::byte* copy_finite(const std::byte* values, int32_t head_size, std::byte* copy) {
    for (int32_t i = 0; i < head_size * kPageTokens * 2; i += 64) {
        const __m512i elements = _mm512_load_si512(values + i);
        const __mmask32 finite = _knot_mask32(not_finite(elements));
        _mm512_store_si512(copy + i, _mm512_maskz_mov_epi16(finite, elements));
    }
    return copy;
}

/// sums [head_size][16 columns] += weight value in the columns `sees`, for those values of the key
/// in V^T that are not finite; `weights` are the page's, in pairs of keys.
inline void add_bad_key(const std::byte* values,
                        int32_t key,
                        const std::byte* weights,
                        __mmask16 sees,
                        int32_t head_size,
                        float* sums) {
    const __m512i pairs = _mm512_load_si512(weights + key / 2 * 64);
    const __m512 weight =
        _mm512_castsi512_ps(key % 2 == 0 ? _mm512_slli_epi32(pairs, 16)
                                         : _mm512_and_si512(pairs, _mm512_set1_epi32(-0x10000)));
    for (int32_t dim = 0; dim < head_size; ++dim) {
        const std::byte* element = values + (dim * kPageTokens + key) * 2;
        const uint32_t bits = uint32_t{load_as<uint16_t>(element)} << 16;
        if ((bits & 0x7f800000u) != 0x7f800000u) continue;
        const __m512 before = _mm512_load_ps(sums + dim * 16);
        const __m512 value = _mm512_set1_ps(load_as<float>(&bits));
        _mm512_store_ps(sums + dim * 16, _mm512_mask3_fmadd_ps(value, weight, before, sees));
    }
}

}  // namespace
}  // namespace tessera::cpu
