#pragma once
// "Did you mean ...": the known name that a mistyped one most likely stands for.

#include <span>
#include <string>
#include <string_view>

namespace tessera {

/// The member of `known` with the smallest edit distance to `unknown` (insert, delete, replace and
/// swap of neighbours cost 1 each; letter case and '-' against '_' cost nothing; the first of
/// equals wins). Empty when nothing is close: more than 2 edits and more than a third of the longer
/// name.
std::string nearest_name(std::string_view unknown, std::span<const std::string_view> known);

}  // namespace tessera
