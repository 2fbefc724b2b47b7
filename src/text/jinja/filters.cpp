// Filters of single values, tests and global functions. sequence_filters.cpp has the rest.

#include "text/jinja/filters.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>

#include "text/jinja/attributes.h"
#include "text/jinja/format.h"
#include "text/jinja/operations.h"
#include "text/jinja/runtime.h"
#include "text/jinja/string_methods.h"
#include "text/jinja/unicode.h"

namespace tessera::jinja {
namespace {

/// soft_str: strings as they are (markup too), everything else through str().
Value soft_string(Runtime& runtime, const Value& input) {
    if (input.is_string()) return input;
    return runtime.heap().string(to_string(runtime.heap(), input));
}

template <std::string (*kConvert)(std::string_view)>
Value convert_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("string filter", arguments, {}, 0);
    const Value text = soft_string(runtime, input);
    runtime.heap().step(static_cast<int64_t>(text.view().size()) / 16);
    return runtime.heap().string(kConvert(text.view()), text.is_markup());
}

Value trim_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("trim", arguments, {"chars"}, 0);
    const Value text = soft_string(runtime, input);
    const std::string_view rest =
        strip(runtime.heap(), text.view(), bound.get(0, Value()), Side::kBoth);
    return runtime.heap().string(std::string(rest), text.is_markup());
}

Value string_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("string", arguments, {}, 0);
    return soft_string(runtime, input);
}

Value safe_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("safe", arguments, {}, 0);
    return runtime.heap().string(to_string(runtime.heap(), input), /*markup=*/true);
}

Value escape_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("escape", arguments, {}, 0);
    if (input.is_markup()) return input;
    return runtime.heap().string(escape_html(to_string(runtime.heap(), input)), /*markup=*/true);
}

Value forceescape_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("forceescape", arguments, {}, 0);
    return runtime.heap().string(escape_html(to_string(runtime.heap(), input)), /*markup=*/true);
}

/// Words begin after white space and -({[<; unlike str.title, not after other punctuation.
Value title_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("title", arguments, {}, 0);
    const Value source = soft_string(runtime, input);
    const std::string_view text = source.view();
    const auto separates = [](char32_t c) {
        return is_space(c) || c == U'-' || c == U'(' || c == U'{' || c == U'[' || c == U'<';
    };
    std::string out;
    for (size_t at = 0; at < text.size();) {
        const size_t begin = at;
        if (separates(next_code_point(text, at))) {
            out += text.substr(begin, at - begin);
            continue;
        }
        const size_t second = at;
        size_t end = at;
        while (end < text.size()) {
            size_t after = end;
            if (separates(next_code_point(text, after))) break;
            end = after;
        }
        out += to_upper(text.substr(begin, second - begin));
        out += to_lower(text.substr(second, end - second));
        at = end;
    }
    return runtime.heap().string(std::move(out));
}

Value replace_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("replace", arguments, {"old", "new", "count"}, 2);
    Heap& heap = runtime.heap();
    const Value count = bound.get(2, Value());
    return heap.string(replace_all(heap, to_string(heap, input), to_string(heap, *bound[0]),
                                   to_string(heap, *bound[1]),
                                   count.is_none() ? -1 : to_index(count)));
}

Value indent_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("indent", arguments, {"width", "first", "blank"}, 0);
    Heap& heap = runtime.heap();
    if (!input.is_string()) fail("indent needs a string, not " + std::string(type_name(input)));
    const Value width = bound.get(0, Value::integer(4));
    const std::string indention =
        width.is_string()
            ? std::string(width.view())
            : std::string(static_cast<size_t>(std::clamp<int64_t>(to_index(width), 0, 10000)), ' ');
    // A line end is added so that a text that ends with one keeps it.
    const std::string text = std::string(input.view()) + "\n";
    const bool blank = bound.flag(2);
    std::string out = bound.flag(1) ? indention : "";
    bool first = true;
    for (const std::string_view line : split_lines(text, false)) {
        if (!first) out += "\n";
        if (!first && (blank || !line.empty())) out += indention;
        out += line;
        first = false;
        if (static_cast<int64_t>(out.size()) > kMaxOutputBytes) break;
    }
    return heap.string(std::move(out), input.is_markup());
}

Value default_filter(Runtime&, const Value& input, const Arguments& arguments) {
    const Bound bound("default", arguments, {"default_value", "boolean"}, 0);
    const bool replace = input.is_undefined() || (bound.flag(1) && !truthy(input));
    return replace ? bound.get(0, Value::literal("")) : input;
}

Value int_filter(Runtime&, const Value& input, const Arguments& arguments) {
    const Bound bound("int", arguments, {"default", "base"}, 0);
    const Value fallback = bound.get(0, Value::integer(0));
    if (input.is_undefined()) fail(input.text().bytes);
    if (input.is_integral()) return Value::integer(input.as_int());
    if (input.is(Type::kFloat)) {
        if (std::isnan(input.as_double())) return fallback;
        return Value::integer(truncate_to_int(input.as_double()));
    }
    if (!input.is_string()) return fallback;
    const int64_t base = to_index(bound.get(1, Value::integer(10)));
    if (const std::optional<int64_t> whole = parse_int(input.view(), base)) {
        return Value::integer(*whole);
    }
    const std::optional<double> real = parse_float(input.view());
    if (!real || !std::isfinite(*real)) return fallback;
    return Value::integer(truncate_to_int(*real));
}

Value float_filter(Runtime&, const Value& input, const Arguments& arguments) {
    const Bound bound("float", arguments, {"default"}, 0);
    const Value fallback = bound.get(0, Value::real(0));
    if (input.is_undefined()) fail(input.text().bytes);
    if (input.is_number()) return Value::real(input.as_double());
    if (!input.is_string()) return fallback;
    const std::optional<double> real = parse_float(input.view());
    return real ? Value::real(*real) : fallback;
}

Value abs_filter(Runtime&, const Value& input, const Arguments& arguments) {
    const Bound bound("abs", arguments, {}, 0);
    if (input.is(Type::kFloat)) return Value::real(std::fabs(input.as_double()));
    const Value negative = negate(input, /*minus=*/true);
    return negative.as_int() > 0 ? negative : negate(input, /*minus=*/false);
}

int64_t round_int(int64_t value, int64_t digits) {
    if (digits >= 0) return value;
    if (digits < -18) return 0;
    int64_t unit = 1;
    for (int64_t i = 0; i < -digits; ++i) unit *= 10;
    const int64_t rest = ((value % unit) + unit) % unit, floor = (value - rest) / unit;
    const bool up = rest > unit / 2 || (rest == unit / 2 && floor % 2 != 0);
    return (floor + (up ? 1 : 0)) * unit;
}

Value round_filter(Runtime&, const Value& input, const Arguments& arguments) {
    const Bound bound("round", arguments, {"precision", "method"}, 0);
    const int64_t precision = to_index(bound.get(0, Value::integer(0)));
    const Value method_value = bound.get(1, Value::literal("common"));
    const std::string_view method = method_value.is_string() ? method_value.view() : "";
    if (method != "common" && method != "ceil" && method != "floor") {
        fail("method must be common, ceil or floor");
    }
    if (input.is_undefined()) fail(input.text().bytes);
    if (!input.is_number()) fail("round needs a number, not " + std::string(type_name(input)));
    if (std::abs(precision) > 300) fail("the precision of round is out of range");
    if (method != "common") {
        const double unit = std::pow(10.0, static_cast<double>(precision));
        const double scaled = input.as_double() * unit;
        if (!std::isfinite(scaled)) fail("cannot convert float to integer");
        // Python rounds to an int here, which has no negative zero; adding zero drops its sign.
        const double whole = (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) + 0.0;
        return Value::real(whole / unit);
    }
    if (input.is_integral()) return Value::integer(round_int(input.as_int(), precision));
    const double value = input.as_double();
    if (!std::isfinite(value)) return input;
    if (precision >= 0) {
        // printf rounds the exact binary value, as Python does.
        char buffer[700];
        std::snprintf(buffer, sizeof(buffer), "%.*f", static_cast<int>(precision), value);
        return Value::real(std::strtod(buffer, nullptr));
    }
    const double unit = std::pow(10.0, static_cast<double>(-precision));
    return Value::real(std::nearbyint(value / unit) * unit);
}

Value tojson_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"},
                      0);
    JsonStyle style;
    style.ensure_ascii = bound.flag(0);
    style.sort_keys = bound.flag(3);
    const Value indent = bound.get(1, Value());
    if (!indent.is_none()) {
        style.has_indent = true;
        style.item_separator = ",";
        style.indent =
            indent.is_string()
                ? std::string(indent.view())
                : std::string(static_cast<size_t>(std::clamp<int64_t>(to_index(indent), 0, 1000)),
                              ' ');
    }
    const Value separators = bound.get(2, Value());
    if (!separators.is_none()) {
        const std::vector<Value> pair = collect(runtime.heap(), separators);
        if (pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string()) {
            fail("tojson separators must be two strings");
        }
        style.item_separator = pair[0].view();
        style.key_separator = pair[1].view();
    }
    return runtime.heap().string(to_json(runtime.heap(), input, style));
}

Value format_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    Heap& heap = runtime.heap();
    const Value format = soft_string(runtime, input);
    if (arguments.named.empty()) {
        return format_percent(heap, format, heap.tuple(arguments.positional));
    }
    if (!arguments.positional.empty()) {
        fail("can't handle positional and keyword arguments at the same time");
    }
    Dict* named = heap.make<Dict>();
    for (const auto& [key, value] : arguments.named) named->set(heap, heap.string(key), value);
    return format_percent(heap, format, Value(named));
}

Value wordcount_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("wordcount", arguments, {}, 0);
    const Value source = soft_string(runtime, input);
    const std::string_view text = source.view();
    int64_t count = 0;
    bool in_word = false;
    for (size_t at = 0; at < text.size();) {
        const bool word = is_word(next_code_point(text, at));
        count += word && !in_word ? 1 : 0;
        in_word = word;
    }
    return Value::integer(count);
}

Value center_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("center", arguments, {"width"}, 0);
    const Value source = soft_string(runtime, input);
    const int64_t width = std::min(to_index(bound.get(0, Value::integer(80))), kMaxOutputBytes + 1);
    return runtime.heap().string(center(source.view(), width, " "), source.is_markup());
}

Value truncate_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("truncate", arguments, {"length", "killwords", "end", "leeway"}, 0);
    const int64_t length = to_index(bound.get(0, Value::integer(255)));
    const Value end = bound.get(2, Value::literal("..."));
    const Value leeway_value = bound.get(3, Value());
    const int64_t leeway = leeway_value.is_none() ? 5 : to_index(leeway_value);
    if (!end.is_string() || length < end.text().length || leeway < 0) {
        fail("truncate: length is shorter than its end mark");
    }
    const std::optional<int64_t> input_length = length_of(input);
    if (input_length && *input_length - leeway <= length) return input;
    if (!input.is_string()) fail("truncate needs a string, not " + std::string(type_name(input)));
    const std::string_view text = input.view();
    std::string_view head = text.substr(0, offset_of(text, length - end.text().length));
    if (!bound.flag(1)) head = head.substr(0, head.rfind(' '));
    return runtime.heap().string(std::string(head) + std::string(end.view()), input.is_markup());
}

constexpr NamedFilter kFilters[] = {
    {"tojson", tojson_filter},
    {"trim", trim_filter},
    {"string", string_filter},
    {"default", default_filter},
    {"d", default_filter},
    {"upper", convert_filter<to_upper>},
    {"lower", convert_filter<to_lower>},
    {"capitalize", convert_filter<capitalize>},
    {"title", title_filter},
    {"replace", replace_filter},
    {"indent", indent_filter},
    {"safe", safe_filter},
    {"escape", escape_filter},
    {"e", escape_filter},
    {"forceescape", forceescape_filter},
    {"int", int_filter},
    {"float", float_filter},
    {"abs", abs_filter},
    {"round", round_filter},
    {"format", format_filter},
    {"wordcount", wordcount_filter},
    {"center", center_filter},
    {"truncate", truncate_filter},
};

}  // namespace

FilterFunction find_filter(std::string_view name) {
    for (const NamedFilter& filter : kFilters) {
        if (filter.name == name) return filter.function;
    }
    return find_sequence_filter(name);
}

}  // namespace tessera::jinja
