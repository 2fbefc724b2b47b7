#include "text/tokenizer_vocab.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <utility>

#include "core/error.h"
#include "core/nearest.h"
#include "text/tokenizer_utf8.h"

namespace tessera {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

// Tokens that end a turn whatever the metadata says: many files name only one of theirs as EOS.
constexpr std::string_view kEndNames[] = {"<|eot_id|>",
                                          "<|im_end|>",
                                          "<|end|>",
                                          "<|return|>",
                                          "<|call|>",
                                          "<|flush|>",
                                          "<|calls|>",
                                          "<|eom_id|>",
                                          "<end_of_turn>",
                                          "<|endoftext|>",
                                          "</s>",
                                          "<EOT>",
                                          "_<EOT>",
                                          "[EOT]",
                                          "[EOS]",
                                          "<|end_of_text|>",
                                          "<eos>",
                                          "<turn|>",
                                          "[e~[",
                                          "<|tool_response>",
                                          "<end_of_utterance>",
                                          "<\xEF\xBD\x9C"
                                          "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>"};
// Ends only as control tokens: code models write them between files.
constexpr std::string_view kControlEndNames[] = {"<|fim_pad|>",  "<fim-pad>",     "<fim_pad>",
                                                 "<|fim_repo|>", "<|repo_name|>", "<fim-repo>",
                                                 "<reponame>",   "<|file_sep|>"};
// Channel marks of the harmony format: the reader of the output needs to see them.
constexpr std::string_view kHarmonyNames[] = {"<|channel|>", "<|message|>", "<|start|>",
                                              "<|constrain|>"};

[[noreturn]] void fail(const std::string& where, const std::string& what) {
    throw UserError(ExitCode::kModel, where + ": " + what);
}

std::string index(size_t i) {
    return "[" + std::to_string(i) + "]";
}

int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

/// The value of a text `<0xHH>`, -1 for any other.
int byte_of(std::string_view text) {
    if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
    const int high = hex_digit(text[3]);
    const int low = hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/// From the code point of a byte-level character to its byte; -1: none.
struct ByteLevelCodePoints {
    std::array<int16_t, 0x144> bytes{};
    ByteLevelCodePoints() {
        bytes.fill(-1);
        for (size_t byte = 0; byte < 256; ++byte) {
            const std::string& text = byte_level_characters()[byte];
            bytes[code_point(text)] = static_cast<int16_t>(byte);
        }
    }
    static size_t code_point(std::string_view text) {
        const auto first = static_cast<uint8_t>(text[0]);
        if (text.size() == 1) return first;
        return static_cast<size_t>(first & 0x1F) << 6 | (static_cast<uint8_t>(text[1]) & 0x3F);
    }
    /// Appends the bytes of `text`; false (and nothing) when a character is none of the table.
    bool append(std::string_view text, std::string& out) const {
        const size_t before = out.size();
        for (size_t at = 0; at < text.size();) {
            const size_t length = utf8::char_bytes(text.substr(at));
            const size_t point =
                length == 1 || length == 2 ? code_point(text.substr(at, length)) : bytes.size();
            if (point >= bytes.size() || bytes[point] < 0) {
                out.resize(before);
                return false;
            }
            out += static_cast<char>(bytes[point]);
            at += length;
        }
        return true;
    }
};

void append_unmarked(std::string_view text, std::string& out) {
    for (size_t at = 0; at < text.size();) {
        const size_t mark = std::min(text.find(kSpaceMark, at), text.size());
        out += text.substr(at, mark - at);
        if (mark < text.size()) out += ' ';
        at = mark + kSpaceMark.size();
    }
}

}  // namespace

void TextTable::reserve(size_t count) {
    slots_.assign(std::bit_ceil(count * 2 + 2), Slot{});
}

void TextTable::insert(std::string_view text, int32_t id) {
    const auto hash = static_cast<uint32_t>(std::hash<std::string_view>{}(text));
    for (size_t at = hash;; ++at) {
        Slot& slot = slots_[at & (slots_.size() - 1)];
        if (slot.id < 0) {
            slot = {text, hash, id};
            return;
        }
        if (slot.hash == hash && slot.text == text) return;
    }
}

int32_t TextTable::find(std::string_view text) const {
    if (slots_.empty()) return -1;
    const auto hash = static_cast<uint32_t>(std::hash<std::string_view>{}(text));
    for (size_t at = hash;; ++at) {
        const Slot& slot = slots_[at & (slots_.size() - 1)];
        if (slot.id < 0 || (slot.hash == hash && slot.text == text)) return slot.id;
    }
}

Vocabulary::Vocabulary(VocabSource source, const std::string& where) : source_(std::move(source)) {
    constexpr std::string_view kModels[] = {"gpt2", "llama", "gemma4"};
    if (std::find(std::begin(kModels), std::end(kModels), source_.model) == std::end(kModels)) {
        const std::string nearest(nearest_name(source_.model, kModels));
        fail(where, "unknown tokenizer " + utf8::quoted(source_.model) + " (tokenizer.ggml.model)" +
                        (nearest.empty() ? "" : "; the nearest known one is '" + nearest + "'"));
    }
    coding_ = source_.model == "gpt2" ? TokenCoding::kByteLevel : TokenCoding::kSpaceMark;
    check_arrays(where);
    check_ids(where);
    types_ = source_.types;
    if (types_.empty()) types_.resize(source_.tokens.size(), TokenType::kNormal);
    by_text_.reserve(source_.tokens.size());
    for (size_t i = 0; i < source_.tokens.size(); ++i) {
        if (!source_.tokens[i].empty()) by_text_.insert(source_.tokens[i], static_cast<int32_t>(i));
    }
    find_ends();
    find_bytes(where);
}

void Vocabulary::check_arrays(const std::string& where) const {
    const size_t count = source_.tokens.size();
    if (count == 0) fail(where, "tokenizer.ggml.tokens is empty");
    if (count > INT32_MAX) fail(where, "tokenizer.ggml.tokens has more than 2^31 - 1 entries");
    const auto check_length = [&](const char* key, size_t length) {
        if (length != count) {
            fail(where, std::string(key) + " has " + std::to_string(length) +
                            " entries, but there are " + std::to_string(count) + " tokens");
        }
    };
    if (!source_.types.empty()) check_length("tokenizer.ggml.token_type", source_.types.size());
    if (!source_.scores.empty() || source_.model == "llama")
        check_length("tokenizer.ggml.scores", source_.scores.size());
    for (size_t i = 0; i < source_.types.size(); ++i) {
        if (source_.types[i] < TokenType::kNormal || source_.types[i] > TokenType::kByte) {
            fail(where, "tokenizer.ggml.token_type" + index(i) + " is " +
                            std::to_string(static_cast<int>(source_.types[i])) + ", not 1 to 6");
        }
    }
    for (size_t i = 0; i < source_.scores.size(); ++i) {
        if (std::isnan(source_.scores[i]))
            fail(where, "tokenizer.ggml.scores" + index(i) + " is not a number");
    }
}

void Vocabulary::check_ids(const std::string& where) const {
    const std::pair<const char*, int32_t> ids[] = {
        {"bos", source_.bos}, {"eos", source_.eos},         {"eot", source_.eot},
        {"eom", source_.eom}, {"unknown", source_.unknown}, {"padding", source_.padding}};
    for (const auto& [name, id] : ids) {
        if (id < -1 || id >= size()) {
            fail(where, "tokenizer.ggml." + std::string(name) + "_token_id is " +
                            std::to_string(id) + ", but there are " + std::to_string(size()) +
                            " tokens");
        }
    }
}

void Vocabulary::find_ends() {
    ends_.assign(source_.tokens.size(), false);
    rendered_.assign(source_.tokens.size(), false);
    const auto has = [&](std::string_view name) { return find(name) >= 0; };
    const bool harmony = (has("<|return|>") && has("<|call|>")) ||
                         (has("<|flush|>") && (has("<|call|>") || has("<|calls|>")));
    const bool plain_strike_tag = has("<|tool_response>") || has("<|plamo:eos|>");
    for (const std::string_view name : kEndNames) {
        const int32_t id = find(name);
        if (id < 0 || (name == "<|end|>" && harmony) || (name == "</s>" && plain_strike_tag))
            continue;
        ends_[static_cast<size_t>(id)] = true;
        // Some files give these the wrong type; text of a user must never end a turn.
        types_[static_cast<size_t>(id)] = TokenType::kControl;
    }
    for (const std::string_view name : kControlEndNames) {
        const int32_t id = find(name);
        if (id >= 0 && type(id) == TokenType::kControl) ends_[static_cast<size_t>(id)] = true;
    }
    for (const int32_t id : {source_.eos, source_.eot, source_.eom}) {
        if (id >= 0) ends_[static_cast<size_t>(id)] = true;
    }
    for (int32_t id = 0; id < size(); ++id) {
        rendered_[static_cast<size_t>(id)] =
            type(id) != TokenType::kControl && type(id) != TokenType::kUnknown;
    }
    for (const std::string_view name : kHarmonyNames) {
        if (const int32_t id = find(name); id >= 0) rendered_[static_cast<size_t>(id)] = true;
    }
    const int32_t end = find("<|end|>");
    if (end >= 0 && harmony) rendered_[static_cast<size_t>(end)] = true;
}

void Vocabulary::find_bytes(const std::string& where) {
    const ByteLevelCodePoints table;
    byte_tokens_.fill(-1);
    byte_ends_.reserve(source_.tokens.size());
    for (int32_t id = 0; id < size(); ++id) {
        const std::string& token = text(id);
        const TokenType kind = type(id);
        // Without types, the text is all there is to tell a byte token.
        const int byte = kind == TokenType::kByte ||
                                 (source_.types.empty() && coding_ == TokenCoding::kSpaceMark)
                             ? byte_of(token)
                             : -1;
        if (kind == TokenType::kByte && byte < 0) {
            fail(where, "tokenizer.ggml.tokens" + index(static_cast<size_t>(id)) + " is " +
                            utf8::quoted(token) + ", but byte tokens are written <0x00> to <0xFF>");
        }
        if (byte >= 0) {
            bytes_ += static_cast<char>(byte);
            int32_t& known = byte_tokens_[static_cast<size_t>(byte)];
            if (known < 0) known = id;
            types_[static_cast<size_t>(id)] = TokenType::kByte;
        } else if (kind != TokenType::kNormal && kind != TokenType::kUnused) {
            bytes_ += token;
        } else if (coding_ == TokenCoding::kSpaceMark) {
            append_unmarked(token, bytes_);
        } else if (!table.append(token, bytes_)) {
            bytes_ += token;
        }
        byte_ends_.push_back(bytes_.size());
    }
    for (size_t byte = 0; byte < 256; ++byte) {
        if (coding_ != TokenCoding::kByteLevel) break;
        const int32_t id = find(byte_level_characters()[byte]);
        if (id >= 0 && is_plain(id)) byte_tokens_[byte] = id;
    }
}

bool Vocabulary::is_plain(int32_t id) const {
    const TokenType kind = type(id);
    return kind == TokenType::kNormal || kind == TokenType::kUserDefined ||
           kind == TokenType::kUnused;
}

std::string_view Vocabulary::bytes(int32_t id) const {
    const auto i = static_cast<size_t>(id);
    const size_t begin = i == 0 ? 0 : byte_ends_[i - 1];
    return std::string_view(bytes_).substr(begin, byte_ends_[i] - begin);
}

const std::array<std::string, 256>& byte_level_characters() {
    static const std::array<std::string, 256> characters = [] {
        std::array<std::string, 256> table;
        uint32_t next = 0x100;
        for (uint32_t byte = 0; byte < 256; ++byte) {
            const bool printable =
                (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
            const uint32_t point = printable ? byte : next++;
            if (point < 0x80) {
                table[byte] = static_cast<char>(point);
            } else {
                table[byte] = {static_cast<char>(0xC0 | point >> 6),
                               static_cast<char>(0x80 | (point & 0x3F))};
            }
        }
        return table;
    }();
    return characters;
}

std::string mark_spaces(std::string_view text) {
    std::string marked;
    marked.reserve(text.size() + text.size() / 2);
    for (const char c : text) {
        if (c == ' ')
            marked += kSpaceMark;
        else
            marked += c;
    }
    return marked;
}

SpecialMatcher::SpecialMatcher(const Vocabulary& vocabulary, std::span<const int32_t> ids) {
    for (const int32_t id : ids) {
        if (!vocabulary.text(id).empty()) entries_.push_back({vocabulary.text(id), id});
    }
    std::stable_sort(entries_.begin(), entries_.end(),
                     [](const Entry& a, const Entry& b) { return a.text < b.text; });
    for (const Entry& entry : entries_) ++first_byte_[static_cast<uint8_t>(entry.text[0]) + 1U];
    for (size_t byte = 1; byte < first_byte_.size(); ++byte)
        first_byte_[byte] += first_byte_[byte - 1];
}

SpecialMatcher::Match SpecialMatcher::find(std::string_view text, size_t start) const {
    if (entries_.empty()) return {};
    for (size_t at = start; at < text.size(); ++at) {
        const auto byte = static_cast<uint8_t>(text[at]);
        if (first_byte_[byte] == first_byte_[byte + 1U]) continue;
        if (const Match match = match_at(text, at); match.length > 0) return match;
    }
    return {};
}

SpecialMatcher::Match SpecialMatcher::match_at(std::string_view text, size_t start) const {
    const auto byte = static_cast<uint8_t>(text[start]);
    auto low = entries_.begin() + first_byte_[byte];
    auto high = entries_.begin() + first_byte_[byte + 1U];
    Match longest;
    // [low, high) are the entries that agree with the text in their first `depth` bytes; of
    // those, one that is no longer than that sorts first.
    for (size_t depth = 1; low != high; ++depth) {
        if (low->text.size() == depth) longest = {start, depth, low->id};
        while (low != high && low->text.size() == depth) ++low;
        if (start + depth >= text.size()) break;
        const char next = text[start + depth];
        const auto at = [depth](const Entry& entry) {
            return static_cast<uint8_t>(entry.text[depth]);
        };
        low = std::partition_point(
            low, high, [&](const Entry& entry) { return at(entry) < static_cast<uint8_t>(next); });
        high = std::partition_point(
            low, high, [&](const Entry& entry) { return at(entry) == static_cast<uint8_t>(next); });
    }
    return longest;
}

}  // namespace tessera
