#include "text/jinja/string_methods.h"

#include <algorithm>

#include "text/jinja/attributes.h"
#include "text/jinja/format.h"
#include "text/jinja/operations.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace tessera::jinja {
namespace {

std::string_view string_argument(const Value& value, const char* method) {
    if (!value.is_string()) {
        fail(std::string(method) + "() argument must be str, not " + std::string(type_name(value)));
    }
    return value.view();
}

Value same_kind(Runtime& runtime, const Value& self, std::string text) {
    return runtime.heap().string(std::move(text), self.is_markup());
}

template <std::string (*kConvert)(std::string_view)>
Value convert(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Bound bound("str method", arguments, {}, 0);
    runtime.heap().step(static_cast<int64_t>(self.view().size()) / 16);
    return same_kind(runtime, self, kConvert(self.view()));
}

template <Side kSide>
Value strip_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Bound bound("strip", arguments, {"chars"}, 0);
    return same_kind(runtime, self,
                     std::string(strip(runtime.heap(), self.view(), bound.get(0, Value()), kSide)));
}

/// All characters have the property and there is at least one.
template <bool (*kProperty)(char32_t)>
Value all_are(Runtime&, const Value& self, const Arguments&) {
    const std::string_view text = self.view();
    bool all = !text.empty();
    for (size_t at = 0; all && at < text.size();) all = kProperty(next_code_point(text, at));
    return Value::boolean(all);
}

bool is_alphanumeric(char32_t c) {
    return is_alpha(c) || is_decimal(c) || is_digit(c) || is_numeric(c);
}

/// One cased character at least and none of the other cases.
template <bool kUpper>
Value case_is(Runtime&, const Value& self, const Arguments&) {
    const std::string_view text = self.view();
    bool found = false;
    for (size_t at = 0; at < text.size();) {
        const char32_t c = next_code_point(text, at);
        if (is_title(c) || (kUpper ? is_lower(c) : is_upper(c))) return Value::boolean(false);
        found = found || (kUpper ? is_upper(c) : is_lower(c));
    }
    return Value::boolean(found);
}

Value is_title_method(Runtime&, const Value& self, const Arguments&) {
    const std::string_view text = self.view();
    bool found = false, in_word = false;
    for (size_t at = 0; at < text.size();) {
        const char32_t c = next_code_point(text, at);
        const bool opens = is_upper(c) || is_title(c);
        if ((opens && in_word) || (is_lower(c) && !in_word)) return Value::boolean(false);
        in_word = opens || is_lower(c);
        found = found || in_word;
    }
    return Value::boolean(found);
}

Value is_identifier_method(Runtime&, const Value& self, const Arguments&) {
    return Value::boolean(is_identifier(self.view()));
}

/// Words between white space; at most `limit` splits (negative: all), from the right if `right`.
std::vector<std::string_view> split_words(std::string_view text, int64_t limit, bool right) {
    std::vector<std::string_view> words;
    size_t begin = 0;
    for (size_t at = 0; at < text.size();) {
        const size_t start = at;
        if (!is_space(next_code_point(text, at))) continue;
        if (start > begin) words.push_back(text.substr(begin, start - begin));
        begin = at;
    }
    if (begin < text.size()) words.push_back(text.substr(begin));
    if (limit < 0 || static_cast<int64_t>(words.size()) <= limit) return words;
    // What is not split keeps its inner white space and that of its far end.
    const size_t kept = static_cast<size_t>(limit);
    if (right) {
        const std::string_view last = words[words.size() - kept - 1];
        const size_t end = static_cast<size_t>(last.data() + last.size() - text.data());
        words.erase(words.begin(), words.end() - static_cast<std::ptrdiff_t>(kept) - 1);
        words[0] = text.substr(0, end);
    } else {
        words[kept] = text.substr(static_cast<size_t>(words[kept].data() - text.data()));
        words.resize(kept + 1);
    }
    return words;
}

std::vector<std::string_view> split_at(std::string_view text,
                                       std::string_view separator,
                                       int64_t limit,
                                       bool right) {
    if (separator.empty()) fail("empty separator");
    std::vector<std::string_view> parts;
    std::string_view rest = text;
    while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
        const size_t at = right ? rest.rfind(separator) : rest.find(separator);
        if (at == std::string_view::npos) break;
        const std::string_view behind = rest.substr(at + separator.size());
        parts.push_back(right ? behind : rest.substr(0, at));
        rest = right ? rest.substr(0, at) : behind;
    }
    parts.push_back(rest);
    if (right) std::reverse(parts.begin(), parts.end());
    return parts;
}

Value to_list(Runtime& runtime, const Value& self, const std::vector<std::string_view>& parts) {
    std::vector<Value> items;
    items.reserve(parts.size());
    runtime.heap().step(static_cast<int64_t>(parts.size()) / 4);
    for (const std::string_view part : parts) {
        items.push_back(same_kind(runtime, self, std::string(part)));
    }
    return runtime.heap().list(std::move(items));
}

template <bool kRight>
Value split_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Bound bound("split", arguments, {"sep", "maxsplit"}, 0);
    const int64_t limit = to_index(bound.get(1, Value::integer(-1)));
    const Value separator = bound.get(0, Value());
    runtime.heap().step(static_cast<int64_t>(self.view().size()) / 256);
    if (separator.is_none()) {
        return to_list(runtime, self, split_words(self.view(), limit, kRight));
    }
    const std::string_view mark = string_argument(separator, "split");
    charge_search(runtime.heap(), self.view(), mark);
    return to_list(runtime, self, split_at(self.view(), mark, limit, kRight));
}

Value splitlines_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Bound bound("splitlines", arguments, {"keepends"}, 0);
    return to_list(runtime, self, split_lines(self.view(), bound.flag(0)));
}

template <bool kRight>
Value partition_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Bound bound("partition", arguments, {"sep"}, 1);
    const std::string_view text = self.view(), separator = string_argument(*bound[0], "partition");
    if (separator.empty()) fail("empty separator");
    charge_search(runtime.heap(), text, separator);
    const size_t at = kRight ? text.rfind(separator) : text.find(separator);
    const bool found = at != std::string_view::npos;
    std::string_view head = text, middle, tail;
    if (found) {
        head = text.substr(0, at);
        middle = separator;
        tail = text.substr(at + separator.size());
    } else if (kRight) {
        std::swap(head, tail);
    }
    Heap& heap = runtime.heap();
    return heap.tuple({heap.string(std::string(head)), heap.string(std::string(middle)),
                       heap.string(std::string(tail))});
}

Value join_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Bound bound("join", arguments, {"iterable"}, 1);
    const Next next = iterate(runtime.heap(), *bound[0]);
    std::string out;
    bool first = true;
    for (Value item; next(item); first = false) {
        if (!item.is_string()) {
            fail("sequence item: expected str instance, " + std::string(type_name(item)) +
                 " found");
        }
        if (!first) out += self.view();
        out += self.is_markup() && !item.is_markup() ? escape_html(item.view())
                                                     : std::string(item.view());
        if (static_cast<int64_t>(out.size()) > kMaxOutputBytes) break;
    }
    return same_kind(runtime, self, std::move(out));
}

Value replace_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Bound bound("replace", arguments, {"old", "new", "count"}, 2);
    if (!arguments.named.empty()) fail("replace() takes no keyword arguments");
    const int64_t count = to_index(bound.get(2, Value::integer(-1)));
    std::string_view new_part = string_argument(*bound[1], "replace");
    std::string escaped;
    if (self.is_markup() && !bound[1]->is_markup()) {
        escaped = escape_html(new_part);
        new_part = escaped;
    }
    return same_kind(runtime, self,
                     replace_all(runtime.heap(), self.view(), string_argument(*bound[0], "replace"),
                                 new_part, count));
}

/// Bounds of the optional start and end arguments as byte positions.
std::string_view bounded(const Value& self, const Bound& bound, size_t first, size_t* begin_bytes) {
    const int64_t length = self.text().length;
    const auto position = [&](size_t index, int64_t fallback) {
        if (bound[index] == nullptr || bound[index]->is_none()) return fallback;
        const int64_t value = to_index(*bound[index]);
        return std::clamp<int64_t>(value < 0 ? value + length : value, 0, length + 1);
    };
    const int64_t begin = position(first, 0), end = std::min(position(first + 1, length), length);
    if (begin > end) {
        *begin_bytes = std::string_view::npos;
        return {};
    }
    *begin_bytes = offset_of(self.view(), begin);
    return self.view().substr(*begin_bytes, offset_of(self.view(), end) - *begin_bytes);
}

template <bool kEnd>
Value affix_method(Runtime&, const Value& self, const Arguments& arguments) {
    const Bound bound("startswith", arguments, {"prefix", "start", "end"}, 1);
    size_t begin = 0;
    const std::string_view text = bounded(self, bound, 1, &begin);
    const auto matches = [&](const Value& affix) {
        const std::string_view part = string_argument(affix, kEnd ? "endswith" : "startswith");
        if (begin == std::string_view::npos) return false;
        return kEnd ? text.ends_with(part) : text.starts_with(part);
    };
    if (!bound[0]->is(Type::kTuple)) return Value::boolean(matches(*bound[0]));
    const std::vector<Value>& affixes = bound[0]->as<List>()->items;
    return Value::boolean(std::any_of(affixes.begin(), affixes.end(), matches));
}

template <bool kRight, bool kMustFind>
Value find_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Bound bound("find", arguments, {"sub", "start", "end"}, 1);
    size_t begin = 0;
    const std::string_view text = bounded(self, bound, 1, &begin);
    const std::string_view part = string_argument(*bound[0], "find");
    charge_search(runtime.heap(), text, part);
    size_t at = std::string_view::npos;
    if (begin != std::string_view::npos) at = kRight ? text.rfind(part) : text.find(part);
    if (at != std::string_view::npos) {
        return Value::integer(count_code_points(self.view().substr(0, begin + at)));
    }
    if (kMustFind) fail("substring not found");
    return Value::integer(-1);
}

Value count_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Bound bound("count", arguments, {"sub", "start", "end"}, 1);
    size_t begin = 0;
    const std::string_view text = bounded(self, bound, 1, &begin);
    const std::string_view part = string_argument(*bound[0], "count");
    charge_search(runtime.heap(), text, part);
    if (begin == std::string_view::npos) return Value::integer(0);
    if (part.empty()) return Value::integer(count_code_points(text) + 1);
    int64_t count = 0;
    for (size_t at = text.find(part); at != std::string_view::npos;
         at = text.find(part, at + part.size())) {
        ++count;
    }
    return Value::integer(count);
}

Value format_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
    return format_fields(runtime.heap(), self, arguments);
}

std::string filling(int64_t count, std::string_view fill) {
    if (count * static_cast<int64_t>(fill.size()) > kMaxOutputBytes) {
        fail("the template makes a string of more than 64 MiB");
    }
    std::string out;
    for (int64_t i = 0; i < count; ++i) out += fill;
    return out;
}

std::string_view fill_argument(const Bound& bound, size_t index) {
    if (bound[index] == nullptr) return " ";
    const std::string_view fill = string_argument(*bound[index], "fill");
    if (bound[index]->text().length != 1) {
        fail("The fill character must be exactly one character long");
    }
    return fill;
}

template <Side kTextSide>
Value justify_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Bound bound("justify", arguments, {"width", "fillchar"}, 1);
    const int64_t width = std::min(to_index(*bound[0]), kMaxOutputBytes + 1);
    const std::string_view fill = fill_argument(bound, 1);
    if (kTextSide == Side::kBoth) return same_kind(runtime, self, center(self.view(), width, fill));
    const std::string padding = filling(std::max<int64_t>(width - self.text().length, 0), fill);
    const std::string text(self.view());
    return same_kind(runtime, self, kTextSide == Side::kLeft ? text + padding : padding + text);
}

Value zfill_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Bound bound("zfill", arguments, {"width"}, 1);
    const int64_t width = std::min(to_index(*bound[0]), kMaxOutputBytes + 1);
    const std::string zeros = filling(std::max<int64_t>(width - self.text().length, 0), "0");
    const std::string_view text = self.view();
    const size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
    return same_kind(runtime, self,
                     std::string(text.substr(0, sign)) + zeros + std::string(text.substr(sign)));
}

template <bool kSuffix>
Value remove_affix_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Bound bound("removeprefix", arguments, {"affix"}, 1);
    const std::string_view affix = string_argument(*bound[0], "removeprefix");
    std::string_view text = self.view();
    if (!affix.empty() && (kSuffix ? text.ends_with(affix) : text.starts_with(affix))) {
        text = kSuffix ? text.substr(0, text.size() - affix.size()) : text.substr(affix.size());
    }
    return same_kind(runtime, self, std::string(text));
}

Value expandtabs_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Bound bound("expandtabs", arguments, {"tabsize"}, 0);
    const int64_t size = std::clamp<int64_t>(to_index(bound.get(0, Value::integer(8))), 0, 1000);
    std::string out;
    int64_t column = 0;
    const std::string_view text = self.view();
    for (size_t at = 0; at < text.size();) {
        const char32_t c = next_code_point(text, at);
        if (c == U'\t') {
            const int64_t count = size > 0 ? size - column % size : 0;
            out.append(static_cast<size_t>(count), ' ');
            column += count;
        } else {
            append_code_point(out, c);
            column = c == U'\n' || c == U'\r' ? 0 : column + 1;
        }
        if (static_cast<int64_t>(out.size()) > kMaxOutputBytes) break;
    }
    return same_kind(runtime, self, std::move(out));
}

constexpr Method kStringMethods[] = {
    {"split", split_method<false>},
    {"strip", strip_method<Side::kBoth>},
    {"lstrip", strip_method<Side::kLeft>},
    {"rstrip", strip_method<Side::kRight>},
    {"startswith", affix_method<false>},
    {"endswith", affix_method<true>},
    {"replace", replace_method},
    {"upper", convert<to_upper>},
    {"lower", convert<to_lower>},
    {"title", convert<to_title>},
    {"capitalize", convert<capitalize>},
    {"casefold", convert<fold_case>},
    {"swapcase", convert<swap_case>},
    {"join", join_method},
    {"format", format_method},
    {"find", find_method<false, false>},
    {"rfind", find_method<true, false>},
    {"index", find_method<false, true>},
    {"rindex", find_method<true, true>},
    {"count", count_method},
    {"rsplit", split_method<true>},
    {"splitlines", splitlines_method},
    {"partition", partition_method<false>},
    {"rpartition", partition_method<true>},
    {"removeprefix", remove_affix_method<false>},
    {"removesuffix", remove_affix_method<true>},
    {"isalpha", all_are<is_alpha>},
    {"isdigit", all_are<is_digit>},
    {"isdecimal", all_are<is_decimal>},
    {"isnumeric", all_are<is_numeric>},
    {"isalnum", all_are<is_alphanumeric>},
    {"isspace", all_are<is_space>},
    {"isprintable", all_are<is_printable>},
    {"isupper", case_is<true>},
    {"islower", case_is<false>},
    {"istitle", is_title_method},
    {"isidentifier", is_identifier_method},
    {"center", justify_method<Side::kBoth>},
    {"ljust", justify_method<Side::kLeft>},
    {"rjust", justify_method<Side::kRight>},
    {"zfill", zfill_method},
    {"expandtabs", expandtabs_method},
};

}  // namespace

std::span<const Method> string_methods() {
    return kStringMethods;
}

std::string_view strip(Heap& heap, std::string_view text, const Value& characters, Side side) {
    const bool left = side != Side::kRight, right = side != Side::kLeft;
    if (characters.is_none()) return strip_space(text, left, right);
    const std::string_view set = string_argument(characters, "strip");
    const auto in_set = [set, &heap](std::string_view character) {
        heap.step(static_cast<int64_t>(set.size()) / 64);
        for (size_t at = 0; at < set.size();) {
            const size_t begin = at;
            next_code_point(set, at);
            if (set.substr(begin, at - begin) == character) return true;
        }
        return false;
    };
    while (left && !text.empty()) {
        size_t end = 0;
        next_code_point(text, end);
        if (!in_set(text.substr(0, end))) break;
        text.remove_prefix(end);
    }
    while (right && !text.empty()) {
        size_t start = text.size() - 1;
        while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
        if (!in_set(text.substr(start))) break;
        text.remove_suffix(text.size() - start);
    }
    return text;
}

std::string replace_all(Heap& heap,
                        std::string_view text,
                        std::string_view old_part,
                        std::string_view new_part,
                        int64_t count) {
    charge_search(heap, text, old_part);
    std::string out;
    const auto check_size = [&out] {
        if (static_cast<int64_t>(out.size()) > kMaxOutputBytes) {
            fail("the template makes a string of more than 64 MiB");
        }
    };
    size_t at = 0;
    if (old_part.empty()) {
        for (; count != 0; --count) {
            out += new_part;
            check_size();
            if (at >= text.size()) return out;
            const size_t begin = at;
            next_code_point(text, at);
            out += text.substr(begin, at - begin);
        }
        return out + std::string(text.substr(at));
    }
    for (; count != 0; --count) {
        const size_t found = text.find(old_part, at);
        if (found == std::string_view::npos) break;
        out += text.substr(at, found - at);
        out += new_part;
        check_size();
        at = found + old_part.size();
    }
    return out + std::string(text.substr(at));
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
    std::vector<std::string_view> lines;
    size_t begin = 0;
    for (size_t at = 0; at < text.size();) {
        const size_t end = at;
        const char32_t c = next_code_point(text, at);
        const bool is_end = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                            c == 0x2028 || c == 0x2029;
        if (!is_end) continue;
        if (c == U'\r' && at < text.size() && text[at] == '\n') ++at;
        lines.push_back(text.substr(begin, (keep_ends ? at : end) - begin));
        begin = at;
    }
    if (begin < text.size()) lines.push_back(text.substr(begin));
    return lines;
}

std::string center(std::string_view text, int64_t width, std::string_view fill) {
    const int64_t missing = std::max<int64_t>(width - count_code_points(text), 0);
    // The odd column goes to the left when the width is odd: CPython's rule.
    const int64_t left = missing / 2 + (missing & width & 1);
    return filling(left, fill) + std::string(text) + filling(missing - left, fill);
}

}  // namespace tessera::jinja
