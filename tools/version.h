#pragma once
// Which build this is.

#include <cstdint>
#include <string>

namespace tessera {

/// Short commit id of the source tree, "unknown" outside a repository.
std::string build_commit();
/// Number of commits up to it, 0 outside a repository.
int32_t build_number();

}  // namespace tessera
