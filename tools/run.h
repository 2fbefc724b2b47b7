#pragma once
// `tessera run`: one prompt, a pipe, or an interactive chat.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace tessera {

struct RunOptions {
    EngineOptions engine;
    /// -p, escapes already processed; absent with a pipe on stdin: the pipe is the prompt.
    std::optional<std::string> prompt;
    std::string prompt_file;    ///< -f
    std::string system_prompt;  ///< -sys, or the contents of -sysf are read by run
    std::string system_prompt_file;
    int32_t n_predict = -1;  ///< -1: until an end token or a full context, -2: the latter only
    int32_t keep = 0;
    int64_t seed = -1;  ///< -1: random
    SampleParams sampling;
    int32_t repeat_last_n = 64;  ///< tokens that the penalties see; 0: none, -1: the whole context
    std::vector<std::string> stops;  ///< -r / --stop, escapes processed
    bool draft_mtp = false;          ///< --spec-type draft-mtp
    int32_t draft_max = 3;           ///< --spec-draft-n-max
    float draft_p_min = 0.0f;        ///< --spec-draft-p-min
    bool draft_adaptive = true;      ///< --spec-draft-adaptive

    enum class Conversation : uint8_t { kAuto, kOn, kOff } conversation = Conversation::kAuto;
    bool single_turn = false;
    std::string chat_template;         ///< Jinja source instead of the model's
    std::string chat_template_file;    ///< the same from a file
    std::string chat_template_kwargs;  ///< JSON object of further variables
    bool ignore_eos = false;
    bool special = false;         ///< show control tokens in the answer
    bool display_prompt = false;  ///< repeat the prompt on stdout before the answer
    bool verbose_prompt = false;  ///< list the prompt's tokens on stderr
    bool show_stats = true;       ///< the line of speeds after each answer (--no-perf: off)
    bool verbose = false;         ///< -v: what was loaded, memory plan, backend
    enum class Color : uint8_t { kAuto, kOn, kOff } color = Color::kAuto;
};

/// Returns the exit code; failures are UserErrors.
int run_run(const RunOptions& options);

}  // namespace tessera
