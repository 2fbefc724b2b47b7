#pragma once
// Text to token ids and back: byte-level BPE (GPT-2 family) and SentencePiece-style vocabularies.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocab.h"

namespace tessera {

class Tokenizer {
  public:
    /// UserError(kModel) prefixed by `where` (file name) for an unknown model or pre-tokenizer
    /// (naming the nearest known one), arrays of unequal length, merges of unknown tokens,
    /// malformed byte tokens, ids out of range.
    Tokenizer(VocabSource source, const std::string& where);
    ~Tokenizer();
    Tokenizer(Tokenizer&&) noexcept;

    /// `parse_special`: control tokens written in the text become their ids; user-defined tokens
    /// always do. `add_special`: BOS / EOS as the vocabulary says. Invalid UTF-8 is tokenized byte
    /// by byte.
    std::vector<int32_t> encode(std::string_view text, bool add_special, bool parse_special) const;
    /// Bytes of the tokens, concatenated. Control tokens give nothing unless `render_special`.
    std::string decode(std::span<const int32_t> ids, bool render_special) const;
    /// Bytes of one token (empty for control tokens unless `render_special`).
    std::string piece(int32_t id, bool render_special) const;

    int32_t size() const;
    const VocabSource& source() const;
    bool is_control(int32_t id) const;
    /// Whether generation ends at this token: EOS, EOT, EOM and the well-known end tokens by name.
    bool is_end(int32_t id) const;
    int32_t bos() const;  ///< -1: none
    int32_t eos() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// Holds back the bytes of a stream that may be the beginning of a stop string or of a UTF-8
/// character, so that what comes out is whole characters and never contains any of the stop
/// strings.
class TextStream {
  public:
    explicit TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {}
    /// Adds bytes; returns what may be shown now. After `stopped()` nothing more comes out.
    std::string push(std::string_view bytes);
    /// The end of generation: returns what was held back (all of it, unless stopped).
    std::string finish();
    bool stopped() const { return stopped_; }

  private:
    std::vector<std::string> stops_;
    std::string held_;
    bool stopped_ = false;
};

}  // namespace tessera
