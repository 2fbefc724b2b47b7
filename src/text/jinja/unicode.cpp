#include "text/jinja/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "text/jinja/special_casing.h"

namespace tessera::jinja {
namespace {

utf8proc_category_t category(char32_t code_point) {
    return utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
}

bool in_range(char32_t value, char32_t first, char32_t last) {
    return value >= first && value <= last;
}

const SpecialCase* special_case(char32_t code_point) {
    const SpecialCase* found = std::lower_bound(
        std::begin(kSpecialCases), std::end(kSpecialCases), code_point,
        [](const SpecialCase& entry, char32_t value) { return entry.code_point < value; });
    if (found == std::end(kSpecialCases) || found->code_point != code_point) return nullptr;
    return found;
}

void append_all(std::string& text, const char32_t* code_points) {
    for (; *code_points != 0; ++code_points) append_code_point(text, *code_points);
}

void append_upper(std::string& text, char32_t code_point) {
    if (code_point < 0x80) {
        text += static_cast<char>(in_range(code_point, U'a', U'z') ? code_point - 32 : code_point);
    } else if (const SpecialCase* special = special_case(code_point)) {
        append_all(text, special->upper);
    } else if (code_point >= kInvalidByte) {
        append_code_point(text, code_point);
    } else {
        append_code_point(text, static_cast<char32_t>(
                                    utf8proc_toupper(static_cast<utf8proc_int32_t>(code_point))));
    }
}

void append_title(std::string& text, char32_t code_point) {
    if (const SpecialCase* special = special_case(code_point)) {
        append_all(text, special->title);
    } else if (code_point >= kInvalidByte) {
        append_code_point(text, code_point);
    } else {
        append_code_point(text, static_cast<char32_t>(
                                    utf8proc_totitle(static_cast<utf8proc_int32_t>(code_point))));
    }
}

bool is_cased(char32_t code_point) {
    return is_lower(code_point) || is_upper(code_point) || is_title(code_point);
}

/// Marks, modifiers and a few punctuation signs do not end a word for the final sigma.
bool is_case_ignorable(char32_t code_point) {
    if (code_point >= kInvalidByte) return false;
    switch (category(code_point)) {
        case UTF8PROC_CATEGORY_MN:
        case UTF8PROC_CATEGORY_ME:
        case UTF8PROC_CATEGORY_CF:
        case UTF8PROC_CATEGORY_LM:
        case UTF8PROC_CATEGORY_SK:
            return true;
        default:
            break;
    }
    return code_point == U'\'' || code_point == U'.' || code_point == U':' || code_point == 0xB7 ||
           code_point == 0x2018 || code_point == 0x2019 || code_point == 0x2024 ||
           code_point == 0x2027;
}

bool cased_letter_before(std::string_view text, size_t position) {
    while (position > 0) {
        size_t start = position - 1;
        while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
        size_t at = start;
        const char32_t code_point = next_code_point(text, at);
        if (!is_case_ignorable(code_point)) return is_cased(code_point);
        position = start;
    }
    return false;
}

bool cased_letter_after(std::string_view text, size_t position) {
    while (position < text.size()) {
        const char32_t code_point = next_code_point(text, position);
        if (!is_case_ignorable(code_point)) return is_cased(code_point);
    }
    return false;
}

constexpr char32_t kSigma = 0x3A3;

/// Appends the lower case of the code point at [begin, end) of `text`.
void append_lower(std::string& out, std::string_view text, size_t begin, size_t end) {
    size_t at = begin;
    const char32_t code_point = next_code_point(text, at);
    if (code_point < 0x80) {
        out += static_cast<char>(in_range(code_point, U'A', U'Z') ? code_point + 32 : code_point);
    } else if (code_point >= kInvalidByte) {
        append_code_point(out, code_point);
    } else if (code_point == 0x130) {
        append_all(out, U"i\u0307");
    } else if (code_point == kSigma) {
        const bool final = cased_letter_before(text, begin) && !cased_letter_after(text, end);
        append_code_point(out, final ? 0x3C2 : 0x3C3);
    } else {
        append_code_point(out, static_cast<char32_t>(
                                   utf8proc_tolower(static_cast<utf8proc_int32_t>(code_point))));
    }
}

}  // namespace

char32_t next_code_point(std::string_view text, size_t& position) {
    const unsigned char first = static_cast<unsigned char>(text[position]);
    if (first < 0x80) {
        ++position;
        return first;
    }
    utf8proc_int32_t code_point = 0;
    const utf8proc_ssize_t bytes = utf8proc_iterate(
        reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + position,
        static_cast<utf8proc_ssize_t>(std::min<size_t>(text.size() - position, 4)), &code_point);
    if (bytes <= 0) {
        ++position;
        return kInvalidByte + first;
    }
    position += static_cast<size_t>(bytes);
    return static_cast<char32_t>(code_point);
}

void append_code_point(std::string& text, char32_t code_point) {
    if (code_point < 0x80) {
        text += static_cast<char>(code_point);
    } else if (code_point >= kInvalidByte) {
        text += static_cast<char>(static_cast<unsigned char>(code_point - kInvalidByte));
    } else {
        utf8proc_uint8_t bytes[4];
        const utf8proc_ssize_t count =
            utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes);
        text.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(count));
    }
}

bool is_ascii(std::string_view text) {
    return std::all_of(text.begin(), text.end(),
                       [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

int64_t count_code_points(std::string_view text) {
    if (is_ascii(text)) return static_cast<int64_t>(text.size());
    int64_t count = 0;
    for (size_t at = 0; at < text.size(); ++count) next_code_point(text, at);
    return count;
}

size_t offset_of(std::string_view text, int64_t index) {
    size_t at = 0;
    for (; index > 0 && at < text.size(); --index) next_code_point(text, at);
    return at;
}

bool is_valid_utf8(std::string_view text) {
    for (size_t at = 0; at < text.size();) {
        if (next_code_point(text, at) >= kInvalidByte) return false;
    }
    return true;
}

bool is_space(char32_t c) {
    return in_range(c, 0x09, 0x0D) || in_range(c, 0x1C, 0x20) || c == 0x85 || c == 0xA0 ||
           c == 0x1680 || in_range(c, 0x2000, 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_printable(char32_t c) {
    if (c >= kInvalidByte) return false;
    if (c == U' ') return true;
    switch (category(c)) {
        case UTF8PROC_CATEGORY_CC:
        case UTF8PROC_CATEGORY_CF:
        case UTF8PROC_CATEGORY_CS:
        case UTF8PROC_CATEGORY_CO:
        case UTF8PROC_CATEGORY_CN:
        case UTF8PROC_CATEGORY_ZL:
        case UTF8PROC_CATEGORY_ZP:
        case UTF8PROC_CATEGORY_ZS:
            return false;
        default:
            return true;
    }
}

bool is_alpha(char32_t c) {
    if (c >= kInvalidByte) return false;
    const utf8proc_category_t kind = category(c);
    return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal(char32_t c) {
    return c < kInvalidByte && category(c) == UTF8PROC_CATEGORY_ND;
}

bool is_digit(char32_t c) {
    return is_decimal(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 ||
           in_range(c, 0x2074, 0x2079) || in_range(c, 0x2080, 0x2089) ||
           in_range(c, 0x2460, 0x2468) || in_range(c, 0x2474, 0x247C) ||
           in_range(c, 0x2488, 0x2490) || c == 0x24EA || in_range(c, 0x24F5, 0x24FD) ||
           c == 0x24FF || in_range(c, 0x2776, 0x277E) || in_range(c, 0x2780, 0x2788) ||
           in_range(c, 0x278A, 0x2792);
}

bool is_numeric(char32_t c) {
    if (c >= kInvalidByte) return false;
    const utf8proc_category_t kind = category(c);
    return kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL ||
           kind == UTF8PROC_CATEGORY_NO;
}

bool is_lower(char32_t c) {
    return c < kInvalidByte && (category(c) == UTF8PROC_CATEGORY_LL || c == 0xAA || c == 0xBA);
}

bool is_upper(char32_t c) {
    return c < kInvalidByte && category(c) == UTF8PROC_CATEGORY_LU;
}

bool is_title(char32_t c) {
    return c < kInvalidByte && category(c) == UTF8PROC_CATEGORY_LT;
}

bool is_word(char32_t c) {
    return c == U'_' || is_alpha(c) || is_numeric(c);
}

bool is_identifier(std::string_view text) {
    if (text.empty()) return false;
    size_t at = 0;
    const char32_t first = next_code_point(text, at);
    if (first != U'_' && !is_alpha(first)) return false;
    while (at < text.size()) {
        const char32_t next = next_code_point(text, at);
        if (next != U'_' && !is_alpha(next) && !is_decimal(next)) return false;
    }
    return true;
}

std::string to_upper(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    for (size_t at = 0; at < text.size();) append_upper(out, next_code_point(text, at));
    return out;
}

std::string to_lower(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
        const size_t begin = at;
        next_code_point(text, at);
        append_lower(out, text, begin, at);
    }
    return out;
}

std::string capitalize(std::string_view text) {
    std::string out;
    for (size_t at = 0; at < text.size();) {
        const size_t begin = at;
        const char32_t code_point = next_code_point(text, at);
        if (begin == 0) {
            append_title(out, code_point);
        } else {
            append_lower(out, text, begin, at);
        }
    }
    return out;
}

std::string to_title(std::string_view text) {
    std::string out;
    bool in_word = false;
    for (size_t at = 0; at < text.size();) {
        const size_t begin = at;
        const char32_t code_point = next_code_point(text, at);
        if (in_word) {
            append_lower(out, text, begin, at);
        } else {
            append_title(out, code_point);
        }
        in_word = is_cased(code_point);
    }
    return out;
}

std::string swap_case(std::string_view text) {
    std::string out;
    for (size_t at = 0; at < text.size();) {
        const size_t begin = at;
        const char32_t code_point = next_code_point(text, at);
        if (is_upper(code_point)) {
            append_lower(out, text, begin, at);
        } else if (is_lower(code_point)) {
            append_upper(out, code_point);
        } else {
            append_code_point(out, code_point);
        }
    }
    return out;
}

std::string fold_case(std::string_view text) {
    std::string out;
    for (size_t at = 0; at < text.size();) {
        const char32_t code_point = next_code_point(text, at);
        utf8proc_int32_t folded[8];
        utf8proc_ssize_t count = -1;
        if (code_point < kInvalidByte) {
            count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point), folded, 8,
                                            UTF8PROC_CASEFOLD, nullptr);
        }
        if (count < 0) append_code_point(out, code_point);
        for (utf8proc_ssize_t i = 0; i < count; ++i) {
            append_code_point(out, static_cast<char32_t>(folded[i]));
        }
    }
    return out;
}

std::string_view strip_space(std::string_view text, bool left, bool right) {
    size_t begin = 0;
    while (left && begin < text.size()) {
        size_t at = begin;
        if (!is_space(next_code_point(text, at))) break;
        begin = at;
    }
    size_t end = text.size();
    while (right && end > begin) {
        size_t start = end - 1;
        while (start > begin && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
        size_t at = start;
        if (!is_space(next_code_point(text, at)) || at != end) break;
        end = start;
    }
    return text.substr(begin, end - begin);
}

}  // namespace tessera::jinja
