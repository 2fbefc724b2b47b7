#pragma once
// Hyper-parameters that most decoder architectures share, read from GGUF keys `<arch>.<key>`.

#include <string>

#include "gguf/gguf.h"
#include "models/model.h"
#include "ops/ops.h"

namespace tessera {

struct Hparams {
    ModelInfo info;
    float norm_eps = 1e-5f;
    RopeParams rope;
    float attention_scale = 0.0f;
};

/// Typed lookup of `<arch>.<key>`: UserError(kModel) when a required key is absent or out of [low,
/// high].
int64_t required_int(const GgufFile& file, const std::string& key, int64_t low, int64_t high);

/// Reads the common keys. UserError(kModel) names the key: missing, zero, or contradicting another
/// (heads that do not divide, odd rotary size). `rope.pairs` is left to the architecture.
Hparams read_hparams(const GgufFile& file, const std::string& architecture);

}  // namespace tessera
