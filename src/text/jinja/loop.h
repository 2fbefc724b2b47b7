#pragma once
// The `loop` variable of a for statement.

#include <cstdint>
#include <functional>
#include <string>

#include "text/jinja/value.h"

namespace tessera::jinja {

/// Reads its items one ahead when `last` or `nextitem` is asked for, all of them for `length` of a
/// lazy sequence.
struct Loop : Object {
    /// Renders the body of a recursive loop over other items at `depth0`.
    using Recurse = std::function<Value(const Value& iterable, int depth0)>;
    Loop(Heap& heap_in,
         const Value& iterable_in,
         Next next_in,
         bool is_filtered,
         Recurse recurse_in,
         int depth0_in);

    bool advance(Value& item);
    int64_t length();
    /// An attribute or an undefined value.
    Value attribute(const std::string& name);
    Value cycle(const std::vector<Value>& items) const;
    bool changed(const std::vector<Value>& values);

    int64_t index0 = -1;
    const int depth0;
    const Recurse recurse;  ///< empty unless the loop is marked recursive

  private:
    bool peek();
    Heap& heap_;
    Next next_;
    int64_t length_ = -1;
    bool has_after_ = false, has_current_ = false, has_before_ = false, has_changed_ = false;
    Value after_, current_, before_;
    std::vector<Value> changed_;
};

}  // namespace tessera::jinja
