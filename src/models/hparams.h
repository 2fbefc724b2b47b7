#pragma once
// Hyper-parameters that most decoder architectures share, read from GGUF keys `<arch>.<key>`.

#include <string>

#include "gguf/gguf.h"
#include "models/blocks/moe.h"
#include "models/model.h"
#include "ops/ops.h"

namespace tessera {

/// Of models with experts; none: shape.experts is 0.
struct ExpertHparams {
    MoeShape shape;
    int32_t ffn = 0;         ///< rows of one expert's gate
    int32_t shared_ffn = 0;  ///< rows of the shared expert's gate, 0: no shared expert
};

struct Hparams {
    ModelInfo info;  ///< `layers` without blocks for multi-token prediction
    ExpertHparams experts;
    int32_t draft_blocks = 0;  ///< blocks for multi-token prediction behind the layers
    float norm_eps = 1e-5f;
    RopeParams rope;
    float attention_scale = 0.0f;
};

/// Typed lookup of `<arch>.<key>`: UserError(kModel) when a required key is absent or out of [low,
/// high].
int64_t required_int(const GgufFile& file, const std::string& key, int64_t low, int64_t high);

/// Reads the common keys. UserError(kModel) names the key: missing, zero, or contradicting another
/// (heads that do not divide, odd rotary size, more choices than experts). `rope.pairs` is left to
/// the architecture.
Hparams read_hparams(const GgufFile& file, const std::string& architecture);

/// UserError(kModel) when a draft block is wanted and the file has none, or more than the one that
/// can be used.
void refuse_draft_without_block(const GgufFile& file,
                                const Hparams& hparams,
                                const ModelOptions& options);

}  // namespace tessera
