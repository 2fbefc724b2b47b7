// The tests behind `is`.

#include "text/jinja/attributes.h"
#include "text/jinja/filters.h"
#include "text/jinja/format.h"
#include "text/jinja/operations.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace tessera::jinja {
namespace {

void no_arguments(const Arguments& arguments) {
    const Bound bound("test", arguments, {}, 0);
}

bool is_defined(Runtime&, const Value& input, const Arguments& arguments) {
    no_arguments(arguments);
    return !input.is_undefined();
}

bool is_undefined(Runtime&, const Value& input, const Arguments& arguments) {
    no_arguments(arguments);
    return input.is_undefined();
}

template <Type kType>
bool is_type(Runtime&, const Value& input, const Arguments& arguments) {
    no_arguments(arguments);
    return input.is(kType);
}

template <bool kValue>
bool is_truth(Runtime&, const Value& input, const Arguments& arguments) {
    no_arguments(arguments);
    return input.is(Type::kBool) && input.as_bool() == kValue;
}

bool is_number_test(Runtime&, const Value& input, const Arguments& arguments) {
    no_arguments(arguments);
    return input.is_number();
}

bool is_sequence(Runtime&, const Value& input, const Arguments& arguments) {
    no_arguments(arguments);
    return input.is_undefined() || input.is_string() || input.is_list() || input.is(Type::kDict) ||
           input.is(Type::kRange);
}

bool is_iterable_test(Runtime&, const Value& input, const Arguments& arguments) {
    no_arguments(arguments);
    return is_iterable(input);
}

bool is_callable(Runtime&, const Value& input, const Arguments& arguments) {
    no_arguments(arguments);
    return input.is_undefined() || input.is(Type::kFunction) || input.is(Type::kMacro) ||
           input.is(Type::kJoiner) || input.is(Type::kLoop);
}

template <int64_t kRest>
bool has_parity(Runtime& runtime, const Value& input, const Arguments& arguments) {
    no_arguments(arguments);
    Heap& heap = runtime.heap();
    return equal(heap, arithmetic(heap, Arithmetic::kModulo, input, Value::integer(2)),
                 Value::integer(kRest));
}

bool is_divisible(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("divisibleby", arguments, {"num"}, 1);
    Heap& heap = runtime.heap();
    return equal(heap, arithmetic(heap, Arithmetic::kModulo, input, *bound[0]), Value::integer(0));
}

template <bool kUpper>
bool has_case(Runtime& runtime, const Value& input, const Arguments& arguments) {
    no_arguments(arguments);
    const Value text = runtime.heap().string(to_string(runtime.heap(), input));
    return call_method(runtime, text, kUpper ? "isupper" : "islower", {}).as_bool();
}

template <Comparison kComparison>
bool is_compared(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("comparison", arguments, {"other"}, 1);
    return compare(runtime.heap(), kComparison, input, *bound[0]);
}

bool is_in(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("in", arguments, {"seq"}, 1);
    return contains(runtime.heap(), *bound[0], input);
}

/// Identity. Scalars that are equal and of one type count as the same object.
bool is_same(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("sameas", arguments, {"other"}, 1);
    if (input.type() != bound[0]->type()) return false;
    if (input.type() > Type::kString) return input.object() == bound[0]->object();
    return equal(runtime.heap(), input, *bound[0]);
}

bool is_escaped(Runtime&, const Value& input, const Arguments& arguments) {
    no_arguments(arguments);
    return input.is_markup();
}

bool is_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    no_arguments(arguments);
    hash_value(runtime.heap(), input);  // Lists and dicts are no keys of a table of names.
    return input.is_string() && find_filter(input.view()) != nullptr;
}

bool is_test(Runtime& runtime, const Value& input, const Arguments& arguments) {
    no_arguments(arguments);
    hash_value(runtime.heap(), input);  // Lists and dicts are no keys of a table of names.
    return input.is_string() && find_test(input.view()) != nullptr;
}

constexpr NamedTest kTests[] = {
    {"defined", is_defined},
    {"undefined", is_undefined},
    {"none", is_type<Type::kNone>},
    {"string", is_type<Type::kString>},
    {"mapping", is_type<Type::kDict>},
    {"sequence", is_sequence},
    {"iterable", is_iterable_test},
    {"number", is_number_test},
    {"integer", is_type<Type::kInt>},
    {"float", is_type<Type::kFloat>},
    {"boolean", is_type<Type::kBool>},
    {"true", is_truth<true>},
    {"false", is_truth<false>},
    {"callable", is_callable},
    {"odd", has_parity<1>},
    {"even", has_parity<0>},
    {"divisibleby", is_divisible},
    {"lower", has_case<false>},
    {"upper", has_case<true>},
    {"in", is_in},
    {"sameas", is_same},
    {"escaped", is_escaped},
    {"filter", is_filter},
    {"test", is_test},
    {"eq", is_compared<Comparison::kEqual>},
    {"equalto", is_compared<Comparison::kEqual>},
    {"==", is_compared<Comparison::kEqual>},
    {"ne", is_compared<Comparison::kNotEqual>},
    {"!=", is_compared<Comparison::kNotEqual>},
    {"lt", is_compared<Comparison::kLess>},
    {"lessthan", is_compared<Comparison::kLess>},
    {"<", is_compared<Comparison::kLess>},
    {"le", is_compared<Comparison::kLessEqual>},
    {"<=", is_compared<Comparison::kLessEqual>},
    {"gt", is_compared<Comparison::kGreater>},
    {"greaterthan", is_compared<Comparison::kGreater>},
    {">", is_compared<Comparison::kGreater>},
    {"ge", is_compared<Comparison::kGreaterEqual>},
    {">=", is_compared<Comparison::kGreaterEqual>},
};

}  // namespace

TestFunction find_test(std::string_view name) {
    for (const NamedTest& test : kTests) {
        if (test.name == name) return test.function;
    }
    return nullptr;
}

}  // namespace tessera::jinja
