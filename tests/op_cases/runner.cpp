#include "op_cases/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>

#include "backends/reference/reference_ops.h"

namespace tessera::op_cases {
namespace {

Outputs run(const OpCase& op_case, const Request& request) {
    return std::visit([&](const auto& shape) { return execute(shape, request); }, op_case.shape);
}

/// Another way to cut the rows into calls, 0 when there is none: every row alone for small batches,
/// the chunks of a small -ub for larger ones.
int32_t other_cut(const OpCase& op_case) {
    int32_t rows = 0;
    std::visit(
        [&](const auto& shape) {
            if constexpr (requires { shape.t; })
                rows = shape.t;
            else if constexpr (requires { shape.runs; })
                for (const Run& part : shape.runs) rows += part.count;
            else if constexpr (requires { shape.memory; })
                for (const Run& part : shape.memory.runs) rows += part.count;
            else
                rows = static_cast<int32_t>(shape.shape.front());
        },
        op_case.shape);
    if (rows < 2) return 0;
    if (rows <= 17) return 1;
    return rows <= 129 ? 13 : 64;
}

bool is_fused(const OpCase& op_case) {
    if (const auto* fused = std::get_if<FusedCase>(&op_case.shape))
        return fused->kind != FusedKind::kPrepare;
    if (const auto* experts = std::get_if<ExpertCase>(&op_case.shape)) return experts->gated;
    if (std::holds_alternative<DeltaInputCase>(op_case.shape)) return true;
    const auto* paged = std::get_if<PagedCase>(&op_case.shape);
    return paged != nullptr && paged->kind == PagedKind::kQkNormRopeStore;
}

/// Fused ops whose contract asks for the bits of the composition.
bool is_fused_exactly(const OpCase& op_case) {
    const auto* fused = std::get_if<FusedCase>(&op_case.shape);
    if (fused != nullptr) return fused->kind == FusedKind::kLinearMany;
    return is_fused(op_case) && (std::holds_alternative<DeltaInputCase>(op_case.shape) ||
                                 std::holds_alternative<PagedCase>(op_case.shape));
}

/// Where two runs of the same backend differ in a bit, or nothing.
std::optional<std::string> compare_bits(const Outputs& a, const Outputs& b) {
    if (a.values.size() != b.values.size() || a.exact.size() != b.exact.size())
        return "number of outputs";
    for (size_t i = 0; i < a.values.size(); ++i)
        if (std::bit_cast<uint32_t>(a.values[i]) != std::bit_cast<uint32_t>(b.values[i]))
            return fmt::format("value {}: {} and {}", i, a.values[i], b.values[i]);
    for (size_t i = 0; i < a.exact.size(); ++i)
        if (a.exact[i] != b.exact[i])
            return fmt::format("byte {}: {:#04x} and {:#04x}", i, static_cast<int>(a.exact[i]),
                               static_cast<int>(b.exact[i]));
    return std::nullopt;
}

std::optional<std::string> compare_outputs(const Outputs& tested,
                                           const Outputs& expected,
                                           double bound,
                                           double& nmse) {
    const Outputs tested_exact{.exact = tested.exact};
    const Outputs expected_exact{.exact = expected.exact};
    if (const auto difference = compare_bits(tested_exact, expected_exact)) return difference;
    return compare_values(tested.values, expected.values, bound, nmse);
}

/// `ops`, or what lets it be used with tensors of the host; `hosted` is the latter.
std::unique_ptr<Ops> hosted_ops(std::unique_ptr<Ops> ops, bool recorded, HostedOps*& hosted) {
    if (ops->on_host()) return ops;
    auto made = std::make_unique<HostedOps>(std::move(ops), recorded);
    hosted = made.get();
    return made;
}

}  // namespace

std::optional<std::string> compare_values(std::span<const float> tested,
                                          std::span<const float> expected,
                                          double bound,
                                          double& nmse) {
    if (tested.size() != expected.size()) return "number of outputs";
    double error = 0.0;
    double power = 0.0;
    double worst = -1.0;
    size_t worst_index = 0;
    for (size_t i = 0; i < tested.size(); ++i) {
        const double a = static_cast<double>(tested[i]);
        const double b = static_cast<double>(expected[i]);
        if (std::isnan(a) || std::isnan(b))
            return fmt::format("value {}: {}, expected {}", i, a, b);
        if (std::isinf(a) || std::isinf(b)) {
            if (a != b) return fmt::format("value {}: {}, expected {}", i, a, b);
            continue;
        }
        error += (a - b) * (a - b);
        power += a * a;
        if (std::fabs(a - b) > worst) {
            worst = std::fabs(a - b);
            worst_index = i;
        }
    }
    nmse = error == 0.0 ? 0.0 : power == 0.0 ? INFINITY : error / power;
    if (nmse <= bound) return std::nullopt;
    return fmt::format("NMSE {:.3g} > {:.3g}, worst value {}: {}, expected {}", nmse, bound,
                       worst_index, tested[worst_index], expected[worst_index]);
}

Runner::Runner(const MakeOps& make, WeightBank& bank)
    : bank_(bank),
      ops_(hosted_ops(make(0), false, hosted_)),
      single_(hosted_ops(make(1), true, hosted_single_)),
      subject_(*ops_, bank_),
      single_subject_(*single_, bank_) {}

Subject& Runner::reference(ActWants wants) {
    Oracle& oracle = references_[{wants.prompt, wants.generated, wants.nvfp4}];
    if (oracle.ops == nullptr) {
        // One bit is set where a weight asked for formats; without a weight they do not matter.
        // Those of kFp4 are the numbers of kNvfp4.
        const auto format = [](uint8_t bits) {
            if (bits == 0) return ActFormat::kF32;
            const auto wanted = static_cast<ActFormat>(std::countr_zero(bits));
            return wanted == ActFormat::kFp4 ? ActFormat::kNvfp4 : wanted;
        };
        oracle.ops = make_reference_ops({.act_prompt = format(wants.prompt),
                                         .act_generated = format(wants.generated),
                                         .nvfp4 = wants.nvfp4});
        oracle.subject = std::make_unique<Subject>(*oracle.ops, bank_);
    }
    return *oracle.subject;
}

Verdict Runner::check(const OpCase& op_case) {
    Verdict verdict;
    const auto fail = [&](std::string_view what, const std::string& why) {
        if (!verdict.ok) return;
        verdict.ok = false;
        verdict.fault = fmt::format("{}: {}", what, why);
    };
    Request request{.subject = subject_, .seed = op_case.seed};
    const Outputs tested = run(op_case, request);
    for (const std::string& fault : tested.faults) fail("memory", fault);

    const Outputs expected =
        run(op_case, {.subject = reference(tested.wants), .seed = op_case.seed});
    for (const std::string& fault : expected.faults) fail("reference memory", fault);
    const double bound = tolerance(op_case, tested.wants);
    if (const auto difference = compare_outputs(tested, expected, bound, verdict.nmse))
        fail("against the reference", *difference);

    const auto same_bits = [&](std::string_view what, const Request& other) {
        if (!verdict.ok) return;
        const Outputs again = run(op_case, other);
        if (const auto difference = compare_bits(tested, again)) fail(what, *difference);
    };
    same_bits("run twice", {.subject = subject_, .seed = op_case.seed, .poison = 0xff});
    same_bits(hosted_ == nullptr ? "on one thread" : "recorded and replayed",
              {.subject = single_subject_, .seed = op_case.seed});
    if (const int32_t cut = other_cut(op_case); cut > 0)
        same_bits(fmt::format("cut into calls of {} rows", cut),
                  {.subject = subject_, .seed = op_case.seed, .cut = cut});
    if (is_fused(op_case) && verdict.ok) {
        request.body = Body::kDefault;
        double ignored = 0.0;
        const Outputs composed = run(op_case, request);
        if (const auto difference = is_fused_exactly(op_case)
                                        ? compare_bits(tested, composed)
                                        : compare_outputs(tested, composed, bound, ignored))
            fail("against the composition", *difference);
    }
    for (HostedOps* hosted : {hosted_, hosted_single_})
        if (hosted != nullptr)
            for (const std::string& fault : hosted->take_faults()) fail("device memory", fault);
    return verdict;
}

/// Device time alone: copying the operands over and back is left out. Two groups of calls without
/// a pause, long enough for clocks to rise; making the operands may take longer than all of them.
Measurement Runner::measure_hosted(const OpCase& op_case, double seconds) {
    const Request request{.subject = subject_, .seed = op_case.seed, .repeats = 1};
    constexpr int32_t kGroups = 2;
    hosted_->set_op_timing(true);
    run(op_case, request);
    const double once = std::max(hosted_->take_seconds().all, 1e-7);
    const auto times = static_cast<int32_t>(std::clamp(seconds / kGroups / once, 3.0, 2000.0));
    hosted_->set_times(times);
    HostedOps::Seconds fastest{INFINITY, 0};
    for (int32_t i = 0; i < kGroups; ++i) {
        run(op_case, request);
        const HostedOps::Seconds took = hosted_->take_seconds();
        if (took.all < fastest.all) fastest = took;
    }
    hosted_->set_times(1);
    const auto shape = std::get_if<FusedCase>(&op_case.shape);
    const bool prepares = shape != nullptr && shape->kind == FusedKind::kPrepare;
    return {times * kGroups, fastest.all / times, prepares ? 0.0 : fastest.prepare / times};
}

Measurement Runner::measure(const OpCase& op_case, double seconds) {
    if (hosted_ != nullptr) return measure_hosted(op_case, seconds);
    Request request{.subject = subject_, .seed = op_case.seed, .repeats = 1};
    run(op_case, request);
    const double once = std::max(run(op_case, request).seconds, 1e-7);
    constexpr int32_t kGroups = 5;
    request.repeats = static_cast<int32_t>(std::clamp(seconds / kGroups / once, 1.0, 100000.0));
    double fastest = INFINITY;
    for (int32_t i = 0; i < kGroups; ++i)
        fastest = std::min(fastest, run(op_case, request).seconds);
    return {request.repeats * kGroups, fastest / request.repeats, 0.0};
}

}  // namespace tessera::op_cases
