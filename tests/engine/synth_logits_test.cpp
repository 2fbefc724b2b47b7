// Synthetic models tell distributions apart: their logits are as large as those of trained models.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "engine/hybrid_model.h"

namespace tessera {
namespace {

struct Spread {
    double deviation = 0;        ///< of a row's logits, the mean over the rows
    int32_t own_token_wins = 0;  ///< rows whose largest logit is that of the token itself
};

Spread spread_of(const std::vector<std::byte>& bytes, int32_t count) {
    const auto engine = tiny_engine({.backend = "cpu", .threads = 2}, bytes);
    Sequence sequence = engine->new_sequence();
    const std::vector<int32_t> tokens = some_tokens(count, 5);
    const SequenceInput input{
        .sequence = &sequence, .tokens = tokens, .logits = SequenceInput::Logits::kAll};
    const Tensor logits = engine->decode({&input, 1});
    Spread spread;
    for (int64_t t = 0; t < count; ++t) {
        const float* row = logits.row<float>(t);
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < logits.cols(); ++i) {
            sum += row[i];
            squares += static_cast<double>(row[i]) * row[i];
        }
        const double cols = static_cast<double>(logits.cols()), mean = sum / cols;
        spread.deviation += std::sqrt(squares / cols - mean * mean) / count;
        const int64_t best = std::max_element(row, row + logits.cols()) - row;
        spread.own_token_wins += best == tokens[static_cast<size_t>(t)] ? 1 : 0;
    }
    return spread;
}

// Guards against logits of which one token has all of the probability: KL divergences of such a
// model were 0 whatever the activations were rounded to, and its perplexity was infinite.
TEST(SynthLogits, HaveTheDeviationOfTrainedModels) {
    for (const char* architecture : {"llama", "qwen2", "qwen3", "qwen3moe", "qwen35", "qwen35moe"})
        for (const DType type : {DType::kF32, DType::kNVFP4}) {
            SynthSpec spec;
            spec.architecture = architecture;
            spec.type = type;
            const Spread spread = spread_of(synth_gguf(spec, {}), 16);
            EXPECT_GT(spread.deviation, 2.0) << architecture;
            EXPECT_LT(spread.deviation, 4.0) << architecture;
        }
}

// The same where the output matrix is the embedding, by which a token would also predict itself.
TEST(SynthLogits, OfATiedModelAreNotThoseOfTheTokenItself) {
    const std::string donor = testing::TempDir() + "tessera_synth_logits_donor.gguf";
    write_synth({.architecture = "llama", .shape = "tiny"}, donor, {});
    const std::vector<std::byte> bytes = synth_gguf(
        {.architecture = "llama", .shape = "135m", .type = DType::kNVFP4, .vocab_from = donor}, {});
    std::remove(donor.c_str());
    ASSERT_EQ(GgufFile::parse(bytes, "synth").find_tensor("output.weight"), nullptr);
    const Spread spread = spread_of(bytes, 32);
    EXPECT_GT(spread.deviation, 2.0);
    EXPECT_LT(spread.deviation, 4.0);
    EXPECT_LT(spread.own_token_wins, 8);
}

}  // namespace
}  // namespace tessera
