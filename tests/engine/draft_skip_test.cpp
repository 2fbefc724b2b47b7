// Tokens that the draft block never sees because nobody drafted for long.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "engine/generate.h"
#include "engine/hybrid_model.h"

namespace tessera {
namespace {

constexpr int32_t kMost = 2;

std::unique_ptr<Engine> make(const std::vector<std::byte>& model, int32_t draft_max) {
    return tiny_engine({.backend = "cpu",
                        .context = 320,
                        .batch = 320,
                        .ubatch = 64,
                        .checkpoints = 2,
                        .draft_max = draft_max},
                       model);
}

/// A hybrid whose trunk passes the newest token's embedding on, so that hidden states depend on no
/// other token, while the draft block is random.
const std::vector<std::byte>& forgetful_hybrid() {
    static const std::vector<std::byte> bytes = [] {
        SynthSpec spec;
        spec.architecture = "qwen35";
        spec.type = DType::kF32;
        std::vector<std::byte> made = synth_gguf(spec, {});
        const GgufFile file = GgufFile::parse(made, "hybrid.gguf");
        for (const GgufTensor& tensor : file.tensors()) {
            const std::string block = tensor.name.substr(0, tensor.name.find('.', 4));
            if (file.find_tensor(block + ".nextn.eh_proj.weight") != nullptr) continue;
            for (const char* part : {"attn_output.weight", "ssm_out.weight", "ffn_down.weight"})
                if (tensor.name.ends_with(part))
                    std::memset(made.data() + (tensor.data - made.data()), 0,
                                static_cast<size_t>(tensor.elements()) * sizeof(float));
        }
        return made;
    }();
    return bytes;
}

std::vector<float> decode_one(Engine& engine,
                              Sequence& sequence,
                              int32_t token,
                              bool unseen = false) {
    const SequenceInput input{
        .sequence = &sequence, .tokens = {&token, 1}, .generated = true, .unseen = unseen};
    const Tensor logits = engine.decode({&input, 1});
    return {logits.as<float>(), logits.as<float>() + logits.elements()};
}

void decode_prompt(Engine& engine, Sequence& sequence, std::span<const int32_t> tokens) {
    const SequenceInput input{.sequence = &sequence, .tokens = tokens};
    engine.decode({&input, 1});
}

std::vector<float> guess(Engine& engine, Sequence& sequence, int32_t token, int32_t ahead) {
    const Engine::DraftStep step{.sequence = &sequence, .token = token, .ahead = ahead};
    const Tensor logits = engine.draft({&step, 1});
    return {logits.as<float>(), logits.as<float>() + logits.elements()};
}

int32_t best_of(const std::vector<float>& logits) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

float distance(const std::vector<float>& a, const std::vector<float>& b) {
    float most = 0.0f;
    for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
    return most;
}

/// Generated tokens after which the engine first skips some, and how many it then skipped.
struct Skip {
    int32_t tokens = 0;
    int32_t skipped = 0;
};

Skip find_skip() {
    const auto engine = make(forgetful_hybrid(), kMost);
    Sequence sequence = engine->new_sequence();
    decode_prompt(*engine, sequence, some_tokens(40, 2));
    for (int32_t made = 1;; ++made) {
        decode_one(*engine, sequence, made);
        if (engine->waiting(sequence) < made) return {made, made - engine->waiting(sequence)};
        if (made > 100) return {};
    }
}

// Guards against keys and values at wrong places: with hidden states that depend on one token only,
// guesses behind skipped tokens are those of a text without them, also behind a further prompt and
// after going back to a checkpoint in it. With tokens that were followed they are others.
TEST(DraftSkip, GuessesAreThoseOfATextWithoutTheSkippedTokens) {
    const Skip skip = find_skip();
    ASSERT_GT(skip.skipped, 8);
    std::vector<int32_t> prompt = some_tokens(40, 2), made = some_tokens(skip.tokens, 9);
    // The state before the first token that is kept has to be the same in the shorter text.
    made[static_cast<size_t>(skip.skipped) - 1] = prompt.back();
    const auto skipping = make(forgetful_hybrid(), kMost),
               shorter = make(forgetful_hybrid(), kMost),
               following = make(forgetful_hybrid(), kMost);
    Sequence a = skipping->new_sequence(), b = shorter->new_sequence(),
             c = following->new_sequence();
    decode_prompt(*skipping, a, prompt);
    decode_prompt(*shorter, b, prompt);
    decode_prompt(*following, c, prompt);
    for (int32_t i = 0; i < skip.tokens; ++i) {
        const int32_t token = made[static_cast<size_t>(i)];
        decode_one(*skipping, a, token);
        if (i >= skip.skipped) decode_one(*shorter, b, token);
        decode_one(*following, c, token);
        if (i % 8 == 0) following->follow(c);
    }
    ASSERT_EQ(skipping->waiting(a), shorter->waiting(b));
    const std::vector<int32_t> more = some_tokens(140, 5);
    for (const bool behind_prompt : {false, true}) {
        if (behind_prompt) {
            decode_prompt(*skipping, a, more);
            decode_prompt(*shorter, b, more);
            decode_prompt(*following, c, more);
        }
        for (int32_t ahead = 0; ahead < kMost; ++ahead) {
            const std::vector<float> expected = guess(*shorter, b, 7 + ahead, ahead);
            EXPECT_LE(distance(guess(*skipping, a, 7 + ahead, ahead), expected), 1e-4f) << ahead;
            EXPECT_GT(distance(guess(*following, c, 7 + ahead, ahead), expected), 1e-2f) << ahead;
        }
        for (const auto& [engine, sequence] :
             {std::pair{skipping.get(), &a}, std::pair{shorter.get(), &b},
              std::pair{following.get(), &c}})
            for (const int32_t token : {7, 8, 9}) decode_one(*engine, *sequence, token);
    }
    const int32_t start = a.length() - 3 - static_cast<int32_t>(more.size());
    const int32_t left = skipping->rewind(a, a.length() - 4);
    ASSERT_GT(left, start);
    shorter->rewind(b, 0);
    std::vector<int32_t> whole = prompt;
    whole.insert(whole.end(), made.begin() + skip.skipped, made.end());
    whole.insert(whole.end(), {7, 8, 9});
    whole.insert(whole.end(), more.begin(), more.end());
    decode_prompt(*shorter, b, whole);
    decode_prompt(*skipping, a, std::span(more).subspan(static_cast<size_t>(left - start)));
    EXPECT_LE(distance(guess(*skipping, a, 9, 0), guess(*shorter, b, 9, 0)), 1e-4f);
}

// Guards against places or states of other tokens where the block sees none: guesses behind unseen
// tokens are those of a text without them, whether some waited before or the last had been drafted
// from, also behind a further prompt.
TEST(DraftSkip, GuessesAreThoseOfATextWithoutTheUnseenTokens) {
    const std::vector<int32_t> prompt = some_tokens(40, 2), more = some_tokens(70, 5);
    const auto skipping = make(forgetful_hybrid(), kMost),
               shorter = make(forgetful_hybrid(), kMost), seeing = make(forgetful_hybrid(), kMost);
    Sequence a = skipping->new_sequence(), b = shorter->new_sequence(), c = seeing->new_sequence();
    decode_prompt(*skipping, a, prompt);
    decode_prompt(*shorter, b, prompt);
    decode_prompt(*seeing, c, prompt);
    const auto expect_same = [&](int32_t token, const char* where) {
        const std::vector<float> expected = guess(*shorter, b, token, 0);
        EXPECT_LE(distance(guess(*skipping, a, token, 0), expected), 1e-4f) << where;
        EXPECT_GT(distance(guess(*seeing, c, token, 0), expected), 1e-2f) << where;
    };
    const auto only_here = [&](int32_t token, bool unseen) {
        decode_one(*skipping, a, token, unseen);
        decode_one(*seeing, c, token);
    };
    const auto everywhere = [&](int32_t token) {
        only_here(token, false);
        decode_one(*shorter, b, token);
    };
    for (const int32_t token : {11, 12, 13}) only_here(token, false);
    for (const int32_t token : {14, 15, 16}) only_here(token, true);
    // It cannot be seen without a state before it. Its own one goes with the first token that is
    // seen again and has to be the same in the shorter text.
    only_here(prompt.back(), false);
    EXPECT_EQ(skipping->waiting(a), 0);
    for (const int32_t token : {3, 4, 5}) everywhere(token);
    EXPECT_EQ(skipping->waiting(a), 3);
    expect_same(7, "behind some that wait");
    only_here(7, true);
    everywhere(7);
    expect_same(9, "behind an unseen one that was drafted from");
    // The prompt goes on without a state in either text.
    only_here(9, false);
    only_here(4, false);
    only_here(9, true);
    decode_one(*shorter, b, 9, true);
    decode_prompt(*skipping, a, more);
    decode_prompt(*shorter, b, more);
    decode_prompt(*seeing, c, more);
    expect_same(6, "behind a prompt");
}

// Guards against work for a block that nobody asks: unseen tokens run the very ops of an engine
// that was made without it.
TEST(DraftSkip, UnseenTokensTakeNoOpsOfTheirOwn) {
    const auto counted = [](int32_t draft_max) {
        const auto engine = make(hybrid_bytes("qwen35"), draft_max);
        Sequence sequence = engine->new_sequence();
        decode_prompt(*engine, sequence, some_tokens(40, 2));
        engine->ops().reset_op_counts();
        for (int32_t token = 0; token < 5; ++token)
            decode_one(*engine, sequence, token, draft_max > 0);
        std::vector<std::pair<std::string, int64_t>> calls;
        for (const OpCount& op : engine->ops().op_counts()) calls.emplace_back(op.name, op.calls);
        return calls;
    };
    EXPECT_FALSE(counted(0).empty());
    EXPECT_EQ(counted(kMost), counted(0));
}

// Guards against a bulk that differs from what the next guess would have seen anyway.
TEST(DraftSkip, FollowingInBulkChangesNoGuess) {
    const auto bulk = make(hybrid_bytes("qwen35"), kMost),
               at_once = make(hybrid_bytes("qwen35"), kMost);
    Sequence a = bulk->new_sequence(), b = at_once->new_sequence();
    for (int32_t made = 0; made < 20; ++made) {
        if (made == 0) decode_prompt(*bulk, a, some_tokens(40, 2));
        if (made == 0) decode_prompt(*at_once, b, some_tokens(40, 2));
        decode_one(*bulk, a, made);
        decode_one(*at_once, b, made);
    }
    EXPECT_EQ(bulk->waiting(a), 20);
    bulk->follow(a);
    EXPECT_EQ(bulk->waiting(a), 0);
    const std::vector<float> expected = guess(*at_once, b, 3, 0);
    const float scale = std::abs(expected[static_cast<size_t>(best_of(expected))]);
    EXPECT_LE(distance(guess(*bulk, a, 3, 0), expected), 0.05f * scale);
}

// S2: answers and memory are those of plain steps when rounds of drafting come after long runs of
// plain steps, of which the draft block has seen few or which come unseen; some of its guesses are
// right even so.
TEST(DraftSkip, S2_RoundsAfterLongPausesChangeNothing) {
    const std::vector<std::byte> model = predictable_hybrid("qwen35", 0.5f);
    const auto plain = make(model, 0), drafting = make(model, kMost);
    Sequence a = plain->new_sequence(), b = drafting->new_sequence();
    const std::vector<int32_t> prompt = some_tokens(40, 2);
    decode_prompt(*plain, a, prompt);
    decode_prompt(*drafting, b, prompt);
    int32_t kept = 0, token = 5;
    std::vector<int32_t> expected{token};
    while (expected.size() < 240)
        expected.push_back(best_of(decode_one(*plain, a, expected.back())));
    size_t made = 0;
    for (int round = 0; made + 4 < expected.size(); ++round) {
        if (round % 60 < 50) {
            token = best_of(decode_one(*drafting, b, token, round > 60 && round % 60 < 40));
            ASSERT_EQ(token, expected[++made]);
            continue;
        }
        std::vector<int32_t> tokens{token};
        for (int32_t ahead = 0; ahead < kMost; ++ahead)
            tokens.push_back(best_of(guess(*drafting, b, tokens.back(), ahead)));
        const SequenceInput input{.sequence = &b,
                                  .tokens = tokens,
                                  .generated = true,
                                  .tentative = true,
                                  .logits = SequenceInput::Logits::kAll};
        const Tensor logits = drafting->decode({&input, 1});
        int32_t rows = 0;
        do {
            const float* row = logits.as<float>() + rows * logits.cols();
            token = best_of({row, row + logits.cols()});
            ASSERT_EQ(token, expected[++made]);
            ++rows;
        } while (rows <= kMost && token == tokens[static_cast<size_t>(rows)]);
        kept += rows - 1;
        drafting->accept(b, rows);
    }
    EXPECT_GT(kept, 0);
    plain->rewind(a, 0);
    decode_prompt(*plain, a, prompt);
    for (size_t i = 0; i < made; ++i) decode_one(*plain, a, expected[i]);
    EXPECT_EQ(drafting->memory_hash(b), plain->memory_hash(a));
}

}  // namespace
}  // namespace tessera
