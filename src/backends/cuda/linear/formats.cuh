#pragma once
// How weights lie on the device, and the one decoder of every format.
//
// A row is cut into units of 32 values (the last one padded with zeros where a plain format needs
// it). A unit's codes are `pieces` times 16 bytes, its block scales lie in a stream of their own,
// so that a warp whose lanes take neighbouring units reads both without gaps. Where a unit has
// several pieces, 32 units (a step) keep first piece 0 of all of them, then piece 1, and so on.
// Files pack blocks of 17 to 210 bytes instead, which no vector load can read.
//
// Word q (32 bits) of a unit of four-bit codes holds the values 8q .. 8q + 7:
// - integers: value i in bits 4i .. 4i + 3;
// - E2M1: magnitude of value i in bits 4i .. 4i + 2, sign of value i < 4 in bit 8i + 7, of value
//   i >= 4 in bit 8(i - 4) + 3. The magnitudes are selectors of a byte permutation that looks up
//   four values at once, the signs then stand where the looked up bytes have theirs.
// Every decoded value is code * scale + offset with a scale for each half of a unit.

#include <cuda_fp16.h>

#include <cstdint>

#include "backends/cuda/ptx/mma.cuh"
#include "core/dtype.h"

namespace tessera::cuda {

inline constexpr int kUnit = 32;       ///< values in a unit
inline constexpr int kStepUnits = 32;  ///< units that keep their pieces together
inline constexpr int kPieceBytes = 16;

/// The layout of a format on the device. Block scales come in groups of `group_units` units.
struct FormatLayout {
    int pieces;
    int group_units;
    int group_bytes;
};

/// The layout of the formats that weights can have on the device; wider plain formats become F32.
__host__ __device__ constexpr FormatLayout layout_of(DType format) {
    switch (format) {
        case DType::kF16:
        case DType::kBF16:
            return {4, 1, 0};
        case DType::kQ4_0:
            return {1, 1, 2};
        case DType::kQ4_1:
            return {1, 1, 4};
        case DType::kQ5_0:
        case DType::kQ5_1:
            return {1, 1, 8};
        case DType::kQ8_0:
            return {2, 1, 2};
        case DType::kQ4_K:
            return {1, 8, 20};
        case DType::kQ5_K:
            return {1, 8, 52};
        case DType::kQ6_K:
            return {1, 8, 84};
        case DType::kMXFP4:
            return {1, 1, 1};
        case DType::kNVFP4:
            return {1, 1, 2};
        default:
            return {8, 1, 0};
    }
}

__host__ __device__ constexpr int64_t units_of(int64_t cols) {
    return (cols + kUnit - 1) / kUnit;
}
__host__ __device__ constexpr int64_t row_code_bytes(FormatLayout layout, int64_t units) {
    return units * layout.pieces * kPieceBytes;
}
__host__ __device__ constexpr int64_t row_scale_bytes(FormatLayout layout, int64_t units) {
    return units / layout.group_units * layout.group_bytes;
}
/// Bytes from the start of a row of codes to a piece of a unit.
__host__ __device__ constexpr int64_t piece_offset(int pieces,
                                                   int64_t units,
                                                   int64_t unit,
                                                   int piece) {
    if (pieces == 1) return unit * kPieceBytes;
    const int64_t first = unit / kStepUnits * kStepUnits;
    const int64_t together = units - first < kStepUnits ? units - first : kStepUnits;
    return (first * pieces + piece * together + (unit - first)) * kPieceBytes;
}

/// A unit as it was loaded.
template <int Pieces, int ScaleWords>
struct RawUnit {
    uint4 codes[Pieces];
    uint32_t scales[ScaleWords];
};

__device__ __forceinline__ uint32_t word_of(const uint4& piece, int index) {
    return index == 0 ? piece.x : index == 1 ? piece.y : index == 2 ? piece.z : piece.w;
}

__device__ __forceinline__ float f32_of_f16(uint32_t bits) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

template <class T>
__device__ __forceinline__ uint32_t load_word(const uint8_t* address) {
    return __ldg(reinterpret_cast<const T*>(address));
}

/// The integers 0 .. 2^23 - 1 in the mantissa of 2^23: conversion for the price of one addition.
inline constexpr uint32_t kMagicBits = 0x4b000000u;
inline constexpr float kMagic = 8388608.0f;

/// Eight values from four-bit codes, `zero` the code that stands for 0.
__device__ __forceinline__ void integers(uint32_t word, float zero, float (&codes)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
        codes[i] = __uint_as_float(((word >> (4 * i)) & 15u) | kMagicBits) - (kMagic + zero);
}

/// Upper and lower bytes of bf16(2 v) for the magnitudes v of E2M1, and upper bytes of f16(2 v),
/// whose lower bytes are zeros. Doubled, because half the largest scale of MXFP4 is finite.
inline constexpr uint32_t kBf16High0 = 0x40403f00u, kBf16High1 = 0x41414040u;
inline constexpr uint32_t kBf16Low0 = 0x40008000u, kBf16Low1 = 0x4000c080u;
inline constexpr uint32_t kF16High0 = 0x42403c00u, kF16High1 = 0x4a484644u;

/// Bytes that carry the signs of the values 0 .. 3 and 4 .. 7 of a word of E2M1 codes.
struct SignedBytes {
    uint32_t first, second;
};
__device__ __forceinline__ SignedBytes look_up(uint32_t word, uint32_t low, uint32_t high) {
    const uint32_t selectors = word & 0x77777777u;
    return {__byte_perm(low, high, selectors) | (word & 0x80808080u),
            __byte_perm(low, high, selectors >> 16) | ((word << 4) & 0x80808080u)};
}

/// Eight doubled E2M1 values.
__device__ __forceinline__ void e2m1_values(uint32_t word, float (&codes)[8]) {
    const SignedBytes bytes = look_up(word, kF16High0, kF16High1);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t four = i < 2 ? bytes.first : bytes.second;
        const uint32_t pair = __byte_perm(four, 0, i % 2 == 0 ? 0x1404 : 0x3424);
        const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&pair));
        codes[2 * i] = two.x;
        codes[2 * i + 1] = two.y;
    }
}

/// Eight doubled E2M1 values as four pairs of bf16.
__device__ __forceinline__ void e2m1_pairs(uint32_t word, uint32_t (&pairs)[4]) {
    const SignedBytes high = look_up(word, kBf16High0, kBf16High1);
    const uint32_t selectors = word & 0x77777777u;
    const uint32_t low_first = __byte_perm(kBf16Low0, kBf16Low1, selectors);
    const uint32_t low_second = __byte_perm(kBf16Low0, kBf16Low1, selectors >> 16);
    pairs[0] = __byte_perm(low_first, high.first, 0x5140);
    pairs[1] = __byte_perm(low_first, high.first, 0x7362);
    pairs[2] = __byte_perm(low_second, high.second, 0x5140);
    pairs[3] = __byte_perm(low_second, high.second, 0x7362);
}

/// What all kernels know of a format: Raw, `load_scales` (the scales of unit `unit` from the scales
/// of its row), `codes` (the values 8q .. 8q + 7 before scale and offset), `scale` of a half of a
/// unit, and `offset` where kOffset says that there is one.
template <DType F>
struct Format;

template <>
struct Format<DType::kNVFP4> {
    using Raw = RawUnit<1, 1>;
    static constexpr bool kScaled = true, kOffset = false, kE2m1 = true;
    static __device__ __forceinline__ void load_scales(const uint8_t* row, int64_t unit, Raw& raw) {
        raw.scales[0] = load_word<uint16_t>(row + 2 * unit);
    }
    static __device__ __forceinline__ void codes(const Raw& raw, int q, float (&out)[8]) {
        e2m1_values(word_of(raw.codes[0], q), out);
    }
    /// Half of the e4m3 number: its bits under an f32 exponent are 2^120 too small, subnormal ones
    /// included.
    static __device__ __forceinline__ float scale(const Raw& raw, int half) {
        const uint32_t code = (raw.scales[0] >> (8 * half)) & 0x7fu;
        return code == 0x7fu ? 0.0f : __uint_as_float(code << 20) * 0x1p119f;
    }
};

template <>
struct Format<DType::kMXFP4> {
    using Raw = RawUnit<1, 1>;
    static constexpr bool kScaled = true, kOffset = false, kE2m1 = true;
    static __device__ __forceinline__ void load_scales(const uint8_t* row, int64_t unit, Raw& raw) {
        raw.scales[0] = load_word<uint8_t>(row + unit);
    }
    static __device__ __forceinline__ void codes(const Raw& raw, int q, float (&out)[8]) {
        e2m1_values(word_of(raw.codes[0], q), out);
    }
    /// Half of 2^(code - 127), subnormal for the codes 0 and 1.
    static __device__ __forceinline__ float scale(const Raw& raw, int) {
        const uint32_t code = raw.scales[0];
        return __uint_as_float(code >= 2 ? (code - 1) << 23 : 0x00200000u << code);
    }
};

template <>
struct Format<DType::kQ4_0> {
    using Raw = RawUnit<1, 1>;
    static constexpr bool kScaled = true, kOffset = false, kE2m1 = false;
    static __device__ __forceinline__ void load_scales(const uint8_t* row, int64_t unit, Raw& raw) {
        raw.scales[0] = load_word<uint16_t>(row + 2 * unit);
    }
    static __device__ __forceinline__ void codes(const Raw& raw, int q, float (&out)[8]) {
        integers(word_of(raw.codes[0], q), 8.0f, out);
    }
    static __device__ __forceinline__ float scale(const Raw& raw, int) {
        return f32_of_f16(raw.scales[0]);
    }
};

template <>
struct Format<DType::kQ4_1> {
    using Raw = RawUnit<1, 1>;
    static constexpr bool kScaled = true, kOffset = true, kE2m1 = false;
    static __device__ __forceinline__ void load_scales(const uint8_t* row, int64_t unit, Raw& raw) {
        raw.scales[0] = load_word<uint32_t>(row + 4 * unit);
    }
    static __device__ __forceinline__ void codes(const Raw& raw, int q, float (&out)[8]) {
        integers(word_of(raw.codes[0], q), 0.0f, out);
    }
    static __device__ __forceinline__ float scale(const Raw& raw, int) {
        return f32_of_f16(raw.scales[0]);
    }
    static __device__ __forceinline__ float offset(const Raw& raw) {
        return f32_of_f16(raw.scales[0] >> 16);
    }
};

/// Four low bits from the codes, the fifth of value i from bit i of `fifth`.
__device__ __forceinline__ void five_bits(
    uint32_t word, uint32_t fifth, int q, float zero, float (&out)[8]) {
    const uint32_t top = fifth >> (8 * q);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const uint32_t code = ((word >> (4 * i)) & 15u) | (((top >> i) & 1u) << 4);
        out[i] = __uint_as_float(code | kMagicBits) - (kMagic + zero);
    }
}

/// Scales of Q5_0 and Q5_1: {fifth bits, f16 scale, f16 offset or 0}.
template <bool Offset>
struct FiveBits {
    using Raw = RawUnit<1, 2>;
    static constexpr bool kScaled = true, kOffset = Offset, kE2m1 = false;
    static __device__ __forceinline__ void load_scales(const uint8_t* row, int64_t unit, Raw& raw) {
        raw.scales[0] = load_word<uint32_t>(row + 8 * unit);
        raw.scales[1] = load_word<uint32_t>(row + 8 * unit + 4);
    }
    static __device__ __forceinline__ void codes(const Raw& raw, int q, float (&out)[8]) {
        five_bits(word_of(raw.codes[0], q), raw.scales[0], q, Offset ? 0.0f : 16.0f, out);
    }
    static __device__ __forceinline__ float scale(const Raw& raw, int) {
        return f32_of_f16(raw.scales[1]);
    }
    static __device__ __forceinline__ float offset(const Raw& raw) {
        return f32_of_f16(raw.scales[1] >> 16);
    }
};
template <>
struct Format<DType::kQ5_0> : FiveBits<false> {};
template <>
struct Format<DType::kQ5_1> : FiveBits<true> {};

template <>
struct Format<DType::kQ8_0> {
    using Raw = RawUnit<2, 1>;
    static constexpr bool kScaled = true, kOffset = false, kE2m1 = false;
    static __device__ __forceinline__ void load_scales(const uint8_t* row, int64_t unit, Raw& raw) {
        raw.scales[0] = load_word<uint16_t>(row + 2 * unit);
    }
    static __device__ __forceinline__ void codes(const Raw& raw, int q, float (&out)[8]) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            // Offset by 128, bytes become unsigned.
            const uint32_t word = word_of(raw.codes[q / 2], 2 * (q % 2) + i / 4) ^ 0x80808080u;
            const uint32_t bits =
                __byte_perm(word, kMagicBits, 0x7440u + static_cast<uint32_t>(i % 4));
            out[i] = __uint_as_float(bits) - (kMagic + 128.0f);
        }
    }
    static __device__ __forceinline__ float scale(const Raw& raw, int) {
        return f32_of_f16(raw.scales[0]);
    }
};

/// Scales of a super-block of Q4_K and Q5_K: {f16 d, f16 dmin}, then {scale, minimum} in a byte
/// each per unit, then the fifth bits per unit.
template <bool Fifth>
struct ScaleMinimum {
    using Raw = RawUnit<1, Fifth ? 3 : 2>;
    static constexpr bool kScaled = true, kOffset = true, kE2m1 = false;
    static __device__ __forceinline__ void load_scales(const uint8_t* row, int64_t unit, Raw& raw) {
        const uint8_t* group = row + unit / 8 * (Fifth ? 52 : 20);
        raw.scales[0] = load_word<uint32_t>(group);
        raw.scales[1] = load_word<uint16_t>(group + 4 + 2 * (unit % 8));
        if constexpr (Fifth) raw.scales[2] = load_word<uint32_t>(group + 20 + 4 * (unit % 8));
    }
    static __device__ __forceinline__ void codes(const Raw& raw, int q, float (&out)[8]) {
        if constexpr (Fifth)
            five_bits(word_of(raw.codes[0], q), raw.scales[2], q, 0.0f, out);
        else
            integers(word_of(raw.codes[0], q), 0.0f, out);
    }
    static __device__ __forceinline__ float scale(const Raw& raw, int) {
        return f32_of_f16(raw.scales[0]) * static_cast<float>(raw.scales[1] & 0xffu);
    }
    static __device__ __forceinline__ float offset(const Raw& raw) {
        return -(f32_of_f16(raw.scales[0] >> 16) * static_cast<float>(raw.scales[1] >> 8));
    }
};
template <>
struct Format<DType::kQ4_K> : ScaleMinimum<false> {};
template <>
struct Format<DType::kQ5_K> : ScaleMinimum<true> {};

/// Scales of a super-block: {f16 d, 0}, then two int8 scales per unit, then the upper two bits of
/// the 32 values of each unit in 8 bytes.
template <>
struct Format<DType::kQ6_K> {
    using Raw = RawUnit<1, 4>;
    static constexpr bool kScaled = true, kOffset = false, kE2m1 = false;
    static __device__ __forceinline__ void load_scales(const uint8_t* row, int64_t unit, Raw& raw) {
        const uint8_t* group = row + unit / 8 * 84;
        raw.scales[0] = load_word<uint32_t>(group);
        raw.scales[1] = load_word<uint16_t>(group + 4 + 2 * (unit % 8));
        raw.scales[2] = load_word<uint32_t>(group + 20 + 8 * (unit % 8));
        raw.scales[3] = load_word<uint32_t>(group + 24 + 8 * (unit % 8));
    }
    static __device__ __forceinline__ void codes(const Raw& raw, int q, float (&out)[8]) {
        const uint32_t word = word_of(raw.codes[0], q);
        const uint32_t top = raw.scales[2 + q / 2] >> (16 * (q % 2));
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const uint32_t code = ((word >> (4 * i)) & 15u) | (((top >> (2 * i)) & 3u) << 4);
            out[i] = __uint_as_float(code | kMagicBits) - (kMagic + 32.0f);
        }
    }
    static __device__ __forceinline__ float scale(const Raw& raw, int half) {
        const auto byte = static_cast<int8_t>((raw.scales[1] >> (8 * half)) & 0xffu);
        return f32_of_f16(raw.scales[0]) * static_cast<float>(byte);
    }
};

/// Plain formats: no scales.
template <int Pieces>
struct Plain {
    using Raw = RawUnit<Pieces, 1>;
    static constexpr bool kScaled = false, kOffset = false, kE2m1 = false;
    static __device__ __forceinline__ void load_scales(const uint8_t*, int64_t, Raw&) {}
    static __device__ __forceinline__ float scale(const Raw&, int) { return 1.0f; }
};
template <>
struct Format<DType::kF32> : Plain<8> {
    static __device__ __forceinline__ void codes(const Raw& raw, int q, float (&out)[8]) {
#pragma unroll
        for (int i = 0; i < 8; ++i)
            out[i] = __uint_as_float(word_of(raw.codes[2 * q + i / 4], i % 4));
    }
};
template <>
struct Format<DType::kF16> : Plain<4> {
    static __device__ __forceinline__ void codes(const Raw& raw, int q, float (&out)[8]) {
#pragma unroll
        for (int i = 0; i < 8; ++i)
            out[i] = f32_of_f16(word_of(raw.codes[q], i / 2) >> (16 * (i % 2)) & 0xffffu);
    }
};
template <>
struct Format<DType::kBF16> : Plain<4> {
    static __device__ __forceinline__ void codes(const Raw& raw, int q, float (&out)[8]) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const uint32_t word = word_of(raw.codes[q], i / 2);
            out[i] = __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000u);
        }
    }
};

/// Where a row of a weight starts.
struct WeightRow {
    const uint8_t* codes;
    const uint8_t* scales;
};

/// A unit of a row of `units`, in 32 bits: what many loads in a row cost is their addresses.
template <DType F>
__device__ __forceinline__ typename Format<F>::Raw load_present_unit(const WeightRow& row,
                                                                     int unit,
                                                                     int units) {
    constexpr int kPieces = layout_of(F).pieces;
    typename Format<F>::Raw raw;
    const int first = unit & ~(kStepUnits - 1), together = min(kStepUnits, units - first);
    const int at = (kPieces == 1 ? unit : first * (kPieces - 1) + unit) * kPieceBytes;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece)
        raw.codes[piece] = __ldg(reinterpret_cast<const uint4*>(
            row.codes + static_cast<uint32_t>(at + piece * together * kPieceBytes)));
    Format<F>::load_scales(row.scales, unit, raw);
    return raw;
}

/// A unit of a row of `units`; zeros when `unit` is not one of them.
template <DType F>
__device__ __forceinline__ typename Format<F>::Raw load_unit(const WeightRow& row,
                                                             int64_t unit,
                                                             int64_t units) {
    constexpr int kPieces = layout_of(F).pieces;
    typename Format<F>::Raw raw{};
    if (unit >= units) return raw;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece)
        raw.codes[piece] = __ldg(
            reinterpret_cast<const uint4*>(row.codes + piece_offset(kPieces, units, unit, piece)));
    Format<F>::load_scales(row.scales, unit, raw);
    return raw;
}

/// The values 8q .. 8q + 7 of a unit.
template <DType F>
__device__ __forceinline__ void decode(const typename Format<F>::Raw& raw,
                                       int q,
                                       float (&values)[8]) {
    Format<F>::codes(raw, q, values);
    if constexpr (Format<F>::kScaled) {
        const float scale = Format<F>::scale(raw, q / 2);
        float offset = 0.0f;
        if constexpr (Format<F>::kOffset) offset = Format<F>::offset(raw);
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = __fmaf_rn(values[i], scale, offset);
    }
}

/// The values 8q .. 8q + 7 of a unit rounded to bf16, two a word. Exact for E2M1: six significant
/// bits.
template <DType F>
__device__ __forceinline__ void decode_bf16(const typename Format<F>::Raw& raw,
                                            int q,
                                            uint32_t (&pairs)[4]) {
    if constexpr (F == DType::kBF16) {
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs[i] = word_of(raw.codes[q], i);
    } else if constexpr (Format<F>::kE2m1) {
        e2m1_pairs(word_of(raw.codes[0], q), pairs);
        const uint32_t bits = __float_as_uint(Format<F>::scale(raw, q / 2));
        const uint32_t scale = __byte_perm(bits, bits, 0x3232);
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs[i] = multiply_bf16(pairs[i], scale);
    } else if constexpr (F == DType::kQ8_0) {
        // Bytes in bits 8 to 15 of 2^15: nine bits times the eleven of the scale are exact, so that
        // one multiply-add takes the 2^15 out and rounds nothing.
        const float scale = Format<F>::scale(raw, 0), zero = -(32768.0f + 128.0f) * scale;
        float values[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const uint32_t word = word_of(raw.codes[q / 2], 2 * (q % 2) + i / 4) ^ 0x80808080u;
            const uint32_t bits =
                __byte_perm(word, 0x47000000u, 0x7404u + (static_cast<uint32_t>(i % 4) << 4));
            values[i] = __fmaf_rn(__uint_as_float(bits), scale, zero);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs[i] = pack_bf16(values[2 * i], values[2 * i + 1]);
    } else {
        float values[8];
        decode<F>(raw, q, values);
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs[i] = pack_bf16(values[2 * i], values[2 * i + 1]);
    }
}

}  // namespace tessera::cuda
