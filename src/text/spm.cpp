#include "text/spm.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "text/bpe.h"
#include "text/tokenizer_utf8.h"

namespace tessera {

Spm::Spm(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {
    const std::vector<float>& scores = vocabulary.source().scores;
    std::vector<int32_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    const auto score = [&](int32_t id) { return scores[static_cast<size_t>(id)]; };
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return score(a) > score(b); });
    ranks_.resize(scores.size());
    uint32_t rank = 0;
    for (size_t i = 0; i < order.size(); ++i) {
        if (i > 0 && score(order[i]) < score(order[i - 1])) ++rank;
        ranks_[static_cast<size_t>(order[i])] = rank;
    }
    for (int32_t id = 0; id < vocabulary.size(); ++id) {
        if (!vocabulary.is_plain(id)) continue;
        longest_ = std::max(longest_, vocabulary.text(id).size());
        if (vocabulary.type(id) == TokenType::kUnused) has_unused_ = true;
        if (has_inner_mark(vocabulary.text(id))) cut_at_marks_ = false;
    }
}

int32_t Spm::find(std::string_view text) const {
    if (text.size() > longest_) return -1;
    const int32_t id = vocabulary_.find(text);
    return id >= 0 && vocabulary_.is_plain(id) ? id : -1;
}

void Spm::encode(std::string_view text, bool prefix, std::vector<int32_t>& ids) const {
    if (text.empty()) return;
    const std::string marked = prefix ? mark_spaces(" ") + mark_spaces(text) : mark_spaces(text);
    std::vector<MergeSymbol> symbols;
    MergeScratch scratch;
    for (std::string_view rest = marked; !rest.empty();) {
        const size_t word = cut_at_marks_ ? marked_word(rest) : rest.size();
        encode_word(rest.substr(0, word), symbols, scratch, ids);
        rest.remove_prefix(word);
    }
}

void Spm::encode_word(std::string_view text,
                      std::vector<MergeSymbol>& symbols,
                      MergeScratch& scratch,
                      std::vector<int32_t>& ids) const {
    symbols.clear();
    for (size_t at = 0; at < text.size();) {
        const size_t bytes = std::max<size_t>(utf8::char_bytes(text.substr(at)), 1);
        symbols.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(bytes), -1, {}});
        at += bytes;
    }
    Seams seams;
    const auto pair_merge = [&](const MergeSymbol& left, const MergeSymbol& right) -> Merge {
        const std::string_view joined = text.substr(left.begin, left.length + right.length);
        const int32_t id = find(joined);
        if (id < 0) return {};
        if (has_unused_) seams[joined] = left.length;
        return {ranks_[static_cast<size_t>(id)], id};
    };
    merge_symbols(symbols, pair_merge, scratch);
    for (const MergeSymbol& symbol : symbols)
        append(text.substr(symbol.begin, symbol.length), seams, ids);
}

void Spm::append(std::string_view text, const Seams& seams, std::vector<int32_t>& ids) const {
    const int32_t id = find(text);
    if (id >= 0 && vocabulary_.type(id) != TokenType::kUnused) {
        ids.push_back(id);
        return;
    }
    // An unused token helps merging but is not put out: its parts are.
    if (const auto seam = seams.find(text); id >= 0 && seam != seams.end()) {
        append(text.substr(0, seam->second), seams, ids);
        append(text.substr(seam->second), seams, ids);
        return;
    }
    for (const char c : text) {
        const int32_t byte = vocabulary_.byte_token(static_cast<uint8_t>(c));
        if (byte >= 0) {
            ids.push_back(byte);
        } else if (vocabulary_.source().unknown >= 0) {
            ids.push_back(vocabulary_.source().unknown);
            return;
        }
    }
}

}  // namespace tessera
