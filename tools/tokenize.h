#pragma once
// `tessera tokenize`: what llama-tokenize prints.

#include <optional>
#include <string>

namespace tessera {

struct TokenizeOptions {
    std::string model;
    std::optional<std::string> prompt;
    std::string file;
    bool from_stdin = false;
    bool ids_only = false;
    bool add_bos = true;
    bool parse_special = true;
    bool show_count = false;
};

/// Returns the exit code; failures are UserErrors.
int run_tokenize(const TokenizeOptions& options);

}  // namespace tessera
