#pragma once
// Readers of the packed formats, once for all instruction sets. Codes<V, format> turns a unit into
// numbers without block scale, either f32 by pairs of columns or bytes (code + offset) by quads;
// Scales<V, format> gives the f32 scale and minimum of V::kLanes rows. `row` is the first row.
// Layouts: isa/linear_layout.h. Internal linkage: see isa/vector.h.

#include <cstddef>
#include <utility>

#include "backends/cpu/isa/linear_kernels.h"
#include "backends/cpu/isa/vector.h"
#include "core/numeric.h"

namespace tessera::cpu {
namespace {

template <class F, int... kIndex>
TESSERA_INLINE void unroll(std::integer_sequence<int, kIndex...>, F body) {
    (body(std::integral_constant<int, kIndex>{}), ...);
}
/// body(integral_constant<int, 0>), ..., body(integral_constant<int, N - 1>).
template <int N, class F>
TESSERA_INLINE void unroll(F body) {
    unroll(std::make_integer_sequence<int, N>{}, body);
}

constexpr bool is_fp4(DType format) {
    return format == DType::kNVFP4 || format == DType::kMXFP4;
}
constexpr bool is_nibble(DType format) {
    return is_fp4(format) || format == DType::kQ4_0 || format == DType::kQ4_1 ||
           format == DType::kQ4_K;
}
constexpr bool is_five_bit(DType format) {
    return format == DType::kQ5_0 || format == DType::kQ5_1 || format == DType::kQ5_K;
}
/// Columns under one scale.
constexpr int group_cols(DType format) {
    return format == DType::kNVFP4 || format == DType::kQ6_K ? 16 : 32;
}

struct NibbleTables {
    float values[16];
    uint8_t bytes[16];  ///< code + offset
};
constexpr NibbleTables nibble_tables(DType format) {
    NibbleTables tables{};
    for (int i = 0; i < 16; ++i) {
        tables.values[i] =
            is_fp4(format) ? kE2M1Values[i] : static_cast<float>(i - byte_offset(format));
        tables.bytes[i] = static_cast<uint8_t>(
            is_fp4(format) ? static_cast<int>(2.0f * kE2M1Values[i]) + byte_offset(format) : i);
    }
    return tables;
}
template <DType kFormat>
inline constexpr NibbleTables kNibbleTables = nibble_tables(kFormat);

template <class V, DType kFormat>
struct Codes {
    using Float = typename V::Float;
    using Int = typename V::Int;
    static constexpr int kUnitBytes = layout_of(kFormat).unit_bytes;
    static constexpr bool kHasBytes =
        kFormat != DType::kF32 && kFormat != DType::kF16 && kFormat != DType::kBF16;

    typename V::Table table = V::table(kNibbleTables<kFormat>.values);
    typename V::ByteTable byte_table = V::byte_table(kNibbleTables<kFormat>.bytes);

    /// use(k, even, odd) for the column pairs k, k + 1 of the unit in [kFirst, kFirst + kCount).
    template <int kFirst, int kCount, class Use>
    TESSERA_INLINE void pairs(const std::byte* unit, int row, Use use) const {
        if constexpr (is_nibble(kFormat)) {
            unroll<kCount / 8>([&](auto eight) __attribute__((always_inline)) {
                constexpr int kHalf = kFirst / 8 + decltype(eight)::value;
                const Int words = V::load_int(unit + 64 * kHalf + 4 * row);
                unroll<4>([&](auto j) __attribute__((always_inline)) {
                    constexpr int kShift = 4 * decltype(j)::value;
                    use(8 * kHalf + kShift / 2, V::lookup(table, V::template right<kShift>(words)),
                        V::lookup(table, V::template right<16 + kShift>(words)));
                });
            });
        } else if constexpr (kFormat == DType::kQ8_0) {
            unroll<kCount / 2>([&](auto index) __attribute__((always_inline)) {
                constexpr int k = kFirst + 2 * decltype(index)::value;
                constexpr int kPair = (k % 8) / 2;  // 0..3 -> positions (0,2) (4,6) (1,3) (5,7)
                constexpr int kPlace = k / 8 * 8 + (kPair & 1) * 4 + kPair / 2;
                const std::byte* place = unit + 16 * kPlace + row;
                use(k, V::to_float(V::load_i8(place)), V::to_float(V::load_i8(place + 32)));
            });
        } else if constexpr (kHasBytes) {
            unroll<kCount / 4>([&](auto index) __attribute__((always_inline)) {
                constexpr int kQuad = kFirst / 4 + decltype(index)::value;
                constexpr int k = kQuad / 2 * 8 + kQuad % 2 * 2;
                const Int bytes = signed_quad<kQuad>(unit, row);
                use(k, V::to_float(V::template right_signed<24>(V::template left<24>(bytes))),
                    V::to_float(V::template right_signed<24>(V::template left<8>(bytes))));
                use(k + 4, V::to_float(V::template right_signed<24>(V::template left<16>(bytes))),
                    V::to_float(V::template right_signed<24>(bytes)));
            });
        } else {
            unroll<kCount / 2>([&](auto index) __attribute__((always_inline)) {
                constexpr int k = kFirst + 2 * decltype(index)::value;
                float_pair<k>(unit, row, use);
            });
        }
    }

    /// Bytes code + byte_offset (Q8_0: the signed code) of quad kQuad.
    template <int kQuad>
    TESSERA_INLINE Int quad(const std::byte* unit, int row) const {
        if constexpr (kFormat == DType::kQ8_0) {
            return V::load_transposed(unit + 64 * kQuad + row);
        } else {
            const Int words = V::load_int(unit + 32 * (kQuad & ~1) + 4 * row);
            const Int nibbles = V::and_bits(kQuad & 1 ? V::template right<4>(words) : words,
                                            V::set_int(0x0f0f0f0f));
            if constexpr (is_nibble(kFormat)) {
                if constexpr (is_fp4(kFormat)) return V::lookup_bytes(byte_table, nibbles);
                return nibbles;
            } else if constexpr (is_five_bit(kFormat)) {
                const Int fifth = V::load_int(unit + 256 + 4 * row);
                const Int moved = shift_left<4 - kQuad>(fifth);
                return V::or_bits(nibbles, V::and_bits(moved, V::set_int(0x10101010)));
            } else {
                const Int upper = V::load_int(unit + 256 + 64 * (kQuad / 4) + 4 * row);
                const Int moved = shift_left<4 - 2 * (kQuad % 4)>(upper);
                return V::or_bits(nibbles, V::and_bits(moved, V::set_int(0x30303030)));
            }
        }
    }

  private:
    /// Bits that cross a byte are masked off by the callers.
    template <int kShift>
    static TESSERA_INLINE Int shift_left(Int a) {
        if constexpr (kShift >= 0) return V::template left<kShift>(a);
        if constexpr (kShift < 0) return V::template right<-kShift>(a);
    }
    template <int kQuad>
    TESSERA_INLINE Int signed_quad(const std::byte* unit, int row) const {
        constexpr int32_t kOffset = byte_offset(kFormat) * 0x01010101;
        const Int bytes = quad<kQuad>(unit, row);
        if constexpr (kOffset == 0) return bytes;
        return V::sub_bytes(bytes, V::set_int(kOffset));
    }
    template <int k, class Use>
    static TESSERA_INLINE void float_pair(const std::byte* unit, int row, Use use) {
        if constexpr (kFormat == DType::kBF16) {
            const Int words = V::load_int(unit + 32 * k + 4 * row);
            use(k, V::from_bits(V::template left<16>(words)),
                V::from_bits(V::and_bits(words, V::set_int(static_cast<int32_t>(0xffff0000u)))));
        } else if constexpr (kFormat == DType::kF16) {
            const std::byte* place = unit + 32 * k + 2 * row;
            use(k, V::load_half(place), V::load_half(place + 32));
        } else {
            const float* place = reinterpret_cast<const float*>(unit) + 16 * k + row;
            use(k, V::load(place), V::load(place + 16));
        }
    }
};

template <class V, DType kFormat>
struct Scales {
    using Float = typename V::Float;
    using Int = typename V::Int;
    static constexpr bool kPresent = layout_of(kFormat).scale_units != 0;
    static constexpr bool kMinimum = has_minimum(kFormat);

    /// Of group `group` (0 or 1) of unit `u`; `scales` belongs to the row block.
    static TESSERA_INLINE Float scale(const std::byte* scales, int64_t u, int group, int row) {
        const std::byte* place = scales + u / kUnits * kBytes;
        if constexpr (kFormat == DType::kNVFP4) {
            const Int code = V::load_u8(place + 16 * group + row);
            return V::from_bits(V::add_int(V::template left<20>(code), V::set_int(118 << 23)));
        } else if constexpr (kFormat == DType::kMXFP4) {
            const Int bits = V::template left<23>(V::load_u8(place + row));
            return V::from_bits(V::max_u32(bits, V::set_int(0x00400000)));
        } else if constexpr (kUnits == 1) {
            return V::load_half(place + 2 * row);
        } else {
            const Float d = V::load_half(place + 2 * row);
            const std::byte* own = place + kHeader + 32 * (u % kUnits) + row;
            if constexpr (kFormat == DType::kQ6_K)
                return V::mul(d, V::to_float(V::load_i8(own + 16 * group)));
            return V::mul(d, V::to_float(V::load_u8(own)));
        }
    }
    /// Added to every value of the unit.
    static TESSERA_INLINE Float minimum(const std::byte* scales, int64_t u, int row) {
        const std::byte* place = scales + u / kUnits * kBytes;
        if constexpr (kUnits == 1) return V::load_half(place + 32 + 2 * row);
        const Float d = V::load_half(place + 32 + 2 * row);
        const Int code = V::load_u8(place + kHeader + 32 * (u % kUnits) + 16 + row);
        return V::sub(V::zero(), V::mul(d, V::to_float(code)));
    }

  private:
    static constexpr int kUnits = kPresent ? layout_of(kFormat).scale_units : 1;
    static constexpr int kBytes = layout_of(kFormat).scale_bytes;
    static constexpr int kHeader = kFormat == DType::kQ6_K ? 32 : 64;
};

}  // namespace
}  // namespace tessera::cpu
