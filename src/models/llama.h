#pragma once
// The llama family of dense decoders: llama (SmolLM2, Llama 3), qwen2 (biases on q, k, v), qwen3
// (per-head norms).

#include <memory>

#include "models/model.h"

namespace tessera {

/// Architectures "llama", "qwen2", "qwen3". UserError(kModel) as make_model.
std::unique_ptr<Model> make_llama(const GgufFile& file);

}  // namespace tessera
