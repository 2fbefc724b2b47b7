#pragma once
// Where the time of a run goes, op by op, beside what the device does at best.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops/ops.h"

namespace tessera {

/// A run with the clock of every op on.
struct OpsRun {
    std::vector<OpCount> counts;
    double wall_seconds = 0;
    Ceilings ceilings;
};

/// "f32", "bf16" (f16 as well), "int8", "fp8", "fp4".
std::string_view operands_name(Operands operands);

/// How near an op came to a ceiling: to that of its products or to that of memory, whichever is
/// nearer. Above 1 for memory: a cache gave what the op read.
struct PeakShare {
    double share = 0;
    std::string_view of;  ///< operands_name(), "memory", or "" where neither is known
};
PeakShare peak_share(const OpCount& count, const Ceilings& ceilings);

/// Calls that took a general kernel, and their part of the wall time.
struct Fallbacks {
    int64_t calls = 0;
    double share = 0;
};
Fallbacks fallbacks_of(const OpsRun& run);

/// Three parts: the ceilings; time, share, TFLOP/s, GB/s and percent of the peak of each op,
/// heaviest first; the fallbacks by op and reason.
std::string ops_tables(const OpsRun& run);

/// The counters as one JSON array.
std::string ops_json(const OpsRun& run);

}  // namespace tessera
