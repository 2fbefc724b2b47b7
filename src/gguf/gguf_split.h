#pragma once
// Private to src/gguf: models that are split into several files.

#include <cstdint>
#include <string>
#include <vector>

#include "gguf/gguf_parse.h"
#include "gguf/mapped_file.h"

namespace tessera {

/// Metadata of the first shard, tensors of all in shard order.
struct GgufShards {
    GgufContents contents;
    std::vector<MappedFile> mappings;
};

/// Opens all `count` shards of the model of which `path` is one. UserError(kModel) when the name of
/// `path` does not end in -<number>-of-<count>.gguf, a sister is missing, does not belong there, or
/// repeats a tensor.
GgufShards open_gguf_shards(const std::string& path, int64_t count);

}  // namespace tessera
