#pragma once
// What the tests of formats of prompt rows on Hopper share (e4m3, packed NVFP4). Other cards refuse
// such backends.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "gpu/gpu.h"
#include "op_cases/case_run.h"
#include "op_cases/hosted_ops.h"

namespace tessera {

/// Why this card refuses the backend, or "".
inline std::string refusal_of(const BackendOptions& options) {
    try {
        make_ops(options);
    } catch (const UserError& error) {
        if (error.code() != ExitCode::kUsage) throw;
        return error.what();
    }
    return "";
}

/// That Hopper has such a backend, and others refuse it in one line that says so.
inline void expect_for_hopper_alone(const std::string& refusal) {
    const std::string about = make_ops({.name = kCard, .isa = {}})->description();
    const bool hopper = about.find("sm_90") != std::string::npos;
    EXPECT_EQ(refusal.empty(), hopper) << about << ": " << refusal;
    if (hopper) return;
    EXPECT_NE(refusal.find("Hopper"), std::string::npos) << refusal;
    EXPECT_EQ(refusal.find('\n'), std::string::npos) << refusal;
}

/// expect_same_answers_for_any_ubatch() of random models.
template <class Ran>
void expect_same_answers_of_models(const BackendOptions& backend,
                                   DType type,
                                   const Ran& ran,
                                   const std::vector<const char*>& architectures = {
                                       "llama", "qwen35", "qwen35moe"}) {
    for (const char* architecture : architectures) {
        SCOPED_TRACE(architecture);
        expect_same_answers_for_any_ubatch(backend, model_of(architecture, type), ran);
    }
}

/// Rows of x, as many as there are whole ones of the weight's columns, as prompt rows in `wants`
/// times the weight.
inline std::vector<float> multiply_prompt(Ops& ops,
                                          const Weight& weight,
                                          std::vector<float>& x,
                                          ActWants wants) {
    const auto rows = static_cast<int64_t>(x.size()) / weight.cols;
    std::vector<float> out(static_cast<size_t>(rows * weight.rows));
    std::vector<std::byte> memory(size_t{64} << 20);
    Arena arena(memory.data(), memory.size());
    Exec ex{arena, static_cast<int32_t>(rows)};
    const GemmInput input =
        ops.prepare(ex, make_tensor(x.data(), DType::kF32, {rows, weight.cols}), wants);
    ops.linear(ex, input, weight, Tensor{},
               make_tensor(out.data(), DType::kF32, {rows, weight.rows}), Accumulate::kNo);
    return out;
}

/// A product of prompt rows of which two can be made no numbers, in several tiles.
class SpoiltRows {
  public:
    static constexpr int64_t kRows = 70, kCols = 192, kOut = 136;
    static constexpr std::array<int64_t, 2> kBad{5, 66};

    SpoiltRows() : x_(kRows * kCols) {
        op_cases::Random random(11);
        for (float& value : x_) value = random.uniform(-1.0f, 1.0f);
    }
    /// A NaN and an infinity from now on.
    void spoil() {
        x_[kBad[0] * kCols + 7] = NAN;
        x_[kBad[1] * kCols + 190] = -INFINITY;
    }
    std::vector<float> product(Ops& ops, const Weight& weight, ActWants wants) {
        return multiply_prompt(ops, weight, x_, wants);
    }
    /// That the spoilt rows are NaN, and the others as they were.
    static void expect_alone(const std::vector<float>& spoilt, const std::vector<float>& clean) {
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

  private:
    std::vector<float> x_;
};

}  // namespace tessera
