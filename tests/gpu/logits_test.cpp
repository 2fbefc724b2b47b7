// Whole models on the card: against transformers (stored checkpoints) and against the reference
// backend with the same formats of activations.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ostream>
#include <string>

#include "gpu/gpu.h"
#include "models/stored_model.h"

namespace tessera {
namespace {

using Logits = SequenceInput::Logits;

constexpr std::array kPrompts{1, 63, 64, 65, 300};
constexpr int32_t kGenerated = 32;

/// Relative differences of many rows. With experts a rounding may send a token to another expert
/// where two are nearly equal, and that row is then another one; `strays` is the share of rows that
/// may be so.
class Differences {
  public:
    void see(const std::vector<float>& found,
             const float* wanted,
             int64_t vocab,
             const std::string& where) {
        for (size_t row = 0; row < found.size() / static_cast<size_t>(vocab); ++row) {
            const size_t first = row * static_cast<size_t>(vocab);
            const double difference =
                relative_difference(found.data() + first, wanted + first, vocab);
            all_.push_back(difference);
            if (difference < worst_) continue;
            worst_ = difference;
            where_ = where + ", row " + std::to_string(row);
        }
    }
    void expect_below(double bound, double strays, const std::string& what) {
        ASSERT_FALSE(all_.empty()) << what << ": nothing was compared";
        std::sort(all_.begin(), all_.end());
        const auto kept =
            static_cast<size_t>(std::ceil(static_cast<double>(all_.size()) * (1.0 - strays)));
        EXPECT_LT(all_[kept - 1], bound) << what << "; the worst row: " << where_ << ", " << worst_;
        EXPECT_TRUE(std::isfinite(worst_)) << what << ": " << where_;
        testing::Test::RecordProperty(what, std::to_string(all_[kept - 1]));
    }

  private:
    std::vector<double> all_;
    double worst_ = -1.0;
    std::string where_;
};

// ---- stored checkpoints ----

/// Relative to the largest logit, where everything is summed in f32.
constexpr double kExact = 1e-4;

struct StoredCase {
    StoredModel model;
    double bound = kExact;
    double strays = 0.0;
};

const std::array kStored{
    StoredCase{{"qwen35", "qwen35", true}},
    StoredCase{{"qwen35moe", "qwen35moe", true}},
    StoredCase{{"qwen3moe", "qwen3moe", false}},
    StoredCase{{"qwen35moe.gguf", "qwen35moe", true}},
};

std::string stored_name(const testing::TestParamInfo<StoredCase>& tested) {
    std::string name = tested.param.model.file;
    std::replace(name.begin(), name.end(), '.', '_');
    return name;
}

void PrintTo(const StoredCase& tested, std::ostream* out) {
    *out << tested.model.file;
}

class StoredModels : public CardTestWith<StoredCase> {
  protected:
    const StoredModel& model() const { return GetParam().model; }
    std::unique_ptr<Engine> engine(int32_t ubatch, bool draft) const {
        return stored_engine(model(), {.backend = kCard, .ubatch = ubatch, .draft = draft});
    }
    /// Runs stored tokens [position, position + count) and compares each row.
    void follow(Engine& engine,
                Sequence& sequence,
                int32_t count,
                bool generated,
                Differences& seen) const {
        const auto first = static_cast<size_t>(sequence.length());
        const SequenceInput input{
            .sequence = &sequence,
            .tokens = std::span(stored_.tokens).subspan(first, static_cast<size_t>(count)),
            .generated = generated,
            .logits = Logits::kAll};
        const std::vector<float> found = values_of(engine, engine.decode({&input, 1}));
        seen.see(found, stored_.logits.data() + first * static_cast<size_t>(stored_.vocab),
                 stored_.vocab, std::to_string(count) + " tokens behind " + std::to_string(first));
    }

    StoredLogits stored_{GetParam().model.expected};
};

// Guards against a kernel family of generated rows that computes something else than the model, for
// one row at a time and for many.
TEST_P(StoredModels, GeneratedRowsFollowTransformers) {
    const auto card = engine(128, false);
    Differences seen;
    for (const int32_t piece : {1, 2, 17, 65}) {
        Sequence sequence = card->new_sequence();
        while (sequence.length() + piece <= 130) follow(*card, sequence, piece, true, seen);
    }
    seen.expect_below(kExact, 0.0, model().file + " generated");
}

// Guards against a prompt that is wrong at the border of a chunk, a page or a pass, and against
// generated rows that go on from another state than the prompt left.
TEST_P(StoredModels, PromptsFollowTransformers) {
    Differences seen;
    for (const int32_t ubatch : {64, 512}) {
        const auto card = engine(ubatch, false);
        for (const int32_t prompt : kPrompts) {
            Sequence sequence = card->new_sequence();
            follow(*card, sequence, prompt, false, seen);
            for (int32_t i = 0; i < kGenerated; ++i) follow(*card, sequence, 1, true, seen);
        }
    }
    seen.expect_below(GetParam().bound, GetParam().strays, model().file + " prompts");
}

/// Those with a draft block.
class StoredDrafts : public StoredModels {};

// Guards against guesses that are made of another hidden state or position than published.
TEST_P(StoredDrafts, GuessesFollowTransformers) {
    const auto card = engine(128, true);
    Differences seen;
    for (const int32_t prompt : {1, 64, 130}) {
        Sequence sequence = card->new_sequence();
        Differences trunk;
        follow(*card, sequence, prompt, false, trunk);
        for (int32_t p = prompt; p < prompt + 16; ++p) {
            const Engine::DraftStep step{.sequence = &sequence,
                                         .token = stored_.tokens[static_cast<size_t>(p)]};
            seen.see(values_of(*card, card->draft({&step, 1})),
                     stored_.mtp_logits.data() + p * stored_.vocab, stored_.vocab,
                     "guess at " + std::to_string(p));
            follow(*card, sequence, 1, true, trunk);
        }
    }
    seen.expect_below(GetParam().bound, GetParam().strays, model().file + " guesses");
}

INSTANTIATE_TEST_SUITE_P(Card, StoredModels, testing::ValuesIn(kStored), stored_name);
INSTANTIATE_TEST_SUITE_P(Card,
                         StoredDrafts,
                         testing::Values(kStored[0], kStored[1], kStored[3]),
                         stored_name);

// ---- random models ----

struct RandomCase {
    const char* architecture;
    DType type;
    ActPolicy act;
    double bound;
    double strays = 0.0;
};

/// Rounded activations and a rounded cache flip roundings wherever the last bit of a sum differs;
/// the bounds are a few times what the CPU backend differs from the reference by.
const std::array kRandom{
    RandomCase{"llama", DType::kF32, ActPolicy::kF32, kExact},
    RandomCase{"llama", DType::kNVFP4, ActPolicy::kBF16, 3e-2},
    RandomCase{"llama", DType::kQ8_0, ActPolicy::kBF16, 3e-2},
    RandomCase{"qwen3moe", DType::kF32, ActPolicy::kF32, kExact, 0.02},
    RandomCase{"qwen3moe", DType::kNVFP4, ActPolicy::kBF16, 3e-2, 0.1},
    RandomCase{"qwen35", DType::kF32, ActPolicy::kF32, kExact},
    RandomCase{"qwen35", DType::kNVFP4, ActPolicy::kBF16, 3e-2},
    RandomCase{"qwen35", DType::kNVFP4, ActPolicy::kF32, kExact},
    RandomCase{"qwen35moe", DType::kF32, ActPolicy::kF32, kExact, 0.02},
    RandomCase{"qwen35moe", DType::kNVFP4, ActPolicy::kBF16, 3e-2, 0.1},
};

std::string random_name(const testing::TestParamInfo<RandomCase>& tested) {
    const RandomCase& c = tested.param;
    return std::string(c.architecture) + "_" + std::string(dtype_info(c.type).name) +
           (c.act == ActPolicy::kF32 ? "_f32" : "_bf16");
}

void PrintTo(const RandomCase& tested, std::ostream* out) {
    *out << tested.architecture << " " << dtype_info(tested.type).name;
}

class RandomModels : public CardTestWith<RandomCase> {
  protected:
    std::unique_ptr<Engine> engine(const char* backend) const {
        EngineOptions options = card_options();
        options.backend.name = backend;
        options.backend.act = GetParam().act;
        if (GetParam().act == ActPolicy::kF32) options.type_k = options.type_v = DType::kF32;
        return card_engine(options, model_of(GetParam().architecture, GetParam().type));
    }
};

// Guards against a weight format, a head size or a path of the experts that is wrong in a model
// although the op alone is right.
TEST_P(RandomModels, CardFollowsTheReference) {
    const auto card = engine(kCard), reference = engine("reference");
    Differences seen;
    for (const int32_t prompt : kPrompts) {
        Sequence on_card = card->new_sequence(), on_host = reference->new_sequence();
        const std::vector<int32_t> tokens =
            some_tokens(prompt + kGenerated, static_cast<uint32_t>(prompt));
        for (size_t first = 0; first < tokens.size();) {
            const size_t count = first == 0 ? static_cast<size_t>(prompt) : 1;
            SequenceInput input{.sequence = &on_card,
                                .tokens = std::span(tokens).subspan(first, count),
                                .generated = first > 0,
                                .logits = Logits::kAll};
            const std::vector<float> found = values_of(*card, card->decode({&input, 1}));
            input.sequence = &on_host;
            const Tensor wanted = reference->decode({&input, 1});
            seen.see(found, wanted.as<float>(), wanted.cols(),
                     std::to_string(count) + " tokens behind " + std::to_string(first));
            first += count;
        }
    }
    seen.expect_below(GetParam().bound, GetParam().strays, random_name({GetParam(), 0}));
}

INSTANTIATE_TEST_SUITE_P(Card, RandomModels, testing::ValuesIn(kRandom), random_name);

}  // namespace
}  // namespace tessera
