#pragma once
// Values as text: Python's str(), repr(), json.dumps(), `%` and format().

#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace tessera::jinja {

/// str(value).
std::string to_string(Heap& heap, const Value& value);
/// repr(value).
std::string to_repr(Heap& heap, const Value& value);
/// repr() of a string: quotes, escapes for what does not print.
void append_repr(std::string& out, std::string_view text);
/// repr() of a float: the shortest digits that read back, exponents from 1e16 and below 1e-4.
std::string float_repr(double value);

struct JsonStyle {
    bool ensure_ascii = false;
    bool sort_keys = false;
    bool has_indent = false;  ///< items on lines of their own
    std::string indent;       ///< one level
    std::string item_separator = ", ";
    std::string key_separator = ": ";
};
/// json.dumps(value) with these settings.
std::string to_json(Heap& heap, const Value& value, const JsonStyle& style);

/// `format % arguments`: a tuple gives several arguments, a dict named ones.
Value format_percent(Heap& heap, const Value& format, const Value& arguments);
/// format.format(*positional, **named).
Value format_fields(Heap& heap, const Value& format, const Arguments& arguments);

}  // namespace tessera::jinja
