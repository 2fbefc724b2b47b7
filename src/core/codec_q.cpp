// Q4_0, Q4_1, Q5_0, Q5_1, Q8_0: blocks of 32 values with one half-precision scale `d`, and for the
// _1 formats a half-precision minimum `m`. A block of 4- or 5-bit codes keeps value j in the low
// nibble and value j + 16 in the high nibble of byte j; the fifth bits stand in a 32-bit mask.
// Encoders follow ggml's reference rule to the byte (`ggml:src/ggml-quants.c`).

#include <cfloat>

#include "core/codec_blocks.h"

namespace tessera::codec {
namespace {

constexpr int kBlock = 32;
constexpr int kHalf = kBlock / 2;

struct Codes {
    uint8_t value[kBlock];
};

void unpack_nibbles(const uint8_t* packed, int* codes) {
    for (int j = 0; j < kHalf; ++j) codes[j] = packed[j] & 15;
    for (int j = 0; j < kHalf; ++j) codes[j + kHalf] = packed[j] >> 4;
}

void unpack_five_bits(const uint8_t* packed, uint32_t fifth, int* codes) {
    unpack_nibbles(packed, codes);
    for (int j = 0; j < kBlock; ++j) codes[j] |= static_cast<int>((fifth >> j) & 1u) << 4;
}

void pack_nibbles(const Codes& codes, uint8_t* packed) {
    for (int j = 0; j < kHalf; ++j)
        packed[j] = static_cast<uint8_t>((codes.value[j] & 15) | ((codes.value[j + kHalf]) << 4));
}

uint32_t fifth_bits(const Codes& codes) {
    uint32_t mask = 0;
    for (int j = 0; j < kBlock; ++j) mask |= static_cast<uint32_t>((codes.value[j] >> 4) & 1) << j;
    return mask;
}

/// The value of largest magnitude with its sign; the first of equals.
float signed_extreme(const float* x) {
    float magnitude = 0.0f;
    float extreme = 0.0f;
    for (int j = 0; j < kBlock; ++j) {
        if (std::fabs(x[j]) > magnitude) {
            magnitude = std::fabs(x[j]);
            extreme = x[j];
        }
    }
    return extreme;
}

/// Codes around `kZero`: the extreme value lands on code 0, so the scale carries its sign.
template <int kZero>
float encode_centred(const float* x, Codes& codes) {
    const float d = signed_extreme(x) / static_cast<float>(-kZero);
    const float inverse = reciprocal_or_zero(d);
    for (int j = 0; j < kBlock; ++j) {
        const int code = static_cast<int>(x[j] * inverse + (static_cast<float>(kZero) + 0.5f));
        codes.value[j] = static_cast<uint8_t>(std::min(code, 2 * kZero - 1));
    }
    return d;
}

struct Range {
    float d;
    float minimum;
};

/// Codes 0 .. kLargest spread from the smallest to the largest value.
template <int kLargest>
Range encode_range(const float* x, Codes& codes) {
    float low = FLT_MAX;
    float high = -FLT_MAX;
    for (int j = 0; j < kBlock; ++j) {
        low = x[j] < low ? x[j] : low;
        high = x[j] > high ? x[j] : high;
    }
    const float d = (high - low) / static_cast<float>(kLargest);
    const float inverse = reciprocal_or_zero(d);
    for (int j = 0; j < kBlock; ++j) {
        // The comparison also catches a range that overflowed to infinity.
        const float scaled = (x[j] - low) * inverse + 0.5f;
        const bool inside = scaled < static_cast<float>(kLargest);
        codes.value[j] = static_cast<uint8_t>(inside ? static_cast<int>(scaled) : kLargest);
    }
    return {d, low};
}

}  // namespace

void decode_q4_0(const std::byte* source, int64_t count, float* values) {
    for (; count > 0; count -= kBlock, source += 18, values += kBlock) {
        const float d = load_f16(source);
        int codes[kBlock];
        unpack_nibbles(bytes_of(source + 2), codes);
        for (int j = 0; j < kBlock; ++j) values[j] = d * static_cast<float>(codes[j] - 8);
    }
}

void decode_q4_1(const std::byte* source, int64_t count, float* values) {
    for (; count > 0; count -= kBlock, source += 20, values += kBlock) {
        const float d = load_f16(source);
        const float m = load_f16(source + 2);
        int codes[kBlock];
        unpack_nibbles(bytes_of(source + 4), codes);
        for (int j = 0; j < kBlock; ++j) values[j] = d * static_cast<float>(codes[j]) + m;
    }
}

void decode_q5_0(const std::byte* source, int64_t count, float* values) {
    for (; count > 0; count -= kBlock, source += 22, values += kBlock) {
        const float d = load_f16(source);
        int codes[kBlock];
        unpack_five_bits(bytes_of(source + 6), load<uint32_t>(source + 2), codes);
        for (int j = 0; j < kBlock; ++j) values[j] = d * static_cast<float>(codes[j] - 16);
    }
}

void decode_q5_1(const std::byte* source, int64_t count, float* values) {
    for (; count > 0; count -= kBlock, source += 24, values += kBlock) {
        const float d = load_f16(source);
        const float m = load_f16(source + 2);
        int codes[kBlock];
        unpack_five_bits(bytes_of(source + 8), load<uint32_t>(source + 4), codes);
        for (int j = 0; j < kBlock; ++j) values[j] = d * static_cast<float>(codes[j]) + m;
    }
}

void decode_q8_0(const std::byte* source, int64_t count, float* values) {
    for (; count > 0; count -= kBlock, source += 34, values += kBlock) {
        const float d = load_f16(source);
        const int8_t* codes = reinterpret_cast<const int8_t*>(source + 2);
        for (int j = 0; j < kBlock; ++j) values[j] = d * static_cast<float>(codes[j]);
    }
}

void encode_q4_0(const float* values, int64_t count, std::byte* target) {
    for (; count > 0; count -= kBlock, target += 18, values += kBlock) {
        Codes codes;
        store_f16(target, encode_centred<8>(values, codes));
        pack_nibbles(codes, bytes_of(target + 2));
    }
}

void encode_q4_1(const float* values, int64_t count, std::byte* target) {
    for (; count > 0; count -= kBlock, target += 20, values += kBlock) {
        Codes codes;
        const Range range = encode_range<15>(values, codes);
        store_f16(target, range.d);
        store_f16(target + 2, range.minimum);
        pack_nibbles(codes, bytes_of(target + 4));
    }
}

void encode_q5_0(const float* values, int64_t count, std::byte* target) {
    for (; count > 0; count -= kBlock, target += 22, values += kBlock) {
        Codes codes;
        store_f16(target, encode_centred<16>(values, codes));
        store(target + 2, fifth_bits(codes));
        pack_nibbles(codes, bytes_of(target + 6));
    }
}

void encode_q5_1(const float* values, int64_t count, std::byte* target) {
    for (; count > 0; count -= kBlock, target += 24, values += kBlock) {
        Codes codes;
        const Range range = encode_range<31>(values, codes);
        store_f16(target, range.d);
        store_f16(target + 2, range.minimum);
        store(target + 4, fifth_bits(codes));
        pack_nibbles(codes, bytes_of(target + 8));
    }
}

void encode_q8_0(const float* values, int64_t count, std::byte* target) {
    for (; count > 0; count -= kBlock, target += 34, values += kBlock) {
        const float d = largest_magnitude(values, kBlock) / 127.0f;
        const float inverse = reciprocal_or_zero(d);
        store_f16(target, d);
        int8_t* codes = reinterpret_cast<int8_t*>(target + 2);
        for (int j = 0; j < kBlock; ++j) {
            // Round half away from zero; the remainder is exact, unlike scaled + 0.5.
            const float scaled = values[j] * inverse;
            const int whole = static_cast<int>(scaled);
            const float rest = scaled - static_cast<float>(whole);
            codes[j] = static_cast<int8_t>(whole + int{rest >= 0.5f} - int{rest <= -0.5f});
        }
    }
}

}  // namespace tessera::codec
