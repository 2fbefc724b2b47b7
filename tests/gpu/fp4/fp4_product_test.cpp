// The product NVFP4 x NVFP4: bit for bit where sums are exact, within the rounding of f32 sums
// elsewhere; on cards without FP4 tensor cores with an emulated instruction.
#include "gpu/fp4/fp4_product.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "core/codec.h"
#include "core/weight.h"
#include "gpu/gpu.h"

namespace tessera {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Shape {
    int64_t n, tokens, k;
};

/// A problem and what owns its operands. Columns of `out` behind n are nobody's.
struct Operands {
    Fp4Matrix weight, x;
    std::vector<float> row_scales;

    Operands(Shape shape, bool exact)
        : weight(random_fp4(shape.n, shape.k, exact, 1)),
          x(random_fp4(shape.tokens, shape.k, exact, 2)) {
        for (int64_t i = 0; i < shape.tokens; ++i)
            row_scales.push_back(0.01f + 0.001f * static_cast<float>(i % 97));
    }

    Fp4Problem problem(bool biased, bool add) const {
        Fp4Problem problem{.weight = weight,
                           .x = x,
                           .row_scales = row_scales,
                           .outer = 0.37f,
                           .bias = {},
                           .out = {},
                           .out_stride = weight.rows + 5,
                           .add = add};
        if (biased)
            for (int64_t i = 0; i < weight.rows; ++i)
                problem.bias.push_back(0.3f * static_cast<float>(i % 11));
        const auto count = static_cast<size_t>(x.rows * problem.out_stride);
        for (size_t i = 0; i < count; ++i)
            problem.out.push_back(add ? 0.7f * static_cast<float>(i % 13) : -1234.5f);
        return problem;
    }
};

/// The results by the definition, rounded where the kernel rounds.
std::vector<float> expected(const Fp4Problem& problem, const std::vector<double>& sums) {
    std::vector<float> out = problem.out;
    const int64_t n = problem.weight.rows;
    for (int64_t token = 0; token < problem.x.rows; ++token) {
        for (int64_t row = 0; row < n; ++row) {
            float& value = out[static_cast<size_t>(token * problem.out_stride + row)];
            const float factor = problem.outer * problem.row_scales[static_cast<size_t>(token)];
            float result = static_cast<float>(sums[static_cast<size_t>(token * n + row)]) * factor;
            if (!problem.bias.empty()) result += problem.bias[static_cast<size_t>(row)];
            if (problem.add) result += value;
            value = result;
        }
    }
    return out;
}

int differing_bits(const std::vector<float>& a, const std::vector<float>& b) {
    EXPECT_EQ(a.size(), b.size());
    int count = 0;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
        count += std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]);
    return count;
}

/// The instruction that the card shall show: its own, else the emulated one.
Fp4Instruction instruction() {
    static const Fp4Instruction found =
        card_multiplies_fp4() ? Fp4Instruction::kNative : Fp4Instruction::kEmulated;
    return found;
}

class Fp4Product : public CardTest {};

// Guards against operands, scales or results of other rows and columns: partial tiles of both
// kinds, stages that are half full, rings that turn, bias and sums to what is there.
TEST_F(Fp4Product, ExactSumsAreTheHostsBits) {
    constexpr std::array<int64_t, 11> kTokens{1, 7, 8, 9, 63, 64, 65, 127, 128, 129, 200};
    constexpr std::array<int64_t, 5> kRows{1, 16, 130, 257, 300};
    constexpr std::array<int64_t, 5> kColumns{64, 128, 192, 448, 1088};
    for (size_t i = 0; i < kTokens.size(); ++i) {
        for (size_t j = 0; j < kRows.size(); ++j) {
            const Shape shape{kRows[j], kTokens[i], kColumns[(i + j) % kColumns.size()]};
            const Operands operands(shape, /*exact=*/true);
            const Fp4Problem problem = operands.problem(j % 2 == 0, (i + j) % 2 == 0);
            const std::vector<float> right =
                expected(problem, fp4_sums(operands.weight, operands.x).sums);
            for (int tile = 0; tile < kFp4Tiles; ++tile)
                EXPECT_EQ(differing_bits(multiply_fp4(problem, instruction(), tile), right), 0)
                    << "tile " << tile << ": " << shape.n << " x " << shape.tokens << " x "
                    << shape.k;
        }
    }
}

// Guards against counts of tokens that some tile does not end at.
TEST_F(Fp4Product, EveryCountOfTokens) {
    constexpr std::array<int64_t, 4> kColumns{64, 128, 192, 320};
    for (int64_t tokens = 1; tokens <= 520; ++tokens) {
        const Shape shape{1 + tokens * 7 % 37, tokens, kColumns[static_cast<size_t>(tokens % 4)]};
        const Operands operands(shape, /*exact=*/true);
        const Fp4Problem problem = operands.problem(/*biased=*/false, /*add=*/false);
        const std::vector<float> right =
            expected(problem, fp4_sums(operands.weight, operands.x).sums);
        const auto tile = static_cast<int>(tokens % kFp4Tiles);
        ASSERT_EQ(differing_bits(multiply_fp4(problem, instruction(), tile), right), 0)
            << "tile " << tile << ": " << shape.n << " x " << tokens << " x " << shape.k;
    }
}

// Guards against blocks that lose their place in the ring, or their factors, between two tiles.
TEST_F(Fp4Product, BlocksTakeSeveralTiles) {
    const Operands operands({4100, 1100, 320}, /*exact=*/true);
    const Fp4Problem problem = operands.problem(/*biased=*/true, /*add=*/false);
    const std::vector<float> right = expected(problem, fp4_sums(operands.weight, operands.x).sums);
    EXPECT_EQ(differing_bits(multiply_fp4(problem, instruction(), std::nullopt), right), 0);
    EXPECT_EQ(differing_bits(multiply_fp4(problem, instruction(), 0), right), 0);
}

// Guards against scales that are wrong by what powers of two hide: all scales of all sizes, and the
// bits of all tiles are the same.
TEST_F(Fp4Product, AnySumsAreNear) {
    const Shape shape{300, 140, 1088};
    const Operands operands(shape, /*exact=*/false);
    const Fp4Problem problem = operands.problem(/*biased=*/false, /*add=*/false);
    const Fp4Sums right = fp4_sums(operands.weight, operands.x);
    const std::vector<float> out = multiply_fp4(problem, instruction(), 0);
    // Every 16 columns, the factor and the product with it round once.
    const double bound = static_cast<double>(shape.k / 16 + 4) * 0x1p-24;
    int wrong = 0;
    for (int64_t token = 0; token < shape.tokens; ++token) {
        for (int64_t row = 0; row < shape.n; ++row) {
            const auto at = static_cast<size_t>(token * shape.n + row);
            const double factor =
                double{problem.outer} * operands.row_scales[static_cast<size_t>(token)];
            const double value = out[static_cast<size_t>(token * problem.out_stride + row)];
            wrong += !(std::abs(value - right.sums[at] * factor) <=
                       bound * right.magnitudes[at] * factor);
        }
    }
    EXPECT_EQ(wrong, 0);
    for (int tile = 1; tile < kFp4Tiles; ++tile)
        EXPECT_EQ(differing_bits(multiply_fp4(problem, instruction(), tile), out), 0);
}

// Guards against waits that only the speed of one role makes superfluous: along K, where the ring
// turns several times, and from one tile of a block to its next.
TEST_F(Fp4Product, DelaysChangeNothing) {
    for (const Shape& shape : {Shape{700, 300, 1088}, Shape{4100, 1100, 320}}) {
        const Operands operands(shape, /*exact=*/false);
        const Fp4Problem problem = operands.problem(/*biased=*/false, /*add=*/true);
        const std::vector<float> right =
            multiply_fp4(problem, Fp4Instruction::kEmulated, std::nullopt);
        for (int tile = 0; tile < kFp4Tiles; ++tile)
            for (uint32_t seed = 1; seed <= 4; ++seed)
                EXPECT_EQ(differing_bits(
                              multiply_fp4(problem, Fp4Instruction::kDelayed, tile, seed), right),
                          0)
                    << "tile " << tile << ", seed " << seed << ": " << shape.n << " x "
                    << shape.tokens << " x " << shape.k;
    }
}

// Guards against rows that see their neighbours: alone, a row has the bits that it has among many.
TEST_F(Fp4Product, RowsDoNotDependOnOthers) {
    const Operands many({130, 200, 448}, /*exact=*/false);
    const Fp4Problem problem = many.problem(/*biased=*/false, /*add=*/false);
    const std::vector<float> all = multiply_fp4(problem, instruction(), std::nullopt);
    for (const int64_t row : {0, 77, 199}) {
        Operands one({130, 1, 448}, /*exact=*/false);
        std::copy_n(many.x.codes.begin() + row * 448, 448, one.x.codes.begin());
        std::copy_n(many.x.scales.begin() + row * 28, 28, one.x.scales.begin());
        one.row_scales[0] = many.row_scales[static_cast<size_t>(row)];
        const std::vector<float> alone =
            multiply_fp4(one.problem(/*biased=*/false, /*add=*/false), instruction(), std::nullopt);
        const auto first = all.begin() + row * problem.out_stride;
        EXPECT_EQ(differing_bits(alone, {first, first + problem.out_stride}), 0) << row;
    }
}

// Guards against a NaN that spreads over the tile, and a weight's scale 0x7f that makes one: it
// counts as 0 everywhere else.
TEST_F(Fp4Product, WhatIsNoNumberStaysInItsRow) {
    Operands operands({130, 70, 192}, /*exact=*/true);
    operands.row_scales[3] = kNaN;
    Fp4Matrix zeroed = operands.weight;
    for (size_t i = 0; i < operands.weight.scales.size(); i += 5) {
        operands.weight.scales[i] = i % 2 == 0 ? 0x7f : 0xff;
        zeroed.scales[i] = 0;
    }
    const Fp4Problem problem = operands.problem(/*biased=*/true, /*add=*/false);
    const std::vector<float> right = expected(problem, fp4_sums(zeroed, operands.x).sums);
    const std::vector<float> out = multiply_fp4(problem, instruction(), std::nullopt);
    for (size_t i = 0; i < out.size(); ++i) {
        const auto stride = static_cast<size_t>(problem.out_stride);
        if (i / stride == 3 && i % stride < 130)
            EXPECT_TRUE(std::isnan(out[i])) << i;
        else
            EXPECT_EQ(out[i], right[i]) << i;
    }
}

/// Experts and the pairs that they get.
struct Experts {
    int64_t n;
    std::vector<int32_t> counts;  ///< pairs of each
    int32_t pairs_per_row;
    int32_t generated;  ///< pairs at the end
};

/// A problem of pairs and what owns its operands. Experts take turns in an order without a pattern.
struct GroupedOperands {
    Operands operands;
    Fp4Groups groups;
    std::vector<int32_t> expert_of;  ///< pair

    GroupedOperands(const Experts& experts, int64_t k, bool exact)
        : operands({experts.n * static_cast<int64_t>(experts.counts.size()), 1, k}, exact) {
        for (size_t e = 0; e < experts.counts.size(); ++e) {
            groups.outers.push_back(0.3f + 0.01f * static_cast<float>(e));
            expert_of.insert(expert_of.end(), static_cast<size_t>(experts.counts[e]),
                             static_cast<int32_t>(e));
        }
        std::mt19937 random(7);
        for (size_t i = expert_of.size(); i > 1; --i)
            std::swap(expert_of[i - 1], expert_of[random() % i]);
        groups.starts.push_back(0);
        for (size_t e = 0; e < experts.counts.size(); ++e) {
            for (size_t p = 0; p < expert_of.size(); ++p)
                if (expert_of[p] == static_cast<int32_t>(e))
                    groups.pairs.push_back(static_cast<int32_t>(p));
            groups.starts.push_back(static_cast<int32_t>(groups.pairs.size()));
        }
        const auto pairs = static_cast<int32_t>(expert_of.size());
        groups.pairs_per_row = experts.pairs_per_row;
        groups.end_pair = pairs - experts.generated;
        // Rows of prompts alone.
        const int64_t rows = groups.end_pair / experts.pairs_per_row;
        operands.x = random_fp4(rows, k, exact, 2);
        operands.row_scales.clear();
        for (int64_t i = 0; i < rows; ++i)
            operands.row_scales.push_back(0.01f + 0.001f * static_cast<float>(i % 97));
    }

    int64_t n() const { return operands.weight.rows / static_cast<int64_t>(groups.outers.size()); }
    Fp4Problem problem() const {
        Fp4Problem problem = operands.problem(/*biased=*/false, /*add=*/false);
        problem.out_stride = n() + 5;
        problem.out.assign(expert_of.size() * static_cast<size_t>(problem.out_stride), -1234.5f);
        return problem;
    }
    /// `out` of problem() after the product; result(expert, row of x, feature) is one.
    template <class Result>
    std::vector<float> expected(const Result& result) const {
        const Fp4Problem of = problem();
        std::vector<float> out = of.out;
        for (int64_t pair = 0; pair < groups.end_pair; ++pair)
            for (int64_t feature = 0; feature < n(); ++feature)
                out[static_cast<size_t>(pair * of.out_stride + feature)] = result(
                    static_cast<size_t>(expert_of[static_cast<size_t>(pair)]),
                    static_cast<size_t>(pair / groups.pairs_per_row), static_cast<size_t>(feature));
        return out;
    }
    /// The same by the definition, of sums that are exact.
    std::vector<float> exact() const {
        const std::vector<double> w = operands.weight.values(), x = operands.x.values();
        const auto cols = static_cast<size_t>(operands.x.cols);
        return expected([&](size_t expert, size_t row, size_t feature) {
            const double* a = w.data() + (expert * static_cast<size_t>(n()) + feature) * cols;
            const float factor = groups.outers[expert] * operands.row_scales[row];
            return static_cast<float>(std::inner_product(a, a + cols, x.data() + row * cols, 0.0)) *
                   factor;
        });
    }
    /// Results that are not `right`, in tiles of 64 and in those of 128 tokens.
    int wrong(Fp4Instruction how, const std::vector<float>& right) const {
        int count = 0;
        for (const int tokens : {64, 128})
            count += differing_bits(multiply_fp4_groups(problem(), groups, how, tokens), right);
        return count;
    }
};

// Counts of pairs about the ends of tiles, of nobody, and far more experts than pairs.
std::vector<Experts> some_experts() {
    std::vector<int32_t> few(300);
    for (size_t e = 0; e < few.size(); e += 23) few[e] = static_cast<int32_t>(1 + e % 2);
    return {{16, {1}, 1, 0},
            {130, {63, 0, 64, 65, 1, 0}, 1, 0},
            {128, {0, 0, 127, 128, 129, 7, 0}, 1, 40},
            {300, {300, 0, 3, 90}, 3, 33},
            {40, {5, 6, 7, 0, 5, 1}, 4, 4},
            {8, std::move(few), 1, 5}};
}

// Guards against rows of other pairs or experts, tiles that nobody has or that are had twice,
// results of pairs that are not the product's, and stages that are half full.
TEST_F(Fp4Product, GroupedExactSumsAreTheHostsBits) {
    constexpr std::array<int64_t, 4> kColumns{64, 448, 192, 1088};
    const std::vector<Experts> all = some_experts();
    for (size_t i = 0; i < all.size(); ++i) {
        for (const size_t other : {0, 3}) {
            const int64_t columns = kColumns[(i + other) % kColumns.size()];
            const GroupedOperands of(all[i], columns, /*exact=*/true);
            EXPECT_EQ(of.wrong(instruction(), of.exact()), 0)
                << "experts " << i << ", " << columns << " columns";
        }
    }
}

// Guards against blocks that lose their place in the ring between two tiles, or do not end.
TEST_F(Fp4Product, BlocksTakeSeveralGroups) {
    std::vector<int32_t> counts;
    for (int32_t e = 0; e < 24; ++e) counts.push_back(e * 37 % 150 / 2 * 2);
    const GroupedOperands of({1000, counts, 2, 400}, 192, /*exact=*/true);
    EXPECT_EQ(of.wrong(instruction(), of.exact()), 0);
}

// Guards against sums of another order than those of a matrix alone, whatever the scales, and
// against waits that only the speed of one role makes superfluous.
TEST_F(Fp4Product, GroupedRowsAreThoseOfMatricesAlone) {
    const GroupedOperands of({200, {70, 0, 9, 131, 1}, 1, 11}, 1088, /*exact=*/false);
    std::vector<std::vector<float>> alone;
    for (size_t expert = 0; expert < of.groups.outers.size(); ++expert) {
        Operands one({of.n(), of.operands.x.rows, 1088}, /*exact=*/false);
        const auto first = static_cast<int64_t>(expert) * of.n();
        std::copy_n(of.operands.weight.codes.begin() + first * 1088, one.weight.codes.size(),
                    one.weight.codes.begin());
        std::copy_n(of.operands.weight.scales.begin() + first * 68, one.weight.scales.size(),
                    one.weight.scales.begin());
        one.x = of.operands.x;
        one.row_scales = of.operands.row_scales;
        Fp4Problem matrix = one.problem(/*biased=*/false, /*add=*/false);
        matrix.outer = of.groups.outers[expert];
        matrix.out_stride = of.n();
        alone.push_back(multiply_fp4(matrix, instruction(), std::nullopt));
    }
    const std::vector<float> right = of.expected([&](size_t expert, size_t row, size_t feature) {
        return alone[expert][row * static_cast<size_t>(of.n()) + feature];
    });
    EXPECT_EQ(of.wrong(instruction(), right), 0);
    EXPECT_EQ(of.wrong(Fp4Instruction::kDelayed, right), 0);
}

/// Rows by the codec: blocks of 64 are four scales and 32 bytes, whose byte 8 s + j holds the codes
/// j and, above it, j + 8 of the 16 values s.
Fp4Quantized by_codec(const std::vector<float>& x, int64_t cols, Nvfp4Policy policy) {
    Fp4Quantized out;
    std::vector<std::byte> blocks(static_cast<size_t>(cols / 64 * 36));
    std::vector<float> scaled(static_cast<size_t>(cols));
    for (size_t first = 0; first < x.size(); first += scaled.size()) {
        float largest = 0.0f;
        for (size_t k = 0; k < scaled.size(); ++k)
            largest = std::max(largest, std::abs(x[first + k]));
        const float scale = nvfp4_row_scale(largest, policy);
        out.row_scales.push_back(scale);
        for (size_t k = 0; k < scaled.size(); ++k) scaled[k] = x[first + k] / scale;
        quantize_row(DType::kNVFP4, scaled.data(), cols, blocks.data(), policy);
        for (size_t block = 0; block < blocks.size(); block += 36) {
            for (size_t sub = 0; sub < 4; ++sub) {
                out.scales.push_back(std::to_integer<uint8_t>(blocks[block + sub]));
                const auto code = [&](size_t j) {
                    return std::to_integer<uint32_t>(blocks[block + 4 + 8 * sub + j % 8]) >>
                               (j / 8 * 4) &
                           15u;
                };
                for (size_t j = 0; j < 16; j += 2)
                    out.codes.push_back(static_cast<uint8_t>(code(j) | code(j + 1) << 4));
            }
        }
    }
    return out;
}

// Guards against a self-test that takes a right instruction for wrong, or passes a wrong one.
TEST_F(Fp4Product, ProbesFindAWrongInstruction) {
    EXPECT_EQ(probe_fp4(Fp4Probed::kEmulated), std::vector<std::string>{});
    const std::vector<std::string> found = probe_fp4(Fp4Probed::kWrong);
    ASSERT_EQ(found.size(), 2u);
    // Whichever warp comes first.
    EXPECT_NE(found[0].find("sums are wrong; the number in row "), std::string::npos) << found[0];
    EXPECT_NE(found[1].find("numbers are wrongly rounded to E2M1; "), std::string::npos)
        << found[1];
    const std::vector<std::string> native = probe_fp4(Fp4Probed::kNative);
    if (card_multiplies_fp4())
        EXPECT_EQ(native, std::vector<std::string>{});
    else
        EXPECT_EQ(native.size(), 2u);
}

// Guards against codes and scales in another order than the product reads them in, against another
// rounding than the codec's, and against rows without numbers that look like others.
TEST_F(Fp4Product, QuantizedRowsAreTheCodecs) {
    for (const int64_t cols : {64, 192, 1088, 20800}) {
        constexpr int64_t kRows = 7;
        std::vector<float> x;
        std::mt19937 random(3);
        for (int64_t i = 0; i < kRows * cols; ++i) {
            const float value = static_cast<float>(static_cast<int32_t>(random())) * 0x1p-31f;
            // Of many sizes; a row and a block of zeros; rows whose scale is the least, of numbers
            // with a few bits and with more.
            const int64_t row = i / cols;
            const bool zero = row == 1 || (row == 2 && i % cols < 16);
            const int size = row == 5 ? -157 : row == 6 ? -137 : 0;
            x.push_back(zero ? 0.0f : std::ldexp(value, static_cast<int>(random() % 12) + size));
        }
        for (const Nvfp4Policy policy : {Nvfp4Policy::kFourSix, Nvfp4Policy::kSearch}) {
            const Fp4Quantized other = quantize_fp4(x, kRows, cols, policy);
            EXPECT_EQ(other.codes, by_codec(x, cols, policy).codes) << cols;
            EXPECT_EQ(other.scales, by_codec(x, cols, policy).scales) << cols;
        }
        const Fp4Quantized right = by_codec(x, cols, Nvfp4Policy::kAmax6);
        Fp4Quantized out = quantize_fp4(x, kRows, cols, Nvfp4Policy::kAmax6);
        EXPECT_EQ(out.codes, right.codes) << cols;
        EXPECT_EQ(out.scales, right.scales) << cols;
        EXPECT_EQ(differing_bits(out.row_scales, right.row_scales), 0) << cols;
        x[static_cast<size_t>(3 * cols + 17)] = kNaN;
        x[static_cast<size_t>(4 * cols + 33)] = std::numeric_limits<float>::infinity();
        out = quantize_fp4(x, kRows, cols, Nvfp4Policy::kAmax6);
        EXPECT_TRUE(std::isnan(out.row_scales[3])) << cols;
        EXPECT_TRUE(std::isnan(out.row_scales[4])) << cols;
        EXPECT_EQ(out.row_scales[2], right.row_scales[2]) << cols;
        EXPECT_EQ(out.row_scales[5], kNvfp4LeastScale) << cols;
        EXPECT_EQ(out.row_scales[6], kNvfp4LeastScale) << cols;
    }
}

}  // namespace
}  // namespace tessera
