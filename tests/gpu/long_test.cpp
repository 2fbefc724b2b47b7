// A prompt of 131,000 tokens on a tiny hybrid: positions, pages and chunk numbers far from zero.
#include <gtest/gtest.h>

#include <cmath>

#include "gpu/gpu.h"

namespace tessera {
namespace {

constexpr int32_t kContext = 131072;
constexpr int32_t kLongPrompt = 131000;

class Long : public CardTest {};

struct LongRun {
    Answer answer;
    std::vector<float> logits;  ///< behind the prompt
};

LongRun run_long(const std::vector<std::byte>& bytes, int32_t ubatch) {
    EngineOptions options = card_options();
    options.context = kContext;
    options.batch = 8192;
    options.ubatch = ubatch;
    const auto card = card_engine(options, bytes);
    Sequence sequence = card->new_sequence();
    std::vector<int32_t> tokens = some_tokens(kLongPrompt, 12);
    LongRun run;
    for (size_t first = 0; first < tokens.size(); first += 8192) {
        const SequenceInput input{.sequence = &sequence,
                                  .tokens = std::span(tokens).subspan(
                                      first, std::min<size_t>(8192, kLongPrompt - first))};
        const Tensor logits = card->decode({&input, 1});
        if (sequence.length() == kLongPrompt) run.logits = values_of(*card, logits);
    }
    for (int32_t i = 0; i < 24; ++i) {
        const SampleParams greedy{.temperature = 0};
        const std::span<const int32_t> history;
        const float uniform = 0.0f;
        const SequenceInput input{
            .sequence = &sequence, .tokens = std::span(tokens).last(1), .generated = true};
        tokens.push_back(
            card->sample(card->decode({&input, 1}), {&greedy, 1}, {&history, 1}, {&uniform, 1})
                .front());
        run.answer.tokens.push_back(tokens.back());
    }
    run.answer.memory = card->memory_hash(sequence);
    return run;
}

// Guards against a state that decays into nothing, overflows, or depends on the passes after
// thousands of chunks, and against positions that lose bits.
TEST_F(Long, APromptOf131000TokensDoesNotDependOnThePasses) {
    const std::vector<std::byte>& bytes = model_of("qwen35", DType::kNVFP4);
    const LongRun small = run_long(bytes, 512), large = run_long(bytes, 2048);
    ASSERT_FALSE(small.logits.empty());
    for (const float logit : small.logits) ASSERT_TRUE(std::isfinite(logit));
    EXPECT_EQ(small.logits, large.logits);
    EXPECT_EQ(small.answer, large.answer);
    for (const int32_t token : small.answer.tokens) EXPECT_GE(token, 0);  // -1: a NaN
}

}  // namespace
}  // namespace tessera
