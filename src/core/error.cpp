#include "core/error.h"

#include <cstdio>
#include <cstdlib>

namespace tessera {

void fail_check(std::string_view message, const std::source_location& where) {
    std::fprintf(stderr, "tessera: internal error: %.*s (%s:%u)\n",
                 static_cast<int>(message.size()), message.data(), where.file_name(),
                 static_cast<unsigned>(where.line()));
    std::abort();
}

}  // namespace tessera
