#pragma once
// UTF-8 boundaries of bytes that nobody has checked.

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera::utf8 {

/// Bytes (1..4) of the well-formed character that `text` starts with, 0 when there is none
/// (Unicode 15 table 3-7: no overlong forms, no surrogates, nothing above U+10FFFF).
size_t char_bytes(std::string_view text);

/// Length of the longest well-formed prefix of `text`.
size_t valid_prefix(std::string_view text);

/// Bytes (0..3) at the end of `text` that are not a character yet but may become one.
size_t incomplete_tail(std::string_view text);

/// `text` as it may stand in a one-line message: at most 60 bytes, in quotes, without control
/// characters and malformed bytes.
std::string quoted(std::string_view text);

}  // namespace tessera::utf8
