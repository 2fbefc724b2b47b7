// CMake fills these in for this file alone, so that a commit rebuilds nothing else.
#include "tools/version.h"

#ifndef TESSERA_COMMIT
#    define TESSERA_COMMIT "unknown"
#endif
#ifndef TESSERA_BUILD_NUMBER
#    define TESSERA_BUILD_NUMBER 0
#endif

namespace tessera {

std::string build_commit() {
    return TESSERA_COMMIT;
}
int32_t build_number() {
    return TESSERA_BUILD_NUMBER;
}

}  // namespace tessera
