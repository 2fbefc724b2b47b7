#pragma once
// `tessera doctor`: whether this machine computes right, as a report to paste into an issue.

#include "engine/engine.h"

namespace tessera {

struct DoctorOptions {
    BackendOptions backend;
    bool quick = false;  ///< every tenth case of each op
};

/// Prints, as Markdown on stdout: the build, the machine and its backend, what Ops::self_test()
/// finds, the cases of every op (tests/op_cases) that agree with the reference, those that do not;
/// progress on stderr. Returns the exit code: kFailure where anything is wrong.
int run_doctor(const DoctorOptions& options);

}  // namespace tessera
