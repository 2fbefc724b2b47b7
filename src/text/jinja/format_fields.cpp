// `%` and format() of format.h.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "text/jinja/attributes.h"
#include "text/jinja/format.h"
#include "text/jinja/operations.h"
#include "text/jinja/unicode.h"

namespace tessera::jinja {
namespace {

constexpr int64_t kMaxWidth = 1'000'000;
constexpr int64_t kMaxPrecision = 300;

/// What stands behind the colon of a field, or between `%` and its letter.
struct Spec {
    std::string fill = " ";
    char align = 0;  ///< < > ^ =; 0: the default of the type
    char sign = '-';
    bool alternate = false;
    char group = 0;
    int64_t width = 0;
    int64_t precision = -1;
    char type = 0;
};

int64_t read_number(std::string_view text, size_t& at, int64_t limit) {
    int64_t number = 0;
    while (at < text.size() && text[at] >= '0' && text[at] <= '9') {
        number = number * 10 + (text[at++] - '0');
        if (number > limit) fail("width or precision in a format is too large");
    }
    return number;
}

std::string pad(std::string text, const Spec& spec, char default_align) {
    const int64_t missing = spec.width - count_code_points(text);
    if (missing <= 0) return text;
    const char align = spec.align != 0 ? spec.align : default_align;
    const int64_t left = align == '>' || align == '=' ? missing : align == '^' ? missing / 2 : 0;
    std::string out;
    for (int64_t i = 0; i < left; ++i) out += spec.fill;
    out += text;
    for (int64_t i = left; i < missing; ++i) out += spec.fill;
    return out;
}

std::string group_digits(const std::string& digits, char separator, size_t every) {
    const size_t whole = std::min(digits.find_first_of(".e%"), digits.size());
    std::string out;
    for (size_t i = 0; i < whole; ++i) {
        if (i > 0 && (whole - i) % every == 0) out += separator;
        out += digits[i];
    }
    return out + digits.substr(whole);
}

/// Sign, prefix and digits of a number, padded; `=` pads between prefix and digits.
std::string assemble(bool negative,
                     const std::string& prefix,
                     std::string digits,
                     const Spec& spec) {
    std::string head = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
    head += prefix;
    if (spec.group != 0) digits = group_digits(digits, spec.group, prefix.empty() ? 3 : 4);
    if (spec.align == '=') {
        while (static_cast<int64_t>(head.size() + digits.size()) < spec.width) head += spec.fill;
        return head + digits;
    }
    return pad(head + digits, spec, '>');
}

std::string print_float(double magnitude, char type, int64_t precision, bool alternate) {
    const char format[] = {'%', alternate ? '#' : '0', '.', '*', type, 0};
    const int size = std::snprintf(nullptr, 0, format, static_cast<int>(precision), magnitude);
    std::string out(static_cast<size_t>(size) + 1, '\0');
    std::snprintf(out.data(), out.size(), format, static_cast<int>(precision), magnitude);
    out.pop_back();
    return out;
}

std::string format_float(double value, const Spec& spec) {
    const double magnitude = std::fabs(value);
    const bool negative = std::signbit(value) && !std::isnan(value);
    const bool upper = spec.type == 'F' || spec.type == 'E' || spec.type == 'G';
    if (!std::isfinite(value)) {
        std::string word = std::isnan(value) ? "nan" : "inf";
        if (upper) word = to_upper(word);
        if (spec.type == '%') word += '%';
        return assemble(negative, "", word, spec);
    }
    const int64_t precision = spec.precision < 0 ? 6 : spec.precision;
    std::string digits;
    if (spec.type == '%') {
        digits = print_float(magnitude * 100, 'f', precision, spec.alternate) + "%";
    } else if (spec.type != 0 && spec.type != 'n') {
        digits = print_float(magnitude, spec.type, precision, spec.alternate);
    } else if (spec.precision < 0) {
        digits = spec.type == 'n' ? print_float(magnitude, 'g', 6, false) : float_repr(magnitude);
    } else {
        digits = print_float(magnitude, 'g', precision, false);
        if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
    }
    return assemble(negative, "", digits, spec);
}

std::string format_int(int64_t value, const Spec& spec) {
    const bool negative = value < 0;
    uint64_t magnitude =
        negative ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
    if (std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos && spec.type != 0) {
        return format_float(static_cast<double>(value), spec);
    }
    if (spec.precision >= 0) fail("precision not allowed in integer format specifier");
    uint64_t base = 10;
    std::string prefix;
    switch (spec.type) {
        case 'x':
        case 'X':
            base = 16;
            break;
        case 'o':
            base = 8;
            break;
        case 'b':
            base = 2;
            break;
        case 'c': {
            if (value < 0 || value >= static_cast<int64_t>(kInvalidByte)) {
                fail("%c arg not in range(0x110000)");
            }
            std::string out;
            append_code_point(out, static_cast<char32_t>(value));
            return pad(out, spec, '<');
        }
        default:
            break;
    }
    if (spec.alternate && base != 10) prefix = std::string("0") + spec.type;
    std::string digits;
    do {
        const char* kDigits = spec.type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
        digits += kDigits[magnitude % base];
        magnitude /= base;
    } while (magnitude != 0);
    std::reverse(digits.begin(), digits.end());
    return assemble(negative, prefix, digits, spec);
}

std::string truncate(std::string_view text, int64_t precision) {
    return std::string(precision < 0 ? text : text.substr(0, offset_of(text, precision)));
}

Spec parse_spec(std::string_view text) {
    Spec spec;
    size_t at = 0;
    const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
    const auto peek = [&] { return at < text.size() ? text[at] : '\0'; };
    if (!text.empty()) {
        size_t after = 0;
        next_code_point(text, after);
        if (after < text.size() && is_align(text[after])) {
            spec.fill = text.substr(0, after);
            spec.align = text[after];
            at = after + 1;
        } else if (is_align(text[0])) {
            spec.align = text[at++];
        }
    }
    if (peek() == '+' || peek() == '-' || peek() == ' ') spec.sign = text[at++];
    if (peek() == '#') {
        spec.alternate = true;
        ++at;
    }
    if (peek() == '0') {
        if (spec.align == 0) {
            spec.fill = "0";
            spec.align = '=';
        }
        ++at;
    }
    spec.width = read_number(text, at, kMaxWidth);
    if (peek() == ',' || peek() == '_') spec.group = text[at++];
    if (peek() == '.') {
        ++at;
        if (peek() < '0' || peek() > '9') fail("Format specifier missing precision");
        spec.precision = read_number(text, at, kMaxPrecision);
    }
    if (at < text.size()) spec.type = text[at++];
    if (at != text.size()) fail("Invalid format specifier '" + std::string(text) + "'");
    return spec;
}

std::string format_value(Heap& heap, const Value& value, std::string_view spec_text) {
    if (spec_text.empty()) return to_string(heap, value);
    const Spec spec = parse_spec(spec_text);
    const auto require = [&](std::string_view types) {
        if (spec.type != 0 && types.find(spec.type) == std::string_view::npos) {
            fail("Unknown format code '" + std::string(1, spec.type) + "' for object of type '" +
                 std::string(type_name(value)) + "'");
        }
    };
    if (value.is_string()) {
        require("s");
        Spec text_spec = spec;
        if (spec.align == '=') {
            // Written as 05 it pads with zeros on the right, written out it is an error.
            if (spec.fill != "0") fail("'=' alignment not allowed in string format specifier");
            text_spec.align = '<';
        }
        if (spec.sign != '-' || spec.group != 0 || spec.alternate) {
            fail("Sign, ',' and '#' are not allowed in string format specifier");
        }
        return pad(truncate(value.view(), spec.precision), text_spec, '<');
    }
    if (value.is_integral()) {
        require("bcdeEfFgGnoxX%");
        return format_int(value.as_int(), spec);
    }
    if (value.is(Type::kFloat)) {
        require("eEfFgGn%");
        return format_float(value.as_double(), spec);
    }
    fail("unsupported format string passed to " + std::string(type_name(value)) + ".__format__");
}

/// Walks through the fields of one format string.
class FieldFormatter {
  public:
    FieldFormatter(Heap& heap, const Arguments& arguments, bool markup)
        : heap_(heap), arguments_(arguments), markup_(markup) {}

    std::string format(std::string_view text, int depth) {
        if (depth > 2) fail("Max string recursion exceeded");
        std::string out;
        for (size_t at = 0; at < text.size();) {
            const char c = text[at++];
            if (c != '{' && c != '}') {
                out += c;
            } else if (at < text.size() && text[at] == c) {
                out += c;
                ++at;
            } else if (c == '}') {
                fail("Single '}' encountered in format string");
            } else {
                out += field(text, at, depth);
                if (static_cast<int64_t>(out.size()) > kMaxOutputBytes) {
                    fail("the template makes a string of more than 64 MiB");
                }
            }
        }
        return out;
    }

  private:
    std::string field(std::string_view text, size_t& at, int depth) {
        const size_t begin = at;
        int nesting = 1;
        for (; at < text.size() && nesting > 0; ++at) {
            nesting += text[at] == '{' ? 1 : text[at] == '}' ? -1 : 0;
        }
        if (nesting > 0) fail("expected '}' before end of string");
        std::string_view body = text.substr(begin, at - begin - 1);
        std::string_view spec;
        char conversion = 0;
        const size_t bracket = body.find('[');
        const size_t close = bracket == std::string_view::npos ? 0 : body.find(']', bracket);
        const size_t end = body.find_first_of("!:", close == std::string_view::npos ? 0 : close);
        std::string_view name = body.substr(0, end);
        if (end != std::string_view::npos && body[end] == '!') {
            if (end + 1 >= body.size())
                fail("end of string while looking for conversion specifier");
            conversion = body[end + 1];
            if (end + 2 < body.size() && body[end + 2] != ':') {
                fail("expected ':' after conversion specifier");
            }
            spec = end + 3 <= body.size() ? body.substr(std::min(end + 3, body.size())) : "";
        } else if (end != std::string_view::npos) {
            spec = body.substr(end + 1);
        }
        Value value = look_up(name);
        if (conversion == 'r' || conversion == 'a') {
            value = heap_.string(to_repr(heap_, value));
        } else if (conversion == 's') {
            value = heap_.string(to_string(heap_, value));
        } else if (conversion != 0) {
            fail("Unknown conversion specifier '" + std::string(1, conversion) + "'");
        }
        std::string formatted = format_value(heap_, value, format(spec, depth + 1));
        return markup_ && !value.is_markup() ? escape_html(formatted) : formatted;
    }

    Value look_up(std::string_view name) {
        const size_t end = std::min(name.find_first_of(".["), name.size());
        Value value = first(name.substr(0, end));
        for (size_t at = end; at < name.size();) {
            if (name[at] == '.') {
                const size_t stop = std::min(name.find_first_of(".[", at + 1), name.size());
                if (stop == at + 1) fail("Empty attribute in format string");
                value =
                    get_attribute(heap_, value, std::string(name.substr(at + 1, stop - at - 1)));
                at = stop;
            } else {
                const size_t stop = name.find(']', at);
                if (name[at] != '[' || stop == std::string_view::npos) {
                    fail("Missing ']' in format string");
                }
                const std::string key(name.substr(at + 1, stop - at - 1));
                if (key.empty()) fail("Empty attribute in format string");
                const bool is_number = key.find_first_not_of("0123456789") == std::string::npos;
                value =
                    get_item(heap_, value,
                             is_number ? Value::integer(*parse_int(key, 10)) : heap_.string(key));
                at = stop + 1;
            }
        }
        return value;
    }

    Value first(std::string_view name) {
        const bool is_number =
            !name.empty() && name.find_first_not_of("0123456789") == std::string_view::npos;
        if (name.empty() || is_number) {
            if (numbering_ != 0 && (numbering_ == 'a') != name.empty()) {
                fail("cannot switch between automatic and manual field numbering");
            }
            numbering_ = name.empty() ? 'a' : 'm';
            const size_t index = name.empty() ? next_++ : static_cast<size_t>(*parse_int(name, 10));
            if (index >= arguments_.positional.size()) {
                fail("Replacement index " + std::to_string(index) +
                     " out of range for positional args tuple");
            }
            return arguments_.positional[index];
        }
        for (const auto& [key, value] : arguments_.named) {
            if (key == name) return value;
        }
        fail("format() has no argument named '" + std::string(name) + "'");
    }

    Heap& heap_;
    const Arguments& arguments_;
    bool markup_;
    char numbering_ = 0;
    size_t next_ = 0;
};

/// Walks through one string with `%` conversions.
class PercentFormatter {
  public:
    PercentFormatter(Heap& heap, const Value& format, const Value& arguments)
        : heap_(heap), format_(format), arguments_(arguments) {}

    Value run() {
        const std::string_view text = format_.view();
        std::string out;
        for (size_t at = 0; at < text.size();) {
            if (text[at] != '%') {
                out += text[at++];
                continue;
            }
            ++at;
            out += conversion(text, at);
            if (static_cast<int64_t>(out.size()) > kMaxOutputBytes) {
                fail("the template makes a string of more than 64 MiB");
            }
        }
        const bool may_be_left = arguments_.is(Type::kDict) || arguments_.is(Type::kList) ||
                                 arguments_.is(Type::kRange) || arguments_.is_undefined() ||
                                 used_mapping_;
        const size_t count =
            arguments_.is(Type::kTuple) ? arguments_.as<List>()->items.size() : size_t{1};
        if (!may_be_left && next_ < count) {
            fail("not all arguments converted during string formatting");
        }
        return heap_.string(std::move(out), format_.is_markup());
    }

  private:
    Value next_argument() {
        if (arguments_.is(Type::kTuple)) {
            const std::vector<Value>& items = arguments_.as<List>()->items;
            if (next_ >= items.size()) fail("not enough arguments for format string");
            return items[next_++];
        }
        if (next_++ > 0) fail("not enough arguments for format string");
        return arguments_;
    }

    Value named_argument(std::string_view text, size_t& at) {
        const size_t close = text.find(')', at);
        if (close == std::string_view::npos) fail("incomplete format key");
        if (!arguments_.is(Type::kDict)) fail("format requires a mapping");
        const std::string_view key = text.substr(at + 1, close - at - 1);
        at = close + 1;
        used_mapping_ = true;
        const Value* found = arguments_.as<Dict>()->find(key);
        if (found == nullptr) fail("format has no argument named '" + std::string(key) + "'");
        return *found;
    }

    std::string conversion(std::string_view text, size_t& at) {
        Spec spec;
        std::optional<Value> named;
        if (at < text.size() && text[at] == '(') named = named_argument(text, at);
        bool left = false, zero = false;
        for (; at < text.size(); ++at) {
            const char c = text[at];
            if (c == '-') {
                left = true;
            } else if (c == '0') {
                zero = true;
            } else if (c == '+' || (c == ' ' && spec.sign != '+')) {
                spec.sign = c;
            } else if (c == '#') {
                spec.alternate = true;
            } else if (c != ' ') {
                break;
            }
        }
        spec.width = read_number(text, at, kMaxWidth);
        if (at < text.size() && text[at] == '.') {
            ++at;
            spec.precision = read_number(text, at, kMaxPrecision);
        }
        while (at < text.size() && (text[at] == 'l' || text[at] == 'h' || text[at] == 'L')) ++at;
        if (at >= text.size()) fail("incomplete format");
        const char type = text[at++];
        if (type == '%') return "%";
        spec.align = left ? '<' : zero ? '=' : '>';
        if (zero && !left) spec.fill = "0";
        return print(named ? *named : next_argument(), type, spec);
    }

    std::string print(const Value& value, char type, Spec spec) {
        switch (type) {
            case 's':
            case 'r':
            case 'a': {
                std::string text = type == 's' ? to_string(heap_, value) : to_repr(heap_, value);
                if (format_.is_markup() && !value.is_markup()) text = escape_html(text);
                if (spec.align == '=') spec.align = '>';
                spec.fill = " ";
                return pad(truncate(text, spec.precision), spec, '>');
            }
            case 'd':
            case 'i':
            case 'u':
            case 'x':
            case 'X':
            case 'o': {
                const bool is_decimal = type == 'd' || type == 'i' || type == 'u';
                if (!value.is_number() || (!is_decimal && !value.is_integral())) {
                    fail("%" + std::string(1, type) + " format: a number is required, not " +
                         std::string(type_name(value)));
                }
                spec.type = is_decimal ? 'd' : type;
                if (spec.precision >= 0) fail("precision of integers is not supported");
                return format_int(
                    value.is_integral() ? value.as_int() : truncate_to_int(value.as_double()),
                    spec);
            }
            case 'f':
            case 'F':
            case 'e':
            case 'E':
            case 'g':
            case 'G':
                if (!value.is_number()) {
                    fail("must be real number, not " + std::string(type_name(value)));
                }
                spec.type = type;
                return format_float(value.as_double(), spec);
            case 'c':
                if (spec.align == '=') spec.align = '>';
                spec.fill = " ";
                spec.type = 'c';
                if (value.is_integral()) return format_int(value.as_int(), spec);
                if (value.is_string() && value.text().length == 1) {
                    return pad(std::string(value.view()), spec, '>');
                }
                fail("%c requires int or char");
            default:
                fail("unsupported format character '" + std::string(1, type) + "'");
        }
    }

    Heap& heap_;
    const Value& format_;
    const Value& arguments_;
    size_t next_ = 0;
    bool used_mapping_ = false;
};

}  // namespace

Value format_percent(Heap& heap, const Value& format, const Value& arguments) {
    heap.step(static_cast<int64_t>(format.view().size()) / 64);
    return PercentFormatter(heap, format, arguments).run();
}

Value format_fields(Heap& heap, const Value& format, const Arguments& arguments) {
    heap.step(static_cast<int64_t>(format.view().size()) / 64);
    return heap.string(FieldFormatter(heap, arguments, format.is_markup()).format(format.view(), 0),
                       format.is_markup());
}

}  // namespace tessera::jinja
