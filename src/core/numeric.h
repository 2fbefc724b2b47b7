#pragma once
// Scalar conversions of the number formats, bit for bit. Everything else (kernels, tests) is judged
// against these.

#include <bit>
#include <cmath>
#include <cstdint>

namespace tessera {

/// Upper half of the f32, rounded to nearest even; a NaN stays a (quiet) NaN.
inline uint16_t bf16_from_f32(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline float f32_from_bf16(uint16_t value) {
    return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

/// IEEE half precision, round to nearest even, overflow to infinity, subnormals kept.
inline uint16_t f16_from_f32(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    // Below 2^-14 the result is subnormal: adding 0.5 lets the adder round at 2^-24.
    const uint32_t subnormal =
        std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
    if (magnitude >= 0x477ff000u) result = 0x7c00u;
    if (magnitude > 0x7f800000u) result = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    return static_cast<uint16_t>(sign | result);
}
inline float f32_from_f16(uint16_t value) {
    const uint32_t sign = static_cast<uint32_t>(value & 0x8000u) << 16;
    const uint32_t shifted = static_cast<uint32_t>(value & 0x7fffu) << 13;
    // Subnormals are rebuilt by a subtraction, so that they survive flush-to-zero modes.
    const float subnormal = std::bit_cast<float>(shifted + 0x38800000u) - 0x1p-14f;
    uint32_t result =
        shifted < 0x00800000u ? std::bit_cast<uint32_t>(subnormal) : shifted + 0x38000000u;
    if (shifted >= 0x0f800000u) result = shifted + 0x70000000u;
    return std::bit_cast<float>(sign | result);
}

/// E2M1 values by 4-bit code: sign, two exponent bits, one mantissa bit.
inline constexpr float kE2M1Values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                          -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
/// Code of the nearest E2M1 value. Ties go to the even code (the rounding of the PTX instruction
/// cvt.rn.satfinite.e2m1x2), magnitudes over 6 saturate, the sign of zero is kept. NaN gives +6.
uint8_t e2m1_from_f32(float value);

/// Unsigned E4M3 (bias 7, largest finite value 448 = code 0x7e). Bit 7 is ignored; 0x7f (NaN) reads
/// as 0, as llama.cpp reads it.
float f32_from_ue4m3(uint8_t code);
/// Round to nearest even, clamp to 448, values <= 0 and NaN give 0. Never returns 0x7f.
uint8_t ue4m3_from_f32(float value);

/// Signed E4M3 as the OCP text has it (bias 7, largest 448, no infinities): 0x7f and 0xff are NaN.
inline float f32_from_e4m3(uint8_t code) {
    const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
    const uint32_t shifted = static_cast<uint32_t>(code & 0x7fu) << 20;
    // Subnormals are rebuilt by a subtraction, so that they survive flush-to-zero modes.
    const float subnormal = std::bit_cast<float>(shifted + 0x3c800000u) - 0x1p-6f;
    uint32_t result =
        shifted < 0x00800000u ? std::bit_cast<uint32_t>(subnormal) : shifted + 0x3c000000u;
    if (shifted == 0x07f00000u) result = 0x7fc00000u;
    return std::bit_cast<float>(sign | result);
}
/// Round to nearest even; magnitudes over 448, infinities too, become 448; a NaN stays NaN. Signs
/// are kept.
inline uint8_t e4m3_from_f32(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t magnitude = bits & 0x7fffffffu;
    // Below 2^-6 codes count steps of 2^-9, the last place of a sum with 2^14.
    const uint32_t subnormal =
        std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14f) - 0x46800000u;
    const uint32_t normal = (magnitude - 0x3c000000u + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
    uint32_t result = magnitude < 0x3c800000u ? subnormal : normal;
    if (magnitude >= 0x43e00000u) result = 0x7eu;
    if (magnitude > 0x7f800000u) result = 0x7fu;
    return static_cast<uint8_t>(((bits >> 24) & 0x80u) | result);
}

/// E8M0 exponent byte: 2^(code-127); code 0 is 2^-127, code 255 (NaN in the OCP text) is read as
/// 2^128 = inf.
inline float f32_from_e8m0(uint8_t code) {
    if (code == 0) return std::bit_cast<float>(0x00400000u);
    return std::bit_cast<float>(static_cast<uint32_t>(code) << 23);
}

}  // namespace tessera
