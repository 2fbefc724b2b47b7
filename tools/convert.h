#pragma once
// `tessera convert`: a Hugging Face folder as one GGUF file.

#include <string>

namespace tessera {

struct ConvertOptions {
    std::string input;  ///< folder (or a GGUF file, all shards of which become one)
    std::string output;
    std::string type = "auto";  ///< of matrices that are not quantized: auto, bf16, f16, f32
    int32_t threads = 0;        ///< 0: one per core
};

/// Returns the exit code; failures are UserErrors.
int run_convert(const ConvertOptions& options);

}  // namespace tessera
