#pragma once
// Byte pair encoding over bytes (GPT-2 family, after a pre-tokenizer) or over characters with
// marked spaces (Gemma 4).

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/pretokenizer.h"
#include "text/tokenizer_merge.h"
#include "text/tokenizer_vocab.h"

namespace tessera {

class Bpe {
  public:
    /// `vocabulary` must outlive this. UserError(kModel) for merges that name unknown tokens or
    /// are malformed; see PreTokenizer for its name.
    Bpe(const Vocabulary& vocabulary, const std::string& where);

    /// Appends the tokens of a text without special tokens. Malformed UTF-8 becomes the tokens of
    /// its bytes. A byte for which the vocabulary has no token gives nothing, as in the reference
    /// tokenizers (SmolLM2 lacks 21 bytes, all but a few of which text never holds).
    void encode(std::string_view text, std::vector<int32_t>& ids) const;

  private:
    class Run;  // what one call of encode() needs
    struct PairSlot {
        uint64_t pair = 0;
        Merge merge;
    };

    void load_merges(const std::string& where);
    void insert_merge(int32_t left, int32_t right, Merge merge);
    Merge find_merge(int32_t left, int32_t right) const;
    void append_byte(uint8_t byte, std::vector<int32_t>& ids) const;
    void encode_byte_level(std::string_view text, std::vector<int32_t>& ids) const;
    void encode_marked(std::string_view text, std::vector<int32_t>& ids) const;

    const Vocabulary& vocabulary_;
    std::optional<PreTokenizer> pre_;  ///< byte level only
    std::vector<PairSlot> pairs_;      ///< open addressing by (left, right)
    TextTable whole_;  ///< plain tokens by the bytes they stand for, where merges are ignored
    bool cut_at_marks_ = false;  ///< no merge joins a space mark to what stands before it
};

/// Whether `text` holds a space mark after another character.
bool has_inner_mark(std::string_view text);
/// The length of the first part of `text` that no token may cross when no token has an inner mark:
/// space marks and what follows up to the next space mark.
size_t marked_word(std::string_view text);

}  // namespace tessera
