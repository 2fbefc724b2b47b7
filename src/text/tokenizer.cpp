#include "text/tokenizer.h"

#include <limits>
#include <optional>
#include <utility>

#include "core/error.h"
#include "text/bpe.h"
#include "text/spm.h"
#include "text/tokenizer_vocab.h"

namespace tessera {
namespace {

std::vector<int32_t> tokens_of(const Vocabulary& vocabulary, bool with_control) {
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < vocabulary.size(); ++id) {
        const TokenType type = vocabulary.type(id);
        const bool control = type == TokenType::kControl || type == TokenType::kUnknown;
        if (type == TokenType::kUserDefined || (with_control && control)) ids.push_back(id);
    }
    return ids;
}

}  // namespace

struct Tokenizer::Impl {
    Impl(VocabSource source, const std::string& where)
        : vocabulary(std::move(source), where),
          user_defined(vocabulary, tokens_of(vocabulary, /*with_control=*/false)),
          all_special(vocabulary, tokens_of(vocabulary, /*with_control=*/true)) {
        if (vocabulary.source().model == "llama")
            spm.emplace(vocabulary);
        else
            bpe.emplace(vocabulary, where);
    }

    /// Tokens of a stretch without special tokens. `first`: at the start or behind a special token.
    void encode_plain(std::string_view text, bool first, std::vector<int32_t>& ids) const {
        if (bpe)
            bpe->encode(text, ids);
        else
            spm->encode(text, first && vocabulary.source().add_space_prefix, ids);
    }

    std::string_view shown(int32_t id, bool render_special) const {
        check(id >= 0 && id < vocabulary.size(), "token id within the vocabulary");
        if (!render_special && !vocabulary.is_rendered(id)) return {};
        return vocabulary.bytes(id);
    }

    Vocabulary vocabulary;
    SpecialMatcher user_defined;
    SpecialMatcher all_special;
    std::optional<Bpe> bpe;  // one of the two
    std::optional<Spm> spm;
};

Tokenizer::Tokenizer(VocabSource source, const std::string& where)
    : impl_(std::make_unique<Impl>(std::move(source), where)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text,
                                       bool add_special,
                                       bool parse_special) const {
    // Positions within a text are 32 bits, and marking spaces makes three bytes of one.
    constexpr size_t kLongest = std::numeric_limits<int32_t>::max() / 4;
    if (text.size() > kLongest)
        throw UserError(ExitCode::kFailure, "text to tokenize is longer than 512 MiB");
    const VocabSource& source = impl_->vocabulary.source();
    const SpecialMatcher& matcher = parse_special ? impl_->all_special : impl_->user_defined;
    std::vector<int32_t> ids;
    if (add_special && source.add_bos && source.bos >= 0) ids.push_back(source.bos);
    bool first = true;
    for (size_t at = 0; at < text.size();) {
        const SpecialMatcher::Match match = matcher.find(text, at);
        const size_t end = match.length > 0 ? match.begin : text.size();
        if (end > at) impl_->encode_plain(text.substr(at, end - at), first, ids);
        if (match.length > 0) ids.push_back(match.id);
        first = true;
        at = end + match.length;
    }
    if (add_special && source.add_eos && source.eos >= 0) ids.push_back(source.eos);
    return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool render_special) const {
    std::string text;
    for (const int32_t id : ids) text += impl_->shown(id, render_special);
    return text;
}

std::string Tokenizer::piece(int32_t id, bool render_special) const {
    return std::string(impl_->shown(id, render_special));
}

int32_t Tokenizer::size() const {
    return impl_->vocabulary.size();
}
const VocabSource& Tokenizer::source() const {
    return impl_->vocabulary.source();
}
bool Tokenizer::is_control(int32_t id) const {
    check(id >= 0 && id < size(), "token id within the vocabulary");
    return impl_->vocabulary.type(id) == TokenType::kControl;
}
bool Tokenizer::is_end(int32_t id) const {
    check(id >= 0 && id < size(), "token id within the vocabulary");
    return impl_->vocabulary.is_end(id);
}
int32_t Tokenizer::bos() const {
    return source().bos;
}
int32_t Tokenizer::eos() const {
    return source().eos;
}

}  // namespace tessera
