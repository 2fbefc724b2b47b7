#pragma once
// What a tokenizer is made of, free of any file format: the engine fills it from GGUF or Hugging
// Face files.

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// Types of `tokenizer.ggml.token_type`.
enum class TokenType : uint8_t {
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUserDefined = 4,
    kUnused = 5,
    kByte = 6
};

struct VocabSource {
    std::string model;  ///< "gpt2" (byte-level BPE), "llama" (SentencePiece style), "gemma4" (BPE
                        ///< on U+2581)
    std::string pre;    ///< pre-tokenizer name as in `tokenizer.ggml.pre`: "smollm", "qwen2",
                        ///< "qwen35", "gpt-4o", "llama-bpe", ...
    std::vector<std::string> tokens;
    std::vector<TokenType> types;     ///< empty (all normal) or one a token
    std::vector<float> scores;        ///< SentencePiece style only
    std::vector<std::string> merges;  ///< BPE: "left right"
    int32_t bos = -1, eos = -1, eot = -1, eom = -1, unknown = -1, padding = -1;  ///< -1: none
    bool add_bos = false;
    bool add_eos = false;
    bool add_space_prefix = true;  ///< SentencePiece style only
    std::string chat_template;     ///< Jinja source, empty: none
};

}  // namespace tessera
