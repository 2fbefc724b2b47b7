#pragma once
// The K-quants of encode.cuh: a lane fits a sub-block (fit), the warp agrees on the scales of the
// super-block and every lane rounds its sub-block (round), all lanes pack the codes (pack).

#include "backends/cuda/rows/encode.cuh"

namespace tessera::cuda::rows {

inline constexpr float kTiny = 1e-15f;
inline constexpr float kHuge = 1e9f;  ///< values beyond are cut: powers of them overflow
inline constexpr float kScaleMax = 63.0f;

__host__ __device__ inline bool is_k_quant(DType format) {
    return format == DType::kQ4_K || format == DType::kQ5_K || format == DType::kQ6_K;
}

/// Partial sums in the four lanes of the host's codec.
struct FourSums {
    float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    __host__ __device__ float total() const {
        return plus(plus(part[0], part[2]), plus(part[1], part[3]));
    }
};

__host__ __device__ inline float clamped_round(float value, float low, float high) {
    return clamped(round_even(value), low, high);
}

/// value ~ scale * code - minimum.
struct Line {
    float scale;
    float minimum;
};

/// Trial steps divide the range into largest + first + i * 0.1 parts, i = 0..last.
struct LineSearch {
    float largest;  ///< largest code
    float first;
    int32_t last;
};

__host__ __device__ inline LineSearch line_search(DType format) {
    if (format == DType::kQ4_K) return {15.0f, -1.0f, 20};
    return {31.0f, -0.5f, 15};
}

/// A sub-block of 32 values, each weighing rms + |x|.
struct WeightedBlock {
    const EncodeScratch& s;
    int32_t first;
    float rms, sum_w, sum_wx, low, high;

    __host__ __device__ WeightedBlock(const EncodeScratch& scratch, int32_t sub)
        : s(scratch), first(32 * sub) {
        FourSums squares;
        for (int32_t i = 0; i < 32; i += 4)
            for (int32_t k = 0; k < 4; ++k)
                squares.part[k] = plus(squares.part[k], mul(x(i + k), x(i + k)));
#ifdef __CUDA_ARCH__
        rms = __fsqrt_rn(squares.total() / 32.0f);
#else
        rms = std::sqrt(squares.total() / 32.0f);
#endif
        low = 0.0f;
        high = x(0);
        FourSums w, wx;
        for (int32_t i = 0; i < 32; i += 4) {
            for (int32_t k = 0; k < 4; ++k) {
                const float value = x(i + k);
                w.part[k] = plus(w.part[k], weight(value));
                wx.part[k] = plus(wx.part[k], mul(weight(value), value));
                low = value < low ? value : low;
                high = value > high ? value : high;
            }
        }
        sum_w = w.total();
        sum_wx = wx.total();
    }
    __host__ __device__ float x(int32_t i) const {
        return s.at(first + i);
    }
    __host__ __device__ float weight(float value) const {
        return plus(rms, fabsf(value));
    }
};

/// Weighted squared error when every value takes the code nearest to it on `line`.
__host__ __device__ inline float line_error(const WeightedBlock& block, Line line, float largest) {
    const float inverse = 1.0f / line.scale;
    FourSums error;
    for (int32_t i = 0; i < 32; i += 4) {
        for (int32_t k = 0; k < 4; ++k) {
            const float x = block.x(i + k);
            const float code = clamped_round(mul(plus(x, line.minimum), inverse), 0.0f, largest);
            const float off = minus(minus(mul(line.scale, code), line.minimum), x);
            error.part[k] = plus(error.part[k], mul(mul(block.weight(x), off), off));
        }
    }
    return error.total();
}

/// The line that fits the codes of `inverse_step` best; scale 0 when all codes are equal.
__host__ __device__ inline Line fit_codes(const WeightedBlock& block,
                                          float inverse_step,
                                          float largest) {
    FourSums l, ll, lx;
    for (int32_t i = 0; i < 32; i += 4) {
        for (int32_t k = 0; k < 4; ++k) {
            const float x = block.x(i + k);
            const float code = clamped_round(mul(inverse_step, minus(x, block.low)), 0.0f, largest);
            const float weighted = mul(block.weight(x), code);
            l.part[k] = plus(l.part[k], weighted);
            ll.part[k] = plus(ll.part[k], mul(weighted, code));
            lx.part[k] = plus(lx.part[k], mul(weighted, x));
        }
    }
    const float sum_l = l.total(), sum_ll = ll.total(), sum_lx = lx.total();
    const float determinant = minus(mul(block.sum_w, sum_ll), mul(sum_l, sum_l));
    if (!(determinant > 0.0f)) return {0.0f, 0.0f};
    const float scale = minus(mul(block.sum_w, sum_lx), mul(block.sum_wx, sum_l)) / determinant;
    const float minimum = minus(mul(sum_l, sum_lx), mul(sum_ll, block.sum_wx)) / determinant;
    if (minimum < 0.0f) return {sum_lx / sum_ll, 0.0f};
    return {scale, minimum};
}

/// Q4_K, Q5_K, first step: the line of sub-block `lane`.
__host__ __device__ inline void fit_line(DType format, int32_t lane, EncodeScratch& s) {
    if (lane >= 8) return;
    const LineSearch search = line_search(format);
    const WeightedBlock block(s, lane);
    const float range = minus(block.high, block.low);
    Line best{0.0f, -block.low};
    if (range > 0.0f && isfinite(1.0f / range)) {
        best.scale = range / search.largest;
        float least = line_error(block, best, search.largest);
        for (int32_t step = 0; step <= search.last; ++step) {
            const float parts =
                plus(plus(search.largest, search.first), mul(0.1f, static_cast<float>(step)));
            const Line line = fit_codes(block, parts / range, search.largest);
            if (!(line.scale > 0.0f)) continue;
            const float error = line_error(block, line, search.largest);
            if (error < least) {
                least = error;
                best = line;
            }
        }
    }
    s.scale[lane] = best.scale;
    s.minimum[lane] = best.minimum;
}

/// d and dmin of the super-block, as halves.
struct LineScales {
    uint16_t d, dmin;
};
__host__ __device__ inline LineScales line_scales(const EncodeScratch& s) {
    float scale = 0.0f, minimum = 0.0f;
    for (int32_t j = 0; j < 8; ++j) {
        scale = scale < s.scale[j] ? s.scale[j] : scale;
        minimum = minimum < s.minimum[j] ? s.minimum[j] : minimum;
    }
    return {f16_scale(scale / kScaleMax), f16_scale(minimum / kScaleMax)};
}

/// The stored pair for `line`: of the nearest integers and their neighbours the best.
__host__ __device__ inline ScaleMin quantize_line(
    const WeightedBlock& block, Line line, float d, float dmin, float largest) {
    const auto scale = static_cast<int32_t>(
        clamped_round(mul(reciprocal_or_zero(d), line.scale), 0.0f, kScaleMax));
    const auto minimum = static_cast<int32_t>(
        clamped_round(mul(reciprocal_or_zero(dmin), line.minimum), 0.0f, kScaleMax));
    ScaleMin best{scale, minimum};
    if (scale == 0 || !isfinite(1.0f / d)) return best;
    float least = std::bit_cast<float>(0x7f800000u);  // infinity
    for (int32_t i = scale > 1 ? scale - 1 : 1; i <= (scale < 63 ? scale + 1 : 63); ++i) {
        for (int32_t m = minimum > 0 ? minimum - 1 : 0; m <= (minimum < 63 ? minimum + 1 : 63);
             ++m) {
            const Line stored{mul(d, static_cast<float>(i)), mul(dmin, static_cast<float>(m))};
            const float error = line_error(block, stored, largest);
            if (error < least) {
                least = error;
                best = {i, m};
            }
        }
    }
    return best;
}

/// Q4_K, Q5_K, second step: scale, minimum and codes of sub-block `lane`.
__host__ __device__ inline void round_line(DType format, int32_t lane, EncodeScratch& s) {
    if (lane >= 8) return;
    const LineScales scales = line_scales(s);
    const float d = f32_of_f16(scales.d), dmin = f32_of_f16(scales.dmin);
    const float largest = line_search(format).largest;
    const WeightedBlock block(s, lane);
    const ScaleMin stored =
        quantize_line(block, {s.scale[lane], s.minimum[lane]}, d, dmin, largest);
    s.stored[lane] = stored;
    const float inverse = reciprocal_or_zero(mul(d, static_cast<float>(stored.scale)));
    const float minimum = mul(dmin, static_cast<float>(stored.minimum));
    for (int32_t i = 0; i < 32; ++i) {
        const float scaled = clamped(mul(plus(block.x(i), minimum), inverse), 0.0f, largest);
        s.codes[32 * lane + i] = static_cast<uint8_t>(round_even(scaled));
    }
}

/// Q4_K, Q5_K, last step.
__host__ __device__ inline void pack_line(DType format,
                                          int32_t lane,
                                          const EncodeScratch& s,
                                          uint8_t* target) {
    if (lane == 0) {
        const LineScales scales = line_scales(s);
        store16(scales.d, target);
        store16(scales.dmin, target + 2);
    }
    if (lane < 4) {
        const ScaleMin low = s.stored[lane], high = s.stored[lane + 4];
        uint8_t* packed = target + 4 + lane;
        packed[0] = static_cast<uint8_t>(low.scale | high.scale >> 4 << 6);
        packed[4] = static_cast<uint8_t>(low.minimum | high.minimum >> 4 << 6);
        packed[8] = static_cast<uint8_t>((high.scale & 15) | (high.minimum & 15) << 4);
    }
    const bool five = format == DType::kQ5_K;
    uint8_t* nibbles = target + (five ? 48 : 16);
    for (int32_t pair = 0; pair < 4; ++pair)
        nibbles[32 * pair + lane] = static_cast<uint8_t>(
            (s.codes[64 * pair + lane] & 15) | (s.codes[64 * pair + 32 + lane] & 15) << 4);
    if (!five) return;
    int32_t bits = 0;
    for (int32_t j = 0; j < 8; ++j) bits |= s.codes[32 * j + lane] >> 4 << j;
    target[16 + lane] = static_cast<uint8_t>(bits);
}

/// Q6_K, first step: the scale of the 16 values of sub-block `lane`, weighted by x^2.
__host__ __device__ inline void fit_six(int32_t lane, EncodeScratch& s) {
    if (lane >= 16) return;
    const int32_t first = 16 * lane;
    float extreme = 0.0f;
    for (int32_t i = 0; i < 16; ++i)
        extreme = fabsf(s.at(first + i)) > fabsf(extreme) ? s.at(first + i) : extreme;
    float best_scale = 0.0f, best_gain = -1.0f;
    // Trials 0, -9..-1, 1..9: the plain step comes first, so that it wins among equals.
    for (int32_t trial = 0; trial < 19 && fabsf(extreme) >= kTiny; ++trial) {
        const int32_t step = trial == 0 ? 0 : trial < 10 ? trial - 10 : trial - 9;
        const float inverse = -plus(32.0f, mul(0.1f, static_cast<float>(step))) / extreme;
        FourSums xl, ll;
        for (int32_t i = 0; i < 16; i += 4) {
            for (int32_t k = 0; k < 4; ++k) {
                const float x = s.at(first + i + k);
                const float code = clamped_round(mul(inverse, x), -32.0f, 31.0f);
                const float weighted = mul(mul(x, x), code);
                xl.part[k] = plus(xl.part[k], mul(weighted, x));
                ll.part[k] = plus(ll.part[k], mul(weighted, code));
            }
        }
        const float numerator = xl.total(), denominator = ll.total();
        if (!(denominator > 0.0f)) continue;
        const float gain = mul(numerator, numerator / denominator);
        if (gain > best_gain) {
            best_gain = gain;
            best_scale = numerator / denominator;
        }
    }
    s.scale[lane] = best_scale;
}

/// Q6_K, second step: d, and the stored scale and the codes of sub-block `lane`.
__host__ __device__ inline void round_six(int32_t lane, EncodeScratch& s, uint8_t* target) {
    if (lane >= 16) return;
    float extreme = 0.0f;
    for (int32_t j = 0; j < 16; ++j)
        if (fabsf(s.scale[j]) > fabsf(extreme)) extreme = s.scale[j];
    // The extreme scale lands on -128, which the 8-bit scales reach and +128 they do not.
    const float inverse = fabsf(extreme) < kTiny ? 0.0f : -128.0f / extreme;
    const uint16_t half = f16_scale(inverse == 0.0f ? 0.0f : 1.0f / inverse);
    if (lane == 0) store16(half, target + 208);
    const auto stored =
        static_cast<int8_t>(clamped_round(mul(inverse, s.scale[lane]), -128.0f, 127.0f));
    target[192 + lane] = static_cast<uint8_t>(stored);
    const float step = reciprocal_or_zero(mul(f32_of_f16(half), static_cast<float>(stored)));
    for (int32_t i = 0; i < 16; ++i) {
        const float scaled = clamped(mul(s.at(16 * lane + i), step), -32.0f, 31.0f);
        s.codes[16 * lane + i] = static_cast<uint8_t>(plus(round_even(scaled), 32.0f));
    }
}

/// Q6_K, last step.
__host__ __device__ inline void pack_six(int32_t lane, const EncodeScratch& s, uint8_t* target) {
    for (int32_t half = 0; half < 2; ++half) {
        const uint8_t* codes = s.codes + 128 * half + lane;
        const int32_t q0 = codes[0], q1 = codes[32], q2 = codes[64], q3 = codes[96];
        uint8_t* low = target + 64 * half + lane;
        low[0] = static_cast<uint8_t>((q0 & 15) | (q2 & 15) << 4);
        low[32] = static_cast<uint8_t>((q1 & 15) | (q3 & 15) << 4);
        target[128 + 32 * half + lane] =
            static_cast<uint8_t>(q0 >> 4 | q1 >> 4 << 2 | q2 >> 4 << 4 | q3 >> 4 << 6);
    }
}

}  // namespace tessera::cuda::rows
