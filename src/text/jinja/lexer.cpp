#include "text/jinja/lexer.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "text/jinja/operations.h"
#include "text/jinja/unicode.h"

namespace tessera::jinja {
namespace {

/// Unifies line ends and drops the last one.
std::string normalize(const std::string& source) {
    std::string out;
    out.reserve(source.size());
    for (size_t i = 0; i < source.size(); ++i) {
        if (source[i] != '\r') {
            out += source[i];
        } else {
            out += '\n';
            if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
        }
    }
    if (!out.empty() && out.back() == '\n') out.pop_back();
    return out;
}

bool is_digit_of(char c, int base) {
    if (base == 16) return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
    return c >= '0' && c < '0' + base;
}

class Lexer {
  public:
    explicit Lexer(const std::string& source) : source_(normalize(source)), text_(source_) {}

    std::vector<Token> run() {
        while (at_ < text_.size()) root();
        add(TokenType::kEnd, "");
        return std::move(tokens_);
    }

  private:
    [[noreturn]] void error(const std::string& message) const { throw SyntaxError(message, line_); }

    char peek(size_t ahead = 0) const {
        return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
    }
    bool at_text(std::string_view expected) const {
        return text_.substr(at_, expected.size()) == expected;
    }

    void add(TokenType type, std::string text) {
        tokens_.push_back({type, line_, std::move(text), {}});
    }

    /// Moves on by `bytes` and counts lines.
    void advance(size_t bytes) {
        const std::string_view passed = text_.substr(at_, bytes);
        line_ += static_cast<int>(std::count(passed.begin(), passed.end(), '\n'));
        at_ += bytes;
    }

    void skip_space() {
        const std::string_view rest = text_.substr(at_);
        advance(rest.size() - strip_space(rest, true, false).size());
    }

    /// Text up to the next tag, and that tag.
    void root() {
        size_t tag = at_;
        for (;; ++tag) {
            tag = text_.find('{', tag);
            if (tag == std::string_view::npos || tag + 1 >= text_.size()) {
                tag = std::string_view::npos;
                break;
            }
            const char next = text_[tag + 1];
            if (next == '%' || next == '{' || next == '#') break;
        }
        if (tag == std::string_view::npos) {
            add(TokenType::kData, std::string(text_.substr(at_)));
            advance(text_.size() - at_);
            return;
        }
        const char kind = text_[tag + 1];
        const char sign = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
        data(text_.substr(at_, tag - at_), sign, kind != '{');
        at_line_start_ = false;
        advance(sign == '-' || sign == '+' ? 3 : 2);
        if (kind == '#') {
            comment();
        } else if (kind == '{') {
            add(TokenType::kVariableBegin, "{{");
            tag_tokens(TokenType::kVariableEnd);
        } else if (!raw()) {
            add(TokenType::kBlockBegin, "{%");
            tag_tokens(TokenType::kBlockEnd);
        }
    }

    /// Emits the text before a tag without the white space that belongs to the tag.
    void data(std::string_view text, char sign, bool may_strip_line) {
        std::string_view kept = text;
        if (sign == '-') {
            kept = strip_space(text, false, true);
        } else if (sign != '+' && may_strip_line) {
            const size_t new_line = text.rfind('\n');
            const size_t begin = new_line == std::string_view::npos ? 0 : new_line + 1;
            const bool whole_line = begin > 0 || at_line_start_;
            if (whole_line && strip_space(text.substr(begin), true, false).empty()) {
                kept = text.substr(0, begin);
            }
        }
        if (!kept.empty()) add(TokenType::kData, std::string(kept));
        advance(text.size());
    }

    /// The end of a block or comment tag, if it is here: `-%}` eats white space, `%}` a line end,
    /// `+%}` nothing.
    bool close(std::string_view mark) {
        const char sign = peek();
        const bool signed_mark = (sign == '-' || sign == '+') &&
                                 text_.substr(std::min(at_ + 1, text_.size()), 2) == mark;
        if (!signed_mark && !at_text(mark)) return false;
        const size_t begin = at_;
        advance(signed_mark ? 3 : 2);
        if (signed_mark && sign == '-') {
            skip_space();
        } else if (!signed_mark && peek() == '\n') {
            advance(1);
        }
        at_line_start_ = text_[at_ - 1] == '\n' && at_ > begin;
        return true;
    }

    void comment() {
        const int first_line = line_;
        if (at_ == text_.size()) return;  // Jinja2 overlooks a comment without any text.
        while (at_ < text_.size()) {
            const size_t mark = text_.find("#}", at_);
            if (mark == std::string_view::npos) break;
            size_t end = mark;
            if (mark > at_ && (text_[mark - 1] == '-' || text_[mark - 1] == '+')) --end;
            advance(end - at_);
            close("#}");
            return;
        }
        line_ = first_line;
        error("Missing end of comment tag");
    }

    /// `{% raw %}` up to `{% endraw %}`, when the block that begins here is one.
    bool raw() {
        const size_t saved = at_;
        const int saved_line = line_;
        skip_space();
        const bool is_raw = at_text("raw");
        if (is_raw) advance(3);
        if (is_raw) skip_space();
        const bool minus = at_text("-%}");
        if (!is_raw || !(minus || at_text("%}"))) {
            at_ = saved;
            line_ = saved_line;
            return false;
        }
        advance(minus ? 3 : 2);
        if (minus) skip_space();
        at_line_start_ = text_[at_ - 1] == '\n';
        const size_t begin = at_;
        if (begin == text_.size()) return true;  // As for comments.
        for (size_t tag = text_.find("{%", at_); tag != std::string_view::npos;
             tag = text_.find("{%", tag + 1)) {
            const char sign = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
            const std::string_view behind =
                text_.substr(tag + (sign == '-' || sign == '+' ? 3 : 2));
            const std::string_view word = strip_space(behind, true, false);
            if (!word.starts_with("endraw")) continue;
            const std::string_view end = strip_space(word.substr(6), true, false);
            if (!end.starts_with("%}") && !end.starts_with("-%}") && !end.starts_with("+%}")) {
                continue;
            }
            data(text_.substr(begin, tag - begin), sign, /*may_strip_line=*/true);
            advance(static_cast<size_t>(end.data() - text_.data()) - at_);
            return close("%}");
        }
        error("Missing end of raw directive");
    }

    /// The inside of a tag, up to and with its end.
    void tag_tokens(TokenType end) {
        std::string open;  // closing brackets that are still expected
        while (at_ < text_.size()) {
            if (open.empty() && end == TokenType::kBlockEnd) {
                const int line = line_;
                if (close("%}")) {
                    tokens_.push_back({end, line, "%}", {}});
                    return;
                }
            } else if (open.empty() && (at_text("}}") || at_text("-}}"))) {
                add(end, "}}");
                const bool minus = peek() == '-';
                advance(minus ? 3 : 2);
                if (minus) skip_space();
                at_line_start_ = text_[at_ - 1] == '\n';
                return;
            }
            token(open);
        }
    }

    void token(std::string& open) {
        const char c = peek();
        size_t after = at_;
        const char32_t code_point = next_code_point(text_, after);
        if (is_space(code_point)) {
            skip_space();
        } else if (c >= '0' && c <= '9') {
            number();
        } else if (is_word(code_point)) {
            name();
        } else if (c == '"' || c == '\'') {
            string(c);
        } else {
            sign(open);
        }
    }

    void name() {
        size_t end = at_;
        while (end < text_.size()) {
            size_t after = end;
            if (!is_word(next_code_point(text_, after))) break;
            end = after;
        }
        const std::string_view word = text_.substr(at_, end - at_);
        if (!is_identifier(word)) error("Invalid character in identifier");
        add(TokenType::kName, std::string(word));
        advance(word.size());
    }

    /// Digits with single underscores between them, from `from` on; the position behind them.
    size_t digits(size_t from, int base) const {
        size_t end = from;
        while (end < text_.size()) {
            const bool underscore = text_[end] == '_' && end > from && end + 1 < text_.size() &&
                                    is_digit_of(text_[end + 1], base);
            if (!underscore && !is_digit_of(text_[end], base)) break;
            ++end;
        }
        return end;
    }

    /// The end of a float that begins here, or 0.
    size_t float_end() const {
        if (at_ > 0 && text_[at_ - 1] == '.') return 0;
        const size_t whole = digits(at_, 10);
        size_t end = whole;
        if (end < text_.size() && text_[end] == '.') {
            const size_t fraction = digits(end + 1, 10);
            if (fraction > end + 1) end = fraction;
        }
        if (end < text_.size() && (text_[end] | 0x20) == 'e') {
            size_t exponent = end + 1;
            if (exponent < text_.size() && (text_[exponent] == '+' || text_[exponent] == '-')) {
                ++exponent;
            }
            const size_t stop = digits(exponent, 10);
            if (stop > exponent) end = stop;
        }
        return end > whole ? end : 0;
    }

    size_t integer_end() const {
        if (peek() == '0') {
            const char letter = static_cast<char>(peek(1) | 0x20);
            const int base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
            if (base != 0) {
                const size_t first = peek(2) == '_' ? at_ + 3 : at_ + 2;
                const size_t end = digits(first, base);
                if (end > first) return end;
            }
            return digits(at_, 1);
        }
        return digits(at_, 10);
    }

    void number() {
        const size_t real_end = float_end();
        const size_t end = real_end != 0 ? real_end : integer_end();
        std::string plain(text_.substr(at_, end - at_));
        plain.erase(std::remove(plain.begin(), plain.end(), '_'), plain.end());
        add(TokenType::kNumber, plain);
        if (real_end != 0) {
            tokens_.back().value = Value::real(std::strtod(plain.c_str(), nullptr));
        } else {
            const bool prefixed = plain.size() > 1 && plain[1] > '9';
            std::optional<int64_t> value;
            try {
                value = parse_int(plain, prefixed ? 0 : 10);
            } catch (const Error& failure) {
                error(failure.what());
            }
            tokens_.back().value = Value::integer(value.value_or(0));
        }
        advance(end - at_);
    }

    void string(char quote) {
        size_t end = at_ + 1;
        while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
        if (end >= text_.size()) error(std::string("unexpected char ") + quote);
        add(TokenType::kString, unescape(text_.substr(at_ + 1, end - at_ - 1)));
        advance(end + 1 - at_);
    }

    std::string unescape(std::string_view raw) const {
        std::string out;
        for (size_t i = 0; i < raw.size();) {
            if (raw[i] != '\\') {
                out += raw[i++];
                continue;
            }
            const char c = raw[i + 1];
            i += 2;
            static constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
            if (const size_t simple = kFrom.find(c); simple != std::string_view::npos) {
                out += kTo[simple];
            } else if (c == 'x' || c == 'u' || c == 'U') {
                append_code_point(out, hexadecimal(raw, i, c == 'x' ? 2 : c == 'u' ? 4 : 8));
            } else if (c >= '0' && c <= '7') {
                char32_t value = static_cast<char32_t>(c - '0');
                for (int k = 0; k < 2 && i < raw.size() && raw[i] >= '0' && raw[i] <= '7'; ++k) {
                    value = value * 8 + static_cast<char32_t>(raw[i++] - '0');
                }
                append_code_point(out, value);
            } else if (c == 'N') {
                error("named characters are not supported in strings");
            } else if (c != '\n') {
                out += '\\';
                out += c;
            }
        }
        return out;
    }

    char32_t hexadecimal(std::string_view raw, size_t& i, size_t count) const {
        char32_t value = 0;
        for (size_t k = 0; k < count; ++k, ++i) {
            if (i >= raw.size() || !is_digit_of(raw[i], 16)) error("truncated escape in a string");
            const char c = raw[i];
            const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
            value = value * 16 + static_cast<char32_t>(digit);
        }
        if (value >= kInvalidByte || (value >= 0xD800 && value < 0xE000)) {
            error("illegal Unicode character in a string");
        }
        return value;
    }

    void sign(std::string& open) {
        static constexpr std::string_view kSigns[] = {
            "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
            "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
        for (const std::string_view known : kSigns) {
            if (!at_text(known)) continue;
            if (known == "(") open += ')';
            if (known == "[") open += ']';
            if (known == "{") open += '}';
            if (known == ")" || known == "]" || known == "}") {
                if (open.empty() || open.back() != known[0]) {
                    error("unexpected '" + std::string(known) + "'");
                }
                open.pop_back();
            }
            add(TokenType::kOperator, std::string(known));
            advance(known.size());
            return;
        }
        size_t after = at_;
        next_code_point(text_, after);
        error("unexpected char '" + std::string(text_.substr(at_, after - at_)) + "'");
    }

    const std::string source_;
    const std::string_view text_;
    size_t at_ = 0;
    int line_ = 1;
    bool at_line_start_ = true;
    std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(const std::string& source) {
    return Lexer(source).run();
}

}  // namespace tessera::jinja
