// What the backend says about its own speed: peaks, and which calls took a general kernel.

#include <algorithm>

#include "gpu/gpu.h"

namespace tessera {
namespace {

class Counts : public CardTest {
  protected:
    /// Counters of a prompt of 64 tokens and a generated one.
    static std::vector<OpCount> counts_of(DType type, DType pages) {
        EngineOptions options = card_options();
        options.type_k = options.type_v = pages;
        const auto engine = card_engine(options, model_of("llama", type));
        engine->set_recording(false);
        Sequence sequence = engine->new_sequence();
        engine->ops().reset_op_counts();
        std::vector<int32_t> tokens(64, 5);
        feed(*engine, sequence, tokens, false);
        feed(*engine, sequence, std::span(tokens).first(1), true);
        return engine->ops().op_counts();
    }
    static int64_t calls(const std::vector<OpCount>& counts,
                         std::string_view name,
                         bool fallback,
                         Operands operands) {
        int64_t sum = 0;
        for (const OpCount& count : counts)
            if (count.name == name && count.fallback.empty() != fallback &&
                count.operands == operands)
                sum += count.calls;
        return sum;
    }
    static bool hopper() {
        const auto ops = make_ops({.name = kCard, .isa = {}});
        return ops->description().find("sm_90") != std::string::npos;
    }
};

// Guards against general kernels on Hopper that nobody hears of, and against calls of the special
// ones, or of generated rows, that are reported as if they were general.
TEST_F(Counts, NameEveryFallback) {
    const std::vector<OpCount> fp4 = counts_of(DType::kNVFP4, DType::kF16);
    EXPECT_EQ(calls(fp4, "linear[nvfp4]", true, Operands::k16Bits), 0);
    EXPECT_GT(calls(fp4, "linear[nvfp4]", false, Operands::k16Bits), 0) << "prompt rows";
    EXPECT_GT(calls(fp4, "linear[nvfp4]", false, Operands::kF32), 0) << "generated rows";
    EXPECT_EQ(calls(fp4, "attention[prompt]", true, Operands::k16Bits), 0);
    EXPECT_EQ(calls(fp4, "attention[generated]", true, Operands::kF32), 0);
    const std::vector<OpCount> q8 = counts_of(DType::kQ8_0, DType::kQ8_0);
    EXPECT_EQ(calls(q8, "linear[q8_0]", true, Operands::k16Bits), 0);
    EXPECT_EQ(calls(q8, "linear[q8_0]", true, Operands::kF32), 0);
    EXPECT_EQ(calls(q8, "attention[prompt]", true, Operands::k16Bits) > 0, hopper());
}

// Guards against loops that the compiler has emptied (rates beyond any card) and against units of
// the card that stood still: products in 16 bits are at least four times as fast as in f32.
TEST_F(Counts, PeaksArePlausible) {
    const auto ops = make_ops({.name = kCard, .isa = {}});
    // Other processes may use the card meanwhile.
    Ceilings peaks = ops->measure_ceilings();
    for (int again = 0; again < 3; ++again) {
        const Ceilings next = ops->measure_ceilings();
        peaks.bytes_per_second = std::max(peaks.bytes_per_second, next.bytes_per_second);
        for (size_t i = 0; i < peaks.flops_per_second.size(); ++i)
            peaks.flops_per_second[i] =
                std::max(peaks.flops_per_second[i], next.flops_per_second[i]);
    }
    const auto flops = [&](Operands operands) {
        return peaks.flops_per_second[static_cast<size_t>(operands)];
    };
    EXPECT_GT(flops(Operands::kF32), 1e12);
    EXPECT_LT(flops(Operands::kF32), 5e14);
    EXPECT_GT(flops(Operands::k16Bits), 4 * flops(Operands::kF32));
    EXPECT_LT(flops(Operands::k16Bits), 1e16);
    EXPECT_GT(peaks.bytes_per_second, 1e11);
    EXPECT_LT(peaks.bytes_per_second, 5e13);
    if (!hopper()) return;
    EXPECT_GT(flops(Operands::kFp8), 1.4 * flops(Operands::k16Bits));
    EXPECT_LT(flops(Operands::kFp8), 2.2 * flops(Operands::k16Bits));
}

}  // namespace
}  // namespace tessera
