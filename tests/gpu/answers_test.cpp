// Greedy text on the card, byte for byte: whatever the passes, the neighbours and the memory that
// came before.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <ostream>
#include <string>

#include "gpu/gpu.h"

namespace tessera {
namespace {

constexpr int32_t kCount = 40;

struct Kind {
    const char* architecture;
    DType type;
};

const std::array kKinds{Kind{"llama", DType::kNVFP4},     Kind{"llama", DType::kQ8_0},
                        Kind{"qwen3moe", DType::kNVFP4},  Kind{"qwen35", DType::kNVFP4},
                        Kind{"qwen35moe", DType::kNVFP4}, Kind{"qwen35moe", DType::kF32}};

void PrintTo(const Kind& kind, std::ostream* out) {
    *out << kind.architecture << " " << dtype_info(kind.type).name;
}

class Answers : public CardTestWith<Kind> {
  protected:
    const std::vector<std::byte>& bytes() const {
        return model_of(GetParam().architecture, GetParam().type);
    }
    std::unique_ptr<Engine> engine(const EngineOptions& options) const {
        return card_engine(options, bytes());
    }
};

// Guards against sums whose order follows the size of a pass, and against a race: the same engine
// answers twice.
TEST_P(Answers, AreTheSameForAnyUbatch) {
    EngineOptions options = card_options();
    options.ubatch = 512;
    const std::vector<int32_t> prompt = some_tokens(300, 3);
    const auto whole = engine(options);
    const Answer expected = answer_alone(*whole, prompt, kCount);
    ASSERT_EQ(expected.tokens.size(), static_cast<size_t>(kCount));
    EXPECT_EQ(answer_alone(*whole, prompt, kCount), expected) << "run twice";
    for (const int32_t ubatch : {64, 128, 192}) {
        options.ubatch = ubatch;
        EXPECT_EQ(answer_alone(*engine(options), prompt, kCount), expected) << ubatch;
    }
    options.batch = options.ubatch = 64;
    EXPECT_EQ(answer_alone(*engine(options), prompt, kCount), expected) << "batches of 64";
}

// Models without recurrent memory cut their prompts anywhere.
TEST_P(Answers, AreTheSameForOddUbatches) {
    EngineOptions options = card_options();
    const std::vector<int32_t> prompt = some_tokens(150, 4);
    const Answer expected = answer_alone(*engine(options), prompt, kCount);
    for (const int32_t ubatch : {1, 7, 100}) {
        options.ubatch = ubatch;
        EXPECT_EQ(answer_alone(*engine(options), prompt, kCount), expected) << ubatch;
    }
}

/// Greedy answers of sequences that share every batch, the prompts' first.
std::vector<Answer> answer_together(Engine& engine,
                                    std::vector<std::vector<int32_t>> prompts,
                                    int32_t count) {
    std::vector<Sequence> sequences;
    for (size_t i = 0; i < prompts.size(); ++i) sequences.push_back(engine.new_sequence());
    std::vector<Answer> answers(prompts.size());
    const std::vector<SampleParams> params(prompts.size(), SampleParams{.temperature = 0});
    const std::vector<std::span<const int32_t>> history(prompts.size());
    const std::vector<float> uniforms(prompts.size());
    for (int32_t step = 0; step < count; ++step) {
        std::vector<SequenceInput> inputs;
        for (size_t i = 0; i < prompts.size(); ++i) {
            const std::span<const int32_t> newest(prompts[i]);
            inputs.push_back({.sequence = &sequences[i],
                              .tokens = step == 0 ? newest : newest.last(1),
                              .generated = step > 0});
        }
        const std::vector<int32_t> drawn =
            engine.sample(engine.decode(inputs), params, history, uniforms);
        for (size_t i = 0; i < prompts.size(); ++i) {
            prompts[i].push_back(drawn[i]);
            answers[i].tokens.push_back(drawn[i]);
        }
    }
    for (size_t i = 0; i < prompts.size(); ++i)
        answers[i].memory = engine.memory_hash(sequences[i]);
    return answers;
}

// Guards against a neighbour in the batch, in the prompt or behind it, that changes an answer.
TEST_P(Answers, DoNotDependOnNeighbours) {
    constexpr std::array kLengths{130, 1, 64, 63, 200, 65, 2, 129};
    const auto card = engine(card_options(8));
    std::vector<std::vector<int32_t>> prompts;
    std::vector<Answer> alone;
    for (const int32_t length : kLengths) {
        prompts.push_back(some_tokens(length, static_cast<uint32_t>(length) + 9));
        alone.push_back(answer_alone(*card, prompts.back(), kCount));
    }
    for (const size_t count : {1, 3, 8}) {
        const std::vector<std::vector<int32_t>> some(prompts.begin(),
                                                     prompts.begin() + static_cast<int64_t>(count));
        const std::vector<Answer> together = answer_together(*card, some, kCount);
        for (size_t i = 0; i < count; ++i)
            EXPECT_EQ(together[i], alone[i]) << "sequence " << i << " of " << count;
    }
}

// Guards against prompt rows and generated rows that mix up in one batch: sequences begin one
// after the other while the earlier ones already answer.
TEST_P(Answers, DoNotDependOnWhenTheNeighboursBegin) {
    const auto card = engine(card_options(4));
    std::vector<std::vector<int32_t>> tokens;
    std::vector<Answer> alone;
    std::vector<Sequence> sequences;
    for (const int32_t length : {70, 3, 128, 65}) {
        tokens.push_back(some_tokens(length, static_cast<uint32_t>(length) + 1));
        alone.push_back(answer_alone(*card, tokens.back(), 12));
    }
    for (size_t i = 0; i < tokens.size(); ++i) sequences.push_back(card->new_sequence());
    std::vector<Answer> found(tokens.size());
    for (size_t step = 0; step < 12 + tokens.size() - 1; ++step) {
        std::vector<SequenceInput> inputs;
        std::vector<size_t> owners;
        for (size_t i = 0; i < tokens.size(); ++i) {
            if (step < i || found[i].tokens.size() == 12) continue;
            const std::span<const int32_t> all(tokens[i]);
            owners.push_back(i);
            inputs.push_back({.sequence = &sequences[i],
                              .tokens = step == i ? all : all.last(1),
                              .generated = step > i});
        }
        const std::vector<SampleParams> params(owners.size(), SampleParams{.temperature = 0});
        const std::vector<std::span<const int32_t>> history(owners.size());
        const std::vector<float> uniforms(owners.size());
        const std::vector<int32_t> drawn =
            card->sample(card->decode(inputs), params, history, uniforms);
        for (size_t row = 0; row < owners.size(); ++row) {
            tokens[owners[row]].push_back(drawn[row]);
            found[owners[row]].tokens.push_back(drawn[row]);
        }
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
        found[i].memory = card->memory_hash(sequences[i]);
        EXPECT_EQ(found[i], alone[i]) << i;
    }
}

// Guards against a replayed recording that keeps a length, an address or a position of the pass
// that it was made of: long answers, and numbers of sequences that come and go.
TEST_P(Answers, DoNotDependOnRecordings) {
    const auto replaying = engine(card_options(4)), plain = engine(card_options(4));
    plain->set_recording(false);
    for (const int32_t length : {1, 60, 130}) {
        const std::vector<int32_t> prompt = some_tokens(length, 21);
        const Answer expected = answer_alone(*plain, prompt, 300);
        EXPECT_EQ(answer_alone(*replaying, prompt, 300), expected) << length;
        EXPECT_EQ(answer_alone(*replaying, prompt, 300), expected) << length << " again";
    }
    for (const int32_t count : {4, 2, 3, 4}) {
        std::vector<std::vector<int32_t>> prompts;
        for (int32_t i = 0; i < count; ++i)
            prompts.push_back(some_tokens(40 * i + count, static_cast<uint32_t>(i) + 30));
        const std::vector<Answer> expected = answer_together(*plain, prompts, 30);
        EXPECT_EQ(answer_together(*replaying, prompts, 30), expected) << count;
    }
}

// Guards against index tensors that the device carries on wrongly from token to token (an id, a
// position, a page of the sequence before), and against a host that sends them after all: only the
// first token and the first of each of the five new pages take a copy.
TEST_P(Answers, AdvanceOnTheDevice) {
    const auto card = engine(card_options(2));
    card->set_recording(false);
    const std::vector<int32_t> prompt = some_tokens(60, 23);
    card->ops().reset_op_counts();
    const Answer advanced = answer_alone(*card, prompt, 300);
    const std::vector<OpCount> counts = card->ops().op_counts();
    const auto count = std::ranges::find(counts, "advance_batch", &OpCount::name);
    ASSERT_NE(count, counts.end());
    EXPECT_EQ(count->calls, 299 - 1 - 5);

    // Where nothing was ever drawn on the device, everything has to be sent.
    const auto fed = engine(card_options(2));
    fed->set_recording(false);
    Sequence sequence = fed->new_sequence();
    feed(*fed, sequence, prompt, false);
    for (size_t i = 0; i + 1 < advanced.tokens.size(); ++i)
        feed(*fed, sequence, std::span(advanced.tokens).subspan(i, 1), true);
    EXPECT_EQ(fed->memory_hash(sequence), advanced.memory);
    const std::vector<OpCount> sent = fed->ops().op_counts();
    EXPECT_EQ(std::ranges::find(sent, "advance_batch", &OpCount::name), sent.end());
}

// Guards against reads of memory that was never written: fresh memory that is 0xFF instead of 0
// (NaN in every format of ours) changes nothing, for any type of cache.
TEST_P(Answers, DoNotDependOnFreshMemory) {
    const std::vector<int32_t> prompt = some_tokens(100, 8);
    for (const DType cache : {DType::kF16, DType::kBF16, DType::kF32, DType::kQ8_0}) {
        EngineOptions options = card_options(2);
        options.checkpoints = 1;
        options.type_k = options.type_v = cache;
        const Answer expected = answer_alone(*engine(options), prompt, kCount);
        options.backend.poison = true;
        EXPECT_EQ(answer_alone(*engine(options), prompt, kCount), expected)
            << dtype_info(cache).name;
    }
}

// Guards against drawing with a seed that depends on the neighbours or on the run.
TEST_P(Answers, DrawnOnesFollowTheSeedAlone) {
    const auto card = engine(card_options(3));
    std::vector<Sequence> sequences;
    std::vector<GenerateRequest> requests;
    for (size_t i = 0; i < 3; ++i) sequences.push_back(card->new_sequence());
    const auto request = [&](size_t i) {
        card->rewind(sequences[i], 0);
        GenerateRequest made =
            greedy_request(sequences[i], some_tokens(40 + 30 * static_cast<int32_t>(i), 2), 20);
        made.options.sampling.temperature = 1.0f;
        made.options.sampling.repeat_penalty = 1.1f;
        made.options.seed = 40 + i;
        return made;
    };
    for (size_t i = 0; i < 3; ++i) requests.push_back(request(i));
    const std::vector<GenerateResult> together = generate(*card, requests, {});
    for (size_t i = 0; i < 3; ++i) {
        GenerateRequest alone = request(i);
        EXPECT_EQ(run_one(*card, alone).generated, together[i].generated) << i;
    }
    GenerateRequest other = request(0);
    other.options.seed = 77;
    EXPECT_NE(run_one(*card, other).generated, together[0].generated);
}

INSTANTIATE_TEST_SUITE_P(Card,
                         Answers,
                         testing::ValuesIn(kKinds),
                         [](const testing::TestParamInfo<Kind>& tested) {
                             return std::string(tested.param.architecture) + "_" +
                                    std::string(dtype_info(tested.param.type).name);
                         });

}  // namespace
}  // namespace tessera
