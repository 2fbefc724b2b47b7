// The op cases on every backend of this machine. One test per op family and configuration; a
// failure lists the cases, each of which `tessera test-ops test -p` can run alone.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "backends/reference/reference_class.h"
#include "engine/engine.h"
#include "op_cases/runner.h"

namespace tessera {
namespace {

using op_cases::OpCase;

/// A backend and how much of the list it gets: every `step`-th case.
struct Config {
    std::string name;
    BackendOptions options;
    int32_t step = 1;
};

void PrintTo(const Config& config, std::ostream* out) {
    *out << config.name;
}

std::vector<Config> configs() {
    const auto cpu = [](std::string_view isa, ActPolicy act, Nvfp4Policy policy = kActNvfp4) {
        return BackendOptions{
            .name = "cpu", .threads = 2, .act = act, .act_nvfp4 = policy, .isa = std::string(isa)};
    };
    std::vector<Config> all = {
        {"reference", {.name = "reference", .threads = 1, .isa = {}}, 6},
        {"cpu", cpu("", ActPolicy::kAuto), 1},
        {"cpu_f32", cpu("", ActPolicy::kF32), 5},
        {"cpu_bf16", cpu("", ActPolicy::kBF16), 5},
        {"cpu_int8", cpu("", ActPolicy::kInt8), 5},
        {"cpu_amax6", cpu("", ActPolicy::kNvfp4, Nvfp4Policy::kAmax6), 5},
        {"cpu_four_six", cpu("", ActPolicy::kNvfp4, Nvfp4Policy::kFourSix), 5},
        {"cpu_search", cpu("", ActPolicy::kNvfp4, Nvfp4Policy::kSearch), 9},
    };
    // A set that this machine lacks resolves to the best one below it: nothing new to test then.
    std::set<std::string> seen = {make_ops(cpu("", ActPolicy::kAuto))->description()};
    for (const std::string_view isa : {"scalar", "avx2", "avx512", "neon"}) {
        std::unique_ptr<Ops> ops;
        try {
            ops = make_ops(cpu(isa, ActPolicy::kAuto));
        } catch (const UserError&) {
            continue;  // not a set of this architecture
        }
        if (!seen.insert(ops->description()).second) continue;
        all.push_back({fmt::format("cpu_{}", isa), cpu(isa, ActPolicy::kAuto), 5});
    }
    return all;
}

/// Op names in order of the list.
std::vector<std::string> op_names() {
    std::vector<std::string> names;
    for (const OpCase& op_case : op_cases::all_cases()) {
        const std::string name(op_cases::op_name(op_case));
        if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
    return names;
}

/// Encoding K-quants takes longer than most cases, so all tests share one bank.
op_cases::WeightBank& shared_bank() {
    static op_cases::WeightBank bank;
    return bank;
}

class OpCases : public testing::TestWithParam<std::tuple<Config, std::string>> {};

TEST_P(OpCases, MatchTheReference) {
    const auto& [config, op] = GetParam();
    op_cases::Runner runner(
        [&config = config](int32_t threads) {
            BackendOptions options = config.options;
            if (threads > 0) options.threads = threads;
            return make_ops(options);
        },
        shared_bank());
    int32_t index = 0;
    int32_t ran = 0;
    std::string failed;
    for (const OpCase& op_case : op_cases::all_cases()) {
        if (op_cases::op_name(op_case) != op || index++ % config.step != 0) continue;
        ++ran;
        const op_cases::Verdict verdict = runner.check(op_case);
        if (!verdict.ok)
            failed += fmt::format("{}: {}\n", op_cases::case_name(op_case), verdict.fault);
    }
    ASSERT_GT(ran, 0);
    EXPECT_EQ(failed, "") << "of " << ran << " cases on " << runner.ops().description();
}

INSTANTIATE_TEST_SUITE_P(All,
                         OpCases,
                         testing::Combine(testing::ValuesIn(configs()),
                                          testing::ValuesIn(op_names())),
                         [](const auto& about) {
                             return std::get<0>(about.param).name + "_" + std::get<1>(about.param);
                         });

/// Guards against a harness for devices that loses what an op wrote, or that cannot see an op write
/// beside its operands: here over memory that the host could reach, too.
TEST(HostedOps, CarryOperandsOverAndBack) {
    op_cases::Runner runner(
        [](int32_t threads) {
            return std::make_unique<op_cases::HostedOps>(
                make_ops({.name = "cpu", .threads = std::max(threads, 1), .isa = {}}), true);
        },
        shared_bank());
    std::map<std::string, int32_t, std::less<>> seen;
    std::string failed;
    for (const OpCase& op_case : op_cases::all_cases()) {
        if (seen[std::string(op_cases::op_name(op_case))]++ % 40 != 0) continue;
        const op_cases::Verdict verdict = runner.check(op_case);
        if (!verdict.ok)
            failed += fmt::format("{}: {}\n", op_cases::case_name(op_case), verdict.fault);
    }
    EXPECT_EQ(failed, "");
}

/// Memory that is not the host's, and a sum that writes one value too many.
class StrayOps final : public reference::ReferenceOps {
  public:
    StrayOps() : reference::ReferenceOps(ReferenceOptions{}) {}
    bool on_host() const override { return false; }
    void add(Exec& ex, const Tensor& a, const Tensor& b, const Tensor& out) override {
        reference::ReferenceOps::add(ex, a, b, out);
        const auto extent = [&](size_t axis) { return (out.shape[axis] - 1) * out.stride[axis]; };
        int64_t end = 1;
        for (int32_t axis = 0; axis < out.rank; ++axis) end += extent(static_cast<size_t>(axis));
        if (!ex.planning()) out.as<float>()[end] = 1.0f;
    }
};

/// Guards against a runner that forgets that its backend's memory is elsewhere: what an op writes
/// beside its operands would go unseen, and speeds would be those of the copies.
TEST(HostedOps, AStrayWriteFailsTheCase) {
    op_cases::Runner runner(
        [](int32_t) -> std::unique_ptr<Ops> { return std::make_unique<StrayOps>(); },
        shared_bank());
    int32_t checked = 0;
    for (const OpCase& op_case : op_cases::all_cases()) {
        if (op_cases::op_name(op_case) != "ADD" || ++checked > 8) continue;
        const op_cases::Verdict verdict = runner.check(op_case);
        EXPECT_NE(verdict.fault.find("device memory"), std::string::npos)
            << op_cases::case_name(op_case) << ": " << verdict.fault;
    }
    EXPECT_GT(checked, 0);
}

/// Guards against a list that shrinks: users of the reference compare counts.
TEST(OpCaseList, KeepsItsSize) {
    std::map<std::string, int32_t, std::less<>> counts;
    std::set<std::string> names;
    for (const OpCase& op_case : op_cases::all_cases()) {
        ++counts[std::string(op_cases::op_name(op_case))];
        EXPECT_TRUE(names.insert(op_cases::case_name(op_case)).second)
            << op_cases::case_name(op_case) << " appears twice";
    }
    EXPECT_GE(counts["MUL_MAT"], 1302);
    EXPECT_GE(counts["MUL_MAT_ID"], 1032);
    EXPECT_GE(counts["MUL_MAT_ID_GLU"], 86);
    EXPECT_GE(counts["TOPK_MOE"], 152);
    EXPECT_GE(counts["MOE_COMBINE"], 80);
    EXPECT_GE(counts["FLASH_ATTN"], 369);
    EXPECT_GE(counts["SSM_CONV"], 64);
    EXPECT_GE(counts["GATED_DELTA_NET"], 345);
    EXPECT_GE(counts["DELTA_NET_INPUT"], 90);
    EXPECT_GE(counts.size(), 27u);
}

/// A comparison that lets NaN, infinities or a wrong scale through would make every case pass.
TEST(OpCaseComparison, CatchesWhatItMust) {
    double nmse = 0.0;
    const auto passes = [&](std::vector<float> a, std::vector<float> b) {
        return !op_cases::compare_values(a, b, 1e-9, nmse).has_value();
    };
    EXPECT_TRUE(passes({1.0f, -2.0f}, {1.0f, -2.0f}));
    EXPECT_TRUE(passes({INFINITY, 1.0f}, {INFINITY, 1.0f}));
    EXPECT_FALSE(passes({INFINITY, 1.0f}, {-INFINITY, 1.0f}));
    EXPECT_FALSE(passes({INFINITY, 1.0f}, {3e38f, 1.0f}));
    EXPECT_FALSE(passes({NAN, 1.0f}, {NAN, 1.0f}));
    EXPECT_FALSE(passes({1.0f, 1.0f}, {1.0f, 1.0001f}));
    EXPECT_NEAR(nmse, 0.5e-8, 0.01e-8);
    EXPECT_FALSE(passes({0.0f}, {1e-30f}));
    EXPECT_FALSE(passes({1e-30f}, {1.1e-30f}));
    EXPECT_FALSE(passes({1.0f}, {1.0f, 1.0f}));
}

/// Guards that do not notice a write would hide every overrun.
TEST(OpCaseGuards, NoticeWritesBesideAndIntoInputs) {
    using op_cases::Guarded;
    for (const int64_t offset : {-64, -1, 3, 7, 8, 71}) {
        Guarded out("out", DType::kF32, {2, 3}, 1, Guarded::Role::kOutput);
        std::vector<std::string> faults;
        out.tensor().as<float>()[offset] = 1.0f;
        out.verify(faults);
        EXPECT_EQ(faults.size(), 1u) << "offset " << offset;
    }
    Guarded out("out", DType::kF32, {2, 3}, 1, Guarded::Role::kOutput);
    out.tensor().as<float>()[4] = 1.0f;
    Guarded in("in", DType::kF32, {2, 3}, 0, Guarded::Role::kInput);
    in.fill_bytes(0);
    in.seal();
    std::vector<std::string> faults;
    out.verify(faults);
    in.verify(faults);
    EXPECT_TRUE(faults.empty());
    in.tensor().as<float>()[5] = 1.0f;
    in.verify(faults);
    EXPECT_EQ(faults.size(), 1u);
}

}  // namespace
}  // namespace tessera
