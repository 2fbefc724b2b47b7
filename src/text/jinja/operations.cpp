#include "text/jinja/operations.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "text/jinja/format.h"
#include "text/jinja/loop.h"
#include "text/jinja/unicode.h"

namespace tessera::jinja {
namespace {

size_t mix(size_t seed, size_t value) {
    return seed ^ (value + 0x9e3779b97f4a7c15u + (seed << 6) + (seed >> 2));
}

/// Exact on every platform whose long double holds 64-bit integers; the comparison of a large int
/// with a float elsewhere may round.
int compare_numbers(const Value& left, const Value& right) {
    if (left.is_integral() && right.is_integral()) {
        return left.as_int() < right.as_int() ? -1 : left.as_int() > right.as_int() ? 1 : 0;
    }
    const auto widen = [](const Value& value) {
        return value.is_integral() ? static_cast<long double>(value.as_int())
                                   : static_cast<long double>(value.as_double());
    };
    const long double a = widen(left), b = widen(right);
    return a < b ? -1 : a > b ? 1 : a == b ? 0 : 2;
}

bool equal_lists(Heap& heap, const List& left, const List& right) {
    if (&left == &right) return true;
    if (left.items.size() != right.items.size()) return false;
    for (size_t i = 0; i < left.items.size(); ++i) {
        if (!equal(heap, left.items[i], right.items[i])) return false;
    }
    return true;
}

bool equal_dicts(Heap& heap, const Dict& left, const Dict& right) {
    if (&left == &right) return true;
    if (left.entries.size() != right.entries.size()) return false;
    for (const auto& [key, value] : left.entries) {
        const Value* other = right.find(heap, key);
        if (other == nullptr || !equal(heap, value, *other)) return false;
    }
    return true;
}

bool is_identical_object(const Value& left, const Value& right) {
    return left.type() > Type::kString && left.object() == right.object();
}

[[noreturn]] void fail_operands(std::string_view sign, const Value& left, const Value& right) {
    fail("unsupported operand types for " + std::string(sign) + ": '" +
         std::string(type_name(left)) + "' and '" + std::string(type_name(right)) + "'");
}

bool less_lists(Heap& heap, const List& left, const List& right) {
    const size_t common = std::min(left.items.size(), right.items.size());
    for (size_t i = 0; i < common; ++i) {
        if (equal(heap, left.items[i], right.items[i])) continue;
        return less(heap, left.items[i], right.items[i]);
    }
    return left.items.size() < right.items.size();
}

}  // namespace

std::string_view type_name(const Value& value) {
    switch (value.type()) {
        case Type::kMissing:
        case Type::kUndefined:
            return "Undefined";
        case Type::kNone:
            return "NoneType";
        case Type::kBool:
            return "bool";
        case Type::kInt:
            return "int";
        case Type::kFloat:
            return "float";
        case Type::kString:
            return "str";
        case Type::kList:
            return "list";
        case Type::kTuple:
            return "tuple";
        case Type::kDict:
            return "dict";
        case Type::kNamespace:
            return "Namespace";
        case Type::kRange:
            return "range";
        case Type::kView:
            return "dict view";
        case Type::kIterator:
            return "generator";
        case Type::kFunction:
            return "function";
        case Type::kMacro:
            return "Macro";
        case Type::kLoop:
            return "LoopContext";
        case Type::kCycler:
            return "Cycler";
        case Type::kJoiner:
            return "Joiner";
    }
    return "object";
}

bool truthy(const Value& value) {
    switch (value.type()) {
        case Type::kMissing:
        case Type::kUndefined:
        case Type::kNone:
            return false;
        case Type::kBool:
        case Type::kInt:
            return value.as_int() != 0;
        case Type::kFloat:
            return value.as_double() != 0;
        default:
            break;
    }
    const std::optional<int64_t> length = length_of(value);
    return !length || *length != 0;
}

size_t hash_value(Heap& heap, const Value& value) {
    heap.step();
    switch (value.type()) {
        case Type::kBool:
        case Type::kInt:
            // A float that equals an int must agree with it; large ints share a bucket with their
            // neighbours.
            return std::hash<double>{}(value.as_double());
        case Type::kFloat:
            return std::hash<double>{}(value.as_double());
        case Type::kString:
            heap.step(static_cast<int64_t>(value.view().size()) / 512);
            return std::hash<std::string_view>{}(value.view());
        case Type::kTuple: {
            size_t seed = 1;
            for (const Value& item : value.as<List>()->items) {
                seed = mix(seed, hash_value(heap, item));
            }
            return seed;
        }
        case Type::kList:
        case Type::kDict:
        case Type::kView:
            fail("unhashable type: '" + std::string(type_name(value)) + "'");
        case Type::kRange:
        case Type::kMissing:
        case Type::kUndefined:
        case Type::kNone:
            return static_cast<size_t>(value.type());
        default:
            return std::hash<const void*>{}(value.object());
    }
}

bool equal(Heap& heap, const Value& left, const Value& right) {
    heap.step();
    if (left.is_number() && right.is_number()) return compare_numbers(left, right) == 0;
    if (left.is_undefined() && right.is_undefined()) return true;
    if (left.type() != right.type()) return false;
    switch (left.type()) {
        case Type::kNone:
            return true;
        case Type::kString:
            heap.step(static_cast<int64_t>(left.view().size()) / 512);
            return left.view() == right.view();
        case Type::kList:
        case Type::kTuple:
            return equal_lists(heap, *left.as<List>(), *right.as<List>());
        case Type::kDict:
            return equal_dicts(heap, *left.as<Dict>(), *right.as<Dict>());
        case Type::kRange: {
            const Range &a = *left.as<Range>(), &b = *right.as<Range>();
            if (a.length != b.length) return false;
            return a.length == 0 || (a.start == b.start && (a.length == 1 || a.step == b.step));
        }
        default:
            return is_identical_object(left, right);
    }
}

bool less(Heap& heap, const Value& left, const Value& right) {
    heap.step();
    if (left.is_number() && right.is_number()) return compare_numbers(left, right) == -1;
    if (left.is_undefined()) fail(std::string(left.text().bytes));
    if (right.is_undefined()) fail(std::string(right.text().bytes));
    if (left.is_string() && right.is_string()) return left.view() < right.view();
    if (left.is_list() && left.type() == right.type()) {
        return less_lists(heap, *left.as<List>(), *right.as<List>());
    }
    fail_operands("<", left, right);
}

bool compare(Heap& heap, Comparison comparison, const Value& left, const Value& right) {
    switch (comparison) {
        case Comparison::kEqual:
            return equal(heap, left, right);
        case Comparison::kNotEqual:
            return !equal(heap, left, right);
        case Comparison::kLess:
            return less(heap, left, right);
        case Comparison::kGreater:
            return less(heap, right, left);
        case Comparison::kLessEqual:
            return less(heap, left, right) || equal(heap, left, right);
        case Comparison::kGreaterEqual:
            return less(heap, right, left) || equal(heap, left, right);
    }
    return false;
}

bool contains(Heap& heap, const Value& container, const Value& item) {
    switch (container.type()) {
        case Type::kString:
            if (!item.is_string()) {
                fail("'in <string>' requires string as left operand, not " +
                     std::string(type_name(item)));
            }
            charge_search(heap, container.view(), item.view());
            return container.view().find(item.view()) != std::string_view::npos;
        case Type::kDict:
            return container.as<Dict>()->find(heap, item) != nullptr;
        case Type::kView:
            if (container.as<View>()->kind == ViewKind::kKeys) {
                return container.as<View>()->dict->find(heap, item) != nullptr;
            }
            break;
        default:
            break;
    }
    if (!is_iterable(container)) {
        fail("argument of type '" + std::string(type_name(container)) + "' is not iterable");
    }
    const Next next = iterate(heap, container);
    for (Value candidate; next(candidate);) {
        if (is_identical_object(candidate, item) || equal(heap, candidate, item)) return true;
    }
    return false;
}

std::optional<int64_t> length_of(const Value& value) {
    switch (value.type()) {
        case Type::kUndefined:
            return 0;
        case Type::kString:
            return value.text().length;
        case Type::kList:
        case Type::kTuple:
            return static_cast<int64_t>(value.as<List>()->items.size());
        case Type::kDict:
            return static_cast<int64_t>(value.as<Dict>()->entries.size());
        case Type::kView:
            return static_cast<int64_t>(value.as<View>()->dict->entries.size());
        case Type::kRange:
            return value.as<Range>()->length;
        case Type::kLoop:
            return value.as<Loop>()->length();
        default:
            return std::nullopt;
    }
}

bool is_iterable(const Value& value) {
    switch (value.type()) {
        case Type::kUndefined:
        case Type::kString:
        case Type::kList:
        case Type::kTuple:
        case Type::kDict:
        case Type::kView:
        case Type::kRange:
        case Type::kIterator:
        case Type::kLoop:
            return true;
        default:
            return false;
    }
}

namespace {

Next iterate_view(Heap& heap, const Dict* dict, ViewKind kind) {
    return [&heap, dict, kind, index = size_t{0}](Value& item) mutable {
        if (index >= dict->entries.size()) return false;
        heap.step();
        const auto& [key, value] = dict->entries[index++];
        switch (kind) {
            case ViewKind::kKeys:
                item = key;
                break;
            case ViewKind::kValues:
                item = value;
                break;
            case ViewKind::kItems:
                item = heap.tuple({key, value});
                break;
        }
        return true;
    };
}

Next iterate_string(Heap& heap, const Value& value) {
    return [&heap, value, at = size_t{0}](Value& item) mutable {
        const std::string_view text = value.view();
        if (at >= text.size()) return false;
        heap.step();
        const size_t begin = at;
        next_code_point(text, at);
        item = heap.string(std::string(text.substr(begin, at - begin)));
        return true;
    };
}

}  // namespace

Next iterate(Heap& heap, const Value& value) {
    switch (value.type()) {
        case Type::kMissing:
        case Type::kUndefined:
            return [](Value&) { return false; };
        case Type::kString:
            return iterate_string(heap, value);
        case Type::kList:
        case Type::kTuple:
            return [&heap, list = value.as<List>(), index = size_t{0}](Value& item) mutable {
                if (index >= list->items.size()) return false;
                heap.step();
                item = list->items[index++];
                return true;
            };
        case Type::kDict:
            return iterate_view(heap, value.as<Dict>(), ViewKind::kKeys);
        case Type::kView:
            return iterate_view(heap, value.as<View>()->dict, value.as<View>()->kind);
        case Type::kRange:
            return [&heap, range = value.as<Range>(), index = int64_t{0}](Value& item) mutable {
                if (index >= range->length) return false;
                heap.step();
                item = Value::integer(range->at(index++));
                return true;
            };
        case Type::kIterator:
            return [&heap, iterator = value.as<Iterator>()](Value& item) {
                heap.step();
                return iterator->next(item);
            };
        case Type::kLoop:
            fail("iterating over `loop` is not supported");
        default:
            fail("'" + std::string(type_name(value)) + "' object is not iterable");
    }
}

std::vector<Value> collect(Heap& heap, const Value& value) {
    std::vector<Value> items;
    const Next next = iterate(heap, value);
    int64_t charged = 0;
    for (Value item; next(item);) {
        items.push_back(item);
        heap.charge(static_cast<int64_t>(sizeof(Value)));
        charged += static_cast<int64_t>(sizeof(Value));
    }
    heap.release(charged);
    return items;
}

void charge_search(Heap& heap, std::string_view text, std::string_view part) {
    heap.step(static_cast<int64_t>(text.size() / 512 +
                                   text.size() / 256 * (std::min(part.size(), text.size()) / 256)));
}

int64_t to_index(const Value& value) {
    if (!value.is_integral()) {
        fail("'" + std::string(type_name(value)) + "' object cannot be interpreted as an integer");
    }
    return value.as_int();
}

std::string escape_html(std::string_view text) {
    std::string out;
    for (const char c : text) {
        switch (c) {
            case '&':
                out += "&amp;";
                break;
            case '<':
                out += "&lt;";
                break;
            case '>':
                out += "&gt;";
                break;
            case '\'':
                out += "&#39;";
                break;
            case '"':
                out += "&#34;";
                break;
            default:
                out += c;
        }
    }
    return out;
}

std::optional<int64_t> parse_int(std::string_view text, int64_t base) {
    text = strip_space(text, true, true);
    bool negative = false;
    if (!text.empty() && (text[0] == '+' || text[0] == '-')) {
        negative = text[0] == '-';
        text.remove_prefix(1);
    }
    bool has_prefix = false;
    if (text.size() > 1 && text[0] == '0') {
        const char letter = static_cast<char>(text[1] | 0x20);
        const int64_t prefix_base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
        if (prefix_base != 0 && (base == 0 || base == prefix_base)) {
            base = prefix_base;
            text.remove_prefix(2);
            has_prefix = true;
        } else if (base == 0 && text.find_first_not_of("0_") != std::string_view::npos) {
            return std::nullopt;
        }
    }
    if (base == 0) base = 10;
    if (base < 2 || base > 36) fail("int() base must be >= 2 and <= 36, or 0");
    if (has_prefix && !text.empty() && text[0] == '_') text.remove_prefix(1);
    int64_t result = 0;
    bool digit_before = false;
    for (const char c : text) {
        if (c == '_' && digit_before) {
            digit_before = false;
            continue;
        }
        const char letter = static_cast<char>(c | 0x20);
        const int64_t digit = c >= '0' && c <= '9'             ? c - '0'
                              : letter >= 'a' && letter <= 'z' ? letter - 'a' + 10
                                                               : 99;
        if (digit >= base) return std::nullopt;
        if (__builtin_mul_overflow(result, base, &result) ||
            __builtin_sub_overflow(result, digit, &result)) {
            fail("integers beyond 64 bits are not supported");
        }
        digit_before = true;
    }
    if (!digit_before) return std::nullopt;
    // Accumulated as a negative number, whose range is the larger one.
    if (!negative && __builtin_sub_overflow(int64_t{0}, result, &result)) {
        fail("integers beyond 64 bits are not supported");
    }
    return result;
}

std::optional<double> parse_float(std::string_view text) {
    text = strip_space(text, true, true);
    std::string plain;
    for (size_t i = 0; i < text.size(); ++i) {
        const auto digit_at = [&](size_t at) {
            return at < text.size() && text[at] >= '0' && text[at] <= '9';
        };
        if (text[i] != '_') {
            plain += static_cast<char>(text[i] >= 'A' && text[i] <= 'Z' ? text[i] | 0x20 : text[i]);
        } else if (i == 0 || !digit_at(i - 1) || !digit_at(i + 1)) {
            return std::nullopt;
        }
    }
    const std::string_view number = std::string_view(plain).substr(
        plain.empty() || (plain[0] != '-' && plain[0] != '+') ? 0 : 1);
    const bool is_word = number == "inf" || number == "infinity" || number == "nan";
    if (!is_word &&
        (number.find_first_not_of("0123456789.e+-") != std::string_view::npos || number.empty() ||
         !(number[0] == '.' || (number[0] >= '0' && number[0] <= '9')))) {
        return std::nullopt;
    }
    char* end = nullptr;
    const double value = std::strtod(plain.c_str(), &end);
    if (end != plain.c_str() + plain.size()) return std::nullopt;
    return value;
}

int64_t truncate_to_int(double value) {
    if (std::isnan(value)) fail("cannot convert float NaN to integer");
    if (std::isinf(value)) fail("cannot convert float infinity to integer");
    const double whole = std::trunc(value);
    if (whole < -0x1p63 || whole >= 0x1p63) fail("integers beyond 64 bits are not supported");
    return static_cast<int64_t>(whole);
}

}  // namespace tessera::jinja
