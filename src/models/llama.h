#pragma once
// The llama family of decoders: llama (SmolLM2, Llama 3), qwen2 (biases on q, k, v), qwen3
// (per-head norms), qwen3moe (the same with experts).

#include <memory>

#include "models/model.h"

namespace tessera {

/// Architectures "llama", "qwen2", "qwen3", "qwen3moe". UserError(kModel) as make_model.
std::unique_ptr<Model> make_llama(const GgufFile& file, const ModelOptions& options);

}  // namespace tessera
