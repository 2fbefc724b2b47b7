// Two inputs in one: arbitrary text against small vocabularies of every kind, whose tokens must
// give back the bytes of the text; and arbitrary vocabularies, which must load or be refused with a
// UserError.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "text/tokenizer.h"

namespace {

using tessera::Tokenizer;
using tessera::TokenType;
using tessera::VocabSource;

/// The GPT-2 characters of the 256 bytes, then a few merges and special tokens.
VocabSource byte_level(const char* pre) {
    VocabSource source;
    source.model = "gpt2";
    source.pre = pre;
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
        const bool printable =
            (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
        const uint32_t point = printable ? byte : next++;
        std::string token;
        if (point < 0x80) {
            token = static_cast<char>(point);
        } else {
            token = static_cast<char>(0xC0 | point >> 6);
            token += static_cast<char>(0x80 | (point & 0x3F));
        }
        source.tokens.push_back(token);
    }
    source.merges = {"a a", "aa aa", "\xC4\xA0 \xC4\xA0", "\xC4\xA0 a", "1 2", "\xC4\x8A \xC4\x8A"};
    for (const std::string& merge : source.merges) {
        std::string joined = merge;
        joined.erase(joined.find(' '), 1);
        source.tokens.push_back(joined);
    }
    source.types.assign(source.tokens.size(), TokenType::kNormal);
    for (const char* special : {"<|a|>", "<|a|>b", "<"}) {
        source.tokens.push_back(special);
        source.types.push_back(TokenType::kUserDefined);
    }
    return source;
}

VocabSource marked(const char* model) {
    VocabSource source;
    source.model = model;
    const char* digits = "0123456789ABCDEF";
    for (size_t byte = 0; byte < 256; ++byte) {
        source.tokens.push_back({'<', '0', 'x', digits[byte / 16], digits[byte % 16], '>'});
    }
    for (const char* token : {"a", "b", "\xE2\x96\x81", "ab",
                              "\xE2\x96\x81"
                              "a",
                              "aa", "\n", "\n\n"})
        source.tokens.push_back(token);
    source.merges = {"a b", "\xE2\x96\x81 a", "a a", "\n \n"};
    for (size_t i = 0; i < source.tokens.size(); ++i)
        source.scores.push_back(-static_cast<float>(i % 7));
    source.add_space_prefix = false;
    return source;
}

std::string unmark(std::string text) {
    for (size_t at; (at = text.find("\xE2\x96\x81")) != std::string::npos;)
        text.replace(at, 3, " ");
    return text;
}

void tokenize(const std::string& text) {
    static const std::vector<Tokenizer> byte_levels = [] {
        std::vector<Tokenizer> all;
        for (const char* pre : {"gpt-2", "default", "smollm", "qwen2", "qwen35", "llama-bpe",
                                "gpt-4o", "tiny_aya", "laguna"})
            all.emplace_back(byte_level(pre), "fuzz");
        return all;
    }();
    static const Tokenizer gemma(marked("gemma4"), "fuzz");
    static const Tokenizer llama(marked("llama"), "fuzz");
    for (const Tokenizer& tokenizer : byte_levels) {
        if (tokenizer.decode(tokenizer.encode(text, true, true), false) != text) std::abort();
    }
    for (const Tokenizer* tokenizer : {&gemma, &llama}) {
        if (tokenizer->decode(tokenizer->encode(text, true, true), false) != unmark(text))
            std::abort();
    }
}

/// Fields separated by 0xFF: model, pre, then tokens, each a byte for its type and its text; a
/// token of type 7 and more is a merge.
void load(std::string_view data) {
    VocabSource source;
    std::vector<std::string_view> fields;
    while (!data.empty()) {
        const size_t end = data.find('\xFF');
        fields.push_back(data.substr(0, end));
        data.remove_prefix(end == std::string_view::npos ? data.size() : end + 1);
    }
    if (fields.size() < 3) return;
    source.model = fields[0];
    source.pre = fields[1];
    for (const std::string_view field : std::vector(fields.begin() + 2, fields.end())) {
        if (field.empty()) continue;
        const auto type = static_cast<uint8_t>(field[0] & 7);
        if (type == 7) {
            source.merges.emplace_back(field.substr(1));
            continue;
        }
        source.tokens.emplace_back(field.substr(1));
        source.types.push_back(static_cast<TokenType>(type));
        source.scores.push_back(static_cast<float>(field[0]));
    }
    try {
        const Tokenizer tokenizer(source, "fuzz");
        for (const std::string& token : source.tokens)
            tokenizer.decode(tokenizer.encode(token + " ab", true, true), true);
    } catch (const tessera::UserError&) {
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) return 0;
    const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
    if (data[0] % 2 == 0)
        tokenize(text);
    else
        load(text);
    return 0;
}
