#pragma once
// Private to src/gguf: how errors about files are worded. Names come from untrusted bytes.

#include <string>
#include <string_view>

namespace tessera {

/// `name` in single quotes for a one-line message: control and non-ASCII bytes become \xNN, long
/// names are cut.
std::string quoted_name(std::string_view name);

/// Throws UserError(kModel) "<file>: <what>".
[[noreturn]] void fail_file(std::string_view file, std::string_view what);

}  // namespace tessera
