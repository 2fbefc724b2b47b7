#pragma once
// Python's operators on values. All of them fail with Error where Python raises.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace tessera::jinja {

/// Python's name of the type, for messages.
std::string_view type_name(const Value& value);
bool truthy(const Value& value);
/// Python's hash agreement: equal values have equal hashes. Fails for lists and dicts.
size_t hash_value(Heap& heap, const Value& value);
bool equal(Heap& heap, const Value& left, const Value& right);
/// `left < right`; fails for types that have no order.
bool less(Heap& heap, const Value& left, const Value& right);

enum class Comparison : uint8_t { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual };
bool compare(Heap& heap, Comparison comparison, const Value& left, const Value& right);
/// `item in container`. Reads an iterator up to the item.
bool contains(Heap& heap, const Value& container, const Value& item);

enum class Arithmetic : uint8_t {
    kAdd,
    kSubtract,
    kMultiply,
    kDivide,
    kFloorDivide,
    kModulo,
    kPower
};
Value arithmetic(Heap& heap, Arithmetic operation, const Value& left, const Value& right);
Value negate(const Value& value, bool minus);

/// len(); nothing for values that have none.
std::optional<int64_t> length_of(const Value& value);
/// The items of anything iterable. Fails for everything else.
Next iterate(Heap& heap, const Value& value);
bool is_iterable(const Value& value);
std::vector<Value> collect(Heap& heap, const Value& value);

/// `object[key]`, or nothing where Python raises TypeError or LookupError.
std::optional<Value> subscript(Heap& heap, const Value& object, const Value& key);
/// `object[start:stop:step]`; none stands for an omitted bound.
Value slice(
    Heap& heap, const Value& object, const Value& start, const Value& stop, const Value& step);

/// Steps for a search of `part` in `text`, which may compare every byte with every other.
void charge_search(Heap& heap, std::string_view text, std::string_view part);
/// The integer that stands for the value where Python wants an index.
int64_t to_index(const Value& value);
/// `text` with & < > ' " replaced as HTML wants it.
std::string escape_html(std::string_view text);
/// Python's int(text, base) and float(text); nothing where they raise ValueError.
std::optional<int64_t> parse_int(std::string_view text, int64_t base);
std::optional<double> parse_float(std::string_view text);
/// The int nearest to zero; fails for infinities, NaN and values beyond 64 bits.
int64_t truncate_to_int(double value);

}  // namespace tessera::jinja
