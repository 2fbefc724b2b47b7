#pragma once
// The hybrid decoders qwen3.5, 3.6, 3.8: three layers of gated delta net, then one of gated
// attention; a dense (qwen35) or expert (qwen35moe) feed-forward block after each; one block for
// multi-token prediction behind them.

#include <memory>

#include "models/model.h"

namespace tessera {

/// Architectures "qwen35", "qwen35moe". UserError(kModel) as make_model.
std::unique_ptr<Model> make_qwen35(const GgufFile& file, const ModelOptions& options);

}  // namespace tessera
