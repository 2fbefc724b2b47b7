// Filters over sequences. As in Jinja2, map, select and their kin are lazy and can be read once.

#include <algorithm>

#include "text/jinja/attributes.h"
#include "text/jinja/filters.h"
#include "text/jinja/format.h"
#include "text/jinja/operations.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace tessera::jinja {
namespace {

Value lower_if_string(Heap& heap, const Value& value) {
    return value.is_string() ? heap.string(to_lower(value.view())) : value;
}

/// What items are sorted and grouped by: a dotted path into them, letters in lower case.
struct Key {
    Value path;
    bool case_sensitive = false;
    const Value* fallback = nullptr;

    Value operator()(Heap& heap, const Value& item) const {
        const Value value = path.is_none() ? item : get_path(heap, item, path, fallback);
        return case_sensitive ? value : lower_if_string(heap, value);
    }
};

/// Stable sort of items by precomputed keys; `reverse` keeps the order of equal items, as Python.
std::vector<Value> sort_by(Heap& heap, std::vector<std::pair<Value, Value>> keyed, bool reverse) {
    std::stable_sort(keyed.begin(), keyed.end(), [&heap, reverse](const auto& a, const auto& b) {
        return reverse ? less(heap, b.first, a.first) : less(heap, a.first, b.first);
    });
    // A single item is never compared, and a sort of one is no check of its type.
    std::vector<Value> items;
    items.reserve(keyed.size());
    for (const auto& [key, item] : keyed) items.push_back(item);
    return items;
}

Value length_filter(Runtime&, const Value& input, const Arguments& arguments) {
    const Bound bound("length", arguments, {}, 0);
    const std::optional<int64_t> length = length_of(input);
    if (!length) fail("object of type '" + std::string(type_name(input)) + "' has no len()");
    return Value::integer(*length);
}

Value list_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("list", arguments, {}, 0);
    return runtime.heap().list(collect(runtime.heap(), input));
}

Value first_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("first", arguments, {}, 0);
    Value item;
    if (iterate(runtime.heap(), input)(item)) return item;
    return Value::undefined("No first item, sequence was empty.");
}

void require_reversible(const Value& input) {
    if (input.is(Type::kIterator) || input.is(Type::kLoop) || !is_iterable(input)) {
        fail("'" + std::string(type_name(input)) + "' object is not reversible");
    }
}

Value last_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("last", arguments, {}, 0);
    require_reversible(input);
    if (input.is_string() || input.is_list() || input.is(Type::kRange)) {
        if (*length_of(input) > 0) return *subscript(runtime.heap(), input, Value::integer(-1));
    } else if (const std::vector<Value> items = collect(runtime.heap(), input); !items.empty()) {
        return items.back();
    }
    return Value::undefined("No last item, sequence was empty.");
}

Value reverse_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("reverse", arguments, {}, 0);
    Heap& heap = runtime.heap();
    if (input.is_string()) {
        return slice(heap, input, Value(), Value(), Value::integer(-1));
    }
    if (!is_iterable(input)) fail("argument must be iterable");
    std::vector<Value> items = collect(heap, input);
    std::reverse(items.begin(), items.end());
    const Value reversed = heap.list(std::move(items));
    if (input.is(Type::kIterator)) return reversed;
    return heap.iterator(iterate(heap, reversed), reversed.depth());
}

Value join_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("join", arguments, {"d", "attribute"}, 0);
    Heap& heap = runtime.heap();
    const std::string separator = to_string(heap, bound.get(0, Value::literal("")));
    const Value path = bound.get(1, Value());
    std::string out;
    bool first = true;
    const Next next = iterate(heap, input);
    for (Value item; next(item); first = false) {
        if (!first) out += separator;
        out += to_string(heap, path.is_none() ? item : get_path(heap, item, path, nullptr));
        if (static_cast<int64_t>(out.size()) > kMaxOutputBytes) break;
    }
    return heap.string(std::move(out));
}

Value items_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("items", arguments, {}, 0);
    Heap& heap = runtime.heap();
    if (!input.is(Type::kDict) && !input.is_undefined()) {
        return heap.iterator(
            [](Value&) -> bool { fail("Can only get item pairs from a mapping."); }, 0);
    }
    if (input.is_undefined()) return heap.iterator([](Value&) { return false; }, 0);
    const Value view(heap.make<View>(input.as<Dict>(), ViewKind::kItems));
    return heap.iterator(iterate(heap, view), view.depth());
}

Value dictsort_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("dictsort", arguments, {"case_sensitive", "by", "reverse"}, 0);
    Heap& heap = runtime.heap();
    const Value by = bound.get(1, Value::literal("key"));
    const bool by_value = by.is_string() && by.view() == "value";
    if (!by_value && !(by.is_string() && by.view() == "key")) {
        fail("You can only sort by either \"key\" or \"value\"");
    }
    if (input.is_undefined()) fail(input.text().bytes);
    if (!input.is(Type::kDict)) {
        fail("dictsort needs a mapping, not " + std::string(type_name(input)));
    }
    std::vector<std::pair<Value, Value>> keyed;
    for (const auto& [key, value] : input.as<Dict>()->entries) {
        const Value& part = by_value ? value : key;
        keyed.emplace_back(bound.flag(0) ? part : lower_if_string(heap, part),
                           heap.tuple({key, value}));
    }
    return heap.list(sort_by(heap, std::move(keyed), bound.flag(2)));
}

Value sort_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("sort", arguments, {"reverse", "case_sensitive", "attribute"}, 0);
    Heap& heap = runtime.heap();
    const bool case_sensitive = bound.flag(1);
    const Value attribute = bound.get(2, Value());
    std::vector<Value> paths;
    if (attribute.is_string()) {
        const std::string_view text = attribute.view();
        for (size_t begin = 0; begin <= text.size();) {
            const size_t end = std::min(text.find(',', begin), text.size());
            paths.push_back(heap.string(std::string(text.substr(begin, end - begin))));
            begin = end + 1;
        }
    } else {
        paths.push_back(attribute);
    }
    std::vector<std::pair<Value, Value>> keyed;
    for (const Value& item : collect(heap, input)) {
        std::vector<Value> keys;
        for (const Value& path : paths) keys.push_back(Key{path, case_sensitive}(heap, item));
        keyed.emplace_back(heap.list(std::move(keys)), item);
    }
    return heap.list(sort_by(heap, std::move(keyed), bound.flag(0)));
}

Value unique_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("unique", arguments, {"case_sensitive", "attribute"}, 0);
    Heap& heap = runtime.heap();
    const Key key{bound.get(1, Value()), bound.flag(0)};
    Dict* seen = heap.make<Dict>();
    return heap.iterator(
        [&heap, key, seen, next = iterate(heap, input)](Value& item) {
            while (next(item)) {
                const Value value = key(heap, item);
                if (seen->find(heap, value) != nullptr) continue;
                seen->set(heap, value, Value());
                return true;
            }
            return false;
        },
        input.depth());
}

template <bool kMax>
Value extreme_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("min", arguments, {"case_sensitive", "attribute"}, 0);
    Heap& heap = runtime.heap();
    const Key key{bound.get(1, Value()), bound.flag(0)};
    const Next next = iterate(heap, input);
    Value best;
    if (!next(best)) return Value::undefined("No aggregated item, sequence was empty.");
    Value best_key = key(heap, best);
    for (Value item; next(item);) {
        const Value item_key = key(heap, item);
        if (kMax ? !less(heap, best_key, item_key) : !less(heap, item_key, best_key)) continue;
        best = item;
        best_key = item_key;
    }
    return best;
}

Value sum_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("sum", arguments, {"attribute", "start"}, 0);
    Heap& heap = runtime.heap();
    const Value path = bound.get(0, Value());
    Value total = bound.get(1, Value::integer(0));
    if (total.is_string()) fail("sum() can't sum strings");
    const Next next = iterate(heap, input);
    for (Value item; next(item);) {
        total = arithmetic(heap, Arithmetic::kAdd, total,
                           path.is_none() ? item : get_path(heap, item, path, nullptr));
    }
    return total;
}

Value batch_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("batch", arguments, {"linecount", "fill_with"}, 1);
    Heap& heap = runtime.heap();
    const Value count = *bound[0], fill = bound.get(1, Value());
    return heap.iterator(
        [&heap, count, fill, next = iterate(heap, input), done = false](Value& row) mutable {
            std::vector<Value> items;
            const int64_t limit = std::max<int64_t>(to_index(count), 1);
            Value item;
            while (!done && static_cast<int64_t>(items.size()) < limit) {
                if (next(item)) {
                    items.push_back(item);
                } else {
                    done = true;
                }
            }
            if (items.empty()) return false;
            if (!fill.is_none()) {
                heap.step(limit - static_cast<int64_t>(items.size()));
                items.resize(static_cast<size_t>(limit), fill);
            }
            row = heap.list(std::move(items));
            return true;
        },
        input.depth());
}

Value slice_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("slice", arguments, {"slices", "fill_with"}, 1);
    Heap& heap = runtime.heap();
    const int64_t slices = to_index(*bound[0]);
    const Value fill = bound.get(1, Value());
    const std::vector<Value> items = collect(heap, input);
    if (slices == 0) fail("integer division or modulo by zero");
    const int64_t size = static_cast<int64_t>(items.size());
    std::vector<Value> rows;
    for (int64_t i = 0, begin = 0; i < slices; ++i) {
        const bool extra = i < size % slices;
        const int64_t end = begin + size / slices + (extra ? 1 : 0);
        std::vector<Value> row(items.begin() + begin, items.begin() + end);
        if (!fill.is_none() && !extra) row.push_back(fill);
        rows.push_back(heap.list(std::move(row)));
        heap.step();
        begin = end;
    }
    const Value all = heap.list(std::move(rows));
    return heap.iterator(iterate(heap, all), all.depth());
}

Value groupby_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
    Heap& heap = runtime.heap();
    const Value* fallback = bound[1] != nullptr && !bound[1]->is_none() ? bound[1] : nullptr;
    const Key key{*bound[0], bound.flag(2), fallback}, shown{*bound[0], true, fallback};
    std::vector<std::pair<Value, Value>> keyed;
    for (const Value& item : collect(heap, input)) keyed.emplace_back(key(heap, item), item);
    const std::vector<Value> sorted = sort_by(heap, std::move(keyed), /*reverse=*/false);
    std::vector<Value> groups;
    for (size_t begin = 0; begin < sorted.size();) {
        const Value group_key = key(heap, sorted[begin]);
        size_t end = begin + 1;
        while (end < sorted.size() && equal(heap, key(heap, sorted[end]), group_key)) ++end;
        std::vector<Value> members(sorted.begin() + static_cast<std::ptrdiff_t>(begin),
                                   sorted.begin() + static_cast<std::ptrdiff_t>(end));
        const Value group = heap.tuple({shown(heap, sorted[begin]), heap.list(std::move(members))});
        group.as<List>()->is_group = true;
        groups.push_back(group);
        begin = end;
    }
    return heap.list(std::move(groups));
}

Value attr_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("attr", arguments, {"name"}, 1);
    if (!bound[0]->is_string()) fail("attribute name must be string");
    if (input.is(Type::kDict) && !has_method(input, std::string(bound[0]->view()))) {
        return Value::undefined("dict object has no attribute");
    }
    return get_attribute(runtime.heap(), input, std::string(bound[0]->view()));
}

/// Positional arguments from `first` on, with the named ones.
Arguments rest_of(const Arguments& arguments, size_t first) {
    Arguments rest = arguments;
    rest.positional.erase(rest.positional.begin(),
                          rest.positional.begin() + static_cast<std::ptrdiff_t>(first));
    return rest;
}

Value mapped_attribute(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Bound bound("map", arguments, {"attribute", "default"}, 1);
    const Value path = *bound[0], fallback = bound.get(1, Value());
    Heap& heap = runtime.heap();
    return heap.iterator(
        [&heap, path, fallback, next = iterate(heap, input)](Value& item) {
            if (!next(item)) return false;
            item = get_path(heap, item, path, fallback.is_none() ? nullptr : &fallback);
            return true;
        },
        input.depth());
}

Value map_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    if (!truthy(input)) return runtime.heap().iterator([](Value&) { return false; }, 0);
    const auto is_attribute = [](const auto& named) { return named.first == "attribute"; };
    if (arguments.positional.empty() &&
        std::any_of(arguments.named.begin(), arguments.named.end(), is_attribute)) {
        return mapped_attribute(runtime, input, arguments);
    }
    if (arguments.positional.empty() || !arguments.positional[0].is_string()) {
        fail("map requires a filter argument");
    }
    const std::string name(arguments.positional[0].view());
    return runtime.heap().iterator(
        [&runtime, name, rest = rest_of(arguments, 1),
         next = iterate(runtime.heap(), input)](Value& item) {
            if (!next(item)) return false;
            item = runtime.filter(name, item, rest);
            return true;
        },
        input.depth());
}

template <bool kKeep, bool kByAttribute>
Value select_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
    if (!truthy(input)) return runtime.heap().iterator([](Value&) { return false; }, 0);
    constexpr size_t kFirst = kByAttribute ? 1 : 0;
    if (kByAttribute && arguments.positional.empty()) {
        fail("Missing parameter for attribute name");
    }
    const Value path = kByAttribute ? arguments.positional[0] : Value();
    const bool has_test = arguments.positional.size() > kFirst;
    std::string name;
    if (has_test) {
        if (!arguments.positional[kFirst].is_string()) fail("the name of a test must be a string");
        name = arguments.positional[kFirst].view();
    }
    const Arguments rest = has_test ? rest_of(arguments, kFirst + 1) : Arguments();
    return runtime.heap().iterator(
        [&runtime, path, name, rest, has_test, next = iterate(runtime.heap(), input)](Value& item) {
            while (next(item)) {
                const Value part =
                    kByAttribute ? get_path(runtime.heap(), item, path, nullptr) : item;
                if ((has_test ? runtime.test(name, part, rest) : truthy(part)) == kKeep)
                    return true;
            }
            return false;
        },
        input.depth());
}

constexpr NamedFilter kSequenceFilters[] = {
    {"length", length_filter},
    {"count", length_filter},
    {"list", list_filter},
    {"first", first_filter},
    {"last", last_filter},
    {"reverse", reverse_filter},
    {"join", join_filter},
    {"items", items_filter},
    {"dictsort", dictsort_filter},
    {"sort", sort_filter},
    {"unique", unique_filter},
    {"min", extreme_filter<false>},
    {"max", extreme_filter<true>},
    {"sum", sum_filter},
    {"batch", batch_filter},
    {"slice", slice_filter},
    {"groupby", groupby_filter},
    {"attr", attr_filter},
    {"map", map_filter},
    {"select", select_filter<true, false>},
    {"reject", select_filter<false, false>},
    {"selectattr", select_filter<true, true>},
    {"rejectattr", select_filter<false, true>},
};

}  // namespace

FilterFunction find_sequence_filter(std::string_view name) {
    for (const NamedFilter& filter : kSequenceFilters) {
        if (filter.name == name) return filter.function;
    }
    return nullptr;
}

}  // namespace tessera::jinja
