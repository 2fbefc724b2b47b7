#pragma once
// Operands of products NVFP4 x NVFP4 as the kernel of gemm_nvfp4_sm120.cuh takes them, and their
// product by the definition: for the emulator of lanes (tests/core) and the card (tests/gpu).

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace tessera {

/// Codes and scales before they are packed.
struct Fp4Matrix {
    int64_t rows = 0, cols = 0;
    std::vector<uint8_t> codes;   ///< [rows][cols], 0 to 15
    std::vector<uint8_t> scales;  ///< [rows][cols / 16], ue4m3

    static double magnitude(uint32_t code) {
        constexpr std::array<double, 8> kOf{0, 0.5, 1, 1.5, 2, 3, 4, 6};
        return kOf[code & 7u];
    }
    /// ue4m3; 0x7f is no number.
    static double scale_value(uint32_t code) {
        code &= 0x7fu;
        if (code == 0x7fu) return std::numeric_limits<double>::quiet_NaN();
        const int exponent = static_cast<int>(code >> 3), mantissa = static_cast<int>(code & 7u);
        return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    }
    std::vector<double> values() const {
        std::vector<double> out;
        for (size_t i = 0; i < codes.size(); ++i) {
            const double value = magnitude(codes[i]) * scale_value(scales[i / 16]);
            out.push_back(codes[i] >= 8 ? -value : value);
        }
        return out;
    }
};

/// Columns are a multiple of 16. `exact`: scales are 1/2, 1 or 2, so that sums of up to 7000 terms
/// are multiples of 1/16 below 2^20 and every order of additions gives the same f32. Else all
/// numbers but 0x7f.
inline Fp4Matrix random_fp4(int64_t rows, int64_t cols, bool exact, uint32_t seed) {
    std::mt19937 random(seed);
    Fp4Matrix matrix{rows, cols, {}, {}};
    matrix.codes.resize(static_cast<size_t>(rows * cols));
    matrix.scales.resize(static_cast<size_t>(rows * (cols / 16)));
    for (uint8_t& code : matrix.codes) code = static_cast<uint8_t>(random() % 16);
    for (uint8_t& scale : matrix.scales)
        scale = static_cast<uint8_t>(exact ? 0x30 + 8 * (random() % 3) : random() % 0x7f);
    return matrix;
}

/// Rows of units of 32 codes with the signs apart, as weights lie on a card (formats.cuh).
inline std::vector<uint8_t> resident_codes(const Fp4Matrix& matrix) {
    std::vector<uint8_t> out(static_cast<size_t>(matrix.rows * matrix.cols / 2));
    for (size_t i = 0; i < matrix.codes.size(); ++i) {
        const size_t word = i / 8 * 4, place = i % 8;
        const size_t sign = place < 4 ? 8 * place + 7 : 8 * (place - 4) + 3;
        const uint32_t code = matrix.codes[i];
        out[word + place / 2] |= static_cast<uint8_t>((code & 7u) << (4 * (place % 2)));
        out[word + sign / 8] |= static_cast<uint8_t>((code >> 3) << (sign % 8));
    }
    return out;
}

/// Rows of codes in order, two a byte, the first in the lower half.
inline std::vector<uint8_t> plain_codes(const Fp4Matrix& matrix) {
    std::vector<uint8_t> out(static_cast<size_t>(matrix.rows * matrix.cols / 2));
    for (size_t i = 0; i < matrix.codes.size(); ++i)
        out[i / 2] |= static_cast<uint8_t>(matrix.codes[i] << (4 * (i % 2)));
    return out;
}

/// The product by the definition: [x.rows][weight.rows] sums, and sums of magnitudes.
struct Fp4Sums {
    std::vector<double> sums, magnitudes;
};
inline Fp4Sums fp4_sums(const Fp4Matrix& weight, const Fp4Matrix& x) {
    const std::vector<double> w = weight.values(), v = x.values();
    Fp4Sums out;
    for (int64_t token = 0; token < x.rows; ++token) {
        for (int64_t row = 0; row < weight.rows; ++row) {
            const double* a = w.data() + row * weight.cols;
            const double* b = v.data() + token * weight.cols;
            double sum = 0, magnitudes = 0;
            for (int64_t k = 0; k < weight.cols; ++k) {
                sum += a[k] * b[k];
                magnitudes += std::abs(a[k] * b[k]);
            }
            out.sums.push_back(sum);
            out.magnitudes.push_back(magnitudes);
        }
    }
    return out;
}

}  // namespace tessera
