#include "text/jinja/attributes.h"

#include <algorithm>
#include <iterator>

#include "text/jinja/format.h"
#include "text/jinja/loop.h"
#include "text/jinja/operations.h"
#include "text/jinja/runtime.h"
#include "text/jinja/string_methods.h"

namespace tessera::jinja {
namespace {

Value dict_get(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Bound bound("get", arguments, {"key", "default"}, 1);
    const Value* found = self.as<Dict>()->find(runtime.heap(), *bound[0]);
    return found != nullptr ? *found : bound.get(1, Value());
}

template <ViewKind kKind>
Value dict_view(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Bound bound("dict view", arguments, {}, 0);
    return Value(runtime.heap().make<View>(self.as<Dict>(), kKind));
}

Value copy(Runtime&, const Value& self, const Arguments& arguments) {
    // Nothing can change a dict or a list, so it is its own copy.
    const Bound bound("copy", arguments, {}, 0);
    return self;
}

Value list_index(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Bound bound("index", arguments, {"value"}, 1);
    const std::vector<Value>& items = self.as<List>()->items;
    for (size_t i = 0; i < items.size(); ++i) {
        if (equal(runtime.heap(), items[i], *bound[0]))
            return Value::integer(static_cast<int64_t>(i));
    }
    fail(to_repr(runtime.heap(), *bound[0]) + " is not in list");
}

Value list_count(Runtime& runtime, const Value& self, const Arguments& arguments) {
    const Bound bound("count", arguments, {"value"}, 1);
    int64_t count = 0;
    for (const Value& item : self.as<List>()->items) {
        count += equal(runtime.heap(), item, *bound[0]) ? 1 : 0;
    }
    return Value::integer(count);
}

Value loop_cycle(Runtime&, const Value& self, const Arguments& arguments) {
    return self.as<Loop>()->cycle(arguments.positional);
}

Value loop_changed(Runtime&, const Value& self, const Arguments& arguments) {
    return Value::boolean(self.as<Loop>()->changed(arguments.positional));
}

Value cycler_next(Runtime&, const Value& self, const Arguments&) {
    Cycler& cycler = *self.as<Cycler>();
    const Value item = cycler.items[cycler.position];
    cycler.position = (cycler.position + 1) % cycler.items.size();
    return item;
}

Value cycler_reset(Runtime&, const Value& self, const Arguments&) {
    self.as<Cycler>()->position = 0;
    return Value();
}

constexpr Method kDictMethods[] = {{"get", dict_get},
                                   {"items", dict_view<ViewKind::kItems>},
                                   {"keys", dict_view<ViewKind::kKeys>},
                                   {"values", dict_view<ViewKind::kValues>},
                                   {"copy", copy}};
constexpr Method kListMethods[] = {{"index", list_index}, {"count", list_count}, {"copy", copy}};
constexpr Method kTupleMethods[] = {{"index", list_index}, {"count", list_count}};
constexpr Method kLoopMethods[] = {{"cycle", loop_cycle}, {"changed", loop_changed}};
constexpr Method kCyclerMethods[] = {{"next", cycler_next}, {"reset", cycler_reset}};

/// What exists in Python but would change the object: the sandbox denies it.
constexpr std::string_view kForbiddenDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::string_view kForbiddenList[] = {"append", "clear", "pop",    "reverse",
                                               "insert", "sort",  "extend", "remove"};

std::span<const Method> methods_of(const Value& object) {
    switch (object.type()) {
        case Type::kString:
            return string_methods();
        case Type::kDict:
            return kDictMethods;
        case Type::kList:
            return kListMethods;
        case Type::kTuple:
            return kTupleMethods;
        case Type::kLoop:
            return kLoopMethods;
        case Type::kCycler:
            return kCyclerMethods;
        default:
            return {};
    }
}

const Method* find_method(const Value& object, std::string_view name) {
    for (const Method& method : methods_of(object)) {
        if (method.name == name) return &method;
    }
    return nullptr;
}

bool is_forbidden(const Value& object, std::string_view name) {
    const auto has = [name](const auto& names) {
        return std::find(std::begin(names), std::end(names), name) != std::end(names);
    };
    if (object.is(Type::kDict)) return has(kForbiddenDict);
    return object.is(Type::kList) && has(kForbiddenList);
}

/// Data attributes and bound methods; nothing where Python raises AttributeError.
std::optional<Value> own_attribute(Heap& heap, const Value& object, const std::string& name) {
    if (find_method(object, name) != nullptr) {
        return Value(
            heap.make<Function>(name, [object, name](Runtime& runtime, const Arguments& arguments) {
                return call_method(runtime, object, name, arguments);
            }));
    }
    if (is_forbidden(object, name)) {
        return Value::undefined("access to attribute '" + name + "' of '" +
                                std::string(type_name(object)) + "' object is unsafe.");
    }
    switch (object.type()) {
        case Type::kNamespace: {
            const Value* found = object.as<Namespace>()->attributes.find(name);
            if (found == nullptr) return std::nullopt;
            if (name[0] == '_') return Value::undefined("access to '" + name + "' is unsafe.");
            return *found;
        }
        case Type::kLoop:
            return object.as<Loop>()->attribute(name);
        case Type::kCycler:
            if (name != "current") return std::nullopt;
            return object.as<Cycler>()->items[object.as<Cycler>()->position];
        case Type::kMacro:
            if (name != "name") return std::nullopt;
            return heap.string(object.as<Macro>()->definition->name);
        case Type::kTuple:
            if (!object.as<List>()->is_group) return std::nullopt;
            if (name == "grouper") return object.as<List>()->items[0];
            if (name == "list") return object.as<List>()->items[1];
            return std::nullopt;
        default:
            return std::nullopt;
    }
}

Value missing_item(const Value& object, const std::string& name) {
    return Value::undefined("'" + std::string(type_name(object)) + " object' has no attribute '" +
                            name + "'");
}

}  // namespace

Value get_attribute(Heap& heap, const Value& object, const std::string& name) {
    if (object.is(Type::kUndefined)) fail(object.text().bytes);
    if (std::optional<Value> own = own_attribute(heap, object, name)) return *own;
    if (object.is(Type::kDict)) {
        if (const Value* found = object.as<Dict>()->find(name)) return *found;
    }
    return missing_item(object, name);
}

Value get_item(Heap& heap, const Value& object, const Value& key) {
    if (std::optional<Value> item = subscript(heap, object, key)) return *item;
    if (key.is_string()) {
        const std::string name(key.view());
        if (std::optional<Value> own = own_attribute(heap, object, name)) return *own;
        return missing_item(object, name);
    }
    return Value::undefined(std::string(type_name(object)) + " object has no element " +
                            to_repr(heap, key));
}

Value get_path(Heap& heap, const Value& object, const Value& path, const Value* fallback) {
    Value item = object;
    if (!path.is_string()) {
        item = get_item(heap, object, path);
        return fallback != nullptr && item.is_undefined() ? *fallback : item;
    }
    const std::string_view text = path.view();
    for (size_t begin = 0; begin <= text.size();) {
        const size_t end = std::min(text.find('.', begin), text.size());
        const std::string part(text.substr(begin, end - begin));
        const bool is_number =
            !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
        item = get_item(heap, item,
                        is_number ? Value::integer(*parse_int(part, 10)) : heap.string(part));
        if (fallback != nullptr && item.is_undefined()) item = *fallback;
        begin = end + 1;
    }
    return item;
}

bool has_method(const Value& object, const std::string& name) {
    return find_method(object, name) != nullptr;
}

Value call_method(Runtime& runtime,
                  const Value& object,
                  const std::string& name,
                  const Arguments& arguments) {
    return find_method(object, name)->function(runtime, object, arguments);
}

Bound::Bound(const std::string& function,
             const Arguments& arguments,
             std::initializer_list<const char*> names,
             size_t required)
    : values_(names.size(), nullptr) {
    if (arguments.positional.size() > names.size()) {
        fail(function + "() takes at most " + std::to_string(names.size()) + " arguments (" +
             std::to_string(arguments.positional.size()) + " given)");
    }
    for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
    for (const auto& [key, value] : arguments.named) {
        const auto at = std::find_if(names.begin(), names.end(),
                                     [&name = key](const char* known) { return name == known; });
        if (at == names.end()) {
            fail(function + "() got an unexpected keyword argument '" + key + "'");
        }
        const Value*& slot = values_[static_cast<size_t>(at - names.begin())];
        if (slot != nullptr) fail(function + "() got multiple values for argument '" + key + "'");
        slot = &value;
    }
    for (size_t i = 0; i < required; ++i) {
        if (values_[i] == nullptr) {
            fail(function + "() misses the argument '" + names.begin()[i] + "'");
        }
    }
}

bool Bound::flag(size_t index) const {
    return values_[index] != nullptr && truthy(*values_[index]);
}

}  // namespace tessera::jinja
