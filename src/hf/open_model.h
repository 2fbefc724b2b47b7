#pragma once
// Models as Hugging Face keeps them: a folder with config.json, safetensors and tokenizer.json is
// presented as the GGUF file that a converter would have written, so that nothing above knows the
// difference. Nothing is converted on disk, and tensors that need work are made when they are read.

#include <string>

#include "gguf/gguf.h"

namespace tessera {

/// Opens a GGUF file or a folder. UserError(kModel), one line, for anything in it that is damaged,
/// missing or not supported.
GgufFile open_model(const std::string& path);

}  // namespace tessera
