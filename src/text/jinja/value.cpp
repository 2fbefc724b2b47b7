#include "text/jinja/value.h"

#include <algorithm>

#include "text/jinja/operations.h"
#include "text/jinja/unicode.h"

namespace tessera::jinja {

void fail(const std::string& message) {
    throw Error(message);
}

Text::Text(std::string bytes_in, Heap* heap_in)
    : bytes(std::move(bytes_in)), length(count_code_points(bytes)), heap(heap_in) {}

Text::~Text() {
    if (heap != nullptr) heap->release(static_cast<int64_t>(bytes.size() + sizeof(Text)));
}

Value Value::boolean(bool value) {
    Value result;
    result.type_ = Type::kBool;
    result.payload_.integer = value ? 1 : 0;
    return result;
}

Value Value::integer(int64_t value) {
    Value result;
    result.type_ = Type::kInt;
    result.payload_.integer = value;
    return result;
}

Value Value::real(double value) {
    Value result;
    result.type_ = Type::kFloat;
    result.payload_.real = value;
    return result;
}

Value Value::text(std::shared_ptr<const Text> text, bool markup) {
    Value result;
    result.type_ = Type::kString;
    result.text_ = std::move(text);
    result.markup_ = markup;
    return result;
}

Value Value::literal(std::string bytes) {
    return text(std::make_shared<const Text>(std::move(bytes), nullptr));
}

Value Value::undefined(const std::string& message) {
    Value result = literal(message.size() > 200 ? message.substr(0, 200) + "..." : message);
    result.type_ = Type::kUndefined;
    return result;
}

Value Value::missing() {
    Value result;
    result.type_ = Type::kMissing;
    return result;
}

double Value::as_double() const {
    return type_ == Type::kFloat ? payload_.real : static_cast<double>(payload_.integer);
}

const Value* Dict::find(Heap& heap, const Value& key) const {
    const size_t position = find_position(heap, key);
    return position < entries.size() ? &entries[position].second : nullptr;
}

size_t Dict::find_position(Heap& heap, const Value& key) const {
    const auto [begin, end] = index_.equal_range(hash_value(heap, key));
    for (auto at = begin; at != end; ++at) {
        heap.step();
        if (equal(heap, entries[at->second].first, key)) return at->second;
    }
    return entries.size();
}

const Value* Dict::find(std::string_view key) const {
    const auto [begin, end] = index_.equal_range(std::hash<std::string_view>{}(key));
    for (auto at = begin; at != end; ++at) {
        const std::pair<Value, Value>& entry = entries[at->second];
        if (entry.first.is_string() && entry.first.view() == key) return &entry.second;
    }
    return nullptr;
}

void Dict::set(Heap& heap, const Value& key, const Value& value) {
    depth = std::max({depth, key.depth() + 1, value.depth() + 1});
    if (depth > kMaxDepth) fail("values are nested more than 200 levels deep");
    const size_t position = find_position(heap, key);
    if (position < entries.size()) {
        entries[position].second = value;
        return;
    }
    heap.charge(static_cast<int64_t>(2 * sizeof(Value)) + 48);
    index_.emplace(hash_value(heap, key), entries.size());
    entries.emplace_back(key, value);
}

void Heap::step(int64_t count) {
    steps_ += count;
    if (steps_ > kMaxSteps) fail("the template takes more than 10 million steps");
}

void Heap::charge(int64_t bytes) {
    memory_ += bytes;
    if (memory_ > kMaxMemoryBytes) fail("the template needs more than 512 MiB of memory");
}

Value Heap::string(std::string bytes, bool markup) {
    const int64_t size = static_cast<int64_t>(bytes.size());
    if (size > kMaxOutputBytes) fail("the template makes a string of more than 64 MiB");
    step(size / 512);
    charge(size + static_cast<int64_t>(sizeof(Text)));
    return Value::text(std::make_shared<const Text>(std::move(bytes), this), markup);
}

Value Heap::sequence(Type type, std::vector<Value> items) {
    int depth = 0;
    for (const Value& item : items) depth = std::max(depth, item.depth());
    if (depth >= kMaxDepth) fail("values are nested more than 200 levels deep");
    step(static_cast<int64_t>(items.size()) / 16);
    charge(static_cast<int64_t>(items.size() * sizeof(Value)));
    return Value(make<List>(type, std::move(items), depth + 1));
}

Value Heap::list(std::vector<Value> items) {
    return sequence(Type::kList, std::move(items));
}

Value Heap::tuple(std::vector<Value> items) {
    return sequence(Type::kTuple, std::move(items));
}

Value Heap::iterator(Next next, int source_depth) {
    if (source_depth >= kMaxDepth) fail("lazy filters are nested more than 200 levels deep");
    return Value(make<Iterator>(std::move(next), source_depth + 1));
}

}  // namespace tessera::jinja
