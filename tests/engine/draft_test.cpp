// Drafting by multi-token prediction.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "engine/generate.h"
#include "engine/hybrid_model.h"

namespace tessera {
namespace {

const std::vector<std::byte>& model_bytes() {
    static const std::vector<std::byte> bytes = predictable_hybrid("qwen35", 0.5f);
    return bytes;
}

std::unique_ptr<Engine> make(const char* backend, int32_t draft_max, int32_t sequences = 1) {
    return tiny_engine({.backend = backend,
                        .context = 320,
                        .batch = 320,
                        .ubatch = 64,
                        .sequences = sequences,
                        .checkpoints = 1,
                        .draft_max = draft_max},
                       model_bytes());
}

GenerateRequest request_for(Sequence& sequence, float temperature, int32_t draft_max) {
    GenerateRequest request;
    request.sequence = &sequence;
    request.tokens = some_tokens(70, 2);
    request.options.max_tokens = 40;
    request.options.ignore_end = true;
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
// guesses are right, also when drawing, and the memory afterwards is that of the plain run.
TEST(Draft, S2_S4_AnswersDoNotChange) {
    for (const char* backend : {"reference", "cpu"})
        for (const float temperature : {0.0f, 0.7f}) {
            const auto plain = make(backend, 0);
            Sequence cold = plain->new_sequence();
            GenerateRequest request = request_for(cold, temperature, 0);
            const GenerateResult expected = std::move(generate(*plain, {&request, 1}, {}).front());
            for (const int32_t most : {1, 2, 3, 5}) {
                const auto engine = make(backend, most);
                Sequence sequence = engine->new_sequence();
                GenerateRequest guessing = request_for(sequence, temperature, most);
                const GenerateResult result =
                    std::move(generate(*engine, {&guessing, 1}, {}).front());
                EXPECT_EQ(result.generated, expected.generated) << backend << temperature << most;
                EXPECT_GT(result.accepted, 0) << backend << temperature << most;
                EXPECT_GT(result.drafted, result.accepted);
                EXPECT_LT(result.steps, expected.steps);
                EXPECT_EQ(engine->memory_hash(sequence), plain->memory_hash(cold));
                int32_t rounds = 0, kept = 0;
                for (size_t i = 0; i < result.accepted_lengths.size(); ++i) {
                    rounds += result.accepted_lengths[i];
                    kept += static_cast<int32_t>(i) * result.accepted_lengths[i];
                }
                EXPECT_EQ(kept, result.accepted);
                EXPECT_LE(rounds, result.steps);
            }
        }
}

// S4: over many seeds the second token, which comes out of a verified guess or of its refusal, is
// distributed as the model says (chi-square, 3 degrees of freedom).
TEST(Draft, S4_DrawsFollowTheModelsDistribution) {
    const auto engine = make("cpu", 2);
    Sequence sequence = engine->new_sequence();
    const SampleParams sampling{.temperature = 1.5f, .top_k = 4, .top_p = 1.0f, .min_p = 0.0f};
    const auto best_four = [&](const Tensor& logits) {
        std::vector<std::pair<float, int32_t>> rows;
        for (int32_t i = 0; i < logits.cols(); ++i) rows.push_back({-logits.as<float>()[i], i});
        std::sort(rows.begin(), rows.end());
        std::map<int32_t, double> shares;
        double sum = 0.0;
        for (int i = 0; i < 4; ++i) sum += std::exp(double{rows[0].first - rows[i].first} / 1.5);
        for (int i = 0; i < 4; ++i)
            shares[rows[i].second] = std::exp(double{rows[0].first - rows[i].first} / 1.5) / sum;
        return shares;
    };
    const std::vector<int32_t> prompt = some_tokens(65, 2);
    SequenceInput input{.sequence = &sequence, .tokens = prompt};
    const std::map<int32_t, double> first = best_four(engine->decode({&input, 1}));
    const int32_t common = std::max_element(first.begin(), first.end(), [](auto& a, auto& b) {
                               return a.second < b.second;
                           })->first;
    input = {.sequence = &sequence, .tokens = {&common, 1}, .generated = true};
    const std::map<int32_t, double> second = best_four(engine->decode({&input, 1}));
    std::map<int32_t, int> counts;
    int draws = 0, accepted = 0;
    for (uint64_t seed = 0; seed < 700; ++seed) {
        engine->rewind(sequence, 64);
        GenerateRequest request = request_for(sequence, 1.5f, 2);
        request.tokens = prompt;
        request.options.sampling = sampling;
        request.options.seed = seed;
        request.options.max_tokens = 4;
        const GenerateResult result = std::move(generate(*engine, {&request, 1}, {}).front());
        accepted += result.accepted;
        if (result.generated[0] != common) continue;
        ++draws;
        ++counts[result.generated[1]];
    }
    ASSERT_GT(draws, 150);
    EXPECT_GT(accepted, 50);
    double chi_square = 0.0;
    for (const auto& [token, share] : second) {
        const double expected = share * draws;
        chi_square += (counts[token] - expected) * (counts[token] - expected) / expected;
        counts.erase(token);
    }
    EXPECT_TRUE(counts.empty());
    EXPECT_LT(chi_square, 16.3);  // p = 0.001
}

// S3: two runs have the same acceptance trace. S6: two sequences that draft together answer as each
// alone.
TEST(Draft, S3_S6_SequencesDraftTogetherAsAlone) {
    const auto engine = make("cpu", 3, 2);
    Sequence a = engine->new_sequence(), b = engine->new_sequence();
    const auto requests = [&] {
        std::vector<GenerateRequest> made;
        made.push_back(request_for(a, 0.0f, 3));
        made.push_back(request_for(b, 0.7f, 2));
        made[1].tokens = some_tokens(33, 6);
        made[1].options.max_tokens = 25;
        return made;
    };
    std::vector<GenerateRequest> together = requests();
    const std::vector<GenerateResult> results = generate(*engine, together, {});
    for (size_t i = 0; i < 2; ++i)
        for (int repeat = 0; repeat < 2; ++repeat) {
            engine->rewind(i == 0 ? a : b, 0);
            GenerateRequest alone = std::move(requests()[i]);
            const GenerateResult result = std::move(generate(*engine, {&alone, 1}, {}).front());
            EXPECT_EQ(result.generated, results[i].generated) << i;
            EXPECT_EQ(result.accepted_lengths, results[i].accepted_lengths) << i;
        }
}

// S10: a request that is cancelled while it drafts ends at once.
TEST(Draft, S10_CancellingEndsTheDrafting) {
    const auto engine = make("cpu", 3);
    Sequence sequence = engine->new_sequence();
    GenerateRequest request = request_for(sequence, 0.0f, 3);
    request.options.max_tokens = -1;
    int asked = 0;
    request.cancelled = [&] { return ++asked > 8; };
    const GenerateResult result = std::move(generate(*engine, {&request, 1}, {}).front());
    EXPECT_EQ(result.finish, FinishReason::kCancelled);
    EXPECT_LT(result.steps, 10);
}

// The block is only there when it is asked for, and a model without one says so.
TEST(Draft, AModelWithoutTheBlockRefuses) {
    try {
        tiny_engine({.draft_max = 2});
        FAIL() << "llama has no draft block";
    } catch (const UserError& error) {
        EXPECT_EQ(error.code(), ExitCode::kModel);
        EXPECT_NE(std::string(error.what()).find("multi-token prediction"), std::string::npos);
    }
}

// S7: the very first guess, behind prompts so short that no state of an earlier pass exists, reads
// nothing that was never written: it is finite and the same in a fresh engine.
TEST(Draft, S7_TheFirstGuessReadsOnlyWhatWasWritten) {
    for (const int32_t length : {1, 2, 64, 65}) {
        std::vector<std::vector<float>> guesses;
        for (int repeat = 0; repeat < 2; ++repeat) {
            // Other memory each time: what was never written differs.
            const std::vector<std::byte> elsewhere(size_t{1} << (20 + repeat), std::byte{0xff});
            const auto engine = make("cpu", 2);
            Sequence sequence = engine->new_sequence();
            const std::vector<int32_t> prompt = some_tokens(length, 3);
            const SequenceInput input{.sequence = &sequence, .tokens = prompt};
            engine->decode({&input, 1});
            const Engine::DraftStep step{.sequence = &sequence, .token = 7, .ahead = 0};
            const Tensor logits = engine->draft({&step, 1});
            guesses.emplace_back(logits.as<float>(), logits.as<float>() + logits.elements());
        }
        EXPECT_EQ(guesses[0], guesses[1]) << length;
        for (const float logit : guesses[0]) ASSERT_TRUE(std::isfinite(logit));
    }
}

// S12: drafting takes the memory of its own rows and one more layer of keys, not that of a second
// context.
TEST(Draft, S12_DraftingTakesLittleMemory) {
    const auto plain = make("cpu", 0), drafting = make("cpu", 3);
    const auto layers = static_cast<int64_t>(plain->plan().kv_bytes);
    EXPECT_EQ(drafting->plan().kv_bytes, layers * 2);  // the tiny trunk has one layer of attention
    const int64_t width = plain->info().width, vocab = plain->info().vocab;
    const int64_t rows = plain->options().ubatch;
    EXPECT_LE(drafting->plan().compute_bytes - plain->plan().compute_bytes,
              4 * (6 * rows * width + 5 * vocab) + 65536);
}

// A guess below --spec-draft-p-min is not verified: nothing is at 1, everything at 0.
TEST(Draft, ImprobableGuessesEndTheGuessing) {
    const auto engine = make("cpu", 3);
    Sequence sequence = engine->new_sequence();
    GenerateRequest request = request_for(sequence, 0.0f, 3);
    request.options.draft_p_min = 1.0f;
    EXPECT_EQ(generate(*engine, {&request, 1}, {}).front().drafted, 0);
}

}  // namespace
}  // namespace tessera
