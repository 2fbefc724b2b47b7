#pragma once
// Code points in UTF-8 with Python's ideas of case, space and printability. A byte that is not
// UTF-8 counts as one code point, has no properties and is passed on unchanged.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::jinja {

/// Code points from here on stand for the byte `value - kInvalidByte`.
inline constexpr char32_t kInvalidByte = 0x110000;

/// The code point that begins at `position`, which is moved behind it.
char32_t next_code_point(std::string_view text, size_t& position);
void append_code_point(std::string& text, char32_t code_point);
int64_t count_code_points(std::string_view text);
/// Byte position of code point `index`; the end of the text when there are fewer.
size_t offset_of(std::string_view text, int64_t index);
bool is_ascii(std::string_view text);
bool is_valid_utf8(std::string_view text);

/// The predicates of Python's str, for one code point.
bool is_space(char32_t code_point);
bool is_printable(char32_t code_point);
bool is_alpha(char32_t code_point);
bool is_decimal(char32_t code_point);
bool is_digit(char32_t code_point);
bool is_numeric(char32_t code_point);
bool is_lower(char32_t code_point);
bool is_upper(char32_t code_point);
bool is_title(char32_t code_point);
/// Letters, digits and underscore: what the lexer takes for a name.
bool is_word(char32_t code_point);
bool is_identifier(std::string_view text);

/// The conversions of Python's str, with the one-to-many mappings and the final sigma.
std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string to_title(std::string_view text);
/// Case folding, for comparisons without case.
std::string fold_case(std::string_view text);
std::string swap_case(std::string_view text);

/// `text` without leading (`left`) and trailing (`right`) white space.
std::string_view strip_space(std::string_view text, bool left, bool right);

}  // namespace tessera::jinja
