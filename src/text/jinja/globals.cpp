// The functions that every template can call.

#include <ctime>

#include "text/jinja/attributes.h"
#include "text/jinja/filters.h"
#include "text/jinja/format.h"
#include "text/jinja/operations.h"
#include "text/jinja/runtime.h"

namespace tessera::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  ///< Jinja2's sandbox has the same limit

Value range(Runtime& runtime, const Arguments& arguments) {
    const Bound bound("range", arguments, {"start", "stop", "step"}, 1);
    if (!arguments.named.empty()) fail("range() takes no keyword arguments");
    int64_t start = 0, stop = to_index(*bound[0]), step = 1;
    if (bound[1] != nullptr) {
        start = stop;
        stop = to_index(*bound[1]);
    }
    if (bound[2] != nullptr) step = to_index(*bound[2]);
    if (step == 0) fail("range() arg 3 must not be zero");
    uint64_t length = 0;
    if (step > 0 ? start < stop : start > stop) {
        const uint64_t distance = step > 0
                                      ? static_cast<uint64_t>(stop) - static_cast<uint64_t>(start)
                                      : static_cast<uint64_t>(start) - static_cast<uint64_t>(stop);
        const uint64_t stride =
            step > 0 ? static_cast<uint64_t>(step) : uint64_t{0} - static_cast<uint64_t>(step);
        length = (distance - 1) / stride + 1;
    }
    if (length > static_cast<uint64_t>(kMaxRange)) fail("range() of more than 100000 items");
    return Value(runtime.heap().make<Range>(start, stop, step, static_cast<int64_t>(length)));
}

void fill(Heap& heap, Dict& dict, const Arguments& arguments, const char* function) {
    if (arguments.positional.size() > 1) {
        fail(std::string(function) + "() takes at most 1 positional argument");
    }
    if (!arguments.positional.empty()) {
        const Value& source = arguments.positional[0];
        if (source.is(Type::kDict)) {
            for (const auto& [key, value] : source.as<Dict>()->entries) dict.set(heap, key, value);
        } else {
            const Next next = iterate(heap, source);
            for (Value pair; next(pair);) {
                const std::vector<Value> parts = collect(heap, pair);
                if (parts.size() != 2) fail("dictionary update sequence needs pairs");
                dict.set(heap, parts[0], parts[1]);
            }
        }
    }
    for (const auto& [key, value] : arguments.named) dict.set(heap, heap.string(key), value);
}

Value make_dict(Runtime& runtime, const Arguments& arguments) {
    Dict* dict = runtime.heap().make<Dict>();
    fill(runtime.heap(), *dict, arguments, "dict");
    return Value(dict);
}

Value make_namespace(Runtime& runtime, const Arguments& arguments) {
    Namespace* result = runtime.heap().make<Namespace>();
    fill(runtime.heap(), result->attributes, arguments, "namespace");
    return Value(result);
}

Value make_cycler(Runtime& runtime, const Arguments& arguments) {
    if (arguments.positional.empty()) fail("at least one item has to be provided");
    if (!arguments.named.empty()) fail("cycler() takes no keyword arguments");
    return Value(runtime.heap().make<Cycler>(arguments.positional));
}

Value make_joiner(Runtime& runtime, const Arguments& arguments) {
    const Bound bound("joiner", arguments, {"sep"}, 0);
    return Value(runtime.heap().make<Joiner>(bound.get(0, Value::literal(", "))));
}

Value raise_exception(Runtime& runtime, const Arguments& arguments) {
    const Bound bound("raise_exception", arguments, {"message"}, 1);
    fail(to_string(runtime.heap(), *bound[0]));
}

Value strftime_now(Runtime& runtime, const Arguments& arguments) {
    const Bound bound("strftime_now", arguments, {"format"}, 1);
    if (!bound[0]->is_string()) fail("strftime_now() needs a format string");
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    if (localtime_r(&now, &local) == nullptr) fail("the local time cannot be read");
    // An added character tells an empty result from a buffer that is too small.
    const std::string format = std::string(bound[0]->view()) + "x";
    if (format.find('\0') != std::string::npos) fail("embedded null character");
    std::string out(format.size() * 16 + 256, '\0');
    const size_t size = std::strftime(out.data(), out.size(), format.c_str(), &local);
    if (size == 0) fail("the date does not fit");
    out.resize(size - 1);
    return runtime.heap().string(std::move(out));
}

}  // namespace

void add_globals(Heap& heap, Dict& variables) {
    static constexpr struct {
        const char* name;
        Value (*function)(Runtime&, const Arguments&);
    } kFunctions[] = {{"range", range},
                      {"dict", make_dict},
                      {"namespace", make_namespace},
                      {"cycler", make_cycler},
                      {"joiner", make_joiner},
                      {"raise_exception", raise_exception},
                      {"strftime_now", strftime_now}};
    for (const auto& [name, function] : kFunctions) {
        variables.set(heap, Value::literal(name), Value(heap.make<Function>(name, function)));
    }
}

}  // namespace tessera::jinja
