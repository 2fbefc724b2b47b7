// Where the time goes op by op: shares, rates, the peak that an op is held against, fallbacks.

#include "tools/bench_ops.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tools/scratch_folder.h"

namespace tessera {
namespace {

/// 100 GFLOP/s in f32, 1 TFLOP/s in bf16, 2 in fp8, 50 GB/s.
Ceilings some_ceilings() {
    return {.flops_per_second = {1e11, 1e12, 0, 2e12}, .bytes_per_second = 5e10};
}

OpsRun some_run() {
    return {.counts = {{.name = "small", .calls = 2, .seconds = 0.1, .flops = 0, .bytes = 1e9},
                       {.name = "linear[q8_0]",
                        .calls = 1,
                        .seconds = 0.125,
                        .flops = 1e11,
                        .bytes = 1e9,
                        .operands = Operands::k16Bits,
                        .fallback = "experts: general kernel"},
                       {.name = "linear[q8_0]",
                        .calls = 3,
                        .seconds = 0.375,
                        .flops = 3e11,
                        .bytes = 1e9,
                        .operands = Operands::k16Bits},
                       {.name = "fused", .calls = 7, .fallback = "long heads: norm, rope"}},
            .wall_seconds = 1.0,
            .ceilings = some_ceilings()};
}

/// The cells of the table's row that starts with `name`, spaces dropped.
std::vector<std::string> cells(const std::string& table, const std::string& name) {
    std::istringstream lines(table);
    for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with("| " + name)) continue;
        std::vector<std::string> found;
        std::istringstream parts(line.substr(1));
        for (std::string cell; std::getline(parts, cell, '|');) {
            const size_t begin = cell.find_first_not_of(' ');
            if (begin == std::string::npos) {
                found.emplace_back();
                continue;
            }
            found.push_back(cell.substr(begin, cell.find_last_not_of(' ') + 1 - begin));
        }
        return found;
    }
    return {};
}

// Guards against calls that are lost or counted twice where some of an op's took a general kernel,
// against rates in other units, and against time outside of ops that nobody sees.
TEST(OpsTables, AddUpAnOpAndGiveItsRates) {
    const std::string table = ops_tables(some_run());
    using Row = std::vector<std::string>;
    EXPECT_EQ(cells(table, "op "),
              (Row{"op", "calls", "ms", "share", "TFLOP/s", "GB/s", "of peak"}))
        << table;
    EXPECT_EQ(cells(table, "linear[q8_0]"),
              (Row{"linear[q8_0]", "4", "500.000", "50.00%", "0.800", "4.0", "80% bf16"}));
    EXPECT_EQ(cells(table, "small"),
              (Row{"small", "2", "100.000", "10.00%", "0.000", "10.0", "20% memory"}));
    EXPECT_EQ(cells(table, "(outside"),
              (Row{"(outside ops)", "", "400.000", "40.00%", "", "", ""}));
    EXPECT_LT(table.find("linear[q8_0]"), table.find("small"));
    EXPECT_NE(table.find("peaks measured in this run: f32 0.10 TFLOP/s, bf16 1.00 TFLOP/s, fp8 "
                         "2.00 TFLOP/s, memory 50.0 GB/s\n"),
              std::string::npos)
        << table;
}

// Guards against fallbacks that do not show, and against a share for a composition, whose time is
// already that of its parts.
TEST(OpsTables, ListEveryFallback) {
    const std::string table = ops_tables(some_run());
    const std::string fallbacks = table.substr(table.find("| fallback "));
    using Row = std::vector<std::string>;
    EXPECT_EQ(cells(fallbacks, "linear[q8_0]"),
              (Row{"linear[q8_0]", "experts: general kernel", "1", "12.50%"}))
        << table;
    EXPECT_EQ(cells(fallbacks, "fused"), (Row{"fused", "long heads: norm, rope", "7", "parts"}));
    EXPECT_EQ(fallbacks_of(some_run()).calls, 8);
    EXPECT_DOUBLE_EQ(fallbacks_of(some_run()).share, 0.125);
    OpsRun none = some_run();
    for (OpCount& count : none.counts) count.fallback.clear();
    EXPECT_NE(ops_tables(none).find("\nno fallbacks\n"), std::string::npos);
}

// Guards against an op that is held against the units of another number format, against the lower
// of its two shares, and against shares of peaks that nobody measured.
TEST(PeakShare, TakesTheNearerOfTheOpsOwnPeaks) {
    OpCount count{.name = "x", .calls = 1, .seconds = 0.5, .flops = 5e11, .bytes = 5e9};
    count.operands = Operands::kFp8;
    EXPECT_EQ(peak_share(count, some_ceilings()).of, "fp8");
    EXPECT_DOUBLE_EQ(peak_share(count, some_ceilings()).share, 0.5);
    count.operands = Operands::k16Bits;
    EXPECT_DOUBLE_EQ(peak_share(count, some_ceilings()).share, 1.0);
    count.operands = Operands::kInt8;  // no peak
    EXPECT_EQ(peak_share(count, some_ceilings()).of, "memory");
    EXPECT_DOUBLE_EQ(peak_share(count, some_ceilings()).share, 0.2);
    EXPECT_EQ(peak_share(count, {}).of, "");
    count.seconds = 0;
    EXPECT_EQ(peak_share(count, some_ceilings()).of, "");
}

// Guards against a program that measures nothing on the CPU, a clock that stays off, and fields
// that csv and json lack.
class BenchOps : public ScratchFolder {};
TEST_F(BenchOps, RunOnTheCpuAndReportInJson) {
    const Outcome outcome =
        execute("'" TESSERA_PROGRAM
                "' bench --synth llama:tiny:nvfp4 -p 32 -n 2 -r 1 -t 1 --backend cpu --act f32 "
                "--isa scalar --ops -o jsonl");
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    std::istringstream lines(outcome.out);
    int32_t tests = 0;
    for (std::string line; std::getline(lines, line); ++tests) {
        const auto test = nlohmann::json::parse(line);
        double share = 0.0;
        bool product = false;
        for (const auto& op : test["ops"]) {
            share += op["share"].get<double>();
            if (op["op"] != "linear[nvfp4,scalar]") continue;
            product = true;
            EXPECT_GT(op["tflops"].get<double>(), 0.0);
            EXPECT_EQ(op["operands"], "f32");
            EXPECT_EQ(op["fallback"], "");
        }
        EXPECT_TRUE(product) << line;
        EXPECT_GT(share, 0.1);
        EXPECT_LE(share, 1.0);
        EXPECT_EQ(test["fallback_calls"], 0);
        EXPECT_GE(test["peak_gb_per_s"].get<double>(), 0.0);
        // The model takes 1 MiB; what the peaks were measured with is no memory of its own.
        EXPECT_LT(test["peak_memory_bytes"].get<int64_t>(), 256 << 20) << tests;
    }
    EXPECT_EQ(tests, 2);
    EXPECT_NE(outcome.err.find("peaks measured in this run: "), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("no fallbacks"), std::string::npos) << outcome.err;
}

// Guards against results that name what was asked for where something else ran: weights that take
// no NVFP4 rows, and a switch for another backend.
TEST_F(BenchOps, ResultsNameWhatRan) {
    for (const bool fp4 : {true, false}) {
        const Outcome outcome =
            execute("'" TESSERA_PROGRAM "' bench --synth qwen35:tiny:" +
                    std::string(fp4 ? "nvfp4" : "q8_0") +
                    " -p 64 -n 0 -r 1 -t 1 --backend cpu --act nvfp4 --act-policy amax6 "
                    "--delta-bf16 -o jsonl -oe md");
        ASSERT_EQ(outcome.code, 0) << outcome.err;
        const auto test = nlohmann::json::parse(outcome.out);
        EXPECT_EQ(test["act"], "nvfp4");
        EXPECT_EQ(test["act_prompt"], fp4 ? "nvfp4" : "bf16");
        EXPECT_EQ(test["act_policy"], fp4 ? "amax6" : "none");
        EXPECT_EQ(test["delta_bf16"], false);
        EXPECT_NE(outcome.err.find(fp4 ? "|        nvfp4 |      amax6 |          0 |"
                                       : "| nvfp4 (bf16) |       none |          0 |"),
                  std::string::npos)
            << outcome.err;
    }
}

}  // namespace
}  // namespace tessera
