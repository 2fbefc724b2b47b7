#include "gguf/messages.h"

#include <fmt/format.h>

#include "core/error.h"

namespace tessera {

std::string quoted_name(std::string_view name) {
    constexpr size_t kLongest = 80;
    std::string text = "'";
    for (const char letter : name.substr(0, kLongest)) {
        const bool plain = letter >= ' ' && letter < '\x7f';
        if (plain)
            text += letter;
        else
            text += fmt::format("\\x{:02x}", static_cast<unsigned char>(letter));
    }
    if (name.size() > kLongest) text += "...";
    return text + "'";
}

void fail_file(std::string_view file, std::string_view what) {
    throw UserError(ExitCode::kModel, fmt::format("{}: {}", file, what));
}

}  // namespace tessera
