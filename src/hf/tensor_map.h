#pragma once
// Private to src/hf: from the tensors of a checkpoint to those of a GGUF file.

#include <vector>

#include "gguf/gguf.h"
#include "hf/checkpoint.h"
#include "hf/folder_json.h"
#include "hf/shape.h"

namespace tessera {

/// Layers of multi-token prediction that the checkpoint has, whatever its configuration says:
/// quantized copies often come without.
int32_t count_draft_layers(const Checkpoint& checkpoint);

/// All tensors, layers in order, scales behind their weights. Images are left out knowingly; any
/// other tensor that has no place is a UserError(kModel), and so are experts that are missing,
/// tensors of another shape and those that find_weight() refuses.
std::vector<GgufTensor> map_tensors(const Checkpoint& checkpoint,
                                    const JsonObject& config,
                                    const ModelShape& shape);

}  // namespace tessera
