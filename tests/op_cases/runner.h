#pragma once
// Runs cases on a backend and judges them.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "op_cases/case_run.h"
#include "op_cases/hosted_ops.h"

namespace tessera::op_cases {

/// Makes the backend under test; 0 threads: as many as the caller chose. One thread stands for
/// another way to run: a backend with memory of its own replays recordings then.
using MakeOps = std::function<std::unique_ptr<Ops>(int32_t threads)>;

struct Verdict {
    bool ok = true;
    std::string fault;  ///< one line, "" when ok
    double nmse = 0;    ///< against the reference
};

struct Measurement {
    int32_t runs = 0;
    double seconds_per_run = 0;
    /// Of these, what it took to bring the input into the format of the product; 0 where the op
    /// itself does that, or where nothing but the whole is timed (on a CPU).
    double input_seconds = 0;
};

class Runner {
  public:
    /// `bank` outlives the runner; several runners may share it.
    Runner(const MakeOps& make, WeightBank& bank);

    /// The case against the reference, which rounds activations as this backend's weight asks;
    /// twice; on one thread; with the rows cut into other calls; and, for fused ops, as
    /// composition.
    Verdict check(const OpCase& op_case);
    /// Five groups of runs that take about `seconds` together; the fastest group counts, because a
    /// busy machine only ever adds time. Preparation of operands is left out.
    Measurement measure(const OpCase& op_case, double seconds);
    Ops& ops() { return *ops_; }

  private:
    Measurement measure_hosted(const OpCase& op_case, double seconds);
    /// The reference for these activation formats.
    Subject& reference(ActWants wants);

    struct Oracle {
        std::unique_ptr<Ops> ops;
        std::unique_ptr<Subject> subject;
    };
    WeightBank& bank_;
    // Before ops_ and single_, whose initializers set them.
    HostedOps* hosted_ = nullptr;         ///< ops_, where it is one
    HostedOps* hosted_single_ = nullptr;  ///< single_, likewise
    std::unique_ptr<Ops> ops_;
    std::unique_ptr<Ops> single_;
    Subject subject_;
    Subject single_subject_;
    std::map<std::tuple<uint8_t, uint8_t, Nvfp4Policy>, Oracle> references_;
};

/// The largest NMSE = sum (a - b)^2 / sum a^2, a under test, that a case may have. Frozen: a change
/// is a commit of its own with numbers.
double tolerance(const OpCase& op_case, ActWants wants);

/// The first difference, or nothing; sets `nmse`. NaN never passes, infinities must be equal.
std::optional<std::string> compare_values(std::span<const float> tested,
                                          std::span<const float> expected,
                                          double bound,
                                          double& nmse);

}  // namespace tessera::op_cases
