// Arithmetic, subscripts and slices of operations.h.

#include <algorithm>
#include <cmath>

#include "text/jinja/format.h"
#include "text/jinja/operations.h"
#include "text/jinja/unicode.h"

namespace tessera::jinja {
namespace {

[[noreturn]] void fail_overflow() {
    fail("integers beyond 64 bits are not supported");
}

[[noreturn]] void fail_types(Arithmetic operation, const Value& left, const Value& right) {
    static constexpr std::string_view kSigns[] = {"+", "-", "*", "/", "//", "%", "**"};
    for (const Value* side : {&left, &right}) {
        if (side->is_undefined()) fail(side->text().bytes);
    }
    fail("unsupported operand types for " + std::string(kSigns[static_cast<size_t>(operation)]) +
         ": '" + std::string(type_name(left)) + "' and '" + std::string(type_name(right)) + "'");
}

int64_t floor_divide(int64_t a, int64_t b) {
    if (b == 0) fail("integer division or modulo by zero");
    if (b == -1) {
        int64_t result = 0;
        if (__builtin_sub_overflow(int64_t{0}, a, &result)) fail_overflow();
        return result;
    }
    const int64_t quotient = a / b;
    return (a % b != 0 && (a < 0) != (b < 0)) ? quotient - 1 : quotient;
}

int64_t modulo(int64_t a, int64_t b) {
    if (b == 0) fail("integer division or modulo by zero");
    if (b == -1) return 0;
    const int64_t rest = a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Value power(int64_t base, int64_t exponent) {
    if (exponent < 0) {
        if (base == 0) fail("0.0 cannot be raised to a negative power");
        return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
    }
    int64_t result = 1;
    if (base == 0 || base == 1) return Value::integer(exponent == 0 ? 1 : base);
    if (base == -1) return Value::integer(exponent % 2 == 0 ? 1 : -1);
    for (int64_t i = 0; i < exponent; ++i) {
        if (__builtin_mul_overflow(result, base, &result)) fail_overflow();
    }
    return Value::integer(result);
}

Value integer_arithmetic(Arithmetic operation, int64_t a, int64_t b) {
    int64_t result = 0;
    bool overflow = false;
    switch (operation) {
        case Arithmetic::kAdd:
            overflow = __builtin_add_overflow(a, b, &result);
            break;
        case Arithmetic::kSubtract:
            overflow = __builtin_sub_overflow(a, b, &result);
            break;
        case Arithmetic::kMultiply:
            overflow = __builtin_mul_overflow(a, b, &result);
            break;
        case Arithmetic::kFloorDivide:
            return Value::integer(floor_divide(a, b));
        case Arithmetic::kModulo:
            return Value::integer(modulo(a, b));
        case Arithmetic::kPower:
            return power(a, b);
        case Arithmetic::kDivide:
            if (b == 0) fail("division by zero");
            return Value::real(
                static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b)));
    }
    if (overflow) fail_overflow();
    return Value::integer(result);
}

double float_modulo(double a, double b) {
    if (b == 0) fail("float modulo");
    double rest = std::fmod(a, b);
    if (rest == 0) return std::copysign(0.0, b);
    if ((rest < 0) != (b < 0)) rest += b;
    return rest;
}

double float_floor_divide(double a, double b) {
    if (b == 0) fail("float floor division by zero");
    const double rest = std::fmod(a, b);
    double quotient = (a - rest) / b;
    if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1;
    if (quotient == 0) return std::copysign(0.0, a / b);
    const double floor = std::floor(quotient);
    return quotient - floor > 0.5 ? floor + 1 : floor;
}

double float_power(double a, double b) {
    if (a == 0 && b < 0) fail("0.0 cannot be raised to a negative power");
    if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b)) {
        fail("complex numbers are not supported");
    }
    const double result = std::pow(a, b);
    if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) {
        fail("numerical result out of range");
    }
    return result;
}

Value float_arithmetic(Arithmetic operation, double a, double b) {
    switch (operation) {
        case Arithmetic::kAdd:
            return Value::real(a + b);
        case Arithmetic::kSubtract:
            return Value::real(a - b);
        case Arithmetic::kMultiply:
            return Value::real(a * b);
        case Arithmetic::kDivide:
            if (b == 0) fail("float division by zero");
            return Value::real(a / b);
        case Arithmetic::kFloorDivide:
            return Value::real(float_floor_divide(a, b));
        case Arithmetic::kModulo:
            return Value::real(float_modulo(a, b));
        case Arithmetic::kPower:
            return Value::real(float_power(a, b));
    }
    return Value();
}

Value add_strings(Heap& heap, const Value& left, const Value& right) {
    const bool markup = left.is_markup() || right.is_markup();
    const auto bytes = [markup](const Value& side) {
        return markup && !side.is_markup() ? escape_html(side.view()) : std::string(side.view());
    };
    return heap.string(bytes(left) + bytes(right), markup);
}

Value add_lists(Heap& heap, const List& left, const List& right) {
    std::vector<Value> items = left.items;
    items.insert(items.end(), right.items.begin(), right.items.end());
    return left.type == Type::kList ? heap.list(std::move(items)) : heap.tuple(std::move(items));
}

Value repeat(Heap& heap, const Value& sequence, int64_t count) {
    count = std::max<int64_t>(count, 0);
    if (sequence.is_string()) {
        const std::string_view text = sequence.view();
        int64_t size = 0;
        if (__builtin_mul_overflow(static_cast<int64_t>(text.size()), count, &size) ||
            size > kMaxOutputBytes) {
            fail("the template makes a string of more than 64 MiB");
        }
        std::string out;
        out.reserve(static_cast<size_t>(size));
        for (int64_t i = 0; size > 0 && i < count; ++i) out += text;
        return heap.string(std::move(out), sequence.is_markup());
    }
    const std::vector<Value>& source = sequence.as<List>()->items;
    int64_t size = 0;
    if (__builtin_mul_overflow(static_cast<int64_t>(source.size()), count, &size)) {
        fail("the template needs more than 512 MiB of memory");
    }
    heap.step(size / 4);
    std::vector<Value> items;
    items.reserve(static_cast<size_t>(size));
    for (int64_t i = 0; size > 0 && i < count; ++i) {
        items.insert(items.end(), source.begin(), source.end());
    }
    return sequence.is(Type::kList) ? heap.list(std::move(items)) : heap.tuple(std::move(items));
}

/// Python's clipping of slice bounds for a sequence of `length`.
struct SliceRange {
    int64_t start, stop, step, count;
};

SliceRange clip_slice(int64_t length, const Value& start, const Value& stop, const Value& step) {
    const int64_t stride = step.is_none() ? 1 : to_index(step);
    if (stride == 0) fail("slice step cannot be zero");
    const int64_t low = stride > 0 ? 0 : -1;
    const int64_t high = stride > 0 ? length : length - 1;
    const auto bound = [&](const Value& value, int64_t omitted) {
        if (value.is_none()) return omitted;
        const int64_t index = to_index(value);
        return std::clamp(index < 0 ? index + length : index, low, high);
    };
    const int64_t first = bound(start, stride > 0 ? low : high);
    const int64_t last = bound(stop, stride > 0 ? high : low);
    const int64_t distance = stride > 0 ? last - first : first - last;
    if (distance <= 0) return {first, last, stride, 0};
    const uint64_t magnitude =
        stride > 0 ? static_cast<uint64_t>(stride) : uint64_t{0} - static_cast<uint64_t>(stride);
    return {first, last, stride,
            static_cast<int64_t>((static_cast<uint64_t>(distance) - 1) / magnitude) + 1};
}

bool is_hashable(Heap& heap, const Value& value) {
    heap.step();
    if (value.is(Type::kList) || value.is(Type::kDict) || value.is(Type::kView)) return false;
    if (!value.is(Type::kTuple)) return true;
    const std::vector<Value>& items = value.as<List>()->items;
    return std::all_of(items.begin(), items.end(),
                       [&heap](const Value& item) { return is_hashable(heap, item); });
}

Value slice_string(Heap& heap, const Value& value, const SliceRange& range) {
    const std::string_view text = value.view();
    heap.step(static_cast<int64_t>(text.size()) / 512);
    if (range.step == 1) {
        const size_t begin = offset_of(text, range.start);
        const size_t size = offset_of(text.substr(begin), range.count);
        return heap.string(std::string(text.substr(begin, size)), value.is_markup());
    }
    std::vector<size_t> offsets;
    for (size_t at = 0; at < text.size(); next_code_point(text, at)) offsets.push_back(at);
    offsets.push_back(text.size());
    std::string out;
    for (int64_t i = 0; i < range.count; ++i) {
        const size_t index = static_cast<size_t>(range.start + i * range.step);
        out += text.substr(offsets[index], offsets[index + 1] - offsets[index]);
    }
    return heap.string(std::move(out), value.is_markup());
}

}  // namespace

Value arithmetic(Heap& heap, Arithmetic operation, const Value& left, const Value& right) {
    if (left.is_number() && right.is_number()) {
        if (left.is_integral() && right.is_integral()) {
            return integer_arithmetic(operation, left.as_int(), right.as_int());
        }
        return float_arithmetic(operation, left.as_double(), right.as_double());
    }
    const auto is_repeatable = [](const Value& value) {
        return value.is_string() || value.is_list();
    };
    switch (operation) {
        case Arithmetic::kAdd:
            if (left.is_string() && right.is_string()) return add_strings(heap, left, right);
            if (left.is_list() && left.type() == right.type()) {
                return add_lists(heap, *left.as<List>(), *right.as<List>());
            }
            break;
        case Arithmetic::kMultiply:
            if (is_repeatable(left) && right.is_integral()) {
                return repeat(heap, left, right.as_int());
            }
            if (is_repeatable(right) && left.is_integral()) {
                return repeat(heap, right, left.as_int());
            }
            break;
        case Arithmetic::kModulo:
            if (left.is_string()) return format_percent(heap, left, right);
            break;
        default:
            break;
    }
    fail_types(operation, left, right);
}

Value negate(const Value& value, bool minus) {
    if (value.is_undefined()) fail(value.text().bytes);
    if (!value.is_number()) {
        fail("bad operand type for unary sign: '" + std::string(type_name(value)) + "'");
    }
    if (value.is(Type::kFloat)) return Value::real(minus ? -value.as_double() : value.as_double());
    int64_t result = value.as_int();
    if (minus && __builtin_sub_overflow(int64_t{0}, value.as_int(), &result)) fail_overflow();
    return Value::integer(result);
}

std::optional<Value> subscript(Heap& heap, const Value& object, const Value& key) {
    if (object.is(Type::kUndefined)) fail(object.text().bytes);
    if (object.is(Type::kDict)) {
        if (!is_hashable(heap, key)) return std::nullopt;
        const Value* found = object.as<Dict>()->find(heap, key);
        return found == nullptr ? std::nullopt : std::optional<Value>(*found);
    }
    const bool is_sequence = object.is_string() || object.is_list() || object.is(Type::kRange);
    if (!is_sequence || !key.is_integral()) return std::nullopt;
    const int64_t length = *length_of(object);
    const int64_t index = key.as_int() < 0 ? key.as_int() + length : key.as_int();
    if (index < 0 || index >= length) return std::nullopt;
    if (object.is_string()) {
        const std::string_view text = object.view();
        const bool ascii = length == static_cast<int64_t>(text.size());
        if (!ascii) heap.step(index / 512);
        size_t begin = ascii ? static_cast<size_t>(index) : offset_of(text, index);
        size_t end = begin;
        next_code_point(text, end);
        return heap.string(std::string(text.substr(begin, end - begin)), object.is_markup());
    }
    if (object.is(Type::kRange)) return Value::integer(object.as<Range>()->at(index));
    return object.as<List>()->items[static_cast<size_t>(index)];
}

Value slice(
    Heap& heap, const Value& object, const Value& start, const Value& stop, const Value& step) {
    if (object.is_undefined()) fail(object.text().bytes);
    if (!object.is_string() && !object.is_list() && !object.is(Type::kRange)) {
        fail("'" + std::string(type_name(object)) + "' object cannot be sliced");
    }
    const SliceRange range = clip_slice(*length_of(object), start, stop, step);
    if (object.is_string()) return slice_string(heap, object, range);
    if (object.is(Type::kRange)) {
        const Range& source = *object.as<Range>();
        // The stop, and the step of fewer than two items, are only shown; they may wrap around.
        const auto at = [&source](int64_t position) {
            return static_cast<int64_t>(static_cast<uint64_t>(source.start) +
                                        static_cast<uint64_t>(position) *
                                            static_cast<uint64_t>(source.step));
        };
        const int64_t stride = static_cast<int64_t>(static_cast<uint64_t>(source.step) *
                                                    static_cast<uint64_t>(range.step));
        return Value(heap.make<Range>(at(range.start), at(range.stop), stride, range.count));
    }
    std::vector<Value> items;
    items.reserve(static_cast<size_t>(range.count));
    for (int64_t i = 0; i < range.count; ++i) {
        items.push_back(
            object.as<List>()->items[static_cast<size_t>(range.start + i * range.step)]);
    }
    return object.is(Type::kList) ? heap.list(std::move(items)) : heap.tuple(std::move(items));
}

}  // namespace tessera::jinja
