#pragma once
// SentencePiece-style BPE: no list of merges; two neighbours merge when their joined text is a
// token, the best score first.

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer_merge.h"
#include "text/tokenizer_vocab.h"

namespace tessera {

class Spm {
  public:
    /// `vocabulary` must outlive this and have scores.
    explicit Spm(const Vocabulary& vocabulary);

    /// Appends the tokens of a text without special tokens; `prefix` puts a space before it (not
    /// before an empty one). What is no token becomes byte tokens, or the unknown token where the
    /// vocabulary has none of the byte, or nothing where it has no unknown token either.
    void encode(std::string_view text, bool prefix, std::vector<int32_t>& ids) const;

  private:
    /// Where a text that merged was put together: the length of its left part.
    using Seams = std::unordered_map<std::string_view, size_t>;

    int32_t find(std::string_view text) const;
    void encode_word(std::string_view text,
                     std::vector<MergeSymbol>& symbols,
                     MergeScratch& scratch,
                     std::vector<int32_t>& ids) const;
    void append(std::string_view text, const Seams& seams, std::vector<int32_t>& ids) const;

    const Vocabulary& vocabulary_;
    std::vector<uint32_t> ranks_;  ///< by id: equal scores share a rank, the best is 0
    size_t longest_ = 0;           ///< bytes of the longest plain token
    bool has_unused_ = false;
    bool cut_at_marks_ = true;  ///< no token joins a space mark to what stands before it
};

}  // namespace tessera
