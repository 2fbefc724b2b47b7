// Prompt rows in e4m3 on Hopper; other cards refuse them (and pass the other tests unasked).
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/codec.h"
#include "core/numeric.h"
#include "gpu/prompt_formats.h"

namespace tessera {
namespace {

BackendOptions fp8_backend() {
    BackendOptions options{.name = kCard, .isa = {}};
    options.act = ActPolicy::kFp8;
    return options;
}

/// Why this card takes no fp8, or "".
const std::string& refusal() {
    static const std::string reason = refusal_of(fp8_backend());
    return reason;
}

class Fp8 : public CardTest {};

// Guards against a card that computes in another format than it was asked for.
TEST_F(Fp8, IsForHopperAlone) {
    expect_for_hopper_alone(refusal());
}

// Guards against sums or scales that depend on the size of a pass or on rows beside, and against
// prompts that quietly take another kernel.
TEST_F(Fp8, AnswersAreTheSameForAnyUbatch) {
    if (!refusal().empty()) return;
    expect_same_answers_of_models(fp8_backend(), DType::kNVFP4, [](const OpCount& count) {
        return count.name == "linear[nvfp4,fp8]";
    });
}

// Guards against a NaN or an infinity that leaves its row, by way of a tile or of a scale.
TEST_F(Fp8, WhatIsNoNumberStaysInItsRow) {
    if (!refusal().empty()) return;
    op_cases::HostedOps ops(make_ops(fp8_backend()), false);
    op_cases::WeightBank bank;
    op_cases::Subject subject(ops, bank);
    for (const DType format : {DType::kNVFP4, DType::kMXFP4}) {
        SpoiltRows rows;
        const Weight& weight = subject.weight(format, rows.kOut, rows.kCols, 0.37f, 0);
        const std::vector<float> clean = rows.product(ops, weight, weight.wants);
        rows.spoil();
        rows.expect_alone(rows.product(ops, weight, weight.wants), clean);
    }
}

/// Code of the largest scale of a row of all_products(): every fraction, two exponents.
int64_t largest_scale(int64_t row) {
    return 0x7e - row % 9;
}

/// NVFP4 rows of 128 blocks with every scale code up to the row's largest, each over every element
/// code.
std::vector<std::byte> all_products(int64_t rows, int64_t cols) {
    std::vector<std::byte> bytes;
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t quad = 0; quad < cols / 64; ++quad) {
            for (int64_t i = 0; i < 4; ++i) {
                const int64_t scale = quad * 4 + i;
                bytes.push_back(static_cast<std::byte>(scale > largest_scale(row) ? 0 : scale));
            }
            for (int i = 0; i < 32; ++i)
                bytes.push_back(static_cast<std::byte>(i % 8 | (i % 8 + 8) << 4));
        }
    return bytes;
}

// Guards against weights that are rounded worse than they could be: two thirds of magnitude times
// scale go to the nearest e4m3, for all magnitudes and scales, whatever the row's largest is. A
// product with one number of x is a weight as the tensor cores have it.
TEST_F(Fp8, WeightsOfNvfp4AreTheNearestOfTwoThirds) {
    if (!refusal().empty()) return;
    constexpr int64_t kRows = 136, kCols = 2048;
    op_cases::HostedOps ops(make_ops(fp8_backend()), false);
    const std::vector<std::byte> bytes = all_products(kRows, kCols);
    const float outer = 1.0f;
    const Weight weight = ops.upload({.name = "weight",
                                      .format = DType::kNVFP4,
                                      .rows = kRows,
                                      .cols = kCols,
                                      .experts = 1,
                                      .data = bytes.data(),
                                      .scales = {&outer, 1}});
    std::vector<float> x(kCols * kCols), row(kCols);
    for (int64_t k = 0; k < kCols; ++k) x[static_cast<size_t>(k * kCols + k)] = 448.0f;
    const std::vector<float> out = multiply_prompt(ops, weight, x, weight.wants);
    for (int64_t n = 0; n < kRows; ++n) {
        dequantize_row(DType::kNVFP4, bytes.data() + n * kCols / 64 * 36, kCols, row.data());
        const float largest = f32_from_ue4m3(static_cast<uint8_t>(largest_scale(n)));
        const float factor = std::exp2(std::ceil(std::log2(largest / 112.0f)));
        for (int64_t k = 0; k < kCols; ++k) {
            const float exact = row[static_cast<size_t>(k)];
            const float found = out[static_cast<size_t>(k * kRows + n)] / 448.0f;
            const float scale = f32_from_ue4m3(static_cast<uint8_t>(k / 16));
            if (scale <= 0x1p-9f * factor) {
                EXPECT_LE(std::fabs(found), std::fabs(exact));
                continue;
            }
            const uint8_t nearest = e4m3_from_f32(exact / factor * (2.0f / 3.0f));
            ASSERT_EQ(found, f32_from_e4m3(nearest) * 1.5f * factor) << n << " " << k;
        }
    }
}

}  // namespace
}  // namespace tessera
