// MXFP4 and NVFP4: E2M1 elements under a block scale. An element goes to the nearest multiple
// `code value * scale`, decided by comparing |x| with `midpoint * scale`. Those products are exact
// in f32 (three and four significant bits), so there is no division and no double rounding: the
// result is what infinitely precise arithmetic gives.

#include <array>

#include "core/codec_blocks.h"

namespace tessera::codec {
namespace {

constexpr int kMxBlock = 32;
constexpr int kMxBytes = 17;
constexpr int kNvBlock = 64;
constexpr int kNvBytes = 36;
constexpr int kSub = 16;  ///< values under one NVFP4 scale

/// Sum of 16 numbers in a fixed order (halves folded onto each other), as a warp reduction does it.
float folded_sum(float* terms) {
    for (int width = kSub / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) terms[i] += terms[i + width];
    return terms[0];
}

/// Squared error of 16 magnitudes under `scale`, each rounded to the nearest E2M1 multiple.
float squared_error(const float* magnitudes, float scale) {
    float terms[kSub];
    for (int i = 0; i < kSub; ++i) {
        const float x = magnitudes[i];
        float value = x > 0.25f * scale ? 0.5f : 0.0f;
        value += x >= 0.75f * scale ? 0.5f : 0.0f;
        value += x > 1.25f * scale ? 0.5f : 0.0f;
        value += x >= 1.75f * scale ? 0.5f : 0.0f;
        value += x > 2.5f * scale ? 1.0f : 0.0f;
        value += x >= 3.5f * scale ? 1.0f : 0.0f;
        value += x > 5.0f * scale ? 2.0f : 0.0f;
        const float error = value * scale - x;
        terms[i] = error * error;
    }
    return folded_sum(terms);
}

/// The scale codes to try, in order of preference among equals.
struct Candidates {
    std::array<uint8_t, 6> code;
    int count = 0;
    void add(int candidate) {
        if (candidate >= 0 && candidate <= 0x7e)
            code[static_cast<size_t>(count++)] = static_cast<uint8_t>(candidate);
    }
};

Candidates candidates_of(float largest, Nvfp4Policy policy) {
    Candidates candidates;
    const int amax6 = ue4m3_from_f32(largest / 6.0f);
    candidates.add(amax6);
    if (policy == Nvfp4Policy::kSearch)
        for (const int step : {-1, 1, -2, 2}) candidates.add(amax6 + step);
    if (policy != Nvfp4Policy::kAmax6) candidates.add(ue4m3_from_f32(largest / 4.0f));
    return candidates;
}

uint8_t best_scale(const float* x, Nvfp4Policy policy) {
    float magnitudes[kSub];
    for (int i = 0; i < kSub; ++i) magnitudes[i] = std::fabs(x[i]);
    const float largest = largest_magnitude(x, kSub);
    if (largest == 0.0f) return 0;
    const Candidates candidates = candidates_of(largest, policy);
    uint8_t best = candidates.code[0];
    if (candidates.count == 1) return best;
    float least = squared_error(magnitudes, f32_from_ue4m3(best));
    for (int i = 1; i < candidates.count && least > 0.0f; ++i) {
        const uint8_t code = candidates.code[static_cast<size_t>(i)];
        const float error = squared_error(magnitudes, f32_from_ue4m3(code));
        if (error < least) {
            least = error;
            best = code;
        }
    }
    return best;
}

/// Codes of 16 values under `scale`, ties to the even code, the sign of zero kept.
void encode_elements(const float* x, float scale, uint8_t* codes) {
    for (int i = 0; i < kSub; ++i) {
        const float magnitude = std::fabs(x[i]);
        const int code = int{magnitude > 0.25f * scale} + int{magnitude >= 0.75f * scale} +
                         int{magnitude > 1.25f * scale} + int{magnitude >= 1.75f * scale} +
                         int{magnitude > 2.5f * scale} + int{magnitude >= 3.5f * scale} +
                         int{magnitude > 5.0f * scale};
        codes[i] = static_cast<uint8_t>(code | (std::signbit(x[i]) ? 8 : 0));
    }
}

/// ggml's rule for MXFP4: ties to the smaller magnitude, no negative zero.
uint8_t mx_code(float x, float scale) {
    constexpr float kMidpoints[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    int code = 0;
    for (const float midpoint : kMidpoints) code += int{std::fabs(x) > midpoint * scale};
    return static_cast<uint8_t>(code | (x < 0.0f && code > 0 ? 8 : 0));
}

/// floor(log2(largest)) - 2 puts the largest magnitude between 4 and 8 steps, of which E2M1
/// reaches 6.
uint8_t mx_exponent(float largest) {
    if (largest == 0.0f) return 0;
    return static_cast<uint8_t>(std::max(0, std::ilogb(largest) - 2 + 127));
}

}  // namespace

void decode_mxfp4(const std::byte* source, int64_t count, float* values) {
    for (; count > 0; count -= kMxBlock, source += kMxBytes, values += kMxBlock) {
        const uint8_t* block = bytes_of(source);
        // Half the scale times twice the element keeps code 255 (2^128) from making NaN of zeros.
        const float half_scale = block[0] == 0 ? 0x1p-128f : 0.5f * f32_from_e8m0(block[0]);
        const float half = block[0] == 255 ? 0x1p127f : half_scale;
        for (int j = 0; j < kMxBlock / 2; ++j) {
            values[j] = 2.0f * kE2M1Values[block[1 + j] & 15] * half;
            values[j + kMxBlock / 2] = 2.0f * kE2M1Values[block[1 + j] >> 4] * half;
        }
    }
}

void decode_nvfp4(const std::byte* source, int64_t count, float* values) {
    for (; count > 0; count -= kNvBlock, source += kNvBytes) {
        const uint8_t* block = bytes_of(source);
        for (int sub = 0; sub < kNvBlock / kSub; ++sub, values += kSub) {
            const float scale = f32_from_ue4m3(block[sub]);
            const uint8_t* packed = block + 4 + sub * (kSub / 2);
            for (int j = 0; j < kSub / 2; ++j) {
                values[j] = kE2M1Values[packed[j] & 15] * scale;
                values[j + kSub / 2] = kE2M1Values[packed[j] >> 4] * scale;
            }
        }
    }
}

void encode_mxfp4(const float* values, int64_t count, std::byte* target) {
    for (; count > 0; count -= kMxBlock, target += kMxBytes, values += kMxBlock) {
        uint8_t* block = bytes_of(target);
        block[0] = mx_exponent(largest_magnitude(values, kMxBlock));
        const float scale = f32_from_e8m0(block[0]);
        for (int j = 0; j < kMxBlock / 2; ++j) {
            const int low = mx_code(values[j], scale);
            const int high = mx_code(values[j + kMxBlock / 2], scale);
            block[1 + j] = static_cast<uint8_t>(low | (high << 4));
        }
    }
}

void encode_nvfp4(const float* values, int64_t count, Nvfp4Policy policy, std::byte* target) {
    for (; count > 0; count -= kNvBlock, target += kNvBytes) {
        uint8_t* block = bytes_of(target);
        for (int sub = 0; sub < kNvBlock / kSub; ++sub, values += kSub) {
            block[sub] = best_scale(values, policy);
            uint8_t codes[kSub] = {};
            if (block[sub] != 0) encode_elements(values, f32_from_ue4m3(block[sub]), codes);
            uint8_t* packed = block + 4 + sub * (kSub / 2);
            for (int j = 0; j < kSub / 2; ++j)
                packed[j] = static_cast<uint8_t>(codes[j] | (codes[j + kSub / 2] << 4));
        }
    }
}

}  // namespace tessera::codec
