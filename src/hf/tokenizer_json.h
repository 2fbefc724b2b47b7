#pragma once
// Private to src/hf: tokenizer.json and the files around it, to the keys `tokenizer.*` of GGUF.

#include <string>

#include "hf/folder_json.h"
#include "hf/shape.h"

namespace tessera {

/// Adds tokens, types, merges, the name of the pre-tokenizer, special ids and the chat template.
/// Adds nothing when the folder has no tokenizer.json: the model computes without one.
/// UserError(kModel), one line: no byte-level BPE, a pre-tokenizer that is none of the known ones,
/// more tokens than the vocabulary has, damaged files.
void add_tokenizer_keys(const std::string& folder,
                        const JsonObject& config,
                        int32_t vocab,
                        KeyList& keys);

}  // namespace tessera
