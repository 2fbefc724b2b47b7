#include "text/tokenizer_utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace tessera::utf8 {
namespace {

/// What the first byte says: the length of the character and the range of its second byte. The
/// range is what excludes overlong forms, surrogates and code points above U+10FFFF.
struct Lead {
    size_t bytes;
    uint8_t second_low;
    uint8_t second_high;
};

Lead lead_of(uint8_t byte) {
    if (byte < 0x80) return {1, 0, 0};
    if (byte < 0xC2) return {0, 0, 0};
    if (byte < 0xE0) return {2, 0x80, 0xBF};
    if (byte == 0xE0) return {3, 0xA0, 0xBF};
    if (byte == 0xED) return {3, 0x80, 0x9F};
    if (byte < 0xF0) return {3, 0x80, 0xBF};
    if (byte == 0xF0) return {4, 0x90, 0xBF};
    if (byte < 0xF4) return {4, 0x80, 0xBF};
    if (byte == 0xF4) return {4, 0x80, 0x8F};
    return {0, 0, 0};
}

/// Whether the bytes after the first, as far as they are there, fit `lead`.
bool continues(std::string_view text, const Lead& lead) {
    const size_t present = std::min(text.size(), lead.bytes);
    for (size_t i = 1; i < present; ++i) {
        const auto byte = static_cast<uint8_t>(text[i]);
        const uint8_t low = i == 1 ? lead.second_low : uint8_t{0x80};
        const uint8_t high = i == 1 ? lead.second_high : uint8_t{0xBF};
        if (byte < low || byte > high) return false;
    }
    return true;
}

}  // namespace

size_t char_bytes(std::string_view text) {
    if (text.empty()) return 0;
    const Lead lead = lead_of(static_cast<uint8_t>(text[0]));
    if (lead.bytes > text.size() || !continues(text, lead)) return 0;
    return lead.bytes;
}

size_t valid_prefix(std::string_view text) {
    constexpr uint64_t kHighBits = 0x8080808080808080;
    size_t at = 0;
    while (at < text.size()) {
        // Eight ASCII bytes at a time: most text is little else.
        uint64_t word;
        while (at + sizeof(word) <= text.size()) {
            std::memcpy(&word, text.data() + at, sizeof(word));
            if ((word & kHighBits) != 0) break;
            at += sizeof(word);
        }
        if (at == text.size()) break;
        const size_t bytes = char_bytes(text.substr(at));
        if (bytes == 0) return at;
        at += bytes;
    }
    return at;
}

size_t incomplete_tail(std::string_view text) {
    const size_t most = std::min<size_t>(3, text.size());
    for (size_t tail = 1; tail <= most; ++tail) {
        const std::string_view candidate = text.substr(text.size() - tail);
        const Lead lead = lead_of(static_cast<uint8_t>(candidate[0]));
        if (lead.bytes > tail && continues(candidate, lead)) return tail;
    }
    return 0;
}

std::string quoted(std::string_view text) {
    constexpr size_t kLongest = 60;
    std::string line = "'";
    size_t at = 0;
    while (at < text.size() && at < kLongest) {
        const size_t bytes = char_bytes(text.substr(at));
        const auto first = static_cast<uint8_t>(text[at]);
        if (bytes == 0 || first < 0x20 || first == 0x7F)
            line += '?';
        else
            line += text.substr(at, bytes);
        at += std::max<size_t>(bytes, 1);
    }
    return line + (at < text.size() ? "...'" : "'");
}

}  // namespace tessera::utf8
