#pragma once
// The checked vocabulary that every kind of tokenizer works on: token texts by id and back, what
// each token is, and the bytes that it stands for.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocab.h"

namespace tessera {

/// From text to id: a flat table with linear probing, because vocabularies of 250k tokens and
/// twice as many merges must load in a fraction of a second. The texts are not copied.
class TextTable {
  public:
    void reserve(size_t count);
    /// Keeps the first id of equal texts. `text` must outlive the table.
    void insert(std::string_view text, int32_t id);
    int32_t find(std::string_view text) const;  ///< -1: none

  private:
    struct Slot {
        std::string_view text;
        uint32_t hash = 0;
        int32_t id = -1;
    };
    std::vector<Slot> slots_;
};

/// How token texts encode bytes.
enum class TokenCoding {
    kByteLevel,  ///< one character a byte (the GPT-2 table)
    kSpaceMark   ///< U+2581 for a space, `<0xHH>` for bytes outside the vocabulary
};

class Vocabulary {
  public:
    /// Checks all that the contract of Tokenizer promises but the merges.
    Vocabulary(VocabSource source, const std::string& where);
    Vocabulary(const Vocabulary&) = delete;
    Vocabulary& operator=(const Vocabulary&) = delete;

    const VocabSource& source() const { return source_; }
    TokenCoding coding() const { return coding_; }
    int32_t size() const { return static_cast<int32_t>(source_.tokens.size()); }
    const std::string& text(int32_t id) const { return source_.tokens[static_cast<size_t>(id)]; }
    TokenType type(int32_t id) const { return types_[static_cast<size_t>(id)]; }
    /// Whether plain text may become this token: not the control, unknown and byte ones.
    bool is_plain(int32_t id) const;
    bool is_end(int32_t id) const { return ends_[static_cast<size_t>(id)]; }
    /// Whether decoding shows the token even when special tokens are not rendered.
    bool is_rendered(int32_t id) const { return rendered_[static_cast<size_t>(id)]; }
    /// The bytes that the token stands for; of control tokens, their text.
    std::string_view bytes(int32_t id) const;
    /// By the text as the file has it, whatever its type; -1: none.
    int32_t find(std::string_view text) const { return by_text_.find(text); }
    /// The token of a single byte; -1: none.
    int32_t byte_token(uint8_t byte) const { return byte_tokens_[byte]; }

  private:
    void check_arrays(const std::string& where) const;
    void check_ids(const std::string& where) const;
    void find_ends();
    void find_bytes(const std::string& where);

    VocabSource source_;
    TokenCoding coding_ = TokenCoding::kByteLevel;
    TextTable by_text_;
    std::vector<TokenType> types_;
    std::vector<bool> ends_;
    std::vector<bool> rendered_;
    std::string bytes_;
    std::vector<size_t> byte_ends_;  ///< of each token in `bytes_`
    std::array<int32_t, 256> byte_tokens_{};
};

/// The character that stands for each byte in byte-level vocabularies (the GPT-2 table: printable
/// Latin-1 stands for itself, the others for U+0100 onwards), in UTF-8.
const std::array<std::string, 256>& byte_level_characters();

/// Replaces every space by U+2581.
std::string mark_spaces(std::string_view text);

/// Finds tokens that stand in a text literally, before anything else is looked at: the leftmost
/// first, of several that begin there the longest.
class SpecialMatcher {
  public:
    struct Match {
        size_t begin = 0;
        size_t length = 0;  ///< 0: no more
        int32_t id = -1;
    };

    SpecialMatcher(const Vocabulary& vocabulary, std::span<const int32_t> ids);
    Match find(std::string_view text, size_t start) const;

  private:
    Match match_at(std::string_view text, size_t start) const;

    struct Entry {
        std::string_view text;
        int32_t id;
    };
    std::vector<Entry> entries_;              ///< sorted by text
    std::array<uint32_t, 257> first_byte_{};  ///< entries of a first byte: [b], [b + 1]
};

}  // namespace tessera
