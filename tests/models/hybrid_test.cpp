// Whole models against transformers: qwen3.5 dense and with experts, qwen3 with experts. Every
// position of prompts around the sizes of a convolution, a chunk and a pass, then generated tokens,
// then the guesses of multi-token prediction.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

#include "models/stored_model.h"
#include "ops/cpu_fixture.h"

namespace tessera {
namespace {

using Logits = SequenceInput::Logits;

constexpr double kTolerance = 1e-4;
constexpr int32_t kGenerated = 32;
constexpr std::array kPrompts{1, 2, 3, 4, 63, 64, 65, 127, 129, 300};

const std::array kModels{
    StoredModel{"qwen35", "qwen35", true},
    StoredModel{"qwen35moe", "qwen35moe", true},
    StoredModel{"qwen3moe", "qwen3moe", false},
    StoredModel{"qwen35moe.gguf", "qwen35moe", true},
};

/// Remembers the worst of many rows and where it was.
class Worst {
  public:
    void see(double difference, const std::string& where) {
        if (difference <= difference_) return;
        difference_ = difference;
        where_ = where;
    }
    void see(const Tensor& found,
             const std::vector<float>& wanted,
             int64_t first,
             const std::string& what) {
        const int64_t vocab = found.cols();
        for (int64_t i = 0; i < found.rows(); ++i)
            see(relative_difference(found.as<float>() + i * vocab,
                                    wanted.data() + (first + i) * vocab, vocab),
                what + ", position " + std::to_string(first + i));
    }
    void expect_small(const std::string& run) const {
        EXPECT_GT(difference_, 0.0) << run << ": nothing was compared";
        EXPECT_LT(difference_, kTolerance) << run << ": " << where_;
        testing::Test::RecordProperty(run, std::to_string(difference_));
    }

  private:
    double difference_ = 0;
    std::string where_;
};

/// A prompt of `length` stored tokens and then `kGenerated` more, one by one.
void follow_oracle(
    Engine& engine, const StoredLogits& stored, int32_t length, bool draft, Worst& worst) {
    const std::string prompt = "prompt of " + std::to_string(length);
    Sequence sequence = engine.new_sequence();
    const std::span<const int32_t> tokens(stored.tokens);
    const SequenceInput whole{.sequence = &sequence,
                              .tokens = tokens.first(static_cast<size_t>(length)),
                              .logits = Logits::kAll};
    worst.see(engine.decode({&whole, 1}), stored.logits, 0, prompt);
    for (int32_t p = length; p < length + kGenerated; ++p) {
        if (draft) {
            const Engine::DraftStep step{.sequence = &sequence,
                                         .token = tokens[static_cast<size_t>(p)]};
            worst.see(engine.draft({&step, 1}), stored.mtp_logits, p, prompt + ", draft");
        }
        const SequenceInput next{.sequence = &sequence,
                                 .tokens = tokens.subspan(static_cast<size_t>(p), 1),
                                 .generated = true};
        worst.see(engine.decode({&next, 1}), stored.logits, p, prompt + ", generated");
    }
}

void expect_oracle(const StoredModel& model, StoredEngine how, bool draft) {
    const StoredLogits stored(model.expected);
    how.draft = draft;
    Worst worst;
    const std::unique_ptr<Engine> engine = stored_engine(model, how);
    for (const int32_t length : kPrompts) follow_oracle(*engine, stored, length, draft, worst);
    worst.expect_small(model.file + " " + how.backend + how.isa + " " + std::to_string(how.ubatch));
}

class Hybrid : public testing::TestWithParam<StoredModel> {};
/// Those with a draft block.
class HybridDraft : public testing::TestWithParam<StoredModel> {};

// Guards against a forward function that is wrong: heads in another order, a norm with or without
// its one, a gate, a decay or a routing that is not the published one. Prompts of 1 to 4 tokens are
// shorter than the convolution's memory (G9).
TEST_P(Hybrid, G9_ReferenceFollowsTransformers) {
    for (const int32_t ubatch : {64, 128, 512})
        expect_oracle(GetParam(), {.backend = "reference", .ubatch = ubatch}, GetParam().draft);
}

// Guards against kernels of one instruction set that differ from the others.
TEST_P(Hybrid, G9_CpuFollowsTransformersOnEveryInstructionSet) {
    for (const std::string& isa : cpu::sets())
        for (const int32_t ubatch : {64, 128, 512})
            expect_oracle(GetParam(), {.isa = isa, .ubatch = ubatch}, GetParam().draft);
}

// Guards against a trunk that computes something else when its draft block is left out.
TEST_P(HybridDraft, LogitsDoNotDependOnDrafting) {
    expect_oracle(GetParam(), {.ubatch = 128}, false);
}

// Guards against guesses behind the first one that are made of another hidden state, or at another
// position, than in the published loop (S14: acceptance falls from the second guess on).
TEST_P(HybridDraft, S14_ChainedGuessesFollowTransformers) {
    const StoredLogits stored(GetParam().expected);
    const std::span<const int32_t> tokens(stored.tokens);
    for (const char* backend : {"reference", "cpu"}) {
        const std::unique_ptr<Engine> engine =
            stored_engine(GetParam(), {.backend = backend, .draft = true});
        Worst worst;
        int64_t row = 0;
        for (const int32_t start : {5, 64, 200}) {
            Sequence sequence = engine->new_sequence();
            const SequenceInput prompt{.sequence = &sequence,
                                       .tokens = tokens.first(static_cast<size_t>(start))};
            engine->decode({&prompt, 1});
            for (int32_t ahead = 0; ahead < 3; ++ahead) {
                const Engine::DraftStep step{.sequence = &sequence,
                                             .token = tokens[static_cast<size_t>(start + ahead)],
                                             .ahead = ahead};
                worst.see(engine->draft({&step, 1}), stored.mtp_chain, row++,
                          "start " + std::to_string(start));
            }
        }
        worst.expect_small(GetParam().file + " chain " + backend);
    }
}

std::string name_of(const testing::TestParamInfo<StoredModel>& tested) {
    std::string name = tested.param.file;
    std::replace(name.begin(), name.end(), '.', '_');
    return name;
}

INSTANTIATE_TEST_SUITE_P(Models, Hybrid, testing::ValuesIn(kModels), name_of);
INSTANTIATE_TEST_SUITE_P(Models,
                         HybridDraft,
                         testing::Values(kModels[0], kModels[1], kModels[3]),
                         name_of);

// ---- several sequences ----

/// A conversation: which stored tokens are its prompt, and what follows them.
struct Talk {
    int32_t first = 0;
    int32_t prompt = 0;
};
constexpr std::array kTalks{Talk{0, 3}, Talk{40, 64}, Talk{7, 130}, Talk{100, 65}};
constexpr int32_t kSteps = 6;

SequenceInput input_of(const Talk& talk, Sequence& sequence, const StoredLogits& stored) {
    const std::span<const int32_t> tokens(stored.tokens);
    const bool generated = sequence.length() > 0;
    const auto first = static_cast<size_t>(talk.first + sequence.length());
    return {.sequence = &sequence,
            .tokens = tokens.subspan(first, generated ? 1 : static_cast<size_t>(talk.prompt)),
            .generated = generated};
}

using Rows = std::vector<std::vector<float>>;

void keep_row(const Tensor& logits, int64_t row, Rows& rows) {
    const float* first = logits.as<float>() + row * logits.cols();
    rows.emplace_back(first, first + logits.cols());
}

Rows run_alone(const StoredModel& model, const StoredEngine& how, const Talk& talk) {
    const StoredLogits stored(model.expected);
    const std::unique_ptr<Engine> engine = stored_engine(model, how);
    Sequence sequence = engine->new_sequence();
    Rows rows;
    for (int32_t step = 0; step <= kSteps; ++step) {
        const SequenceInput input = input_of(talk, sequence, stored);
        keep_row(engine->decode({&input, 1}), 0, rows);
    }
    return rows;
}

/// Talk i begins i steps after the first one, so that prompts and generated rows share batches.
std::vector<Rows> run_together(const StoredModel& model, StoredEngine how, int32_t count) {
    const StoredLogits stored(model.expected);
    how.sequences = count;
    const std::unique_ptr<Engine> engine = stored_engine(model, how);
    std::vector<Sequence> sequences;
    for (int32_t i = 0; i < count; ++i) sequences.push_back(engine->new_sequence());
    std::vector<Rows> rows(static_cast<size_t>(count));
    for (int32_t step = 0; step < kSteps + count; ++step) {
        std::vector<SequenceInput> inputs;
        std::vector<size_t> owners;
        for (int32_t i = 0; i < count; ++i) {
            if (step < i || step > i + kSteps) continue;
            owners.push_back(static_cast<size_t>(i));
            inputs.push_back(input_of(kTalks[owners.back()], sequences[owners.back()], stored));
        }
        const Tensor logits = engine->decode(inputs);
        for (size_t row = 0; row < owners.size(); ++row)
            keep_row(logits, static_cast<int64_t>(row), rows[owners[row]]);
    }
    return rows;
}

// Guards against a sequence that reads or writes its neighbour's state, keys or routing.
TEST(HybridSequences, G19_InterleavedIsTheSameAsAlone) {
    for (const StoredModel& model : {kModels[0], kModels[1]})
        for (const bool exact : {true, false})
            for (const int32_t count : {2, 3, 4}) {
                const StoredEngine how{.ubatch = 64, .exact = exact};
                const std::vector<Rows> together = run_together(model, how, count);
                for (int32_t i = 0; i < count; ++i)
                    EXPECT_EQ(together[static_cast<size_t>(i)],
                              run_alone(model, how, kTalks[static_cast<size_t>(i)]))
                        << model.file << ": sequence " << i << " of " << count
                        << (exact ? ", f32" : "");
            }
}

}  // namespace
}  // namespace tessera
