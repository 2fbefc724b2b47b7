#include "tools/bench_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace tessera {
namespace {

/// Work a second; 0 where nothing was timed.
double rate(double work, double seconds) {
    return seconds > 0 ? work / seconds : 0.0;
}

double part_of(double seconds, const OpsRun& run) {
    return run.wall_seconds > 0 ? seconds / run.wall_seconds : 0.0;
}

/// Whether this counts compositions that ran in the place of a fused op: their parts have the time.
bool is_composition(const OpCount& count) {
    return !count.fallback.empty() && count.seconds == 0.0 && count.bytes == 0.0;
}

/// The counters without regard to fallbacks, heaviest first.
std::vector<OpCount> merged(const OpsRun& run) {
    std::vector<OpCount> ops;
    for (const OpCount& count : run.counts) {
        if (is_composition(count)) continue;
        OpCount& op = count_of(ops, count.name, count.operands, {});
        op.calls += count.calls;
        op.seconds += count.seconds;
        op.flops += count.flops;
        op.bytes += count.bytes;
    }
    std::ranges::stable_sort(ops, std::ranges::greater(), &OpCount::seconds);
    return ops;
}

std::string ceilings_line(const Ceilings& ceilings) {
    std::string line;
    const auto add = [&](const std::string& part) { line += (line.empty() ? "" : ", ") + part; };
    for (size_t i = 0; i < ceilings.flops_per_second.size(); ++i)
        if (const double flops = ceilings.flops_per_second[i]; flops > 0)
            add(fmt::format("{} {:.2f} TFLOP/s", operands_name(static_cast<Operands>(i)),
                            flops / 1e12));
    if (ceilings.bytes_per_second > 0)
        add(fmt::format("memory {:.1f} GB/s", ceilings.bytes_per_second / 1e9));
    return "peaks measured in this run: " + (line.empty() ? "none" : line) + "\n";
}

std::string op_rows(const OpsRun& run) {
    std::string text = fmt::format("| {:<32} | {:>8} | {:>10} | {:>7} | {:>9} | {:>8} | {:>11} |\n",
                                   "op", "calls", "ms", "share", "TFLOP/s", "GB/s", "of peak");
    text +=
        fmt::format("| {:-<32} | {:->7}: | {:->9}: | {:->6}: | {:->8}: | {:->7}: | {:->10}: |\n",
                    "", "", "", "", "", "", "");
    double sum = 0;
    const auto row = [&](std::string_view name, std::string_view calls, double seconds,
                         std::string_view flops, std::string_view bytes, std::string_view peak) {
        text += fmt::format("| {:<32} | {:>8} | {:>10.3f} | {:>6.2f}% | {:>9} | {:>8} | {:>11} |\n",
                            name, calls, 1e3 * seconds, 100 * part_of(seconds, run), flops, bytes,
                            peak);
    };
    for (const OpCount& op : merged(run)) {
        const bool timed = op.seconds > 0;
        const PeakShare peak = peak_share(op, run.ceilings);
        row(op.name, std::to_string(op.calls), op.seconds,
            timed ? fmt::format("{:.3f}", rate(op.flops, op.seconds) / 1e12) : "",
            timed ? fmt::format("{:.1f}", rate(op.bytes, op.seconds) / 1e9) : "",
            peak.of.empty() ? "" : fmt::format("{:.0f}% {}", 100 * peak.share, peak.of));
        sum += op.seconds;
    }
    row("(outside ops)", "", std::max(0.0, run.wall_seconds - sum), "", "", "");
    return text;
}

std::string fallback_rows(const OpsRun& run) {
    std::vector<OpCount> taken;
    for (const OpCount& count : run.counts)
        if (!count.fallback.empty()) taken.push_back(count);
    if (taken.empty()) return "no fallbacks\n";
    std::ranges::stable_sort(taken, std::ranges::greater(), &OpCount::seconds);
    std::string text =
        fmt::format("| {:<32} | {:<62} | {:>8} | {:>7} |\n", "op", "fallback", "calls", "share");
    text += fmt::format("| {:-<32} | {:-<62} | {:->7}: | {:->6}: |\n", "", "", "", "");
    for (const OpCount& count : taken)
        text += fmt::format(
            "| {:<32} | {:<62} | {:>8} | {:>7} |\n", count.name, count.fallback, count.calls,
            is_composition(count) ? std::string("parts")
                                  : fmt::format("{:.2f}%", 100 * part_of(count.seconds, run)));
    return text;
}

}  // namespace

std::string_view operands_name(Operands operands) {
    switch (operands) {
        case Operands::kF32:
            return "f32";
        case Operands::k16Bits:
            return "bf16";
        case Operands::kInt8:
            return "int8";
        case Operands::kFp8:
            return "fp8";
        case Operands::kFp4:
            return "fp4";
        case Operands::kCount:
            break;
    }
    return "?";
}

PeakShare peak_share(const OpCount& count, const Ceilings& ceilings) {
    PeakShare nearest;
    const auto consider = [&](double work, double ceiling, std::string_view of) {
        if (ceiling <= 0 || work <= 0 || count.seconds <= 0) return;
        const double share = rate(work, count.seconds) / ceiling;
        if (share > nearest.share) nearest = {share, of};
    };
    consider(count.flops, ceilings.flops_per_second[static_cast<size_t>(count.operands)],
             operands_name(count.operands));
    consider(count.bytes, ceilings.bytes_per_second, "memory");
    return nearest;
}

Fallbacks fallbacks_of(const OpsRun& run) {
    Fallbacks sum;
    for (const OpCount& count : run.counts) {
        if (count.fallback.empty()) continue;
        sum.calls += count.calls;
        sum.share += part_of(count.seconds, run);
    }
    return sum;
}

std::string ops_tables(const OpsRun& run) {
    return ceilings_line(run.ceilings) + op_rows(run) + fallback_rows(run);
}

std::string ops_json(const OpsRun& run) {
    nlohmann::ordered_json array = nlohmann::ordered_json::array();
    for (const OpCount& count : run.counts) {
        const PeakShare peak = peak_share(count, run.ceilings);
        array.push_back({{"op", count.name},
                         {"operands", operands_name(count.operands)},
                         {"calls", count.calls},
                         {"seconds", count.seconds},
                         {"share", part_of(count.seconds, run)},
                         {"tflops", rate(count.flops, count.seconds) / 1e12},
                         {"gb_per_s", rate(count.bytes, count.seconds) / 1e9},
                         {"peak_share", peak.share},
                         {"peak_of", peak.of},
                         {"fallback", count.fallback}});
    }
    return array.dump();
}

}  // namespace tessera
