// `test-ops test` alone, for the cross-compiled check of scripts/arm.sh: op cases, backend and
// reference, no text.
#include <cstdio>

#include "tools/test_ops.h"

int main(int argc, char** argv) {
    tessera::TestOpsOptions options;
    options.backend.threads = 2;
    if (argc > 1) options.pattern = argv[1];
    try {
        return tessera::run_test_ops(options);
    } catch (const tessera::UserError& error) {
        std::fprintf(stderr, "test-ops: %s\n", error.what());
        return static_cast<int>(error.code());
    }
}
