// What goes wrong on a card, and what it must leave untouched.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>

#include "gpu/prompt_formats.h"

namespace tessera {
namespace {

constexpr std::array kArchitectures{"llama", "qwen3moe", "qwen35", "qwen35moe"};
constexpr int32_t kNanToken = 200;

std::string architecture_name(const testing::TestParamInfo<const char*>& tested) {
    return tested.param;
}

/// The same random model, but the embedding of kNanToken is NaN: bytes of 0xFF in the floats, or in
/// the scales of the blocks.
std::vector<std::byte> model_with_nan(const std::string& architecture) {
    std::vector<std::byte> bytes = model_of(architecture, DType::kNVFP4);
    const GgufFile file = GgufFile::parse(bytes, "nan.gguf");
    const GgufTensor* table = file.find_tensor("token_embd.weight");
    const auto row_bytes = static_cast<size_t>(dtype_bytes(table->dtype, table->shape[0]));
    std::byte* data = bytes.data() + (table->data - bytes.data());
    std::memset(data + kNanToken * row_bytes, 0xff, row_bytes);
    return bytes;
}

/// Prompts without the token.
std::vector<int32_t> clean_tokens(int32_t count, uint32_t seed) {
    std::vector<int32_t> tokens = some_tokens(count, seed);
    for (int32_t& token : tokens) token = token == kNanToken ? kNanToken + 1 : token;
    return tokens;
}

class Nan : public CardTestWith<const char*> {
  protected:
    Nan() : bytes_(model_with_nan(GetParam())) {}
    std::vector<std::byte> bytes_;
};

// N16: a NaN ends its own request with an error and no other; its slot and pages are clean for the
// next one.
TEST_P(Nan, EndsItsOwnRequestOnly) {
    const auto card = card_engine(card_options(3), bytes_);
    std::vector<Sequence> sequences;
    for (int i = 0; i < 3; ++i) sequences.push_back(card->new_sequence());
    const auto request = [&](size_t i, bool poisoned) {
        card->rewind(sequences[i], 0);
        GenerateRequest made =
            greedy_request(sequences[i], clean_tokens(90 - 10 * static_cast<int32_t>(i), 3), 24);
        if (poisoned) made.tokens[40] = kNanToken;
        return made;
    };
    std::vector<GenerateRequest> clean, poisoned;
    for (size_t i = 0; i < 3; ++i) clean.push_back(request(i, false));
    const std::vector<GenerateResult> expected = generate(*card, clean, {});
    for (size_t i = 0; i < 3; ++i) poisoned.push_back(request(i, i == 1));
    const std::vector<GenerateResult> found = generate(*card, poisoned, {});
    for (const size_t i : {0, 2}) {
        EXPECT_EQ(found[i].generated, expected[i].generated) << i;
        EXPECT_EQ(found[i].finish, expected[i].finish);
    }
    EXPECT_EQ(found[1].finish, FinishReason::kNan);
    EXPECT_TRUE(found[1].generated.empty());
    GenerateRequest again = request(1, false);
    EXPECT_EQ(run_one(*card, again).generated, expected[1].generated);
}

/// Logits of three sequences over a prompt and five tokens, all in common batches. `bad` is in the
/// prompt of the middle one, or among its generated tokens.
enum class Bad { kNowhere, kPrompt, kGenerated };

std::array<std::vector<float>, 3> rows_of_batch(Engine& engine, Bad bad) {
    std::array<std::vector<float>, 3> rows;
    std::vector<Sequence> sequences;
    std::vector<std::vector<int32_t>> tokens;
    for (size_t i = 0; i < 3; ++i) {
        sequences.push_back(engine.new_sequence());
        tokens.push_back(clean_tokens(60 + 5 + 7 * static_cast<int32_t>(i), 5));
    }
    if (bad == Bad::kPrompt) tokens[1][30] = kNanToken;
    if (bad == Bad::kGenerated) tokens[1][tokens[1].size() - 4] = kNanToken;
    for (int32_t step = 0; step <= 5; ++step) {
        std::vector<SequenceInput> inputs;
        for (size_t i = 0; i < 3; ++i) {
            const size_t prompt = tokens[i].size() - 5;
            const auto held = static_cast<size_t>(sequences[i].length());
            inputs.push_back({.sequence = &sequences[i],
                              .tokens = std::span(tokens[i]).subspan(held, step == 0 ? prompt : 1),
                              .generated = step > 0});
        }
        const std::vector<float> values = values_of(engine, engine.decode(inputs));
        const auto vocab = static_cast<int64_t>(values.size() / 3);
        for (int64_t i = 0; i < 3; ++i)
            rows[static_cast<size_t>(i)].insert(rows[static_cast<size_t>(i)].end(),
                                                values.begin() + i * vocab,
                                                values.begin() + (i + 1) * vocab);
    }
    return rows;
}

// N16, M5: a NaN in one sequence of a batch reaches no row of another, bit for bit: not through a
// tile, a shared expert or a chunk.
TEST_P(Nan, ReachesNoNeighbourInTheBatch) {
    const auto card = card_engine(card_options(3), bytes_);
    const auto expected = rows_of_batch(*card, Bad::kNowhere);
    for (const Bad bad : {Bad::kPrompt, Bad::kGenerated}) {
        const auto found = rows_of_batch(*card, bad);
        EXPECT_EQ(found[0], expected[0]);
        EXPECT_EQ(found[2], expected[2]);
        EXPECT_TRUE(std::isnan(found[1].back()));
        EXPECT_EQ(std::isnan(found[1].front()), bad == Bad::kPrompt);
    }
    EXPECT_EQ(rows_of_batch(*card, Bad::kNowhere), expected);
}

INSTANTIATE_TEST_SUITE_P(Card, Nan, testing::ValuesIn(kArchitectures), architecture_name);

// ---- leaving in the middle ----

class Cancel : public CardTestWith<const char*> {
  protected:
    const std::vector<std::byte>& bytes() const { return model_of(GetParam(), DType::kNVFP4); }
};

struct Stop : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Guards against kernels that are still at work on the memory that an exception gave back: the next
// answer, at once and in the same pages, is right.
TEST_P(Cancel, LeavingADecodeLeavesAUsableEngine) {
    EngineOptions options = card_options();
    options.ubatch = 64;
    const auto card = card_engine(options, bytes());
    const std::vector<int32_t> prompt = some_tokens(400, 6), other = some_tokens(333, 7);
    const Answer expected = answer_alone(*card, other, 16);
    for (const int64_t stop_at : {0, 64, 192, 384}) {
        Sequence sequence = card->new_sequence();
        const SequenceInput input{.sequence = &sequence, .tokens = prompt};
        EXPECT_THROW(card->decode({&input, 1},
                                  [&](std::string_view, int64_t done, int64_t) {
                                      if (done >= stop_at) throw Stop("enough");
                                  }),
                     Stop);
        EXPECT_EQ(sequence.length(), 0);
        GenerateRequest request = greedy_request(sequence, other, 16);
        EXPECT_EQ(run_one(*card, request).generated, expected.tokens) << stop_at;
        EXPECT_EQ(card->memory_hash(sequence), expected.memory) << stop_at;
    }
}

// Guards against Ctrl-C in a prompt that leaves half of it behind.
TEST_P(Cancel, ACancelledPromptResumes) {
    EngineOptions options = card_options();
    options.ubatch = 64;
    options.batch = 128;
    const auto card = card_engine(options, bytes());
    const std::vector<int32_t> prompt = some_tokens(400, 6);
    const Answer expected = answer_alone(*card, prompt, 16);
    for (int polls = 0; polls < 12; polls += 3) {
        Sequence sequence = card->new_sequence();
        GenerateRequest cancelled = greedy_request(sequence, prompt, 16);
        cancelled.cancelled = [left = polls]() mutable { return left-- <= 0; };
        const GenerateResult result = run_one(*card, cancelled);
        EXPECT_EQ(result.finish, FinishReason::kCancelled) << polls;
        EXPECT_LT(sequence.length(), 400);
        GenerateRequest again = greedy_request(sequence, prompt, 16);
        EXPECT_EQ(run_one(*card, again).generated, expected.tokens) << polls;
        EXPECT_EQ(card->memory_hash(sequence), expected.memory) << polls;
    }
}

INSTANTIATE_TEST_SUITE_P(Card, Cancel, testing::ValuesIn(kArchitectures), architecture_name);

// ---- memory, devices, operands ----

class Faults : public CardTest {};
/// Needs the card's memory for itself; scripts/gpu-check.sh runs it after all others.
class CardAlone : public CardTest {};

/// The message of a UserError with this code: one line that has all the words.
void expect_error(ExitCode code,
                  const std::vector<std::string>& words,
                  const std::function<void()>& action) {
    try {
        action();
        ADD_FAILURE() << "nothing was wrong";
    } catch (const UserError& error) {
        const std::string message = error.what();
        EXPECT_EQ(error.code(), code) << message;
        EXPECT_EQ(message.find('\n'), std::string::npos) << message;
        for (const std::string& word : words)
            EXPECT_NE(message.find(word), std::string::npos) << word << " is not in: " << message;
    }
}

// Guards against a context that fails in the middle of loading, or without numbers.
TEST_F(Faults, AContextThatDoesNotFitSaysSoWithNumbers) {
    const std::vector<std::byte>& bytes = model_of("llama", DType::kNVFP4);
    EngineOptions options = card_options();
    options.memory_limit_bytes = int64_t{1} << 20;
    const std::vector<std::string> words{"GiB", "weights", "available", "-c", "-ctk"};
    expect_error(ExitCode::kMemory, words, [&] { card_engine(options, bytes); });
    // 1 KiB a token: a tebibyte, which no card has.
    options = card_options();
    options.context = 1 << 30;
    expect_error(ExitCode::kMemory, words, [&] { card_engine(options, bytes); });
    expect_error(ExitCode::kMemory, {"1073741824 tokens"}, [&] { card_engine(options, bytes); });
    EXPECT_EQ(
        answer_alone(*card_engine(card_options(), bytes), some_tokens(20, 1), 4).tokens.size(), 4u);
}

// Guards against counting memory that another program has taken.
TEST_F(CardAlone, MemoryThatAnotherHoldsIsNotPlannedWith) {
    const std::vector<std::byte>& bytes = model_of("llama", DType::kNVFP4);
    EngineOptions options = card_options();
    options.context = 1 << 21;  // 2 GiB of keys and values
    auto other = make_ops({.name = kCard, .isa = {}});
    const int64_t free_bytes = other->available_bytes();
    if (free_bytes < int64_t{4} << 30) GTEST_SKIP() << "needs 4 GiB of free device memory";
    other->allocate(static_cast<size_t>(free_bytes - (int64_t{1} << 30)));
    expect_error(ExitCode::kMemory, {"GiB", "-c"}, [&] { card_engine(options, bytes); });
    // More than there is, asked of the backend itself.
    expect_error(ExitCode::kMemory, {"MiB"},
                 [&] { other->allocate(static_cast<size_t>(free_bytes)); });
    other.reset();
    const auto card = card_engine(options, bytes);
    EXPECT_EQ(answer_alone(*card, some_tokens(20, 1), 4).tokens.size(), 4u);
}

// Guards against a plan that leaves out what the driver rounds up, the buffers of the upload or the
// recordings: a model that just fits would fail while it is loaded, or later.
TEST_F(CardAlone, ThePlanCoversWhatAnEngineTakes) {
    const auto other =
        make_ops({.name = kCard, .isa = {}});  // the context is there before any plan
    for (const char* architecture : kArchitectures) {
        const int64_t before = other->available_bytes();
        const auto card = card_engine(card_options(4), model_of(architecture, DType::kNVFP4));
        const int64_t loaded = before - other->available_bytes();
        EXPECT_LE(loaded, card->plan().total()) << architecture;
        // Passes of generated tokens are recorded for every power of two of keys.
        answer_alone(*card, some_tokens(200, 1), 300);
        const int64_t running = before - other->available_bytes();
        EXPECT_LE(running, card->plan().total()) << architecture << ": loading took " << loaded;
        RecordProperty(architecture, std::to_string(running - loaded));
    }
}

// Guards against a self-test that keeps memory which models were to have.
TEST_F(CardAlone, TheSelfTestGivesItsMemoryBack) {
    BackendOptions options{.name = kCard, .isa = {}};
    options.emulate = Emulation::kFp4;
    if (!refusal_of(options).empty()) return;
    make_ops(options)->self_test();
    // Again, now that the kernels are on the card: nothing else stays there.
    const std::unique_ptr<Ops> ops = make_ops(options);
    const int64_t before = ops->available_bytes();
    ops->self_test();
    EXPECT_GE(ops->available_bytes(), before - (int64_t{1} << 20));
}

// Guards against an index that changes while it is on its way: `from` is free when a copy returns.
TEST_F(Faults, WhatWasSentMayChangeAtOnce) {
    const auto ops = make_ops({.name = kCard, .isa = {}});
    // A few numbers; more than a quarter of the pinned ring; more than all of it.
    for (const size_t count : {size_t{3}, size_t{150'000}, size_t{1'500'000}}) {
        constexpr size_t kCopies = 20;
        std::vector<int32_t> source(count), found(count);
        std::byte* memory = ops->allocate(kCopies * count * 4);
        for (size_t i = 0; i < kCopies; ++i) {
            std::ranges::fill(source, static_cast<int32_t>(i));
            ops->copy_to_device(memory + i * count * 4, source.data(), count * 4);
        }
        std::ranges::fill(source, -1);
        for (size_t i = 0; i < kCopies; ++i) {
            ops->copy_to_host(found.data(), memory + i * count * 4, count * 4);
            EXPECT_EQ(found, std::vector<int32_t>(count, static_cast<int32_t>(i)))
                << i << " of " << count << " numbers";
        }
    }
}

// Guards against work of another thread that goes to card 0: the last card of the machine computes
// for a thread that did not make the engine.
TEST_F(Faults, AnyThreadComputesOnTheCardOfItsEngine) {
    int32_t last = 0;
    try {
        while (make_ops({.name = kCard, .device = last + 1, .isa = {}}) != nullptr) ++last;
    } catch (const UserError&) {
        // There are no more.
    }
    const std::vector<std::byte>& bytes = model_of("llama", DType::kNVFP4);
    EngineOptions options = card_options();
    options.backend.device = last;
    const Answer expected = answer_alone(*card_engine(options, bytes), some_tokens(90, 1), 12);
    std::unique_ptr<Engine> card;
    Answer made, answered;
    std::jthread([&] { card = card_engine(options, bytes); }).join();
    std::jthread([&] { made = answer_alone(*card, some_tokens(90, 1), 12); }).join();
    answered = answer_alone(*card, some_tokens(90, 1), 12);
    std::jthread([&] { card.reset(); }).join();
    EXPECT_EQ(made, expected) << "CUDA" << last;
    EXPECT_EQ(answered, expected) << "CUDA" << last;
}

// Guards against a card number that is taken for another card, or refused without a hint.
TEST_F(Faults, ADeviceThatDoesNotExistIsRefusedWithTheNumberOfThose) {
    const std::string offered = "the driver offers ";
    for (const int32_t device : {99, -1})
        expect_error(ExitCode::kDevice, {"CUDA" + std::to_string(device), offered},
                     [&] { make_ops({.name = kCard, .device = device, .isa = {}}); });
    expect_error(ExitCode::kDevice, {"CUDA99", offered},
                 [&] { make_ops({.name = "CUDA99", .isa = {}}); });
    EXPECT_NO_THROW(make_ops({.name = kCard, .isa = {}}));
}

/// Groups ids on the card and fetches the pairs.
std::vector<int32_t> grouped(Ops& ops, std::byte* memory, const std::vector<int32_t>& ids) {
    constexpr size_t kBytes = size_t{1} << 20;
    Arena arena(memory, kBytes);
    Exec ex{.arena = arena};
    std::vector<int32_t> host = ids, pairs(ids.size());
    const Tensor staged = ops.stage(
        ex, make_tensor(host.data(), DType::kI32, {static_cast<int64_t>(ids.size()) / 2, 2}));
    const ExpertWork work = ops.group_experts(ex, staged, 8);
    ops.copy_to_host(pairs.data(), work.pairs.data, pairs.size() * sizeof(int32_t));
    return pairs;
}

// Guards against an expert that does not exist: it is named, nothing is written elsewhere, and the
// backend goes on.
TEST_F(Faults, AnExpertThatDoesNotExistIsReportedOnce) {
    const auto ops = make_ops({.name = kCard, .isa = {}});
    std::byte* memory = ops->allocate(size_t{1} << 20);
    for (const size_t pairs : {2, 600, 20000})
        for (const int32_t bad : {8, -1, 1 << 30}) {
            std::vector<int32_t> ids(pairs);
            for (size_t i = 0; i < pairs; ++i) ids[i] = 7 - static_cast<int32_t>(i % 8);
            std::vector<int32_t> sorted;
            for (int32_t expert = 0; expert < 8; ++expert)
                for (size_t i = 0; i < pairs; ++i)
                    if (ids[i] == expert) sorted.push_back(static_cast<int32_t>(i));
            std::vector<int32_t> broken = ids;
            broken[pairs / 2] = bad;
            expect_error(ExitCode::kFailure, {"expert", std::to_string(bad)},
                         [&] { grouped(*ops, memory, broken); });
            EXPECT_EQ(grouped(*ops, memory, ids), sorted) << pairs;
        }
}

}  // namespace
}  // namespace tessera
