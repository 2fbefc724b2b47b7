#pragma once
// Private to core/codec*.cpp: one decoder and one encoder per block format, and unaligned access.
// `count` is always a whole number of blocks.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/codec.h"
#include "core/numeric.h"

namespace tessera::codec {

template <class T>
T load(const std::byte* source) {
    T value;
    std::memcpy(&value, source, sizeof(T));
    return value;
}

template <class T>
void store(std::byte* target, T value) {
    std::memcpy(target, &value, sizeof(T));
}

inline float load_f16(const std::byte* source) {
    return f32_from_f16(load<uint16_t>(source));
}

/// Stores a block scale; beyond the range of half precision it saturates, because an infinite scale
/// would turn the zeros of its block into NaN.
inline void store_f16(std::byte* target, float value) {
    store(target, f16_from_f32(std::clamp(value, -65504.0f, 65504.0f)));
}

inline const uint8_t* bytes_of(const std::byte* source) {
    return reinterpret_cast<const uint8_t*>(source);
}
inline uint8_t* bytes_of(std::byte* target) {
    return reinterpret_cast<uint8_t*>(target);
}

/// Nearest integer, ties to even, for |value| < 2^22: the adder rounds at its last place.
inline float round_even(float value) {
    constexpr float kShift = 12582912.0f;  // 1.5 * 2^23
    return (value + kShift) - kShift;
}

/// 1 / value, or 0 where that is infinite: a scale too small to divide by stands for zeros.
inline float reciprocal_or_zero(float value) {
    if (value == 0.0f) return 0.0f;
    const float inverse = 1.0f / value;
    return std::isfinite(inverse) ? inverse : 0.0f;
}

/// Largest magnitude. Eight running maxima instead of one let the loop vectorise.
inline float largest_magnitude(const float* values, int64_t count) {
    constexpr int64_t kLanes = 8;
    float lanes[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        for (int64_t lane = 0; lane < kLanes; ++lane) {
            const float magnitude = std::fabs(values[i + lane]);
            lanes[lane] = lanes[lane] < magnitude ? magnitude : lanes[lane];
        }
    }
    float largest = 0.0f;
    for (; i < count; ++i) largest = std::max(largest, std::fabs(values[i]));
    for (const float lane : lanes) largest = std::max(largest, lane);
    return largest;
}

using Decoder = void (*)(const std::byte* source, int64_t count, float* values);
using Encoder = void (*)(const float* values, int64_t count, std::byte* target);

// codec_q.cpp: one scale (and minimum) per 32 values.
void decode_q4_0(const std::byte* source, int64_t count, float* values);
void decode_q4_1(const std::byte* source, int64_t count, float* values);
void decode_q5_0(const std::byte* source, int64_t count, float* values);
void decode_q5_1(const std::byte* source, int64_t count, float* values);
void decode_q8_0(const std::byte* source, int64_t count, float* values);
void encode_q4_0(const float* values, int64_t count, std::byte* target);
void encode_q4_1(const float* values, int64_t count, std::byte* target);
void encode_q5_0(const float* values, int64_t count, std::byte* target);
void encode_q5_1(const float* values, int64_t count, std::byte* target);
void encode_q8_0(const float* values, int64_t count, std::byte* target);

// codec_k.cpp: super-blocks of 256 with quantized scales.
void decode_q4_k(const std::byte* source, int64_t count, float* values);
void decode_q5_k(const std::byte* source, int64_t count, float* values);
void decode_q6_k(const std::byte* source, int64_t count, float* values);
void encode_q4_k(const float* values, int64_t count, std::byte* target);
void encode_q5_k(const float* values, int64_t count, std::byte* target);
void encode_q6_k(const float* values, int64_t count, std::byte* target);

// codec_fp4.cpp: E2M1 elements.
void decode_mxfp4(const std::byte* source, int64_t count, float* values);
void decode_nvfp4(const std::byte* source, int64_t count, float* values);
void encode_mxfp4(const float* values, int64_t count, std::byte* target);
void encode_nvfp4(const float* values, int64_t count, Nvfp4Policy policy, std::byte* target);

}  // namespace tessera::codec
