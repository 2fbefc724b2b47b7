#pragma once
// Attributes, items and methods of values as the sandbox lets templates see them.

#include <memory>
#include <string>

#include "text/jinja/value.h"

namespace tessera::jinja {

/// `object.name`: methods before items; undefined where there is neither or the sandbox forbids it.
Value get_attribute(Heap& heap, const Value& object, const std::string& name);
/// `object[key]`: items before methods.
Value get_item(Heap& heap, const Value& object, const Value& key);
/// The item that a dotted path such as "function.name" or "0" leads to. `fallback` (null: none)
/// stands in for every undefined step.
Value get_path(Heap& heap, const Value& object, const Value& path, const Value* fallback);

/// Whether values of this type have the method and a template may call it.
bool has_method(const Value& object, const std::string& name);
/// Calls a method for which has_method() is true.
Value call_method(Runtime& runtime,
                  const Value& object,
                  const std::string& name,
                  const Arguments& arguments);

/// The parameters of a built-in function matched with a call: unknown, double, missing and
/// surplus arguments fail as in Python.
class Bound {
  public:
    Bound(const std::string& function,
          const Arguments& arguments,
          std::initializer_list<const char*> names,
          size_t required);
    /// Null when the argument was not given.
    const Value* operator[](size_t index) const { return values_[index]; }
    /// The argument, or `fallback` when it was not given.
    Value get(size_t index, const Value& fallback) const {
        return values_[index] == nullptr ? fallback : *values_[index];
    }
    bool flag(size_t index) const;

  private:
    std::vector<const Value*> values_;
};

}  // namespace tessera::jinja
