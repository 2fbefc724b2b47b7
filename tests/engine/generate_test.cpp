#include "engine/generate.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>

#include "engine/tiny_engine.h"

namespace tessera {
namespace {

constexpr std::string_view kPrompt = "The quick brown fox jumps over the lazy dog. ";

GenerateRequest request_for(Engine& engine, Sequence& sequence, std::string_view prompt) {
    GenerateRequest request;
    request.sequence = &sequence;
    request.tokens =
        engine.tokenizer().encode(prompt, /*add_special=*/true, /*parse_special=*/true);
    request.options.max_tokens = 24;
    request.options.ignore_end = true;
    request.options.sampling.temperature = 0;
    return request;
}

GenerateResult run_one(Engine& engine, GenerateRequest& request) {
    return std::move(generate(engine, {&request, 1}, {}).front());
}

std::vector<int32_t> greedy_ids(const TinyOptions& options) {
    const auto engine = tiny_engine(options);
    Sequence sequence = engine->new_sequence();
    GenerateRequest request = request_for(*engine, sequence, kPrompt);
    return run_one(*engine, request).generated;
}

// Known answers of Philox-4x32-10 (Random123's kat_vectors): guards against a generator that is
// merely random-looking, and against another word order on another machine.
TEST(UniformNumber, MatchesPublishedVectors) {
    const auto top24 = [](uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; };
    EXPECT_EQ(uniform_number(0, 0, 0), top24(0x6627e8d5u));
    EXPECT_EQ(uniform_number(~uint64_t{0}, ~uint64_t{0}, -1), top24(0x408f276du));
    EXPECT_EQ(uniform_number(0x299f31d0a4093822u, 0x0370734413198a2eu,
                             std::bit_cast<int64_t>(uint64_t{0x85a308d3243f6a88u})),
              top24(0xd16cfe09u));
}

// Guards against results that depend on how a prompt is cut into passes or on the thread count.
TEST(Generate, GreedyIsTheSameForAnyUbatchAndThreads) {
    for (const char* backend : {"reference", "cpu"}) {
        const std::vector<int32_t> ids = greedy_ids({.backend = backend});
        ASSERT_EQ(ids.size(), 24u);
        for (const int32_t ubatch : {1, 7, 64})
            EXPECT_EQ(ids, greedy_ids({.backend = backend, .ubatch = ubatch})) << backend << ubatch;
        EXPECT_EQ(ids, greedy_ids({.backend = backend, .threads = 2})) << backend;
        EXPECT_EQ(ids, greedy_ids({.backend = backend, .batch = 5, .ubatch = 5})) << backend;
    }
}

// Guards against a batch neighbour changing what a request draws, greedy or with a seed.
TEST(Generate, NeighboursChangeNothing) {
    for (const char* backend : {"reference", "cpu"}) {
        const auto engine = tiny_engine({.backend = backend, .sequences = 3});
        std::vector<Sequence> sequences;
        for (int i = 0; i < 3; ++i) sequences.push_back(engine->new_sequence());
        const auto fresh_requests = [&] {
            std::vector<GenerateRequest> requests;
            for (size_t i = 0; i < 3; ++i) {
                engine->rewind(sequences[i], 0);
                requests.push_back(request_for(*engine, sequences[i], kPrompt.substr(7 * i)));
                requests[i].options.sampling.temperature = i == 1 ? 1.5f : 0.0f;
                requests[i].options.seed = 42;
                requests[i].options.max_tokens = static_cast<int32_t>(10 + 5 * i);
            }
            return requests;
        };
        std::vector<GenerateRequest> together = fresh_requests();
        const std::vector<GenerateResult> results = generate(*engine, together, {});
        std::vector<GenerateRequest> alone = fresh_requests();
        for (size_t i = 0; i < 3; ++i) {
            EXPECT_EQ(run_one(*engine, alone[i]).generated, results[i].generated) << backend << i;
            EXPECT_EQ(results[i].finish, FinishReason::kLength);
        }
    }
}

// Guards against a seed that is ignored and against two requests of one seed drawing alike.
TEST(Generate, SeedAndStreamDecideTheDraw) {
    const auto engine = tiny_engine({});
    Sequence sequence = engine->new_sequence();
    const auto draw = [&](uint64_t seed, uint64_t stream) {
        engine->rewind(sequence, 0);
        GenerateRequest request = request_for(*engine, sequence, kPrompt);
        request.options.sampling = {.temperature = 1.5f, .top_k = 0, .top_p = 1, .min_p = 0};
        request.options.seed = seed;
        request.options.stream = stream;
        return run_one(*engine, request).generated;
    };
    EXPECT_EQ(draw(7, 0), draw(7, 0));
    EXPECT_NE(draw(7, 0), draw(8, 0));
    EXPECT_NE(draw(7, 0), draw(7, 1));
}

// Guards against a stop string, or text behind it, in the answer, and against a stop that is missed
// because it spans tokens (the vocabulary is bytes, so any stop of two letters does).
TEST(Generate, StopStringEndsTheAnswer) {
    const auto engine = tiny_engine({});
    Sequence sequence = engine->new_sequence();
    GenerateRequest free = request_for(*engine, sequence, kPrompt);
    const std::string text = run_one(*engine, free).text;
    ASSERT_GT(text.size(), 8u);
    const std::string stop = text.substr(5, 2);
    const size_t where = text.find(stop);
    engine->rewind(sequence, 0);
    GenerateRequest stopped = request_for(*engine, sequence, kPrompt);
    stopped.options.stops = {"never in the text", stop};
    std::string shown;
    stopped.on_text = [&](std::string_view piece) { shown += piece; };
    const GenerateResult result = run_one(*engine, stopped);
    EXPECT_EQ(result.finish, FinishReason::kStop);
    EXPECT_EQ(result.text, text.substr(0, where));
    EXPECT_EQ(shown, result.text);
}

// Guards against lost or doubled pieces between the stream and the whole.
TEST(Generate, StreamedPiecesAreTheWholeText) {
    const auto engine = tiny_engine({});
    Sequence sequence = engine->new_sequence();
    GenerateRequest request = request_for(*engine, sequence, kPrompt);
    std::string shown;
    request.on_text = [&](std::string_view piece) { shown += piece; };
    const GenerateResult result = run_one(*engine, request);
    EXPECT_EQ(shown, engine->tokenizer().decode(result.generated, /*render_special=*/false));
    EXPECT_EQ(shown, result.text);
    EXPECT_EQ(result.steps, static_cast<int32_t>(result.generated.size()) - 1);
}

// Guards against an overrun of the context, or an answer that ends before it is full.
TEST(Generate, EndsWhenTheContextIsFull) {
    const auto engine = tiny_engine({.context = 64});
    Sequence sequence = engine->new_sequence();
    GenerateRequest request = request_for(*engine, sequence, kPrompt);
    const size_t prompt = request.tokens.size();
    request.options.max_tokens = -1;
    const GenerateResult result = run_one(*engine, request);
    EXPECT_EQ(result.finish, FinishReason::kContext);
    EXPECT_EQ(sequence.length(), 64);
    EXPECT_EQ(result.generated.size(), 64 - prompt + 1);

    GenerateRequest too_long = request_for(*engine, sequence, std::string(65, 'x'));
    try {
        run_one(*engine, too_long);
        FAIL() << "a prompt longer than the context was taken";
    } catch (const UserError& error) {
        EXPECT_NE(std::string(error.what()).find("64"), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find("65"), std::string::npos) << error.what();
    }
    EXPECT_EQ(sequence.length(), 64);
}

// Guards against a sequence that is left half-way by a cancelled prompt: what it says it holds must
// be what it holds.
TEST(Generate, CancelledPromptLeavesAUsableSequence) {
    const auto engine = tiny_engine({.batch = 16, .ubatch = 8});
    Sequence sequence = engine->new_sequence();
    GenerateRequest free = request_for(*engine, sequence, kPrompt);
    const GenerateResult expected = run_one(*engine, free);
    for (int polls = 0; polls < 8; ++polls) {
        engine->rewind(sequence, 0);
        GenerateRequest cancelled = request_for(*engine, sequence, kPrompt);
        cancelled.cancelled = [left = polls]() mutable { return left-- <= 0; };
        const GenerateResult result = run_one(*engine, cancelled);
        EXPECT_EQ(result.finish, FinishReason::kCancelled) << polls;
        EXPECT_TRUE(result.generated.empty());
        EXPECT_EQ(sequence.length() % 16, 0);

        GenerateRequest again = request_for(*engine, sequence, kPrompt);
        const GenerateResult resumed = run_one(*engine, again);
        EXPECT_EQ(resumed.text, expected.text) << polls;
        EXPECT_EQ(resumed.cached_tokens + (16 - resumed.cached_tokens % 16) % 16,
                  resumed.cached_tokens);
    }
}

// Guards against a cancelled answer that goes on, or that loses what was already shown.
TEST(Generate, CancelledAnswerKeepsItsBeginning) {
    const auto engine = tiny_engine({});
    Sequence sequence = engine->new_sequence();
    GenerateRequest free = request_for(*engine, sequence, kPrompt);
    const GenerateResult expected = run_one(*engine, free);
    engine->rewind(sequence, 0);
    GenerateRequest request = request_for(*engine, sequence, kPrompt);
    std::string shown;
    request.on_text = [&](std::string_view piece) { shown += piece; };
    request.cancelled = [&] { return shown.size() >= 4; };
    const GenerateResult result = run_one(*engine, request);
    EXPECT_EQ(result.finish, FinishReason::kCancelled);
    EXPECT_LT(result.generated.size(), expected.generated.size());
    EXPECT_TRUE(
        std::equal(result.generated.begin(), result.generated.end(), expected.generated.begin()));
    EXPECT_EQ(sequence.length() + 1, static_cast<int32_t>(request.tokens.size()));
}

// Guards against NaN weights answering with token 0 instead of a failure.
TEST(Generate, NanIsReported) {
    std::vector<std::byte> bytes = tiny_bytes();
    {
        const GgufFile file = GgufFile::parse(bytes, "nan.gguf");
        const GgufTensor* norm = file.find_tensor("output_norm.weight");
        ASSERT_NE(norm, nullptr);
        const float nan = std::numeric_limits<float>::quiet_NaN();
        std::memcpy(bytes.data() + (norm->data - bytes.data()), &nan, sizeof(nan));
    }
    const auto engine = tiny_engine({}, bytes);
    Sequence sequence = engine->new_sequence();
    GenerateRequest request = request_for(*engine, sequence, kPrompt);
    const GenerateResult result = run_one(*engine, request);
    EXPECT_EQ(result.finish, FinishReason::kNan);
    EXPECT_TRUE(result.text.empty());
}

// Guards against a penalty that sees nothing, or more than it should: a large repeat penalty over
// the whole history must not draw a token twice, one over the last token only may.
TEST(Generate, PenaltiesSeeTheAskedHistory) {
    const auto engine = tiny_engine({});
    Sequence sequence = engine->new_sequence();
    const auto run = [&](int32_t repeat_last) {
        engine->rewind(sequence, 0);
        GenerateRequest request = request_for(*engine, sequence, kPrompt);
        request.options.sampling.presence_penalty = 1e6f;
        request.options.repeat_last = repeat_last;
        run_one(*engine, request);
        return request.tokens;
    };
    const auto repeats = [](std::span<const int32_t> tokens, size_t first, size_t window) {
        int32_t count = 0;
        for (size_t i = first; i < tokens.size(); ++i)
            for (size_t back = 1; back <= window && back <= i; ++back)
                count += tokens[i] == tokens[i - back] ? 1 : 0;
        return count;
    };
    const size_t prompt = request_for(*engine, sequence, kPrompt).tokens.size();
    EXPECT_EQ(repeats(run(-1), prompt, 1000), 0);
    EXPECT_EQ(repeats(run(4), prompt, 4), 0);
    EXPECT_GT(repeats(run(1), prompt, 1000), 0);
    EXPECT_EQ(run(0), run(0));
}

}  // namespace
}  // namespace tessera
