#pragma once
// Encoding of rows into block formats, bit for bit as `quantize_row` with kAmax6 does it (rules and
// sources: core/codec_q.cpp, codec_fp4.cpp, codec_k.cpp). A warp takes a chunk of 256 values from
// shared memory; a lane takes a block, or a sub-block of a K-quant, and works through its values in
// the order of the host's loops. Bound by the latency of those loops; nothing here is on the path
// of a token. The super-blocks of K-quants go in three steps with a barrier of the warp between.

#include "backends/cuda/rows/codec.cuh"

namespace tessera::cuda::rows {

inline constexpr int32_t kChunk = 256;  ///< values of a warp: a multiple of every block

/// Shared memory of a warp.
struct EncodeScratch {
    float x[kChunk + kChunk / 32];  ///< a gap every 32 values: lanes then use different banks
    float scale[16];                ///< fitted, by sub-block
    float minimum[8];
    ScaleMin stored[8];
    uint8_t codes[kChunk];

    __host__ __device__ float& at(int32_t i) { return x[i + i / 32]; }
    __host__ __device__ float at(int32_t i) const { return x[i + i / 32]; }
};

__host__ __device__ inline float largest_magnitude(const EncodeScratch& s,
                                                   int32_t first,
                                                   int32_t count) {
    float largest = 0.0f;
    for (int32_t j = 0; j < count; ++j) largest = fmaxf(largest, fabsf(s.at(first + j)));
    return largest;
}

/// Q4_0 (kZero 8), Q5_0 (kZero 16): the extreme value lands on code 0.
template <int32_t kZero>
__host__ __device__ inline void encode_centred(const EncodeScratch& s,
                                               int32_t first,
                                               uint8_t* target) {
    float magnitude = 0.0f, extreme = 0.0f;
    for (int32_t j = 0; j < 32; ++j) {
        const float x = s.at(first + j);
        if (fabsf(x) > magnitude) {
            magnitude = fabsf(x);
            extreme = x;
        }
    }
    const float d = extreme / static_cast<float>(-kZero);
    const float inverse = reciprocal_or_zero(d);
    const auto code_of = [&](int32_t j) {
        const float shifted = plus(mul(s.at(first + j), inverse), static_cast<float>(kZero) + 0.5f);
        const int32_t code = static_cast<int32_t>(shifted);
        return static_cast<uint32_t>(code < 2 * kZero - 1 ? code : 2 * kZero - 1);
    };
    store16(f16_scale(d), target);
    uint8_t* nibbles = target + (kZero == 16 ? 6 : 2);
    uint32_t fifth = 0;
    for (int32_t j = 0; j < 16; ++j) {
        const uint32_t low = code_of(j), high = code_of(j + 16);
        nibbles[j] = static_cast<uint8_t>((low & 15u) | high << 4);
        fifth |= (low >> 4 & 1u) << j | (high >> 4 & 1u) << (j + 16);
    }
    if (kZero != 16) return;
    store16(fifth, target + 2);
    store16(fifth >> 16, target + 4);
}

/// Q4_1 (kLargest 15), Q5_1 (kLargest 31): codes from the smallest to the largest value.
template <int32_t kLargest>
__host__ __device__ inline void encode_range(const EncodeScratch& s,
                                             int32_t first,
                                             uint8_t* target) {
    float low = FLT_MAX, high = -FLT_MAX;
    for (int32_t j = 0; j < 32; ++j) {
        const float x = s.at(first + j);
        low = x < low ? x : low;
        high = x > high ? x : high;
    }
    const float d = minus(high, low) / static_cast<float>(kLargest);
    const float inverse = reciprocal_or_zero(d);
    const auto code_of = [&](int32_t j) {
        const float scaled = plus(mul(minus(s.at(first + j), low), inverse), 0.5f);
        const bool inside = scaled < static_cast<float>(kLargest);
        return static_cast<uint32_t>(inside ? static_cast<int32_t>(scaled) : kLargest);
    };
    store16(f16_scale(d), target);
    store16(f16_scale(low), target + 2);
    uint8_t* nibbles = target + (kLargest == 31 ? 8 : 4);
    uint32_t fifth = 0;
    for (int32_t j = 0; j < 16; ++j) {
        const uint32_t one = code_of(j), other = code_of(j + 16);
        nibbles[j] = static_cast<uint8_t>((one & 15u) | other << 4);
        fifth |= (one >> 4 & 1u) << j | (other >> 4 & 1u) << (j + 16);
    }
    if (kLargest != 31) return;
    store16(fifth, target + 4);
    store16(fifth >> 16, target + 6);
}

__host__ __device__ inline void encode_q8_0(const EncodeScratch& s,
                                            int32_t first,
                                            uint8_t* target) {
    const float d = largest_magnitude(s, first, 32) / 127.0f;
    const float inverse = reciprocal_or_zero(d);
    store16(f16_scale(d), target);
    for (int32_t j = 0; j < 32; ++j) {
        const float scaled = mul(s.at(first + j), inverse);
        const int32_t whole = static_cast<int32_t>(scaled);
        const float rest = minus(scaled, static_cast<float>(whole));
        target[2 + j] = static_cast<uint8_t>(whole + (rest >= 0.5f) - (rest <= -0.5f));
    }
}

/// ggml's rule for MXFP4: ties to the smaller magnitude, no negative zero.
__host__ __device__ inline uint32_t mx_code(float x, float scale) {
    const float magnitude = fabsf(x);
    const uint32_t code = (magnitude > mul(0.25f, scale)) + (magnitude > mul(0.75f, scale)) +
                          (magnitude > mul(1.25f, scale)) + (magnitude > mul(1.75f, scale)) +
                          (magnitude > mul(2.5f, scale)) + (magnitude > mul(3.5f, scale)) +
                          (magnitude > mul(5.0f, scale));
    return code | (x < 0.0f && code > 0 ? 8u : 0u);
}

__host__ __device__ inline void encode_mxfp4(const EncodeScratch& s,
                                             int32_t first,
                                             uint8_t* target) {
    const float largest = largest_magnitude(s, first, 32);
    const int32_t exponent = largest == 0.0f ? 0 : ilogbf(largest) - 2 + 127;
    const uint32_t code = exponent < 0 ? 0u : static_cast<uint32_t>(exponent);
    const float scale = std::bit_cast<float>(code == 0 ? 0x00400000u : code << 23);
    target[0] = static_cast<uint8_t>(code);
    for (int32_t j = 0; j < 16; ++j)
        target[1 + j] = static_cast<uint8_t>(mx_code(s.at(first + j), scale) |
                                             mx_code(s.at(first + j + 16), scale) << 4);
}

/// Nearest E2M1 multiple of `scale`, ties to the even code, the sign of zero kept.
__host__ __device__ inline uint32_t nv_code(float x, float scale) {
    const float magnitude = fabsf(x);
    const uint32_t code = (magnitude > mul(0.25f, scale)) + (magnitude >= mul(0.75f, scale)) +
                          (magnitude > mul(1.25f, scale)) + (magnitude >= mul(1.75f, scale)) +
                          (magnitude > mul(2.5f, scale)) + (magnitude >= mul(3.5f, scale)) +
                          (magnitude > mul(5.0f, scale));
    return code | std::bit_cast<uint32_t>(x) >> 28 & 8u;
}

/// The 16 values at `first` under one scale: byte `sub` of the block and eight bytes of codes.
__host__ __device__ inline void encode_nvfp4(const EncodeScratch& s,
                                             int32_t first,
                                             int32_t sub,
                                             uint8_t* block) {
    const uint32_t code = ue4m3_code(largest_magnitude(s, first, 16) / 6.0f);
    const float scale = ue4m3_value(code);
    block[sub] = static_cast<uint8_t>(code);
    for (int32_t j = 0; j < 8; ++j) {
        const uint32_t low = nv_code(s.at(first + j), scale);
        const uint32_t high = nv_code(s.at(first + j + 8), scale);
        block[4 + 8 * sub + j] = code == 0 ? 0 : static_cast<uint8_t>(low | high << 4);
    }
}

/// The part of `lane` in encoding `count` values to one of the formats that are no K-quants.
__host__ __device__ inline void encode_blocks(
    DType format, const EncodeScratch& s, int32_t count, int32_t lane, uint8_t* target) {
    if (format == DType::kNVFP4) {
        if (16 * lane < count) encode_nvfp4(s, 16 * lane, lane % 4, target + lane / 4 * 36);
        return;
    }
    if (32 * lane >= count) return;
    switch (format) {
        case DType::kQ4_0:
            return encode_centred<8>(s, 32 * lane, target + 18 * lane);
        case DType::kQ4_1:
            return encode_range<15>(s, 32 * lane, target + 20 * lane);
        case DType::kQ5_0:
            return encode_centred<16>(s, 32 * lane, target + 22 * lane);
        case DType::kQ5_1:
            return encode_range<31>(s, 32 * lane, target + 24 * lane);
        case DType::kQ8_0:
            return encode_q8_0(s, 32 * lane, target + 34 * lane);
        default:
            return encode_mxfp4(s, 32 * lane, target + 17 * lane);
    }
}

}  // namespace tessera::cuda::rows
