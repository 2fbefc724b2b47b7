#pragma once
// Which build this is.

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

/// "0.1.0".
std::string_view version();
/// Short commit id of the source tree, "unknown" outside a repository.
std::string build_commit();
/// Number of commits up to it, 0 outside a repository.
int32_t build_number();

}  // namespace tessera
