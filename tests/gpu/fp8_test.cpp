// Prompt rows in e4m3 on Hopper; other cards refuse them (and pass the other tests unasked).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "core/codec.h"
#include "core/numeric.h"
#include "gpu/gpu.h"
#include "op_cases/case_run.h"
#include "op_cases/hosted_ops.h"

namespace tessera {
namespace {

BackendOptions fp8_backend() {
    BackendOptions options{.name = kCard, .isa = {}};
    options.act = ActPolicy::kFp8;
    return options;
}

/// Why this card takes no fp8, or "".
const std::string& refusal() {
    static const std::string reason = [] {
        try {
            make_ops(fp8_backend());
        } catch (const UserError& error) {
            if (error.code() != ExitCode::kUsage) throw;
            return std::string(error.what());
        }
        return std::string();
    }();
    return reason;
}

class Fp8 : public CardTest {};

// Guards against a card that computes in another format than it was asked for.
TEST_F(Fp8, IsForHopperAlone) {
    const std::string about = make_ops({.name = kCard, .isa = {}})->description();
    const bool hopper = about.find("sm_90") != std::string::npos;
    EXPECT_EQ(refusal().empty(), hopper) << about << ": " << refusal();
    if (hopper) return;
    EXPECT_NE(refusal().find("Hopper"), std::string::npos) << refusal();
    EXPECT_EQ(refusal().find('\n'), std::string::npos) << refusal();
}

// Guards against sums or scales that depend on the size of a pass or on rows beside, and against
// prompts that quietly take another kernel.
TEST_F(Fp8, AnswersAreTheSameForAnyUbatch) {
    if (!refusal().empty()) return;
    for (const char* architecture : {"llama", "qwen35", "qwen35moe"}) {
        const std::vector<std::byte>& bytes = model_of(architecture, DType::kNVFP4);
        EngineOptions options = card_options();
        options.backend.act = ActPolicy::kFp8;
        options.ubatch = 512;
        const std::vector<int32_t> prompt = some_tokens(300, 3);
        const auto whole = card_engine(options, bytes);
        const Answer expected = answer_alone(*whole, prompt, 20);
        EXPECT_EQ(answer_alone(*whole, prompt, 20), expected) << architecture << " run twice";
        const std::vector<OpCount> counts = whole->ops().op_counts();
        EXPECT_TRUE(std::ranges::any_of(counts, [](const OpCount& count) {
            return count.name == "linear[nvfp4,fp8]" && count.calls > 0;
        })) << architecture;
        for (const int32_t ubatch : {64, 192}) {
            options.ubatch = ubatch;
            EXPECT_EQ(answer_alone(*card_engine(options, bytes), prompt, 20), expected)
                << architecture << " " << ubatch;
        }
    }
}

// Guards against a NaN or an infinity that leaves its row, by way of a tile or of a scale.
TEST_F(Fp8, WhatIsNoNumberStaysInItsRow) {
    if (!refusal().empty()) return;
    constexpr int64_t kRows = 70, kCols = 192, kOut = 136;
    constexpr std::array<int64_t, 2> kBad{5, 66};
    op_cases::HostedOps ops(make_ops(fp8_backend()), false);
    op_cases::WeightBank bank;
    op_cases::Subject subject(ops, bank);
    for (const DType format : {DType::kNVFP4, DType::kMXFP4}) {
        const Weight& weight = subject.weight(format, kOut, kCols, 0.37f, 0);
        op_cases::Random random(11);
        std::vector<float> x(kRows * kCols);
        for (float& value : x) value = random.uniform(-1.0f, 1.0f);
        const auto product = [&] {
            std::vector<std::byte> memory(size_t{1} << 20);
            Arena arena(memory.data(), memory.size());
            Exec ex{arena, static_cast<int32_t>(kRows)};
            std::vector<float> out(kRows * kOut);
            const GemmInput input =
                ops.prepare(ex, make_tensor(x.data(), DType::kF32, {kRows, kCols}), weight.wants);
            ops.linear(ex, input, weight, Tensor{},
                       make_tensor(out.data(), DType::kF32, {kRows, kOut}), Accumulate::kNo);
            return out;
        };
        const std::vector<float> clean = product();
        x[kBad[0] * kCols + 7] = NAN;
        x[kBad[1] * kCols + 190] = -INFINITY;
        const std::vector<float> spoilt = product();
        for (int64_t row = 0; row < kRows; ++row) {
            const bool bad = std::ranges::find(kBad, row) != kBad.end();
            for (int64_t n = 0; n < kOut; ++n) {
                const auto i = static_cast<size_t>(row * kOut + n);
                if (bad)
                    EXPECT_TRUE(std::isnan(spoilt[i])) << "row " << row << ": " << spoilt[i];
                else
                    EXPECT_EQ(spoilt[i], clean[i]) << "row " << row;
            }
        }
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
    std::vector<float> x(kCols * kCols), out(kCols * kRows), row(kCols);
    for (int64_t k = 0; k < kCols; ++k) x[static_cast<size_t>(k * kCols + k)] = 448.0f;
    std::vector<std::byte> memory(size_t{64} << 20);
    Arena arena(memory.data(), memory.size());
    Exec ex{arena, static_cast<int32_t>(kCols)};
    const GemmInput input =
        ops.prepare(ex, make_tensor(x.data(), DType::kF32, {kCols, kCols}), weight.wants);
    ops.linear(ex, input, weight, Tensor{}, make_tensor(out.data(), DType::kF32, {kCols, kRows}),
               Accumulate::kNo);
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
