#pragma once
// `tessera perplexity`: llama-perplexity's method and flags.

#include <cstdint>
#include <string>

#include "engine/engine.h"

namespace tessera {

struct PerplexityOptions {
    /// engine.context is the length of a chunk (-c, 512 unless given), engine.batch the tokens of
    /// one decode() (-b): batch / context chunks run side by side.
    EngineOptions engine;
    std::string file;            ///< -f: the text
    std::string prompt;          ///< -p: the text itself
    int32_t chunks = -1;         ///< -1: all
    int32_t stride = 0;          ///< --ppl-stride; 0: chunks do not overlap
    int32_t output_type = 0;     ///< --ppl-output-type: 1 prints one line per chunk
    std::string logits_file;     ///< --kl-divergence-base / --save-all-logits
    bool kl_divergence = false;  ///< compare with logits_file instead of writing it
    bool progress = true;
    bool verbose = false;
};

/// Returns the exit code; failures are UserErrors.
int run_perplexity(const PerplexityOptions& options);

}  // namespace tessera
