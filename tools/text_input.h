#pragma once
// Texts from files and pipes.

#include <cstdio>
#include <string>

namespace tessera {

/// The whole file, bytes as they are. UserError(kModel) when it cannot be read. "-" is stdin.
std::string read_text_file(const std::string& path);

/// Everything up to the end of an open stream.
std::string read_stream(std::FILE* stream);

}  // namespace tessera
