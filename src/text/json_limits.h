#pragma once
// JSON from files and clients that are not trusted.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tessera {

/// Parses one JSON text, keeping the order of keys; of a repeated key the last value counts.
/// UserError(kModel) "where: line N, column M: ..." for malformed text, more than 100 levels of
/// nesting, integers beyond 64 bits and numbers beyond double, more than 256 MiB of text or
/// 20 million values.
nlohmann::ordered_json parse_json(std::string_view text, const std::string& where);

}  // namespace tessera
