#pragma once
// The vocabulary of a GGUF file (keys `tokenizer.ggml.*` and `tokenizer.chat_template`).

#include "gguf/gguf.h"
#include "text/vocab.h"

namespace tessera {

/// UserError(kModel) that names file and key for a missing model or token list, arrays of another
/// element type or length, and token types outside 1 to 6. A special id that the file does not
/// give stays -1: there are no defaults. Without `add_bos_token`, BOS is added by "llama", by
/// "gemma4" (which always does) and by "gpt2" with the pre-tokenizer "llama-bpe" or one of its
/// aliases that says so.
VocabSource vocab_from_gguf(const GgufFile& file);

}  // namespace tessera
