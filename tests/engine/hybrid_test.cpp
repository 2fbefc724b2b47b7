// Recurrent memory: checkpoints, rewinding, guesses that are taken back. Names carry the ids of the
// faults that they guard against.
#include <gtest/gtest.h>

#include <cstring>

#include "engine/chat.h"
#include "engine/generate.h"
#include "engine/hybrid_model.h"

namespace tessera {
namespace {

void feed(Engine& engine, Sequence& sequence, std::span<const int32_t> tokens, bool generated) {
    const SequenceInput input{.sequence = &sequence, .tokens = tokens, .generated = generated};
    engine.decode({&input, 1});
}

std::vector<float> copy_of(const Tensor& logits) {
    return {logits.as<float>(), logits.as<float>() + logits.elements()};
}

// G24, S2, S16, G11: after 1 to 4 of 4 guesses were accepted, the convolution's and the recurrent
// state, keys and values are those of a run that decoded the same tokens one by one, and so is what
// follows. Prompt lengths lie around the border of a chunk and of a page.
TEST(Hybrid, G24_S2_S16_G11_AcceptedGuessesLeaveTheStateOfASerialRun) {
    for (const char* backend : {"reference", "cpu"})
        for (const char* architecture : {"qwen35", "qwen35moe"})
            for (const int32_t length : {1, 2, 62, 64, 65}) {
                const auto engine = tiny_engine({.backend = backend,
                                                 .batch = 128,
                                                 .ubatch = 64,
                                                 .sequences = 2,
                                                 .draft_max = 3},
                                                hybrid_bytes(architecture));
                const std::vector<int32_t> prompt = some_tokens(length, 3),
                                           next = some_tokens(9, 4);
                for (int32_t kept = 1; kept <= 4; ++kept) {
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
                    engine->decode({&input, 1});
                    EXPECT_EQ(guessed.length(), length);
                    engine->accept(guessed, kept);
                    EXPECT_EQ(guessed.length(), serial.length());
                    EXPECT_EQ(engine->memory_hash(guessed), engine->memory_hash(serial))
                        << backend << " " << architecture << " " << length << " kept " << kept;
                    std::vector<float> rows[2];
                    for (Sequence* sequence : {&serial, &guessed}) {
                        const SequenceInput one{.sequence = sequence,
                                                .tokens = {&next[static_cast<size_t>(kept)], 1},
                                                .generated = true};
                        rows[sequence == &serial ? 0 : 1] = copy_of(engine->decode({&one, 1}));
                    }
                    EXPECT_EQ(rows[0], rows[1]);
                }
            }
}

// A guess that is taken back whole must not have touched the recurrent state.
TEST(Hybrid, TentativeTokensChangeNothingUntilAccepted) {
    const auto engine = tiny_engine({.backend = "cpu", .batch = 128, .ubatch = 64, .draft_max = 3},
                                    hybrid_bytes("qwen35"));
    Sequence sequence = engine->new_sequence();
    feed(*engine, sequence, some_tokens(70, 1), false);
    const uint64_t before = engine->memory_hash(sequence);
    const std::vector<int32_t> guesses = some_tokens(4, 9);
    const SequenceInput input{
        .sequence = &sequence, .tokens = guesses, .generated = true, .tentative = true};
    engine->decode({&input, 1});
    EXPECT_EQ(engine->memory_hash(sequence), before);
    EXPECT_EQ(sequence.length(), 70);
}

// Rewinding stops at the newest checkpoint that lies early enough, and says so.
TEST(Hybrid, RewindGoesBackToACheckpoint) {
    const auto engine = tiny_engine(
        {.backend = "cpu", .context = 512, .batch = 128, .ubatch = 64, .checkpoints = 3},
        hybrid_bytes("qwen35"));
    Sequence sequence = engine->new_sequence();
    feed(*engine, sequence, some_tokens(60, 1), false);
    EXPECT_EQ(engine->rewind(sequence, 60), 0);
    const std::vector<int32_t> tokens = some_tokens(300, 1);
    for (size_t begin = 0; begin < 300; begin += 60)
        feed(*engine, sequence, std::span(tokens).subspan(begin, 60), false);
    // Borders 64, 128, 192, 256 (each the last of its piece); three are kept.
    EXPECT_EQ(engine->rewind(sequence, 299), 256);
    EXPECT_EQ(engine->rewind(sequence, 250), 192);
    EXPECT_EQ(engine->rewind(sequence, 130), 128);
    EXPECT_EQ(engine->rewind(sequence, 127), 0);
}

// A slot that another sequence has used starts clean (NaN in it: the op test G15).
TEST(Hybrid, AUsedSlotStartsClean) {
    const auto engine =
        tiny_engine({.backend = "cpu", .batch = 128, .ubatch = 64}, hybrid_bytes("qwen35"));
    const std::vector<int32_t> prompt = some_tokens(67, 1);
    const auto hash_of_fresh = [&] {
        Sequence sequence = engine->new_sequence();
        feed(*engine, sequence, prompt, false);
        return engine->memory_hash(sequence);
    };
    const uint64_t clean = hash_of_fresh();
    {
        Sequence other = engine->new_sequence();
        feed(*engine, other, some_tokens(100, 2), false);
    }
    EXPECT_EQ(hash_of_fresh(), clean);
}

// G19: interleaved sequences of different lengths each go as if alone.
TEST(Hybrid, G19_InterleavedSequencesAreEachAsIfAlone) {
    const auto engine = tiny_engine({.backend = "cpu", .batch = 128, .ubatch = 128, .sequences = 4},
                                    hybrid_bytes("qwen35moe"));
    std::vector<Sequence> sequences(4);
    std::vector<std::vector<int32_t>> prompts;
    std::vector<SequenceInput> inputs;
    for (size_t i = 0; i < 4; ++i) {
        sequences[i] = engine->new_sequence();
        prompts.push_back(some_tokens(static_cast<int32_t>(1 + 20 * i), 7));
    }
    for (size_t i = 0; i < 4; ++i)
        inputs.push_back({.sequence = &sequences[i], .tokens = prompts[i]});
    engine->decode(std::span(inputs).first(3));
    engine->decode(std::span(inputs).subspan(3, 1));
    const std::vector<int32_t> steps = some_tokens(3, 8);
    for (const int32_t token : steps) {
        for (SequenceInput& input : inputs) {
            input.tokens = {&token, 1};
            input.generated = true;
        }
        engine->decode(inputs);
    }
    std::vector<uint64_t> hashes;
    for (Sequence& sequence : sequences) {
        hashes.push_back(engine->memory_hash(sequence));
        engine->rewind(sequence, 0);
    }
    for (size_t i = 0; i < 4; ++i) {
        feed(*engine, sequences[i], prompts[i], false);
        for (const int32_t token : steps) feed(*engine, sequences[i], {&token, 1}, true);
        EXPECT_EQ(engine->memory_hash(sequences[i]), hashes[i]) << i;
    }
}

GenerateResult answer(Engine& engine,
                      Sequence& sequence,
                      const std::vector<int32_t>& tokens,
                      int32_t draft_max) {
    GenerateRequest request;
    request.sequence = &sequence;
    request.tokens = tokens;
    request.options.max_tokens = 6;
    request.options.ignore_end = true;
    request.options.sampling.temperature = 0;
    request.options.draft_max = draft_max;
    request.options.draft_adaptive = false;
    return std::move(generate(engine, {&request, 1}, {}).front());
}

// G12, G13, G16, G17, G23: the 2x2 matrix of drafting and reuse over five turns gives the same
// bytes, wherever the turns end in a chunk; and reuse happens: no turn runs again more than what is
// new, the last answer and the rest of a chunk.
TEST(Hybrid, G12_G13_G16_G17_ReuseAndDraftingGiveTheSameFiveTurns) {
    static const std::vector<std::byte> bytes = predictable_hybrid("qwen35", 0.3f);
    const auto make = [](int32_t checkpoints, int32_t draft_max) {
        return tiny_engine({.backend = "cpu",
                            .context = 320,
                            .batch = 320,
                            .ubatch = 64,
                            .checkpoints = checkpoints,
                            .draft_max = draft_max},
                           bytes);
    };
    const auto plain = make(0, 0), warm = make(2, 0), drafting = make(0, 3), both = make(2, 3);
    int32_t accepted = 0;
    for (int32_t remainder = 0; remainder <= 64; ++remainder) {
        Sequence cold = plain->new_sequence(), reused = warm->new_sequence();
        Sequence drafted = drafting->new_sequence(), all = both->new_sequence();
        std::vector<int32_t> history = some_tokens(30 + remainder, 5);
        int32_t prompt_before = 0;
        for (int32_t turn = 0; turn < 5; ++turn) {
            plain->rewind(cold, 0);
            const GenerateResult expected = answer(*plain, cold, history, 0);
            warm->rewind(reused, std::min(prompt_before, reused.length()));
            both->rewind(all, std::min(prompt_before, all.length()));
            const GenerateResult with_reuse = answer(*warm, reused, history, 0);
            const GenerateResult with_both = answer(*both, all, history, 3);
            EXPECT_EQ(with_reuse.generated, expected.generated) << remainder << " turn " << turn;
            EXPECT_EQ(with_both.generated, expected.generated) << remainder << " turn " << turn;
            if (remainder % 8 == 0) {
                drafting->rewind(drafted, 0);
                EXPECT_EQ(answer(*drafting, drafted, history, 3).generated, expected.generated);
            }
            if (prompt_before > 64) {
                EXPECT_GE(with_reuse.cached_tokens, (prompt_before - 1) / 64 * 64);
            }
            EXPECT_EQ(with_both.cached_tokens, with_reuse.cached_tokens);
            EXPECT_EQ(warm->memory_hash(reused), plain->memory_hash(cold));
            accepted += with_both.accepted;
            prompt_before = static_cast<int32_t>(history.size());
            history.insert(history.end(), expected.generated.begin(), expected.generated.end());
            const std::vector<int32_t> user = some_tokens(11, static_cast<uint32_t>(turn) + 20);
            history.insert(history.end(), user.begin(), user.end());
        }
    }
    EXPECT_GT(accepted, 100);  // the matrix would show nothing if no guess were ever right
}

// The same through Chat: every turn answers as the conversation does when no sequence has seen it.
TEST(Hybrid, ChatsReuseCheckpointsAndAnswerAsColdOnes) {
    const ChatOptions format{
        .template_source =
            "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}",
        .template_arguments = {}};
    static const std::vector<std::byte> bytes = predictable_hybrid("qwen35moe", 0.3f);
    const TinyOptions wanted{.backend = "cpu",
                             .context = 512,
                             .batch = 512,
                             .ubatch = 128,
                             .checkpoints = 2,
                             .draft_max = 2};
    GenerateOptions options;
    options.sampling.temperature = 0;
    options.max_tokens = 12;
    options.ignore_end = true;
    options.draft_max = 2;
    const auto engine = tiny_engine(wanted, bytes);
    Chat chat(*engine, format, "You answer in riddles, and never twice the same way. Be brief!");
    for (const char* question : {"What is a river?", "And a lake, then?", "So where is the sea?"}) {
        const GenerateResult warm = chat.ask(question, options, {}, {}, {});
        if (chat.messages().size() > 3) {
            EXPECT_GE(warm.cached_tokens, 64);
        }
        const auto fresh = tiny_engine(wanted, bytes);
        Sequence sequence = fresh->new_sequence();
        GenerateRequest cold;
        cold.sequence = &sequence;
        cold.tokens = ChatFormat(*fresh, format)
                          .encode(std::span(chat.messages()).first(chat.messages().size() - 1));
        cold.options = options;
        cold.options.draft_max = 0;
        EXPECT_EQ(generate(*fresh, {&cold, 1}, {}).front().text, warm.text) << question;
    }
}

// G23: a conversation that forks into two branches, which alternate, gives each branch its own
// answer.
TEST(Hybrid, G23_BranchesThatAlternateAnswerAsColdOnes) {
    const TinyOptions wanted{
        .backend = "cpu", .context = 320, .batch = 320, .ubatch = 64, .checkpoints = 2};
    const auto engine = tiny_engine(wanted, hybrid_bytes("qwen35"));
    Sequence sequence = engine->new_sequence();
    const std::vector<int32_t> trunk = some_tokens(150, 5);
    std::vector<int32_t> branches[2] = {trunk, trunk};
    for (uint32_t turn = 0; turn < 3; ++turn)
        for (uint32_t side = 0; side < 2; ++side) {
            const std::vector<int32_t> user = some_tokens(9, 50 + 2 * turn + side);
            branches[side].insert(branches[side].end(), user.begin(), user.end());
            engine->rewind(sequence, std::min(sequence.length(), 150));
            const GenerateResult warm = answer(*engine, sequence, branches[side], 0);
            EXPECT_EQ(warm.cached_tokens, turn + side == 0 ? 0 : 128);
            const auto fresh = tiny_engine(wanted, hybrid_bytes("qwen35"));
            Sequence cold = fresh->new_sequence();
            EXPECT_EQ(warm.generated, answer(*fresh, cold, branches[side], 0).generated);
            branches[side].insert(branches[side].end(), warm.generated.begin(),
                                  warm.generated.end());
        }
}

// G17: prompts that share all but their last five tokens reuse what lies before.
TEST(Hybrid, G17_PromptsThatDifferAtTheirEndsReuseTheRest) {
    const auto engine = tiny_engine(
        {.backend = "cpu", .context = 320, .batch = 320, .ubatch = 64, .checkpoints = 4},
        hybrid_bytes("qwen35"));
    Sequence sequence = engine->new_sequence();
    std::vector<int32_t> prompt = some_tokens(258, 5);
    answer(*engine, sequence, prompt, 0);
    for (size_t i = 253; i < 258; ++i) prompt[i] = (prompt[i] + 1) % 256;
    EXPECT_EQ(engine->rewind(sequence, 253), 192);
    EXPECT_EQ(answer(*engine, sequence, prompt, 0).cached_tokens, 192);
}

}  // namespace
}  // namespace tessera
