#include "text/jinja/loop.h"

#include "text/jinja/operations.h"

namespace tessera::jinja {

Loop::Loop(Heap& heap_in,
           const Value& iterable_in,
           Next next_in,
           bool is_filtered,
           Recurse recurse_in,
           int depth0_in)
    : Object(Type::kLoop),
      depth0(depth0_in),
      recurse(std::move(recurse_in)),
      heap_(heap_in),
      next_(std::move(next_in)) {
    if (!is_filtered) length_ = length_of(iterable_in).value_or(-1);
}

bool Loop::peek() {
    if (!has_after_) has_after_ = next_(after_);
    return has_after_;
}

bool Loop::advance(Value& item) {
    if (!peek()) return false;
    has_after_ = false;
    ++index0;
    has_before_ = has_current_;
    before_ = current_;
    current_ = after_;
    has_current_ = true;
    item = current_;
    return true;
}

int64_t Loop::length() {
    if (length_ >= 0) return length_;
    std::vector<Value> rest;
    for (Value item; next_(item);) {
        rest.push_back(item);
        heap_.charge(static_cast<int64_t>(sizeof(Value)));
    }
    length_ = static_cast<int64_t>(rest.size()) + index0 + 1 + (has_after_ ? 1 : 0);
    next_ = iterate(heap_, heap_.list(std::move(rest)));
    return length_;
}

Value Loop::attribute(const std::string& name) {
    if (name == "index") return Value::integer(index0 + 1);
    if (name == "index0") return Value::integer(index0);
    if (name == "first") return Value::boolean(index0 == 0);
    if (name == "last") return Value::boolean(!peek());
    if (name == "length") return Value::integer(length());
    if (name == "revindex") return Value::integer(length() - index0);
    if (name == "revindex0") return Value::integer(length() - index0 - 1);
    if (name == "depth") return Value::integer(depth0 + 1);
    if (name == "depth0") return Value::integer(depth0);
    if (name == "previtem") {
        return has_before_ ? before_ : Value::undefined("there is no previous item");
    }
    if (name == "nextitem") return peek() ? after_ : Value::undefined("there is no next item");
    return Value::undefined("loop has no attribute '" + name + "'");
}

Value Loop::cycle(const std::vector<Value>& items) const {
    if (items.empty()) fail("no items for cycling given");
    return items[static_cast<size_t>(index0) % items.size()];
}

bool Loop::changed(const std::vector<Value>& values) {
    bool same = has_changed_ && changed_.size() == values.size();
    for (size_t i = 0; same && i < values.size(); ++i) same = equal(heap_, changed_[i], values[i]);
    if (same) return false;
    has_changed_ = true;
    changed_ = values;
    return true;
}

}  // namespace tessera::jinja
