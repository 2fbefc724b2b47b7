// CMake fills these in for this file alone, so that a commit rebuilds nothing else.
#include "tools/version.h"

#ifndef TESSERA_VERSION
#    define TESSERA_VERSION "unknown"
#endif
#ifndef TESSERA_COMMIT
#    define TESSERA_COMMIT "unknown"
#endif
#ifndef TESSERA_BUILD_NUMBER
#    define TESSERA_BUILD_NUMBER 0
#endif

namespace tessera {

std::string_view version() {
    return TESSERA_VERSION;
}
std::string build_commit() {
    return TESSERA_COMMIT;
}
int32_t build_number() {
    return TESSERA_BUILD_NUMBER;
}

}  // namespace tessera
