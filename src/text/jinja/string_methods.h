#pragma once
// Methods of Python's str, and the pieces of them that filters share.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace tessera::jinja {

struct Method {
    std::string_view name;
    Value (*function)(Runtime& runtime, const Value& self, const Arguments& arguments);
};

std::span<const Method> string_methods();

enum class Side : uint8_t { kBoth, kLeft, kRight };
/// `text` without the characters of `characters` (none: white space) at the ends.
std::string_view strip(Heap& heap, std::string_view text, const Value& characters, Side side);
/// The first `count` occurrences replaced, all of them when negative.
std::string replace_all(Heap& heap,
                        std::string_view text,
                        std::string_view old_part,
                        std::string_view new_part,
                        int64_t count);
/// Lines by all of Unicode's line ends; with their ends when `keep_ends`.
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);
/// `text` in the middle of `width` columns, filled as Python's str.center does.
std::string center(std::string_view text, int64_t width, std::string_view fill);

}  // namespace tessera::jinja
