#pragma once
// The sampling loop over an Engine, for one request or for several that are decoded in lock step.
// What a request draws depends on its own tokens, options and seed alone, never on its neighbours.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "ops/ops.h"

namespace tessera {

/// The random number in [0, 1) that draws the token at absolute `position` of its sequence: the top
/// 24 bits of the first word of Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as
/// 1, 2, 3", 2011) with key `seed` and counter (position, stream). A counter instead of a state:
/// the number does not depend on how the tokens before it came to be, so that a reused prefix, a
/// batch neighbour or a restart changes nothing.
float uniform_number(uint64_t seed, uint64_t stream, int64_t position);

struct GenerateOptions {
    SampleParams sampling;
    uint64_t seed = 0;
    uint64_t stream = 0;       ///< tells requests of one seed apart
    int32_t max_tokens = -1;   ///< -1: until an end token or a full context
    int32_t repeat_last = 64;  ///< tokens that the penalties see; 0: none, -1: all
    bool ignore_end = false;   ///< go on behind end tokens
    bool render_special = false;
    std::vector<std::string> stops;  ///< end the answer and are no part of it
    /// Multi-token prediction: at most this many guesses a round, no more than the engine's
    /// draft_max; 0: off. The answer is the same with and without.
    int32_t draft_max = 0;
    float draft_p_min = 0.0f;    ///< a guess less probable than this ends the guessing
    bool draft_adaptive = true;  ///< fewer or none while they do not pay
};

enum class FinishReason : uint8_t {
    kEnd,        ///< the model drew an end token
    kStop,       ///< a stop string appeared
    kLength,     ///< max_tokens were drawn
    kContext,    ///< the context is full
    kCancelled,  ///< the request asked for it
    kNan         ///< a row of logits had a NaN in it
};

struct GenerateRequest {
    Sequence* sequence = nullptr;
    /// All tokens of the conversation. The first `sequence->length()` of them are in the sequence
    /// already; the others are its prompt. At least one token. When the sequence holds all of them,
    /// the last one is run again.
    std::vector<int32_t> tokens;
    GenerateOptions options;
    /// Receives the answer in pieces of whole characters; may be empty.
    std::function<void(std::string_view text)> on_text;
    /// Asked between passes, in the prompt too; true ends the request. May be empty.
    std::function<bool()> cancelled;
};

struct GenerateResult {
    std::string text;
    std::vector<int32_t> generated;  ///< what was drawn, the end token included
    FinishReason finish = FinishReason::kLength;
    int32_t cached_tokens = 0;  ///< were in the sequence before
    int32_t prompt_tokens = 0;  ///< all tokens of the request, cached ones included
    int32_t steps = 0;          ///< decode passes after the prompt; the first token needs none
    int32_t drafted = 0;        ///< guesses that were verified ...
    int32_t accepted = 0;       ///< ... and those that were right
    std::vector<int32_t> accepted_lengths;  ///< [i]: rounds with guesses of which i were right
    double prompt_seconds = 0;
    double generate_seconds = 0;
};

/// Runs the requests to their ends: prompts one after the other, then all answers in lock step.
/// Results are in the order of the requests. Afterwards each sequence holds its prompt and all
/// drawn tokens but the last (less after kCancelled: a multiple of passes). `progress` gets
/// ("prompt", done, total) of the request whose prompt is running. UserError(kFailure): no tokens,
/// or a prompt that does not fit into the context (with both numbers); no sequence is changed by
/// it.
std::vector<GenerateResult> generate(Engine& engine,
                                     std::span<GenerateRequest> requests,
                                     const ProgressFn& progress);

}  // namespace tessera
