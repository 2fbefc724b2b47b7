#pragma once
// What the tests of the CUDA backend share. They need a card and skip themselves where there is
// none, so that the suite passes anywhere; scripts/gpu-check.sh runs them where there is one and
// counts a skipped test as a failure.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/generate.h"
#include "engine/hybrid_model.h"
#include "engine/tiny_engine.h"

namespace tessera {

inline constexpr const char* kCard = "cuda";

/// Why nothing can run here, or "".
inline const std::string& no_card() {
    static const std::string reason = [] {
        try {
            make_ops({.name = kCard, .isa = {}});
        } catch (const UserError& error) {
            if (error.code() != ExitCode::kDevice) throw;
            return std::string(error.what());
        }
        return std::string();
    }();
    return reason;
}

class CardTest : public testing::Test {
  protected:
    void SetUp() override {
        if (!no_card().empty()) GTEST_SKIP() << no_card();
    }
};

template <class Parameter>
class CardTestWith : public CardTest, public testing::WithParamInterface<Parameter> {};

/// A random model of the tiny shape.
inline const std::vector<std::byte>& model_of(std::string_view architecture, DType type) {
    static std::map<std::pair<std::string, DType>, std::vector<std::byte>> models;
    std::vector<std::byte>& bytes = models[{std::string(architecture), type}];
    if (bytes.empty()) {
        SynthSpec spec;
        spec.architecture = architecture;
        spec.type = type;
        bytes = synth_gguf(spec, {});
    }
    return bytes;
}

/// The same with heads of 128 in its gated delta nets.
inline const std::vector<std::byte>& long_headed_model_of(const std::string& architecture,
                                                          DType type) {
    static std::map<std::pair<std::string, DType>, std::vector<std::byte>> models;
    std::vector<std::byte>& bytes = models[{architecture, type}];
    if (bytes.empty()) bytes = long_headed_hybrid(architecture, type);
    return bytes;
}

/// Options of an engine on the card for `sequences` short conversations.
inline EngineOptions card_options(int32_t sequences = 1) {
    EngineOptions options;
    options.backend.name = kCard;
    options.backend.threads = 1;
    options.context = 512;
    options.batch = 4096;
    options.ubatch = 128;
    options.sequences = sequences;
    return options;
}

/// `bytes` must outlive the engine.
inline std::unique_ptr<Engine> card_engine(const EngineOptions& options,
                                           const std::vector<std::byte>& bytes) {
    return std::make_unique<Engine>(options, GgufFile::parse(bytes, "tiny.gguf"));
}

/// A greedy answer of a fixed length.
inline GenerateRequest greedy_request(Sequence& sequence,
                                      std::vector<int32_t> tokens,
                                      int32_t count) {
    GenerateRequest request;
    request.sequence = &sequence;
    request.tokens = std::move(tokens);
    request.options.max_tokens = count;
    request.options.ignore_end = true;
    request.options.sampling.temperature = 0;
    return request;
}

inline GenerateResult run_one(Engine& engine, GenerateRequest& request) {
    return std::move(generate(engine, {&request, 1}, {}).front());
}

/// What an answer left behind: its tokens and a hash over the memory.
struct Answer {
    std::vector<int32_t> tokens;
    uint64_t memory = 0;
    bool operator==(const Answer&) const = default;
};

inline void PrintTo(const Answer& answer, std::ostream* out) {
    *out << "memory " << answer.memory << ", tokens " << testing::PrintToString(answer.tokens);
}

/// The greedy answer to a prompt on a sequence of its own.
inline Answer answer_alone(Engine& engine, const std::vector<int32_t>& prompt, int32_t count) {
    Sequence sequence = engine.new_sequence();
    GenerateRequest request = greedy_request(sequence, prompt, count);
    std::vector<int32_t> tokens = run_one(engine, request).generated;
    return {std::move(tokens), engine.memory_hash(sequence)};
}

inline void feed(Engine& engine,
                 Sequence& sequence,
                 std::span<const int32_t> tokens,
                 bool generated) {
    const SequenceInput input{.sequence = &sequence, .tokens = tokens, .generated = generated};
    engine.decode({&input, 1});
}

/// Whether a count is that of prompts whose delta rule takes plain 16-bit operands, not split ones.
inline bool is_plain_delta_rule(const OpCount& count) {
    return count.name == "gated_delta_rule" && count.operands == Operands::k16Bits &&
           count.fallback.empty() && count.calls > 0;
}

/// The logits on the host, to keep.
inline std::vector<float> values_of(Engine& engine, const Tensor& logits) {
    const Tensor host = engine.on_host(logits);
    return {host.as<float>(), host.as<float>() + host.elements()};
}

/// That answers of a model are the same twice and for any size of a pass, and that calls which
/// `ran(OpCount)` knows took part.
template <class Ran>
void expect_same_answers_for_any_ubatch(const BackendOptions& backend,
                                        const std::vector<std::byte>& bytes,
                                        const Ran& ran) {
    EngineOptions options = card_options();
    options.backend = backend;
    options.ubatch = 512;
    const std::vector<int32_t> prompt = some_tokens(300, 3);
    const auto whole = card_engine(options, bytes);
    const Answer expected = answer_alone(*whole, prompt, 20);
    EXPECT_EQ(answer_alone(*whole, prompt, 20), expected) << "run twice";
    EXPECT_TRUE(std::ranges::any_of(whole->ops().op_counts(), [&](const OpCount& count) {
        return ran(count) && count.calls > 0;
    }));
    for (const int32_t ubatch : {64, 192}) {
        options.ubatch = ubatch;
        EXPECT_EQ(answer_alone(*card_engine(options, bytes), prompt, 20), expected) << ubatch;
    }
}

}  // namespace tessera
