// The index arithmetic of the FP4 product (backends/cuda/linear/fp4_places.h) on an emulator of
// lanes: copies with a swizzle, ldmatrix, the instruction with its selectors of scales. What the
// hardware does is written down here from its description alone; what the kernel does with it comes
// from the header that the kernel includes.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "backends/cuda/linear/fp4_places.h"
#include "fp4_operands.h"

namespace tessera {
namespace {

using cuda::sm120::kFragmentRows;
using cuda::sm120::kHalves;
using cuda::sm120::kRowScaleBytes;
using cuda::sm120::kStageColumns;
using cuda::sm120::Places;
using cuda::sm120::power_scale;
using cuda::sm120::power_scales;
using cuda::sm120::row_exponent;
using cuda::sm120::token_scale_place;
using cuda::sm120::token_scale_word;
using cuda::sm120::token_selector;
using cuda::sm120::weight_scale_place;
using cuda::sm120::weight_selector;
using cuda::sm120::whole_codes;

using Registers4 = std::array<std::array<uint32_t, 4>, 32>;

/// PRMT and LOP3 as whole_codes() wants them.
struct HostBits {
    static uint32_t pick_bytes(uint32_t low, uint32_t high, uint32_t selector) {
        const uint64_t both = uint64_t{high} << 32 | low;
        uint32_t out = 0;
        for (uint32_t i = 0; i < 4; ++i)
            out |= static_cast<uint32_t>(both >> (8 * (selector >> (4 * i) & 7u)) & 0xffu)
                   << (8 * i);
        return out;
    }
    static uint32_t choose_bits(uint32_t mask, uint32_t a, uint32_t b) {
        return (a & mask) | (b & ~mask);
    }
};

/// A box of 64 bytes by `count` rows with a 64-byte swizzle: bits 4 and 5 of an address are those
/// XOR bits 7 and 8. What lies outside is zeros.
std::vector<uint8_t> copy_box(const std::vector<uint8_t>& matrix,
                              int64_t row_bytes,
                              int64_t first_byte,
                              int64_t first_row,
                              int64_t count) {
    std::vector<uint8_t> out(static_cast<size_t>(count * 64));
    const int64_t rows = static_cast<int64_t>(matrix.size()) / row_bytes;
    for (int64_t row = 0; row < count; ++row) {
        for (int64_t byte = 0; byte < 64; ++byte) {
            const int64_t from = first_byte + byte;
            if (first_row + row >= rows || from >= row_bytes) continue;
            const auto place = static_cast<size_t>(row * 64 + byte);
            out[place ^ (place >> 7 & 3u) << 4] =
                matrix[static_cast<size_t>((first_row + row) * row_bytes + from)];
        }
    }
    return out;
}

uint32_t word_at(const std::vector<uint8_t>& bytes, size_t place) {
    uint32_t word = 0;
    std::memcpy(&word, &bytes.at(place + 3) - 3, 4);
    return word;
}

/// ldmatrix.x4: row r of matrix i is the 16 bytes that lane 8i + r points at; lane l gets word
/// l % 4 of row l / 4 of every matrix.
Registers4 load_matrices(const std::vector<uint8_t>& shared,
                         const std::array<uint32_t, 32>& addresses) {
    Registers4 out;
    for (size_t lane = 0; lane < 32; ++lane) {
        for (size_t i = 0; i < 4; ++i) {
            const uint32_t row = addresses[8 * i + lane / 4];
            EXPECT_EQ(row % 16, 0u);
            out[lane][i] = word_at(shared, row + 4 * (lane % 4));
        }
    }
    return out;
}

/// The instruction: its operands by lane, and sums[16][8] to add to. Scales come from the lanes
/// that the selectors name and no others.
struct Product {
    const Registers4& a;
    std::array<std::array<uint32_t, 2>, 32> b;
    std::array<uint32_t, 32> a_scales, b_scales;
    size_t a_selector, b_selector;

    void add_to(std::array<std::array<float, 8>, 16>& sums) const {
        std::array<std::array<double, 64>, 16> rows;
        std::array<std::array<double, 64>, 8> columns;
        for (size_t k = 0; k < 64; ++k) {
            const size_t t = k % 32 / 8, half = k / 32;
            for (size_t m = 0; m < 16; ++m)
                rows[m][k] = number(a[4 * (m % 8) + t][m / 8 + 2 * half], k,
                                    a_scales[4 * (m % 8) + 2 * a_selector + m / 8]);
            for (size_t n = 0; n < 8; ++n)
                columns[n][k] = number(b[4 * n + t][half], k, b_scales[4 * n + b_selector]);
        }
        for (size_t m = 0; m < 16; ++m) {
            for (size_t n = 0; n < 8; ++n) {
                double sum = 0;
                for (size_t k = 0; k < 64; ++k) sum += rows[m][k] * columns[n][k];
                sums[m][n] += static_cast<float>(sum);
            }
        }
    }

    /// Code k % 8 of a word, scaled by byte k / 16 of the scales.
    static double number(uint32_t word, size_t k, uint32_t scales) {
        const uint32_t code = word >> (4 * (k % 8)) & 15u;
        const double value =
            Fp4Matrix::magnitude(code) * Fp4Matrix::scale_value(scales >> (8 * (k / 16)) & 0xffu);
        return code >= 8 ? -value : value;
    }
};

struct Stage {
    std::vector<uint8_t> weights, x, weight_scales, x_scales;
};

/// A tile of the kernel: 8 warps of Fragments times 16 rows, Tokens tokens. With Matrices 2 the
/// fragments are of gate and of up.
template <int Fragments, int Tokens, size_t Matrices = 1>
class Tile {
  public:
    static constexpr int64_t kFeatures = Fragments * kFragmentRows;
    using Out = std::array<std::vector<float>, Matrices>;

    Tile(const std::array<const Fp4Matrix*, Matrices>& weights, const Fp4Matrix& x)
        : weights_(weights), x_(x), n_(weights[0]->rows), x_codes_(plain_codes(x)) {
        for (size_t i = 0; i < Matrices; ++i) weight_codes_[i] = resident_codes(*weights[i]);
    }

    /// out[token][feature] of the whole product.
    Out run() {
        Out out;
        for (auto& one : out) one.resize(static_cast<size_t>(x_.rows * n_));
        constexpr int64_t kOwn = kFeatures / static_cast<int64_t>(Matrices);
        for (int64_t feature = 0; feature < n_; feature += kOwn)
            for (int64_t token = 0; token < x_.rows; token += Tokens) multiply(feature, token, out);
        return out;
    }

  private:
    using Sums = std::array<std::array<float, 8>, 16>;

    static uint32_t scales_of(const Fp4Matrix& matrix, int64_t row, int64_t column) {
        if (column >= matrix.cols) return 0;
        row = std::min(row, matrix.rows - 1);
        return word_at(matrix.scales, static_cast<size_t>(row * (matrix.cols / 16) + column / 16));
    }

    static void put(std::vector<uint8_t>& shared, uint32_t place, uint32_t word) {
        std::memcpy(&shared.at(place + 3) - 3, &word, 4);
    }

    /// The matrix of a fragment, and its first row there.
    struct Place {
        size_t matrix;
        int64_t row;
    };
    static Place place_of(int64_t fragment) {
        if (Matrices == 2) return {static_cast<size_t>(fragment), 0};
        return {0, fragment * kFragmentRows};
    }

    Stage load(int64_t feature, int64_t token, int64_t column) const {
        const int64_t row_bytes = x_.cols / 2;
        Stage stage{{},
                    copy_box(x_codes_, row_bytes, column / 2, token, Tokens),
                    std::vector<uint8_t>(kFeatures * kRowScaleBytes, 0xff),
                    std::vector<uint8_t>(Tokens * kRowScaleBytes, 0xff)};
        for (int64_t i = 0; i < Fragments; ++i) {
            const Place place = place_of(i);
            const std::vector<uint8_t> box =
                copy_box(weight_codes_[place.matrix], row_bytes, column / 2, feature + place.row,
                         kFragmentRows);
            stage.weights.insert(stage.weights.end(), box.begin(), box.end());
        }
        for (uint32_t half = 0; half < kHalves; ++half) {
            for (uint32_t row = 0; row < kFeatures; ++row) {
                const Place place = place_of(row / kFragmentRows);
                put(stage.weight_scales, weight_scale_place(row, half, Fragments),
                    scales_of(*weights_[place.matrix], feature + place.row + row % kFragmentRows,
                              column + 64 * half));
            }
            for (uint32_t row = 0; row < Tokens; ++row)
                put(stage.x_scales, token_scale_place(row, half),
                    scales_of(x_, token + row, column + 64 * half));
        }
        return stage;
    }

    /// What one warp makes of a stage; `tokens`: of its fragments those that are wanted.
    void step(const Stage& stage,
              uint32_t warp,
              uint32_t tokens,
              Sums (&sums)[Fragments][Tokens / 8]) {
        const auto of_lanes = [&](const auto& work) {
            for (uint32_t lane = 0; lane < 32; ++lane) work(lane, Places<Fragments>(warp, lane));
        };
        for (uint32_t half = 0; half < kHalves; ++half) {
            for (uint32_t i = 0; i < Fragments; ++i) {
                std::array<uint32_t, 32> addresses, a_scales;
                of_lanes([&](uint32_t lane, const Places<Fragments>& places) {
                    addresses[lane] = places.weights_of(i, half);
                    a_scales[lane] = word_at(stage.weight_scales, places.weight_scales + 4 * i);
                });
                Registers4 a = load_matrices(stage.weights, addresses);
                for (auto& lane : a)
                    for (uint32_t& word : lane) word = whole_codes(word, HostBits{});
                for (uint32_t j = 0; j < tokens; ++j) {
                    const int in_group = static_cast<int>(j % 8);
                    Product product{a, {}, a_scales, {}, 0, 0};
                    const int of_half = static_cast<int>(half);
                    product.a_selector = static_cast<size_t>(weight_selector(of_half));
                    product.b_selector = static_cast<size_t>(token_selector(of_half, in_group));
                    of_lanes([&](uint32_t lane, const Places<Fragments>& places) {
                        addresses[lane] = places.tokens_of(j / 2 * 16, half);
                        product.b_scales[lane] =
                            word_at(stage.x_scales,
                                    places.token_scales_of(j / 8) +
                                        4 * static_cast<uint32_t>(token_scale_word(in_group)));
                    });
                    const Registers4 two = load_matrices(stage.x, addresses);
                    for (size_t lane = 0; lane < 32; ++lane)
                        product.b[lane] = {two[lane][2 * (j % 2)], two[lane][2 * (j % 2) + 1]};
                    product.add_to(sums[i][j]);
                }
            }
        }
    }

    void multiply(int64_t feature, int64_t token, Out& out) {
        const auto tokens =
            static_cast<uint32_t>((std::min<int64_t>(x_.rows - token, Tokens) + 7) / 8);
        std::vector<Stage> stages;
        for (int64_t column = 0; column < x_.cols; column += kStageColumns)
            stages.push_back(load(feature, token, column));
        for (uint32_t warp = 0; warp < 8; ++warp) {
            // Rows that nobody stores would only take time.
            if (feature + warp * 16 >= n_) break;
            Sums sums[Fragments][Tokens / 8] = {};
            for (const Stage& stage : stages) step(stage, warp, tokens, sums);
            for (int64_t row = 0; row < 16 * Fragments; ++row) {
                const Place place = place_of(row / 16);
                const int64_t n = feature + place.row + warp * 16 + row % 16;
                for (int64_t i = 0; i < tokens * 8; ++i)
                    if (n < n_ && token + i < x_.rows)
                        out[place.matrix][static_cast<size_t>((token + i) * n_ + n)] =
                            sums[row / 16][i / 8][static_cast<size_t>(row % 16)]
                                [static_cast<size_t>(i % 8)];
            }
        }
    }

    std::array<const Fp4Matrix*, Matrices> weights_;
    const Fp4Matrix& x_;
    int64_t n_;
    std::array<std::vector<uint8_t>, Matrices> weight_codes_;
    std::vector<uint8_t> x_codes_;
};

int wrong_sums(const std::vector<float>& out, const Fp4Matrix& weight, const Fp4Matrix& x) {
    const std::vector<double> sums = fp4_sums(weight, x).sums;
    int wrong = 0;
    for (size_t i = 0; i < sums.size(); ++i) wrong += out[i] != static_cast<float>(sums[i]);
    return wrong;
}

template <int Fragments, int Tokens>
void expect_product(int64_t n, int64_t tokens, int64_t cols) {
    const Fp4Matrix weight = random_fp4(n, cols, /*exact=*/true, static_cast<uint32_t>(n + cols));
    const Fp4Matrix x = random_fp4(tokens, cols, /*exact=*/true, static_cast<uint32_t>(tokens));
    const auto out = Tile<Fragments, Tokens>({&weight}, x).run();
    EXPECT_EQ(wrong_sums(out[0], weight, x), 0)
        << Fragments << " fragments, tiles of " << Tokens << " tokens: " << n << " x " << tokens
        << " x " << cols;
}

// Guards against signs that end up at another value's magnitude.
TEST(Fp4Lanes, CodesBecomeWhole) {
    std::mt19937 random(1);
    for (int round = 0; round < 1000; ++round) {
        Fp4Matrix eight{1, 8, {}, {}};
        for (int i = 0; i < 8; ++i) eight.codes.push_back(static_cast<uint8_t>(random() % 16));
        ASSERT_EQ(whole_codes(word_at(resident_codes(eight), 0), HostBits{}),
                  word_at(plain_codes(eight), 0));
    }
}

// Guards against a fragment, a scale or a token of another place, for every count of tokens, with
// last stages that are half full and tiles that are not full.
TEST(Fp4Lanes, EveryCountOfTokens) {
    constexpr std::array<int64_t, 4> kColumns{64, 128, 192, 320};
    for (int64_t tokens = 1; tokens <= 130; ++tokens) {
        const int64_t cols = kColumns[static_cast<size_t>(tokens % 4)], n = 1 + tokens * 7 % 37;
        if (tokens % 3 == 0) expect_product<2, 128>(n, tokens, cols);
        if (tokens % 3 == 1) expect_product<1, 128>(n, tokens, cols);
        if (tokens % 3 == 2) expect_product<1, 64>(n, tokens, cols);
    }
}

// Guards against warps that read one another's rows, and second tiles of features.
TEST(Fp4Lanes, AllWarpsOfATile) {
    expect_product<2, 128>(300, 9, 192);
    expect_product<1, 128>(150, 70, 192);
    expect_product<1, 64>(150, 70, 64);
}

// Guards against gate and up of a feature that do not meet in a thread, and last tiles of either
// that reach into the other.
TEST(Fp4Lanes, GateAndUpShareATile) {
    for (const int64_t n : {1, 37, 128, 160}) {
        constexpr int64_t kTokens = 9, kCols = 192;
        const Fp4Matrix gate = random_fp4(n, kCols, /*exact=*/true, 1);
        const Fp4Matrix up = random_fp4(n, kCols, /*exact=*/true, 2);
        const Fp4Matrix x = random_fp4(kTokens, kCols, /*exact=*/true, 3);
        const auto out = Tile<2, 128, 2>({&gate, &up}, x).run();
        EXPECT_EQ(wrong_sums(out[0], gate, x), 0) << n;
        EXPECT_EQ(wrong_sums(out[1], up, x), 0) << n;
    }
}

// Guards against scales of MXFP4 that are wrong by a power of two, at the ends of e4m3's range
// above all: every code in a row of every largest one is exact as far as 2^-17 of that, then 0.
TEST(Fp4Lanes, PowersOfTwoBecomeUe4m3) {
    for (int32_t largest = 0; largest < 256; ++largest) {
        const int32_t exponent = row_exponent(largest);
        const auto power = double{std::bit_cast<float>(static_cast<uint32_t>(exponent) << 23)};
        ASSERT_EQ(power, std::ldexp(1.0, exponent - 127)) << largest;
        for (int32_t code = 0; code < 256; ++code) {
            const uint32_t scale = power_scale(static_cast<uint32_t>(code), exponent);
            // Blocks of zeros may have any: it has to be a number.
            ASSERT_LT(scale, 0x7fu) << code << " of " << largest;
            if (code > largest) continue;
            const double exact = largest - code <= 17 ? std::ldexp(1.0, code - 127) : 0.0;
            ASSERT_EQ(Fp4Matrix::scale_value(scale) * power, exact) << code << " of " << largest;
        }
    }
    for (uint32_t codes = 0; codes < 0x10000u; ++codes) {
        const uint32_t first = power_scale(codes & 0xffu, 119);
        const uint32_t second = power_scale(codes >> 8, 119);
        ASSERT_EQ(power_scales(codes, 119), first | first << 8 | second << 16 | second << 24);
    }
}

// Guards against lanes of ldmatrix that meet in a bank: eight rows of a matrix have to lie in all
// 32 banks.
TEST(Fp4Lanes, LoadsOfMatricesMeetNoBankTwice) {
    for (uint32_t matrix = 0; matrix < 4; ++matrix) {
        for (uint32_t half = 0; half < kHalves; ++half) {
            uint32_t weights = 0, tokens = 0;
            for (uint32_t row = 0; row < 8; ++row) {
                const Places<2> places(3, 8 * matrix + row);
                weights |= 1u << (places.weights_of(1, half) / 16 % 8);
                tokens |= 1u << (places.tokens_of(16, half) / 16 % 8);
            }
            EXPECT_EQ(weights, 0xffu);
            EXPECT_EQ(tokens, 0xffu);
        }
    }
}

}  // namespace
}  // namespace tessera
