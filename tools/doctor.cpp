#include "tools/doctor.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/machine.h"
#include "op_cases/runner.h"
#include "tools/terminal.h"
#include "tools/version.h"

namespace tessera {
namespace {

using op_cases::OpCase;
using Clock = std::chrono::steady_clock;

constexpr size_t kQuickly = 10;  ///< one case in so many
constexpr size_t kShown = 20;    ///< failed cases that are named

std::vector<OpCase> select_cases(bool quick) {
    std::vector<OpCase> cases = op_cases::all_cases();
    if (!quick) return cases;
    std::map<std::string_view, size_t> seen;
    std::erase_if(cases,
                  [&](const OpCase& c) { return seen[op_cases::op_name(c)]++ % kQuickly != 0; });
    return cases;
}

void print_machine(const Ops& ops) {
    fmt::print("- build: tessera {}, commit {} ({})\n", version(), build_commit(), build_number());
    fmt::print("- machine: {} cores, {} of memory available\n", physical_cores(),
               bytes_text(static_cast<double>(available_memory_bytes())));
    fmt::print("- backend {}: {}\n", ops.name(), ops.description());
    if (!ops.on_host()) {
        BackendOptions cpu;
        fmt::print("- beside it, CPU: {}\n", make_ops(cpu)->description());
    }
}

/// Returns whether all is well.
bool print_self_test(Ops& ops) {
    const SelfTest test = ops.self_test();
    if (test.checked.empty()) return true;
    fmt::print("- self-test of {}: {}\n", test.checked, test.faults.empty() ? "passed" : "FAILED");
    for (const std::string& fault : test.faults) fmt::print("  - {}\n", fault);
    return test.faults.empty();
}

struct Tally {
    size_t cases = 0, passed = 0;
    double worst = 0;  ///< NMSE of those that passed
};

/// Returns whether all cases passed.
bool print_cases(op_cases::Runner& runner, const std::vector<OpCase>& cases) {
    const Clock::time_point begin = Clock::now();
    ProgressBar progress(ProgressUnit::kCount);
    std::map<std::string_view, Tally> tallies;
    std::vector<std::string> failed;
    int64_t done = 0, passed = 0;
    for (const OpCase& op_case : cases) {
        progress.update("op cases", done++, std::ssize(cases));
        op_cases::Verdict verdict;
        bool lost = false;
        try {
            verdict = runner.check(op_case);
        } catch (const UserError& error) {
            verdict = {.ok = false, .fault = error.what()};
            lost = error.code() == ExitCode::kDevice;
        }
        Tally& tally = tallies[op_cases::op_name(op_case)];
        ++tally.cases;
        if (verdict.ok) {
            ++tally.passed;
            ++passed;
            tally.worst = std::max(tally.worst, verdict.nmse);
        } else {
            failed.push_back(op_cases::case_name(op_case) + ": " + verdict.fault);
        }
        if (!lost) continue;
        failed.push_back("the device does not go on; the cases behind were not run");
        break;
    }
    progress.clear();
    fmt::print("\n| op | cases | passed | largest NMSE |\n|---|---|---|---|\n");
    for (const auto& [name, tally] : tallies)
        fmt::print("| {} | {} | {} | {:.1e} |\n", name, tally.cases,
                   tally.passed == tally.cases ? "all" : std::to_string(tally.passed), tally.worst);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    fmt::print("\n- op cases: {} of {} passed, {}\n", passed, cases.size(), duration_text(seconds));
    for (size_t i = 0; i < std::min(failed.size(), kShown); ++i) fmt::print("  - {}\n", failed[i]);
    if (failed.size() > kShown) fmt::print("  - and {} more\n", failed.size() - kShown);
    return failed.empty();
}

}  // namespace

int run_doctor(const DoctorOptions& options) {
    bool well = true;
    bool noted = false;
    const auto make = [&](int32_t threads) {
        BackendOptions backend = options.backend;
        if (threads > 0) backend.threads = threads;
        // A card that is left alone, or distrusted, is what the report is for.
        backend.note = [&](std::string_view text) {
            if (!std::exchange(noted, true)) fmt::print("- note: {}\n", text);
            well = false;
        };
        return make_ops(backend);
    };
    fmt::print("## tessera doctor\n\n");
    {
        const std::unique_ptr<Ops> ops = make(0);
        print_machine(*ops);
        well = print_self_test(*ops) && well;
        std::fflush(stdout);
    }
    op_cases::WeightBank bank;
    op_cases::Runner runner(make, bank);
    well = print_cases(runner, select_cases(options.quick)) && well;
    fmt::print("- result: {}\n", well ? "all is well" : "this machine computes something wrong");
    return static_cast<int>(well ? ExitCode::kOk : ExitCode::kFailure);
}

}  // namespace tessera
