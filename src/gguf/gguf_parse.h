#pragma once
// Private to src/gguf: the bytes of one GGUF file to checked contents.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "gguf/gguf.h"

namespace tessera {

/// One file (a whole model or one shard). Everything is copied but the tensor data.
struct GgufContents {
    uint32_t version = 0;
    uint32_t alignment = 0;
    std::vector<GgufKeyValue> key_values;
    std::vector<GgufTensor> tensors;
};

/// UserError(kModel) "<file>: ..." for everything that is not a sound GGUF file: sizes are compared
/// with the bytes that are there before anything is allocated, all arithmetic is overflow-safe, and
/// every tensor lies aligned, inside the file and apart from the others.
GgufContents parse_gguf(std::span<const std::byte> bytes, std::string_view file);

/// "u8", "f32", "string", ...
std::string_view gguf_type_name(GgufType type);

}  // namespace tessera
