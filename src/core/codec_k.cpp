// Q4_K, Q5_K, Q6_K: super-blocks of 256 values whose sub-block scales are themselves quantized
// under one half-precision scale. Encoding a sub-block is a small weighted least-squares problem
// that is not convex in the codes: round with a range of trial step sizes, solve for the best scale
// (and minimum) of each rounding in closed form, keep the best. Weights stand in for the missing
// importance matrix: large values matter more. Source: `ggml:src/ggml-quants.c`.

#include <array>
#include <limits>

#include "core/codec_blocks.h"

namespace tessera::codec {
namespace {

constexpr int kSuper = 256;
constexpr int kSub = 32;       ///< values under one scale and minimum (Q4_K, Q5_K)
constexpr int kSubs = 8;       ///< such sub-blocks
constexpr int kSmall = 16;     ///< values under one scale (Q6_K)
constexpr int kSmalls = 16;    ///< such sub-blocks
constexpr int kScaleMax = 63;  ///< of the 6-bit scales and minimums
constexpr float kTiny = 1e-15f;
constexpr float kHuge = 1e9f;  ///< beyond what the formats reach, and its powers do not overflow

/// The values of a super-block, in the range where the fits cannot overflow.
struct Bounded {
    float x[kSuper];
    explicit Bounded(const float* values) {
        for (int i = 0; i < kSuper; ++i) x[i] = std::clamp(values[i], -kHuge, kHuge);
    }
};

/// Partial sums in four lanes: a fixed order that vectorises.
struct Sum {
    float lane[4] = {};
    void add(int i, float term) { lane[i & 3] += term; }
    float total() const { return (lane[0] + lane[2]) + (lane[1] + lane[3]); }
};

struct ScaleMin {
    int scale;
    int minimum;
};

/// Sub-blocks 0..3 keep six bits in bytes j and j + 4; sub-blocks 4..7 keep four bits in byte j + 4
/// and the upper two in the top bits of bytes j - 4 and j.
ScaleMin unpack_scale_min(const uint8_t* packed, int j) {
    if (j < 4) return {packed[j] & 63, packed[j + 4] & 63};
    return {(packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4),
            (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4)};
}

void pack_scale_min(int j, ScaleMin value, uint8_t* packed) {
    const auto put = [packed](int index, int bits) {
        packed[index] = static_cast<uint8_t>(packed[index] | bits);
    };
    if (j < 4) {
        put(j, value.scale);
        put(j + 4, value.minimum);
        return;
    }
    put(j + 4, (value.scale & 15) | ((value.minimum & 15) << 4));
    put(j - 4, (value.scale >> 4) << 6);
    put(j, (value.minimum >> 4) << 6);
}

float clamped_round(float value, float low, float high) {
    const float rounded = round_even(value);
    const float raised = rounded < low ? low : rounded;
    return raised > high ? high : raised;
}

/// value ~ scale * code - minimum, minimum >= 0.
struct Line {
    float scale = 0.0f;
    float minimum = 0.0f;
};

/// Trial steps divide the range into `largest + first + i * 0.1` parts, i = 0..last.
struct LineSearch {
    int largest;  ///< largest code
    float first;
    int last;
};

struct WeightedBlock {
    const float* x;
    float weight[kSub];
    float sum_w;
    float sum_wx;
    float low;
    float high;
};

WeightedBlock weighted(const float* x) {
    WeightedBlock block{.x = x, .weight = {}, .sum_w = 0, .sum_wx = 0, .low = 0, .high = x[0]};
    Sum squares;
    for (int i = 0; i < kSub; ++i) squares.add(i, x[i] * x[i]);
    const float rms = std::sqrt(squares.total() / kSub);
    Sum w;
    Sum wx;
    for (int i = 0; i < kSub; ++i) {
        block.weight[i] = rms + std::fabs(x[i]);
        w.add(i, block.weight[i]);
        wx.add(i, block.weight[i] * x[i]);
        // The minimum is stored unsigned, so a range of positive values still starts at zero.
        block.low = x[i] < block.low ? x[i] : block.low;
        block.high = x[i] > block.high ? x[i] : block.high;
    }
    block.sum_w = w.total();
    block.sum_wx = wx.total();
    return block;
}

/// Weighted squared error of the block when every value takes the code nearest to it on `line`,
/// which is how the codes are chosen in the end.
float line_error(const WeightedBlock& block, const Line& line, float largest) {
    const float inverse = 1.0f / line.scale;
    Sum error;
    for (int i = 0; i < kSub; ++i) {
        const float code = clamped_round((block.x[i] + line.minimum) * inverse, 0.0f, largest);
        const float difference = line.scale * code - line.minimum - block.x[i];
        error.add(i, block.weight[i] * difference * difference);
    }
    return error.total();
}

/// Rounds with `inverse_step` and returns the line that fits those codes best; no line (scale 0)
/// when all codes are equal.
Line fit_codes(const WeightedBlock& block, float inverse_step, float largest) {
    Sum wl;
    Sum wll;
    Sum wlx;
    for (int i = 0; i < kSub; ++i) {
        const float code = clamped_round(inverse_step * (block.x[i] - block.low), 0.0f, largest);
        const float weighted_code = block.weight[i] * code;
        wl.add(i, weighted_code);
        wll.add(i, weighted_code * code);
        wlx.add(i, weighted_code * block.x[i]);
    }
    const float sum_l = wl.total();
    const float sum_ll = wll.total();
    const float sum_lx = wlx.total();
    const float determinant = block.sum_w * sum_ll - sum_l * sum_l;
    if (!(determinant > 0.0f)) return {};
    Line line{(block.sum_w * sum_lx - block.sum_wx * sum_l) / determinant,
              (sum_l * sum_lx - sum_ll * block.sum_wx) / determinant};
    if (line.minimum < 0.0f) line = {sum_lx / sum_ll, 0.0f};
    return line;
}

Line fit_line(const WeightedBlock& block, const LineSearch& search) {
    const float range = block.high - block.low;
    if (!(range > 0.0f) || !std::isfinite(1.0f / range)) return {0.0f, -block.low};
    const float largest = static_cast<float>(search.largest);
    Line best{range / largest, -block.low};
    float least = line_error(block, best, largest);
    for (int step = 0; step <= search.last; ++step) {
        const float parts = largest + search.first + 0.1f * static_cast<float>(step);
        const Line line = fit_codes(block, parts / range, largest);
        if (!(line.scale > 0.0f)) continue;
        const float error = line_error(block, line, largest);
        if (error < least) {
            least = error;
            best = line;
        }
    }
    return best;
}

/// The stored pair for `line` under the super-block scales d and dmin: of the nearest integers and
/// their neighbours the one with the least error, because scale and minimum round together badly.
ScaleMin quantize_line(
    const WeightedBlock& block, const Line& line, float d, float dmin, float largest) {
    const int scale =
        static_cast<int>(clamped_round(reciprocal_or_zero(d) * line.scale, 0.0f, kScaleMax));
    const int minimum =
        static_cast<int>(clamped_round(reciprocal_or_zero(dmin) * line.minimum, 0.0f, kScaleMax));
    ScaleMin best{scale, minimum};
    if (scale == 0 || !std::isfinite(1.0f / d)) return best;
    float least = std::numeric_limits<float>::infinity();
    for (int s = std::max(1, scale - 1); s <= std::min(kScaleMax, scale + 1); ++s) {
        for (int m = std::max(0, minimum - 1); m <= std::min(kScaleMax, minimum + 1); ++m) {
            const Line stored{d * static_cast<float>(s), dmin * static_cast<float>(m)};
            const float error = line_error(block, stored, largest);
            if (error < least) {
                least = error;
                best = {s, m};
            }
        }
    }
    return best;
}

/// Fits the eight sub-blocks, writes d, dmin and the packed scales (16 bytes at `header`), and the
/// codes for the scales as they were stored.
void encode_lines(const float* x, const LineSearch& search, std::byte* header, uint8_t* codes) {
    std::array<WeightedBlock, kSubs> blocks;
    std::array<Line, kSubs> lines;
    float max_scale = 0.0f;
    float max_minimum = 0.0f;
    for (size_t j = 0; j < kSubs; ++j) {
        blocks[j] = weighted(x + j * kSub);
        lines[j] = fit_line(blocks[j], search);
        max_scale = std::max(max_scale, lines[j].scale);
        max_minimum = std::max(max_minimum, lines[j].minimum);
    }
    store_f16(header, max_scale / kScaleMax);
    store_f16(header + 2, max_minimum / kScaleMax);
    const float d = load_f16(header);
    const float dmin = load_f16(header + 2);
    const float largest = static_cast<float>(search.largest);
    uint8_t* packed = bytes_of(header + 4);
    std::fill_n(packed, 12, uint8_t{0});
    for (int j = 0; j < kSubs; ++j) {
        const size_t sub = static_cast<size_t>(j);
        const ScaleMin stored = quantize_line(blocks[sub], lines[sub], d, dmin, largest);
        pack_scale_min(j, stored, packed);
        const float inverse = reciprocal_or_zero(d * static_cast<float>(stored.scale));
        const float minimum = dmin * static_cast<float>(stored.minimum);
        for (int i = 0; i < kSub; ++i) {
            const float scaled = std::clamp((x[j * kSub + i] + minimum) * inverse, 0.0f, largest);
            codes[j * kSub + i] = static_cast<uint8_t>(round_even(scaled));
        }
    }
}

/// Scale of 16 values with codes -32..31, weighted by x^2. Each trial step lets the extreme value
/// land near code -32; of each rounding the best scale is sum(wxl) / sum(wll), and its error falls
/// with sum(wxl)^2 / sum(wll).
float fit_scale(const float* x) {
    float extreme = 0.0f;
    for (int i = 0; i < kSmall; ++i)
        extreme = std::fabs(x[i]) > std::fabs(extreme) ? x[i] : extreme;
    if (std::fabs(extreme) < kTiny) return 0.0f;
    float best_scale = 0.0f;
    float best_gain = -1.0f;
    // The plain step comes first, so that it wins among equals.
    for (const int step : {0, -9, -8, -7, -6, -5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
        const float inverse = -(32.0f + 0.1f * static_cast<float>(step)) / extreme;
        Sum wxl;
        Sum wll;
        for (int i = 0; i < kSmall; ++i) {
            const float code = clamped_round(inverse * x[i], -32.0f, 31.0f);
            const float weighted_code = x[i] * x[i] * code;
            wxl.add(i, weighted_code * x[i]);
            wll.add(i, weighted_code * code);
        }
        const float numerator = wxl.total();
        const float denominator = wll.total();
        if (!(denominator > 0.0f)) continue;
        const float gain = numerator * (numerator / denominator);
        if (gain > best_gain) {
            best_gain = gain;
            best_scale = numerator / denominator;
        }
    }
    return best_scale;
}

/// Codes + 32 of a super-block under the stored scales.
void encode_six_bits(const float* x, float d, const int8_t* scales, uint8_t* codes) {
    for (int j = 0; j < kSmalls; ++j) {
        const float inverse = reciprocal_or_zero(d * static_cast<float>(scales[j]));
        for (int i = 0; i < kSmall; ++i) {
            const float scaled = std::clamp(x[j * kSmall + i] * inverse, -32.0f, 31.0f);
            codes[j * kSmall + i] = static_cast<uint8_t>(round_even(scaled) + 32.0f);
        }
    }
}

void pack_six_bits(const uint8_t* codes, uint8_t* low, uint8_t* high) {
    for (int half = 0; half < 2; ++half, codes += 128, low += 64, high += 32) {
        for (int l = 0; l < 32; ++l) {
            const int q0 = codes[l];
            const int q1 = codes[l + 32];
            const int q2 = codes[l + 64];
            const int q3 = codes[l + 96];
            low[l] = static_cast<uint8_t>((q0 & 15) | ((q2 & 15) << 4));
            low[l + 32] = static_cast<uint8_t>((q1 & 15) | ((q3 & 15) << 4));
            high[l] = static_cast<uint8_t>((q0 >> 4) | ((q1 >> 4) << 2) | ((q2 >> 4) << 4) |
                                           ((q3 >> 4) << 6));
        }
    }
}

}  // namespace

void decode_q4_k(const std::byte* source, int64_t count, float* values) {
    for (; count > 0; count -= kSuper, source += 144) {
        const float d = load_f16(source);
        const float dmin = load_f16(source + 2);
        const uint8_t* packed = bytes_of(source + 4);
        const uint8_t* nibbles = bytes_of(source + 16);
        for (int pair = 0; pair < kSubs / 2; ++pair, nibbles += kSub, values += 2 * kSub) {
            const ScaleMin low = unpack_scale_min(packed, 2 * pair);
            const ScaleMin high = unpack_scale_min(packed, 2 * pair + 1);
            const float low_scale = d * static_cast<float>(low.scale);
            const float low_min = dmin * static_cast<float>(low.minimum);
            const float high_scale = d * static_cast<float>(high.scale);
            const float high_min = dmin * static_cast<float>(high.minimum);
            for (int l = 0; l < kSub; ++l)
                values[l] = low_scale * static_cast<float>(nibbles[l] & 15) - low_min;
            for (int l = 0; l < kSub; ++l)
                values[l + kSub] = high_scale * static_cast<float>(nibbles[l] >> 4) - high_min;
        }
    }
}

void decode_q5_k(const std::byte* source, int64_t count, float* values) {
    for (; count > 0; count -= kSuper, source += 176) {
        const float d = load_f16(source);
        const float dmin = load_f16(source + 2);
        const uint8_t* packed = bytes_of(source + 4);
        const uint8_t* fifth = bytes_of(source + 16);
        const uint8_t* nibbles = bytes_of(source + 48);
        for (int j = 0; j < kSubs; ++j, values += kSub) {
            const ScaleMin sub = unpack_scale_min(packed, j);
            const float scale = d * static_cast<float>(sub.scale);
            const float minimum = dmin * static_cast<float>(sub.minimum);
            const uint8_t* low = nibbles + (j / 2) * kSub;
            const int shift = (j & 1) * 4;
            for (int l = 0; l < kSub; ++l) {
                const int code = ((low[l] >> shift) & 15) | (((fifth[l] >> j) & 1) << 4);
                values[l] = scale * static_cast<float>(code) - minimum;
            }
        }
    }
}

void decode_q6_k(const std::byte* source, int64_t count, float* values) {
    for (; count > 0; count -= kSuper, source += 210) {
        const uint8_t* low = bytes_of(source);
        const uint8_t* high = bytes_of(source + 128);
        const int8_t* scales = reinterpret_cast<const int8_t*>(source + 192);
        const float d = load_f16(source + 208);
        for (int half = 0; half < 2; ++half, low += 64, high += 32, scales += 8) {
            for (int quarter = 0; quarter < 4; ++quarter, values += 32) {
                const uint8_t* nibbles = low + (quarter & 1) * 32;
                const int nibble_shift = (quarter >> 1) * 4;
                const int top_shift = quarter * 2;
                for (int l = 0; l < 32; ++l) {
                    const int code =
                        ((nibbles[l] >> nibble_shift) & 15) | (((high[l] >> top_shift) & 3) << 4);
                    const float scale = d * static_cast<float>(scales[2 * quarter + l / 16]);
                    values[l] = scale * static_cast<float>(code - 32);
                }
            }
        }
    }
}

void encode_q4_k(const float* values, int64_t count, std::byte* target) {
    for (; count > 0; count -= kSuper, target += 144, values += kSuper) {
        uint8_t codes[kSuper];
        encode_lines(Bounded(values).x, {.largest = 15, .first = -1.0f, .last = 20}, target, codes);
        uint8_t* nibbles = bytes_of(target + 16);
        for (int pair = 0; pair < kSubs / 2; ++pair)
            for (int l = 0; l < kSub; ++l)
                nibbles[pair * kSub + l] = static_cast<uint8_t>(
                    codes[pair * 2 * kSub + l] | (codes[(pair * 2 + 1) * kSub + l] << 4));
    }
}

void encode_q5_k(const float* values, int64_t count, std::byte* target) {
    for (; count > 0; count -= kSuper, target += 176, values += kSuper) {
        uint8_t codes[kSuper];
        encode_lines(Bounded(values).x, {.largest = 31, .first = -0.5f, .last = 15}, target, codes);
        uint8_t* fifth = bytes_of(target + 16);
        uint8_t* nibbles = bytes_of(target + 48);
        for (int l = 0; l < kSub; ++l) {
            int bits = 0;
            for (int j = 0; j < kSubs; ++j) bits |= (codes[j * kSub + l] >> 4) << j;
            fifth[l] = static_cast<uint8_t>(bits);
        }
        for (int pair = 0; pair < kSubs / 2; ++pair)
            for (int l = 0; l < kSub; ++l)
                nibbles[pair * kSub + l] =
                    static_cast<uint8_t>((codes[pair * 2 * kSub + l] & 15) |
                                         ((codes[(pair * 2 + 1) * kSub + l] & 15) << 4));
    }
}

void encode_q6_k(const float* values, int64_t count, std::byte* target) {
    for (; count > 0; count -= kSuper, target += 210, values += kSuper) {
        const Bounded block(values);
        std::array<float, kSmalls> fitted;
        float extreme = 0.0f;
        for (int j = 0; j < kSmalls; ++j) {
            const float scale = fit_scale(block.x + j * kSmall);
            fitted[static_cast<size_t>(j)] = scale;
            if (std::fabs(scale) > std::fabs(extreme)) extreme = scale;
        }
        // The extreme scale lands on -128, which the 8-bit scales reach and +128 they do not.
        const float inverse = std::fabs(extreme) < kTiny ? 0.0f : -128.0f / extreme;
        store_f16(target + 208, inverse == 0.0f ? 0.0f : 1.0f / inverse);
        int8_t* scales = reinterpret_cast<int8_t*>(target + 192);
        for (int j = 0; j < kSmalls; ++j)
            scales[j] = static_cast<int8_t>(
                clamped_round(inverse * fitted[static_cast<size_t>(j)], -128.0f, 127.0f));
        uint8_t codes[kSuper];
        encode_six_bits(block.x, load_f16(target + 208), scales, codes);
        pack_six_bits(codes, bytes_of(target), bytes_of(target + 128));
    }
}

}  // namespace tessera::codec
