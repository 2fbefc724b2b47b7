// Prompt rows in e4m3 on Hopper; other cards refuse them (and pass the other tests unasked).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

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

}  // namespace
}  // namespace tessera
