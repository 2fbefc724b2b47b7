#pragma once
// `tessera test-ops`: the op cases of tests/op_cases on a backend of this machine, as llama.cpp's
// test-backend-ops shows them.

#include <cstdint>
#include <string>

#include "engine/engine.h"

namespace tessera {

enum class TestOpsMode : uint8_t {
    kTest,    ///< each case against the reference
    kPerf,    ///< microseconds, GFLOP/s and GB/s of each case
    kSupport  ///< which ops have a kernel of their own here
};

enum class TestOpsOutput : uint8_t { kConsole, kCsv, kJsonl };

struct TestOpsOptions {
    TestOpsMode mode = TestOpsMode::kTest;
    std::string op;       ///< only this one, "" = all ("MUL_MAT", any case)
    std::string pattern;  ///< ECMAScript regular expression searched in the case's name
    BackendOptions backend;
    TestOpsOutput output = TestOpsOutput::kConsole;
};

/// Returns the exit code: kOk when every case passed. UserError(kUsage) for an unknown op (naming
/// the nearest), a bad regular expression or nothing selected.
int run_test_ops(const TestOpsOptions& options);

}  // namespace tessera
