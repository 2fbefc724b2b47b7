#include "tools/text_input.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "core/error.h"

namespace tessera {

std::string read_stream(std::FILE* stream) {
    std::string text;
    std::array<char, 65536> buffer{};
    for (size_t count = 1; count > 0;) {
        count = std::fread(buffer.data(), 1, buffer.size(), stream);
        text.append(buffer.data(), count);
    }
    return text;
}

std::string read_text_file(const std::string& path) {
    if (path == "-") return read_stream(stdin);
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                               &std::fclose);
    if (!file)
        throw UserError(ExitCode::kModel,
                        fmt::format("{}: cannot read: {}", path, std::strerror(errno)));
    std::string text = read_stream(file.get());
    if (std::ferror(file.get()) != 0)
        throw UserError(ExitCode::kModel,
                        fmt::format("{}: cannot read: {}", path, std::strerror(errno)));
    return text;
}

}  // namespace tessera
