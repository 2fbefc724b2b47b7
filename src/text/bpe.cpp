#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "core/error.h"
#include "text/tokenizer_utf8.h"

namespace tessera {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

// Words repeat: pieces up to this length are remembered during one call, in a table that fits the
// L2 cache; shorter texts do not repay its set-up.
constexpr size_t kCachedBytes = 24;
constexpr size_t kCacheSlots = 4096;
constexpr size_t kCacheWorthBytes = 16384;

uint64_t mix(uint64_t value) {
    value *= 0x9E3779B97F4A7C15;
    return value ^ value >> 32;
}

}  // namespace

/// Turns pieces into tokens, with scratch memory and a cache of the pieces seen in this call.
class Bpe::Run {
  public:
    Run(const Bpe& bpe, size_t text_bytes, std::vector<int32_t>& ids) : bpe_(bpe), ids_(ids) {
        if (text_bytes >= kCacheWorthBytes) cache_.resize(kCacheSlots);
    }

    void piece(std::string_view text) {
        if (cache_.empty() || text.size() > kCachedBytes) {
            merge(text);
            return;
        }
        Cached& cached = cache_[std::hash<std::string_view>{}(text) % kCacheSlots];
        if (cached.text == text) {
            for (size_t i = 0; i < cached.count; ++i) ids_.push_back(ids_[cached.begin + i]);
            return;
        }
        const size_t begin = ids_.size();
        merge(text);
        cached = {text, begin, ids_.size() - begin};
    }

  private:
    struct Cached {
        std::string_view text;
        size_t begin = 0;  ///< in the output, which only grows
        size_t count = 0;
    };

    void merge(std::string_view text) {
        const Vocabulary& vocabulary = bpe_.vocabulary_;
        if (bpe_.pre_ && bpe_.pre_->ignores_merges()) {
            if (const int32_t id = bpe_.whole_.find(text); id >= 0) {
                ids_.push_back(id);
                return;
            }
        }
        symbols_.clear();
        if (vocabulary.coding() == TokenCoding::kByteLevel)
            add_bytes(text, 0);
        else
            add_characters(text);
        merge_symbols(
            symbols_,
            [this](const MergeSymbol& left, const MergeSymbol& right) {
                return bpe_.find_merge(left.id, right.id);
            },
            scratch_);
        for (const MergeSymbol& symbol : symbols_) {
            if (symbol.id >= 0) ids_.push_back(symbol.id);
        }
    }

    void add_bytes(std::string_view text, size_t begin) {
        for (size_t i = 0; i < text.size(); ++i) {
            const int32_t id = bpe_.vocabulary_.byte_token(static_cast<uint8_t>(text[i]));
            symbols_.push_back({static_cast<uint32_t>(begin + i), 1, id, {}});
        }
    }

    void add_characters(std::string_view text) {
        const Vocabulary& vocabulary = bpe_.vocabulary_;
        for (size_t at = 0; at < text.size();) {
            const size_t bytes = utf8::char_bytes(text.substr(at));
            const int32_t id = bytes == 0 ? -1 : vocabulary.find(text.substr(at, bytes));
            if (id >= 0 && vocabulary.is_plain(id)) {
                symbols_.push_back(
                    {static_cast<uint32_t>(at), static_cast<uint32_t>(bytes), id, {}});
            } else {
                add_bytes(text.substr(at, std::max<size_t>(bytes, 1)), at);
            }
            at += std::max<size_t>(bytes, 1);
        }
    }

    const Bpe& bpe_;
    std::vector<int32_t>& ids_;
    std::vector<Cached> cache_;
    std::vector<MergeSymbol> symbols_;
    MergeScratch scratch_;
};

Bpe::Bpe(const Vocabulary& vocabulary, const std::string& where) : vocabulary_(vocabulary) {
    if (vocabulary.coding() == TokenCoding::kByteLevel)
        pre_.emplace(vocabulary.source().pre, where);
    load_merges(where);
    if (!pre_ || !pre_->ignores_merges()) return;
    whole_.reserve(static_cast<size_t>(vocabulary.size()));
    for (int32_t id = 0; id < vocabulary.size(); ++id) {
        const TokenType type = vocabulary.type(id);
        if (type == TokenType::kNormal || type == TokenType::kUnused)
            whole_.insert(vocabulary.bytes(id), id);
    }
}

void Bpe::load_merges(const std::string& where) {
    const std::vector<std::string>& merges = vocabulary_.source().merges;
    pairs_.resize(std::bit_ceil(merges.size() * 2 + 2));
    cut_at_marks_ = true;
    std::string joined;
    for (size_t rank = 0; rank < merges.size(); ++rank) {
        const std::string_view text = merges[rank];
        const auto fail = [&](const std::string& what) {
            throw UserError(ExitCode::kModel, where + ": tokenizer.ggml.merges[" +
                                                  std::to_string(rank) + "] " + utf8::quoted(text) +
                                                  " " + what);
        };
        // The left side may itself be a space, so the search starts behind the first byte.
        const size_t space = text.find(' ', 1);
        if (space == std::string_view::npos || space + 1 == text.size())
            fail("is not two tokens with a space between them");
        const std::string_view left = text.substr(0, space);
        const std::string_view right = text.substr(space + 1);
        joined.assign(left).append(right);
        const auto known = [&](std::string_view token) {
            const int32_t id = vocabulary_.find(token);
            if (id < 0) fail("names " + utf8::quoted(token) + ", which is not a token");
            return id;
        };
        const int32_t left_id = known(left);
        const int32_t right_id = known(right);
        const int32_t id = known(joined);
        // Plain text must not become a control token, not even by merging.
        if (!vocabulary_.is_plain(id)) continue;
        insert_merge(left_id, right_id, {static_cast<uint32_t>(rank), id});
        if (has_inner_mark(joined)) cut_at_marks_ = false;
    }
}

void Bpe::insert_merge(int32_t left, int32_t right, Merge merge) {
    const uint64_t pair = static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
    for (size_t at = mix(pair);; ++at) {
        PairSlot& slot = pairs_[at & (pairs_.size() - 1)];
        if (slot.merge.rank == kNoMerge) {
            slot = {pair, merge};
            return;
        }
        if (slot.pair == pair) return;
    }
}

Merge Bpe::find_merge(int32_t left, int32_t right) const {
    if (left < 0 || right < 0) return {};
    const uint64_t pair = static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
    for (size_t at = mix(pair);; ++at) {
        const PairSlot& slot = pairs_[at & (pairs_.size() - 1)];
        if (slot.merge.rank == kNoMerge || slot.pair == pair) return slot.merge;
    }
}

void Bpe::append_byte(uint8_t byte, std::vector<int32_t>& ids) const {
    if (const int32_t id = vocabulary_.byte_token(byte); id >= 0) ids.push_back(id);
}

void Bpe::encode(std::string_view text, std::vector<int32_t>& ids) const {
    if (pre_)
        encode_byte_level(text, ids);
    else
        encode_marked(text, ids);
}

void Bpe::encode_byte_level(std::string_view text, std::vector<int32_t>& ids) const {
    Run run(*this, text.size(), ids);
    std::vector<std::string_view> pieces;
    for (size_t at = 0; at < text.size();) {
        const size_t valid = utf8::valid_prefix(text.substr(at));
        pieces.clear();
        pre_->split(text.substr(at, valid), pieces);
        for (const std::string_view piece : pieces) run.piece(piece);
        at += valid;
        if (at < text.size()) append_byte(static_cast<uint8_t>(text[at++]), ids);
    }
}

void Bpe::encode_marked(std::string_view text, std::vector<int32_t>& ids) const {
    const std::string marked = mark_spaces(text);
    Run run(*this, marked.size(), ids);
    std::string_view rest = marked;
    while (!rest.empty()) {
        // Newlines merge with newlines only, and a run of them that is a token is that token.
        const bool newlines = rest[0] == '\n';
        const size_t end = newlines ? rest.find_first_not_of('\n') : rest.find('\n');
        std::string_view line = rest.substr(0, end);
        rest.remove_prefix(line.size());
        if (newlines) {
            const int32_t id = vocabulary_.find(line);
            if (id >= 0 && vocabulary_.is_plain(id)) {
                ids.push_back(id);
                continue;
            }
        }
        while (!line.empty()) {
            const size_t word = cut_at_marks_ ? marked_word(line) : line.size();
            run.piece(line.substr(0, word));
            line.remove_prefix(word);
        }
    }
}

bool has_inner_mark(std::string_view text) {
    while (text.starts_with(kSpaceMark)) text.remove_prefix(kSpaceMark.size());
    return text.find(kSpaceMark) != std::string_view::npos;
}

size_t marked_word(std::string_view text) {
    size_t at = 0;
    while (text.substr(at).starts_with(kSpaceMark)) at += kSpaceMark.size();
    return std::min(text.find(kSpaceMark, at), text.size());
}

}  // namespace tessera
