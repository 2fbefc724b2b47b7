#pragma once
// Splits text into the pieces that BPE may not merge across. A pre-tokenizer is a list of regular
// expressions: each splits every piece of the one before into its matches and the gaps between
// them (Hugging Face's "Split, isolated").

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

class PreTokenizer {
  public:
    /// `name` as in `tokenizer.ggml.pre`; empty is "default". UserError(kModel) that starts with
    /// `where` and names the nearest known one when the name is unknown.
    PreTokenizer(std::string_view name, const std::string& where);
    ~PreTokenizer();
    PreTokenizer(PreTokenizer&&) noexcept;

    /// Whether a piece that is a token as a whole is taken as that token, whatever the merges say.
    bool ignores_merges() const;
    /// Appends to `pieces` views of `text` that cover it in order. `text` must be well-formed
    /// UTF-8. Classes are those of PCRE2's Unicode version (10.42: Unicode 14); a letter that is
    /// younger than that counts as a symbol.
    void split(std::string_view text, std::vector<std::string_view>& pieces) const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
