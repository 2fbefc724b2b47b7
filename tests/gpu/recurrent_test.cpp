// Recurrent memory on the card: guesses, checkpoints, rewinding. Names carry the ids of the faults
// that they guard against; the same tests run on the CPU in tests/engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "gpu/gpu.h"

namespace tessera {
namespace {

constexpr std::array kHybrids{"qwen35", "qwen35moe"};

class Recurrent : public CardTestWith<const char*> {
  protected:
    const std::vector<std::byte>& bytes() const { return model_of(GetParam(), DType::kNVFP4); }
};

EngineOptions hybrid_options(int32_t sequences, int32_t checkpoints, int32_t draft_max) {
    EngineOptions options = card_options(sequences);
    options.context = 320;
    options.ubatch = 64;
    options.checkpoints = checkpoints;
    options.draft_max = draft_max;
    return options;
}

// G24, S2, S16, G11: after 1 to 4 of 4 guesses were accepted, the convolution's and the recurrent
// state, keys and values are those of a run that decoded the same tokens one by one, and so is what
// follows. Prompt lengths lie around the border of a chunk and of a page.
TEST_P(Recurrent, G24_S2_S16_G11_AcceptedGuessesLeaveTheStateOfASerialRun) {
    const auto engine = card_engine(hybrid_options(2, 0, 3), bytes());
    const std::vector<int32_t> next = some_tokens(9, 4);
    for (const int32_t length : {1, 2, 62, 64, 65})
        for (int32_t kept = 1; kept <= 4; ++kept) {
            const std::vector<int32_t> prompt = some_tokens(length, 3);
            Sequence serial = engine->new_sequence(), guessed = engine->new_sequence();
            feed(*engine, serial, prompt, false);
            feed(*engine, guessed, prompt, false);
            for (int32_t i = 0; i < kept; ++i) feed(*engine, serial, {&next[i], 1}, true);
            std::vector<int32_t> guesses(next.begin(), next.begin() + 4);
            for (int32_t i = kept; i < 4; ++i) guesses[i] = (guesses[i] + 77) % 256;
            const SequenceInput input{.sequence = &guessed,
                                      .tokens = guesses,
                                      .generated = true,
                                      .tentative = true,
                                      .logits = SequenceInput::Logits::kAll};
            const uint64_t before = engine->memory_hash(guessed);
            engine->decode({&input, 1});
            EXPECT_EQ(guessed.length(), length);
            EXPECT_EQ(engine->memory_hash(guessed), before) << "changed before accepting";
            engine->accept(guessed, kept);
            EXPECT_EQ(engine->memory_hash(guessed), engine->memory_hash(serial))
                << length << " kept " << kept;
            std::array<std::vector<float>, 2> rows;
            for (Sequence* sequence : {&serial, &guessed}) {
                const SequenceInput one{.sequence = sequence,
                                        .tokens = {&next[static_cast<size_t>(kept)], 1},
                                        .generated = true};
                rows[sequence == &serial ? 0 : 1] = values_of(*engine, engine->decode({&one, 1}));
            }
            EXPECT_EQ(rows[0], rows[1]) << length << " kept " << kept;
        }
}

// Rewinding stops at the newest checkpoint that lies early enough, and what was kept there is the
// state of a run that never went further.
TEST_P(Recurrent, RewindGoesBackToACheckpoint) {
    EngineOptions options = hybrid_options(2, 3, 0);
    options.context = 512;
    const auto engine = card_engine(options, bytes());
    Sequence sequence = engine->new_sequence(), fresh = engine->new_sequence();
    const std::vector<int32_t> tokens = some_tokens(300, 1);
    // Pieces end inside of chunks, which rounds otherwise than whole ones.
    const auto feed_pieces = [&](Sequence& target, size_t count) {
        for (size_t begin = 0; begin < count; begin += 60)
            feed(*engine, target,
                 std::span(tokens).subspan(begin, std::min(count - begin, size_t{60})), false);
    };
    feed_pieces(sequence, 300);
    // Borders 64, 128, 192, 256 (each the last of its piece); three are kept.
    for (const int32_t border : {256, 192, 128}) {
        EXPECT_EQ(engine->rewind(sequence, border + 2), border);
        engine->rewind(fresh, 0);
        feed_pieces(fresh, static_cast<size_t>(border));
        EXPECT_EQ(engine->memory_hash(sequence), engine->memory_hash(fresh)) << border;
    }
    EXPECT_EQ(engine->rewind(sequence, 127), 0);
}

// G15: a slot that another sequence has used starts clean.
TEST_P(Recurrent, G15_AUsedSlotStartsClean) {
    const auto engine = card_engine(hybrid_options(1, 0, 0), bytes());
    const std::vector<int32_t> prompt = some_tokens(67, 1);
    const Answer clean = answer_alone(*engine, prompt, 8);
    {
        Sequence other = engine->new_sequence();
        feed(*engine, other, some_tokens(100, 2), false);
    }
    EXPECT_EQ(answer_alone(*engine, prompt, 8), clean);
}

// S7: the very first guess, behind prompts so short that no state of an earlier pass exists, reads
// nothing that was never written.
TEST_P(Recurrent, S7_TheFirstGuessReadsOnlyWhatWasWritten) {
    for (const int32_t length : {1, 2, 64, 65}) {
        std::array<std::vector<float>, 2> guesses;
        for (const bool poison : {false, true}) {
            EngineOptions options = hybrid_options(1, 1, 2);
            options.backend.poison = poison;
            const auto engine = card_engine(options, bytes());
            Sequence sequence = engine->new_sequence();
            feed(*engine, sequence, some_tokens(length, 3), false);
            const Engine::DraftStep step{.sequence = &sequence, .token = 7, .ahead = 0};
            guesses[poison ? 1 : 0] = values_of(*engine, engine->draft({&step, 1}));
        }
        EXPECT_EQ(guesses[0], guesses[1]) << length;
        for (const float logit : guesses[0]) ASSERT_TRUE(std::isfinite(logit)) << length;
    }
}

GenerateResult answer(Engine& engine,
                      Sequence& sequence,
                      const std::vector<int32_t>& tokens,
                      int32_t count,
                      int32_t draft_max) {
    GenerateRequest request = greedy_request(sequence, tokens, count);
    request.options.draft_max = draft_max;
    request.options.draft_adaptive = false;
    return run_one(engine, request);
}

// G23: a conversation that forks into two branches, which alternate, gives each branch its own
// answer.
TEST_P(Recurrent, G23_BranchesThatAlternateAnswerAsColdOnes) {
    const auto engine = card_engine(hybrid_options(2, 2, 0), bytes());
    Sequence sequence = engine->new_sequence(), cold = engine->new_sequence();
    const std::vector<int32_t> trunk = some_tokens(150, 5);
    std::array<std::vector<int32_t>, 2> branches{trunk, trunk};
    for (uint32_t turn = 0; turn < 3; ++turn)
        for (uint32_t side = 0; side < 2; ++side) {
            const std::vector<int32_t> user = some_tokens(9, 50 + 2 * turn + side);
            branches[side].insert(branches[side].end(), user.begin(), user.end());
            engine->rewind(sequence, std::min(sequence.length(), 150));
            const GenerateResult warm = answer(*engine, sequence, branches[side], 6, 0);
            EXPECT_EQ(warm.cached_tokens, turn + side == 0 ? 0 : 128);
            engine->rewind(cold, 0);
            EXPECT_EQ(warm.generated, answer(*engine, cold, branches[side], 6, 0).generated);
            EXPECT_EQ(engine->memory_hash(sequence), engine->memory_hash(cold));
            branches[side].insert(branches[side].end(), warm.generated.begin(),
                                  warm.generated.end());
        }
}

INSTANTIATE_TEST_SUITE_P(Card,
                         Recurrent,
                         testing::ValuesIn(kHybrids),
                         [](const testing::TestParamInfo<const char*>& tested) {
                             return std::string(tested.param);
                         });

// ---- guesses that are often right ----

class Drafts : public CardTestWith<const char*> {
  protected:
    const std::vector<std::byte>& bytes() const {
        static const std::vector<std::byte> dense = predictable_hybrid("qwen35", 0.5f);
        static const std::vector<std::byte> experts = predictable_hybrid("qwen35moe", 0.5f);
        return GetParam() == std::string("qwen35") ? dense : experts;
    }
    std::unique_ptr<Engine> engine(int32_t sequences, int32_t checkpoints, int32_t most) const {
        return card_engine(hybrid_options(sequences, checkpoints, most), bytes());
    }
};

GenerateRequest drafting_request(Sequence& sequence, float temperature, int32_t draft_max) {
    GenerateRequest request = greedy_request(sequence, some_tokens(70, 2), 40);
    request.options.sampling = {.temperature = temperature,
                                .top_k = 0,
                                .top_p = 1.0f,
                                .min_p = 0.0f,
                                .repeat_penalty = 1.1f};
    request.options.seed = 11;
    request.options.draft_max = draft_max;
    request.options.draft_adaptive = false;
    return request;
}

// S2, S4: greedy and drawn answers (with penalties) are the same with any number of guesses, some
// guesses are right, and the memory afterwards is that of the plain run.
TEST_P(Drafts, S2_S4_AnswersDoNotChange) {
    const auto plain = engine(1, 1, 0);
    for (const float temperature : {0.0f, 0.7f}) {
        Sequence cold = plain->new_sequence();
        GenerateRequest request = drafting_request(cold, temperature, 0);
        const GenerateResult expected = run_one(*plain, request);
        for (const int32_t most : {1, 2, 3, 5}) {
            const auto drafting = engine(1, 1, most);
            Sequence sequence = drafting->new_sequence();
            GenerateRequest guessing = drafting_request(sequence, temperature, most);
            const GenerateResult result = run_one(*drafting, guessing);
            EXPECT_EQ(result.generated, expected.generated) << temperature << " " << most;
            EXPECT_GT(result.accepted, 0) << temperature << " " << most;
            EXPECT_LT(result.steps, expected.steps);
            EXPECT_EQ(drafting->memory_hash(sequence), plain->memory_hash(cold));
            // The same without replaying recordings of guesses and of accepting them.
            drafting->set_recording(false);
            drafting->rewind(sequence, 0);
            GenerateRequest again = drafting_request(sequence, temperature, most);
            const GenerateResult unrecorded = run_one(*drafting, again);
            EXPECT_EQ(unrecorded.generated, expected.generated) << temperature << " " << most;
            EXPECT_EQ(unrecorded.accepted_lengths, result.accepted_lengths);
            EXPECT_EQ(drafting->memory_hash(sequence), plain->memory_hash(cold));
        }
    }
}

// S3: two runs have the same acceptance trace. S6: sequences that draft together answer as each
// alone.
TEST_P(Drafts, S3_S6_SequencesDraftTogetherAsAlone) {
    const auto drafting = engine(3, 0, 3);
    std::vector<Sequence> sequences;
    for (int i = 0; i < 3; ++i) sequences.push_back(drafting->new_sequence());
    const auto request = [&](size_t i) {
        drafting->rewind(sequences[i], 0);
        GenerateRequest made =
            drafting_request(sequences[i], i == 1 ? 0.7f : 0.0f, 3 - static_cast<int32_t>(i));
        made.tokens = some_tokens(70 - 30 * static_cast<int32_t>(i), 6);
        made.options.max_tokens = 25 + 5 * static_cast<int32_t>(i);
        return made;
    };
    std::vector<GenerateRequest> together;
    for (size_t i = 0; i < 3; ++i) together.push_back(request(i));
    const std::vector<GenerateResult> results = generate(*drafting, together, {});
    for (size_t i = 0; i < 3; ++i)
        for (int repeat = 0; repeat < 2; ++repeat) {
            GenerateRequest alone = request(i);
            const GenerateResult result = run_one(*drafting, alone);
            EXPECT_EQ(result.generated, results[i].generated) << i;
            EXPECT_EQ(result.accepted_lengths, results[i].accepted_lengths) << i;
        }
}

// S10: a request that is cancelled while it drafts ends at once, and the next one is as without it.
TEST_P(Drafts, S10_CancellingEndsTheDrafting) {
    const auto drafting = engine(1, 0, 3);
    Sequence sequence = drafting->new_sequence();
    GenerateRequest whole = drafting_request(sequence, 0.0f, 3);
    const std::vector<int32_t> expected = run_one(*drafting, whole).generated;
    drafting->rewind(sequence, 0);
    GenerateRequest request = drafting_request(sequence, 0.0f, 3);
    int asked = 0;
    request.cancelled = [&] { return ++asked > 8; };
    const GenerateResult result = run_one(*drafting, request);
    EXPECT_EQ(result.finish, FinishReason::kCancelled);
    EXPECT_LT(result.steps, 10);
    drafting->rewind(sequence, 0);
    GenerateRequest again = drafting_request(sequence, 0.0f, 3);
    EXPECT_EQ(run_one(*drafting, again).generated, expected);
}

// G12, G13, G16, G17: the 2x2 matrix of drafting and reuse over five turns gives the same bytes,
// wherever the turns end in a chunk, and reuse happens.
TEST_P(Drafts, G12_G13_G16_G17_ReuseAndDraftingGiveTheSameFiveTurns) {
    const auto plain = engine(1, 0, 0), warm = engine(1, 2, 0), both = engine(1, 2, 3);
    int32_t accepted = 0;
    for (const int32_t remainder : {0, 1, 2, 3, 17, 31, 33, 34, 35, 50, 63, 64}) {
        Sequence cold = plain->new_sequence(), reused = warm->new_sequence();
        Sequence all = both->new_sequence();
        std::vector<int32_t> history = some_tokens(30 + remainder, 5);
        int32_t prompt_before = 0;
        for (uint32_t turn = 0; turn < 5; ++turn) {
            plain->rewind(cold, 0);
            const GenerateResult expected = answer(*plain, cold, history, 6, 0);
            warm->rewind(reused, std::min(prompt_before, reused.length()));
            both->rewind(all, std::min(prompt_before, all.length()));
            const GenerateResult with_reuse = answer(*warm, reused, history, 6, 0);
            const GenerateResult with_both = answer(*both, all, history, 6, 3);
            EXPECT_EQ(with_reuse.generated, expected.generated) << remainder << " turn " << turn;
            EXPECT_EQ(with_both.generated, expected.generated) << remainder << " turn " << turn;
            if (prompt_before > 64) {
                EXPECT_GE(with_reuse.cached_tokens, (prompt_before - 1) / 64 * 64);
            }
            EXPECT_EQ(with_both.cached_tokens, with_reuse.cached_tokens);
            if (turn == 4) {
                EXPECT_EQ(warm->memory_hash(reused), plain->memory_hash(cold)) << remainder;
                EXPECT_EQ(both->memory_hash(all), plain->memory_hash(cold)) << remainder;
            }
            accepted += with_both.accepted;
            prompt_before = static_cast<int32_t>(history.size());
            history.insert(history.end(), expected.generated.begin(), expected.generated.end());
            const std::vector<int32_t> user = some_tokens(11, turn + 20);
            history.insert(history.end(), user.begin(), user.end());
        }
    }
    EXPECT_GT(accepted, 20);  // the matrix would show nothing if no guess were ever right
}

INSTANTIATE_TEST_SUITE_P(Card,
                         Drafts,
                         testing::ValuesIn(kHybrids),
                         [](const testing::TestParamInfo<const char*>& tested) {
                             return std::string(tested.param);
                         });

}  // namespace
}  // namespace tessera
