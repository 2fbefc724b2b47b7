#pragma once
// Elements of every storage format on the device, bit for bit as core/codec*.cpp has them; the
// host can run the functions too, which is how they are compared with it where there is no card.
//
// Sums and products are spelled out (`mul`, `plus`, `minus`): the compiler may not contract them,
// because the host's codec rounds each. Bytes are read one by one: blocks of 17 or 34 bytes have no
// alignment.

#include <cuda_fp16.h>

#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/dtype.h"
#include "core/numeric.h"

namespace tessera::cuda::rows {

__host__ __device__ inline float mul(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fmul_rn(a, b);
#else
    return a * b;
#endif
}
__host__ __device__ inline float plus(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fadd_rn(a, b);
#else
    return a + b;
#endif
}
__host__ __device__ inline float minus(float a, float b) {
    return plus(a, -b);
}
__host__ __device__ inline float f32_of_f16(uint16_t bits) {
#ifdef __CUDA_ARCH__
    return __half2float(__ushort_as_half(bits));
#else
    return f32_from_f16(bits);
#endif
}
__host__ __device__ inline uint16_t f16_of_f32(float value) {
#ifdef __CUDA_ARCH__
    // As a pair: ptxas 13.0 turns the store of a byte of a single conversion's result into a
    // numeric conversion (F2I.U8.F16).
    const __half2 pair = __floats2half2_rn(value, 0.0f);
    return static_cast<uint16_t>(*reinterpret_cast<const uint32_t*>(&pair));
#else
    return f16_from_f32(value);
#endif
}
__host__ __device__ inline float f32_of_bf16(uint16_t bits) {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}
__host__ __device__ inline uint16_t bf16_of_f32(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
/// f32_from_e4m3 of core/numeric.h.
__host__ __device__ inline float f32_of_e4m3(uint32_t code) {
    const uint32_t shifted = (code & 0x7fu) << 20;
    float value = std::bit_cast<float>(shifted + 0x3c000000u);
    if (shifted < 0x00800000u) value = minus(std::bit_cast<float>(shifted + 0x3c800000u), 0x1p-6f);
    uint32_t bits = std::bit_cast<uint32_t>(value);
    if (shifted == 0x07f00000u) bits = 0x7fc00000u;
    return std::bit_cast<float>(bits | (code & 0x80u) << 24);
}
/// e4m3_from_f32 of core/numeric.h.
__host__ __device__ inline uint8_t e4m3_of_f32(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t code = (magnitude - 0x3c000000u + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
    if (magnitude < 0x3c800000u)
        code =
            std::bit_cast<uint32_t>(plus(std::bit_cast<float>(magnitude), 0x1p14f)) - 0x46800000u;
    if (magnitude >= 0x43e00000u) code = 0x7eu;
    if (magnitude > 0x7f800000u) code = 0x7fu;
    return static_cast<uint8_t>((bits >> 24 & 0x80u) | code);
}
__host__ __device__ inline uint32_t load16(const uint8_t* bytes) {
    return bytes[0] | static_cast<uint32_t>(bytes[1]) << 8;
}
__host__ __device__ inline uint32_t load32(const uint8_t* bytes) {
    return load16(bytes) | load16(bytes + 2) << 16;
}
__host__ __device__ inline float load_f16(const uint8_t* bytes) {
    return f32_of_f16(static_cast<uint16_t>(load16(bytes)));
}
__host__ __device__ inline void store16(uint32_t value, uint8_t* bytes) {
    bytes[0] = static_cast<uint8_t>(value);
    bytes[1] = static_cast<uint8_t>(value >> 8);
}
__host__ __device__ inline float clamped(float value, float low, float high) {
    const float raised = value < low ? low : value;
    return raised > high ? high : raised;
}
/// A block scale; beyond the range of half precision it saturates.
__host__ __device__ inline uint16_t f16_scale(float value) {
    return f16_of_f32(clamped(value, -65504.0f, 65504.0f));
}
/// Nearest integer, ties to even, for |value| < 2^22.
__host__ __device__ inline float round_even(float value) {
    constexpr float kShift = 12582912.0f;  // 1.5 * 2^23
    return minus(plus(value, kShift), kShift);
}
__host__ __device__ inline float reciprocal_or_zero(float value) {
    if (value == 0.0f) return 0.0f;
    const float inverse = 1.0f / value;
    return isfinite(inverse) ? inverse : 0.0f;
}

// ---- plain formats ----

/// One element of a plain format. Carrier: float, double or int64_t (integer formats only).
template <class Carrier>
__host__ __device__ inline Carrier read_plain(DType format, const uint8_t* row, int64_t i) {
    const void* data = row;
    switch (format) {
        case DType::kF32:
            return static_cast<Carrier>(static_cast<const float*>(data)[i]);
        case DType::kF16:
            return static_cast<Carrier>(f32_of_f16(static_cast<const uint16_t*>(data)[i]));
        case DType::kBF16:
            return static_cast<Carrier>(f32_of_bf16(static_cast<const uint16_t*>(data)[i]));
        case DType::kF64:
            return static_cast<Carrier>(static_cast<const double*>(data)[i]);
        case DType::kI8:
            return static_cast<Carrier>(static_cast<const int8_t*>(data)[i]);
        case DType::kI16:
            return static_cast<Carrier>(static_cast<const int16_t*>(data)[i]);
        case DType::kI32:
            return static_cast<Carrier>(static_cast<const int32_t*>(data)[i]);
        case DType::kF8_E4M3:
            return static_cast<Carrier>(f32_of_e4m3(row[i]));
        default:
            return static_cast<Carrier>(static_cast<const int64_t*>(data)[i]);
    }
}

/// Nearest integer, ties to even, that the type holds; NaN gives 0.
template <class Integer, class Carrier>
__host__ __device__ inline Integer nearest(Carrier value) {
    constexpr Integer kLowest = std::numeric_limits<Integer>::min();
    constexpr Integer kLargest = std::numeric_limits<Integer>::max();
    if constexpr (std::is_same_v<Carrier, int64_t>) {
        if (value <= static_cast<int64_t>(kLowest)) return kLowest;
        return value >= static_cast<int64_t>(kLargest) ? kLargest : static_cast<Integer>(value);
    } else {
        if (value != value) return 0;
        const double rounded = nearbyint(static_cast<double>(value));
        if (rounded <= static_cast<double>(kLowest)) return kLowest;
        return rounded >= static_cast<double>(kLargest) ? kLargest : static_cast<Integer>(rounded);
    }
}

template <class Carrier>
__host__ __device__ inline void write_plain(DType format, Carrier value, int64_t i, uint8_t* row) {
    void* data = row;
    switch (format) {
        case DType::kF32:
            static_cast<float*>(data)[i] = static_cast<float>(value);
            return;
        case DType::kF16:
            static_cast<uint16_t*>(data)[i] = f16_of_f32(static_cast<float>(value));
            return;
        case DType::kBF16:
            static_cast<uint16_t*>(data)[i] = bf16_of_f32(static_cast<float>(value));
            return;
        case DType::kF64:
            static_cast<double*>(data)[i] = static_cast<double>(value);
            return;
        case DType::kI8:
            static_cast<int8_t*>(data)[i] = nearest<int8_t>(value);
            return;
        case DType::kI16:
            static_cast<int16_t*>(data)[i] = nearest<int16_t>(value);
            return;
        case DType::kI32:
            static_cast<int32_t*>(data)[i] = nearest<int32_t>(value);
            return;
        case DType::kF8_E4M3:
            row[i] = e4m3_of_f32(static_cast<float>(value));
            return;
        default:
            static_cast<int64_t*>(data)[i] = nearest<int64_t>(value);
            return;
    }
}

// ---- decoding of blocks, element by element ----

__host__ __device__ inline float e2m1_value(uint32_t code) {
    const uint32_t exponent = (code >> 1) & 3u;
    const uint32_t mantissa = code & 1u;
    const uint32_t bits = exponent == 0 ? mantissa * 0x3f000000u  // 0 or 0.5
                                        : ((exponent + 126u) << 23) | (mantissa << 22);
    return std::bit_cast<float>(bits | (code & 8u) << 28);
}

__host__ __device__ inline float ue4m3_value(uint32_t code) {
    const uint32_t magnitude = code & 0x7fu;
    if (magnitude == 0x7fu) return 0.0f;
    if (magnitude < 8) return mul(static_cast<float>(magnitude), 0x1p-9f);
    return std::bit_cast<float>((magnitude << 20) + (120u << 23));
}

__host__ __device__ inline uint32_t ue4m3_code(float value) {
    if (!(value > 0.0f)) return 0;
    if (value >= 448.0f) return 0x7e;
    if (value < 0x1p-6f) return std::bit_cast<uint32_t>(plus(value, 0x1p14f)) & 0xffu;
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    return ((bits + 0x7ffffu + ((bits >> 20) & 1u)) >> 20) - (120u << 3);
}

/// Nibble j of `count`: the lower halves come first.
__host__ __device__ inline uint32_t nibble(const uint8_t* packed, int32_t j, int32_t count) {
    return j < count / 2 ? packed[j] & 15u : packed[j - count / 2] >> 4;
}

struct ScaleMin {
    int32_t scale;
    int32_t minimum;
};

__host__ __device__ inline ScaleMin unpack_scale_min(const uint8_t* packed, int32_t j) {
    if (j < 4) return {packed[j] & 63, packed[j + 4] & 63};
    return {(packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4),
            (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4)};
}

__host__ __device__ inline float of_integer(uint32_t code, int32_t zero) {
    return static_cast<float>(static_cast<int32_t>(code) - zero);
}

/// Element i of a block of 32 with a scale (and a minimum or fifth bits).
__host__ __device__ inline float decode_q(DType format, const uint8_t* row, int64_t i) {
    const int64_t block = i / 32;
    const int32_t j = static_cast<int32_t>(i % 32);
    const auto fifth = [j](const uint8_t* mask) { return (load32(mask) >> j & 1u) << 4; };
    switch (format) {
        case DType::kQ4_0: {
            const uint8_t* b = row + block * 18;
            return mul(load_f16(b), of_integer(nibble(b + 2, j, 32), 8));
        }
        case DType::kQ4_1: {
            const uint8_t* b = row + block * 20;
            return plus(mul(load_f16(b), of_integer(nibble(b + 4, j, 32), 0)), load_f16(b + 2));
        }
        case DType::kQ5_0: {
            const uint8_t* b = row + block * 22;
            return mul(load_f16(b), of_integer(nibble(b + 6, j, 32) | fifth(b + 2), 16));
        }
        case DType::kQ5_1: {
            const uint8_t* b = row + block * 24;
            const uint32_t code = nibble(b + 8, j, 32) | fifth(b + 4);
            return plus(mul(load_f16(b), of_integer(code, 0)), load_f16(b + 2));
        }
        default: {  // Q8_0
            const uint8_t* b = row + block * 34;
            return mul(load_f16(b), static_cast<float>(static_cast<int8_t>(b[2 + j])));
        }
    }
}

/// Element i of a super-block of 256.
__host__ __device__ inline float decode_k(DType format, const uint8_t* row, int64_t i) {
    const int64_t block = i / 256;
    const int32_t sub = static_cast<int32_t>(i % 256) / 32;
    const int32_t l = static_cast<int32_t>(i % 32);
    if (format == DType::kQ6_K) {
        const uint8_t* b = row + block * 210;
        const int32_t half = sub / 4, quarter = sub % 4;
        const uint32_t low = b[64 * half + 32 * (quarter & 1) + l] >> (quarter >> 1) * 4;
        const uint32_t high = b[128 + 32 * half + l] >> quarter * 2;
        const auto scale = static_cast<int8_t>(b[192 + 8 * half + 2 * quarter + l / 16]);
        const uint32_t code = (low & 15u) | (high & 3u) << 4;
        return mul(mul(load_f16(b + 208), static_cast<float>(scale)), of_integer(code, 32));
    }
    const bool five = format == DType::kQ5_K;
    const uint8_t* b = row + block * (five ? 176 : 144);
    uint32_t code = b[(five ? 48 : 16) + 32 * (sub / 2) + l] >> (sub & 1) * 4 & 15u;
    if (five) code |= (b[16 + l] >> sub & 1u) << 4;
    const ScaleMin stored = unpack_scale_min(b + 4, sub);
    const float scale = mul(load_f16(b), static_cast<float>(stored.scale));
    const float minimum = mul(load_f16(b + 2), static_cast<float>(stored.minimum));
    return minus(mul(scale, of_integer(code, 0)), minimum);
}

/// Element i of a row of any format.
__host__ __device__ inline float read_element(DType format, const uint8_t* row, int64_t i) {
    switch (format) {
        case DType::kQ4_0:
        case DType::kQ4_1:
        case DType::kQ5_0:
        case DType::kQ5_1:
        case DType::kQ8_0:
            return decode_q(format, row, i);
        case DType::kQ4_K:
        case DType::kQ5_K:
        case DType::kQ6_K:
            return decode_k(format, row, i);
        case DType::kMXFP4: {
            const uint8_t* b = row + i / 32 * 17;
            // Half the scale times twice the element: code 255 stands for 2^128.
            float half = mul(0.5f, std::bit_cast<float>(static_cast<uint32_t>(b[0]) << 23));
            if (b[0] == 0) half = 0x1p-128f;
            if (b[0] == 255) half = 0x1p127f;
            const float value = e2m1_value(nibble(b + 1, static_cast<int32_t>(i % 32), 32));
            return mul(mul(2.0f, value), half);
        }
        case DType::kNVFP4: {
            const uint8_t* b = row + i / 64 * 36;
            const int32_t sub = static_cast<int32_t>(i % 64) / 16;
            const uint32_t code = nibble(b + 4 + 8 * sub, static_cast<int32_t>(i % 16), 16);
            return mul(e2m1_value(code), ue4m3_value(b[sub]));
        }
        default:
            return read_plain<float>(format, row, i);
    }
}

}  // namespace tessera::cuda::rows
