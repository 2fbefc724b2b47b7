#include "test_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <vector>

#include "core/nearest.h"
#include "op_cases/runner.h"

namespace tessera {
namespace {

using op_cases::OpCase;

constexpr double kPerfSeconds = 0.3;

std::string upper(std::string text) {
    for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return text;
}

std::vector<OpCase> select_cases(const TestOpsOptions& options) {
    std::vector<OpCase> cases =
        options.mode == TestOpsMode::kPerf ? op_cases::perf_cases() : op_cases::all_cases();
    if (options.mode == TestOpsMode::kPerf && options.backend.name.starts_with("cuda"))
        op_cases::add_card_perf_cases(cases);
    if (!options.op.empty()) {
        std::set<std::string_view> known;
        for (const OpCase& op_case : cases) known.insert(op_cases::op_name(op_case));
        const std::string wanted = upper(options.op);
        const std::vector<std::string_view> names(known.begin(), known.end());
        if (!known.contains(wanted)) {
            const std::string nearest = nearest_name(options.op, names);
            throw UserError(ExitCode::kUsage,
                            fmt::format("no cases of op '{}'{}", options.op,
                                        nearest.empty() ? "" : "; did you mean " + nearest + "?"));
        }
        std::erase_if(cases, [&](const OpCase& c) { return op_cases::op_name(c) != wanted; });
    }
    if (!options.pattern.empty()) {
        try {
            const std::regex pattern(options.pattern);
            std::erase_if(cases, [&](const OpCase& c) {
                return !std::regex_search(op_cases::case_name(c), pattern);
            });
        } catch (const std::regex_error&) {
            throw UserError(ExitCode::kUsage,
                            fmt::format("'{}' is not a regular expression", options.pattern));
        }
    }
    if (cases.empty())
        throw UserError(
            ExitCode::kUsage,
            fmt::format("no case matches '{}'; run without -p to see the names", options.pattern));
    return cases;
}

/// One result in the chosen form, flushed so that a long list can be watched.
void print_test(const TestOpsOptions& options,
                const std::string& name,
                const op_cases::Verdict& verdict) {
    const std::string_view status = verdict.ok ? "OK" : "FAIL";
    switch (options.output) {
        case TestOpsOutput::kConsole:
            if (verdict.ok)
                fmt::print("  {}: OK\n", name);
            else
                fmt::print("  {}: FAIL ({})\n", name, verdict.fault);
            break;
        case TestOpsOutput::kCsv:
            fmt::print("\"{}\",{},{:.3g}\n", name, status, verdict.nmse);
            break;
        case TestOpsOutput::kJsonl: {
            const nlohmann::ordered_json line{{"case", name},
                                              {"passed", verdict.ok},
                                              {"nmse", verdict.nmse},
                                              {"fault", verdict.fault}};
            fmt::print("{}\n", line.dump());
            break;
        }
    }
    std::fflush(stdout);
}

int run_tests(const TestOpsOptions& options,
              op_cases::Runner& runner,
              const std::vector<OpCase>& cases) {
    if (options.output == TestOpsOutput::kCsv) fmt::print("case,status,nmse\n");
    size_t passed = 0;
    std::vector<std::string> failed;
    for (const OpCase& op_case : cases) {
        const std::string name = op_cases::case_name(op_case);
        const op_cases::Verdict verdict = runner.check(op_case);
        print_test(options, name, verdict);
        if (verdict.ok)
            ++passed;
        else
            failed.push_back(name);
    }
    if (options.output == TestOpsOutput::kConsole) {
        if (!failed.empty()) fmt::print("\nfailed:\n");
        for (const std::string& name : failed) fmt::print("  {}\n", name);
        fmt::print("  {}/{} tests passed\n", passed, cases.size());
        fmt::print("  Backend {}: {}\n", runner.ops().name(), failed.empty() ? "OK" : "FAIL");
    }
    return static_cast<int>(failed.empty() ? ExitCode::kOk : ExitCode::kFailure);
}

int run_perf(const TestOpsOptions& options,
             op_cases::Runner& runner,
             const std::vector<OpCase>& cases) {
    if (options.output == TestOpsOutput::kCsv)
        fmt::print("case,runs,us_per_run,gflops,gb_per_s,input_us\n");
    for (const OpCase& op_case : cases) {
        const std::string name = op_cases::case_name(op_case);
        const op_cases::Measurement measured = runner.measure(op_case, kPerfSeconds);
        const op_cases::Cost cost = op_cases::case_cost(op_case);
        const double us = measured.seconds_per_run * 1e6;
        const double gflops = cost.flops / measured.seconds_per_run * 1e-9;
        const double input_us = measured.input_seconds * 1e6;
        const double gigabytes = cost.bytes / measured.seconds_per_run * 1e-9;
        switch (options.output) {
            case TestOpsOutput::kConsole:
                fmt::print("  {:<72} {:>7} runs - {:>10.2f} us/run - ", name, measured.runs, us);
                if (cost.flops > 0) fmt::print("{:>9.2f} GFLOP/s - ", gflops);
                fmt::print("{:>7.2f} GB/s", gigabytes);
                if (input_us > 0) fmt::print(" - {:.2f} us of it the input's format", input_us);
                fmt::print("\n");
                break;
            case TestOpsOutput::kCsv:
                fmt::print("\"{}\",{},{:.3f},{:.3f},{:.3f},{:.3f}\n", name, measured.runs, us,
                           gflops, gigabytes, input_us);
                break;
            case TestOpsOutput::kJsonl: {
                const nlohmann::ordered_json line{{"case", name},          {"runs", measured.runs},
                                                  {"us_per_run", us},      {"gflops", gflops},
                                                  {"gb_per_s", gigabytes}, {"input_us", input_us}};
                fmt::print("{}\n", line.dump());
                break;
            }
        }
        std::fflush(stdout);
    }
    return static_cast<int>(ExitCode::kOk);
}

int run_support(op_cases::Runner& runner) {
    fmt::print("Backend {}: {}\n", runner.ops().name(), runner.ops().description());
    fmt::print("every op is supported; kernels of their own for the fused ops:");
    const std::vector<std::string_view> overrides = runner.ops().overrides();
    for (const std::string_view name : overrides) fmt::print(" {}", name);
    fmt::print("{}\n", overrides.empty() ? " none" : "");
    return static_cast<int>(ExitCode::kOk);
}

}  // namespace

int run_test_ops(const TestOpsOptions& options) {
    const auto make = [&](int32_t threads) {
        BackendOptions backend = options.backend;
        if (threads > 0) backend.threads = threads;
        return make_ops(backend);
    };
    const std::vector<OpCase> cases = select_cases(options);
    op_cases::WeightBank bank;
    op_cases::Runner runner(make, bank);
    if (options.mode == TestOpsMode::kSupport) return run_support(runner);
    if (options.output == TestOpsOutput::kConsole)
        fmt::print("Backend {}: {}\n", runner.ops().name(), runner.ops().description());
    return options.mode == TestOpsMode::kTest ? run_tests(options, runner, cases)
                                              : run_perf(options, runner, cases);
}

}  // namespace tessera
