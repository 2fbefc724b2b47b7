#pragma once
// The built-in filters, tests and global functions by name.

#include <string_view>

#include "text/jinja/value.h"

namespace tessera::jinja {

using FilterFunction = Value (*)(Runtime& runtime, const Value& input, const Arguments& arguments);
using TestFunction = bool (*)(Runtime& runtime, const Value& input, const Arguments& arguments);

struct NamedFilter {
    std::string_view name;
    FilterFunction function;
};
struct NamedTest {
    std::string_view name;
    TestFunction function;
};

/// Null when there is none.
FilterFunction find_filter(std::string_view name);
TestFunction find_test(std::string_view name);
/// Filters over sequences; the others stand in filters.cpp.
FilterFunction find_sequence_filter(std::string_view name);

/// Adds range, dict, namespace, cycler, joiner, raise_exception and strftime_now.
void add_globals(Heap& heap, Dict& variables);

}  // namespace tessera::jinja
