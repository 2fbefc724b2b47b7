#include "tools/perplexity_stats.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace tessera {
namespace {

constexpr float kRange = 16.0f;  ///< natural-log units below the maximum that a row keeps
constexpr float kLargestCode = 65535.0f;
constexpr size_t kHeaderWords = 4;  ///< two floats
constexpr size_t kFewestRows = 10;  ///< below this errors are not worth printing

/// ln of the sum of exp(logit - largest).
double log_sum_exp(std::span<const float> logits, float largest) {
    double sum = 0;
    for (const float logit : logits) sum += static_cast<double>(std::exp(logit - largest));
    return std::log(sum);
}

float largest_of(std::span<const float> logits) {
    return *std::max_element(logits.begin(), logits.end());
}

size_t index_of_largest(std::span<const float> logits) {
    return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::string percent_lines(std::span<const double> sorted,
                          std::string_view what,
                          std::span<const double> fractions) {
    std::string text;
    for (const double fraction : fractions) {
        text += fmt::format("{:4.1f}%   {}: {:7.3f}%\n", 100 * fraction, what,
                            100 * percentile(sorted, fraction));
    }
    return text;
}

}  // namespace

double token_nll(std::span<const float> logits, int32_t token) {
    const float largest = largest_of(logits);
    return static_cast<double>(largest) + log_sum_exp(logits, largest) -
           static_cast<double>(logits[static_cast<size_t>(token)]);
}

double store_row(std::span<const float> logits, int32_t token, std::span<uint16_t> words) {
    const float largest = largest_of(logits);
    const float smallest =
        std::max(*std::min_element(logits.begin(), logits.end()), largest - kRange);
    const double log_sum = log_sum_exp(logits, largest);
    const std::array<float, 2> scale_and_minimum{
        (largest - smallest) / kLargestCode,
        static_cast<float>(static_cast<double>(smallest - largest) - log_sum)};
    std::memcpy(words.data(), scale_and_minimum.data(), sizeof(scale_and_minimum));
    const std::span<uint16_t> codes = words.subspan(kHeaderWords);
    std::fill(codes.begin(), codes.end(), uint16_t{0});
    if (scale_and_minimum[0] > 0) {
        const float inverse = 1.0f / scale_and_minimum[0];
        for (size_t i = 0; i < logits.size(); ++i) {
            const float code = std::nearbyint(inverse * (logits[i] - smallest));
            if (code > 0) codes[i] = static_cast<uint16_t>(std::min(code, kLargestCode));
        }
    }
    return static_cast<double>(largest) + log_sum -
           static_cast<double>(logits[static_cast<size_t>(token)]);
}

RowDivergence compare_row(std::span<const float> logits,
                          int32_t token,
                          std::span<const uint16_t> base) {
    const size_t top = index_of_largest(logits);
    const double log_norm = static_cast<double>(logits[top]) + log_sum_exp(logits, logits[top]);
    std::array<float, 2> scale_and_minimum{};
    std::memcpy(scale_and_minimum.data(), base.data(), sizeof(scale_and_minimum));
    const std::span<const uint16_t> codes = base.subspan(kHeaderWords);
    const auto log_base = [&](size_t i) {
        return scale_and_minimum[0] * static_cast<float>(codes[i]) + scale_and_minimum[1];
    };
    RowDivergence row;
    size_t top_base = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
        if (codes[i] > codes[top_base]) top_base = i;
        const float log_p = log_base(i);
        if (log_p > -kRange) {
            row.divergence +=
                static_cast<double>(std::exp(log_p)) *
                (static_cast<double>(log_p) - static_cast<double>(logits[i]) + log_norm);
        }
    }
    const size_t index = static_cast<size_t>(token);
    row.nll = log_norm - static_cast<double>(logits[index]);
    row.nll_base = -static_cast<double>(log_base(index));
    row.p_diff = std::exp(-row.nll) - std::exp(-row.nll_base);
    row.same_top = top == top_base;
    return row;
}

void PerplexitySum::add(double nll) {
    sum_ += nll;
    sum_squares_ += nll * nll;
    ++count_;
}

Estimate PerplexitySum::mean_nll() const {
    if (count_ == 0) return {};
    const double count = static_cast<double>(count_);
    const double mean = sum_ / count;
    const double variance = sum_squares_ / count - mean * mean;
    return {mean, variance > 0 && count_ > 1 ? std::sqrt(variance / (count - 1)) : 0.0};
}

Estimate PerplexitySum::perplexity() const {
    const Estimate mean = mean_nll();
    return {std::exp(mean.value), mean.error * std::exp(mean.value)};
}

void DivergenceStats::add(const RowDivergence& row) {
    rows_.push_back(row);
    sums_.nll += row.nll;
    sums_.nll2 += row.nll * row.nll;
    sums_.base += row.nll_base;
    sums_.base2 += row.nll_base * row.nll_base;
    sums_.cross += row.nll * row.nll_base;
    sums_.divergence += row.divergence;
    sums_.divergence2 += row.divergence * row.divergence;
    const double square = row.p_diff * row.p_diff;
    sums_.p_diff += row.p_diff;
    sums_.p_diff2 += square;
    sums_.p_diff4 += square * square;
    sums_.same_top += row.same_top ? 1 : 0;
}

Estimate DivergenceStats::mean(double sum, double sum_squares) const {
    if (rows_.empty()) return {};
    const double count = static_cast<double>(rows_.size());
    const double value = sum / count;
    const double variance = sum_squares / count - value * value;
    return {value,
            variance > 0 && rows_.size() > kFewestRows ? std::sqrt(variance / (count - 1)) : 0.0};
}

double DivergenceStats::covariance() const {
    if (rows_.size() < kFewestRows) return 0;
    const double count = static_cast<double>(rows_.size());
    return (sums_.cross / count - sums_.nll / count * (sums_.base / count)) / (count - 1);
}

Estimate DivergenceStats::perplexity() const {
    const Estimate log = mean(sums_.nll, sums_.nll2);
    return {std::exp(log.value), std::exp(log.value) * log.error};
}

Estimate DivergenceStats::log_ratio() const {
    const Estimate own = mean(sums_.nll, sums_.nll2);
    const Estimate base = mean(sums_.base, sums_.base2);
    const double variance = own.error * own.error + base.error * base.error - 2 * covariance();
    return {own.value - base.value, std::sqrt(std::max(0.0, variance))};
}

Estimate DivergenceStats::divergence() const {
    return mean(sums_.divergence, sums_.divergence2);
}

Estimate DivergenceStats::rms_p_diff() const {
    const Estimate square = mean(sums_.p_diff2, sums_.p_diff4);
    const double root = std::sqrt(square.value);
    return {root, root > 0 ? 0.5 / root * square.error : 0.0};
}

Estimate DivergenceStats::same_top() const {
    if (rows_.empty()) return {};
    const double count = static_cast<double>(rows_.size());
    const double share = static_cast<double>(sums_.same_top) / count;
    return {share, rows_.size() > 1 ? std::sqrt(share * (1 - share) / (count - 1)) : 0.0};
}

std::string DivergenceStats::heading() {
    return "chunk             PPL               ln(PPL(Q)/PPL(base))          KL Divergence        "
           "      Δp RMS            Same top p\n";
}

std::string DivergenceStats::running_line(int32_t chunk) const {
    const Estimate ppl = perplexity();
    const Estimate ratio = log_ratio();
    const Estimate kl = divergence();
    const Estimate rms = rms_p_diff();
    const Estimate top = same_top();
    return fmt::format(
        "{:4d}    {:9.4f} ± {:9.4f}    {:10.5f} ± {:10.5f}    {:10.5f} ± {:10.5f}    {:6.3f} ± "
        "{:6.3f} %    {:6.3f} ± {:6.3f} %\n",
        chunk, ppl.value, ppl.error, ratio.value, ratio.error, kl.value, kl.error, 100 * rms.value,
        100 * rms.error, 100 * top.value, 100 * top.error);
}

std::string DivergenceStats::perplexity_report() const {
    const Estimate log_own = mean(sums_.nll, sums_.nll2);
    const Estimate log_base = mean(sums_.base, sums_.base2);
    const Estimate own = perplexity();
    const Estimate base{std::exp(log_base.value), std::exp(log_base.value) * log_base.error};
    const Estimate log = log_ratio();
    const double ratio = std::exp(log.value);
    const double errors = log_own.error * log_base.error;
    const double difference_variance =
        own.error * own.error + base.error * base.error - 2 * own.value * base.value * covariance();
    const auto line = [](std::string_view what, double value, double error) {
        return fmt::format("{:<30}: {:10.6f} ± {:10.6f}\n", what, value, error);
    };
    return "====== Perplexity statistics ======\n" + line("Mean PPL(Q)", own.value, own.error) +
           line("Mean PPL(base)", base.value, base.error) +
           fmt::format("Cor(ln(PPL(Q)), ln(PPL(base))): {:6.2f}%\n",
                       errors > 0 ? 100 * covariance() / errors : 0.0) +
           line("Mean ln(PPL(Q)/PPL(base))", log.value, log.error) +
           line("Mean PPL(Q)/PPL(base)", ratio, ratio * log.error) +
           line("Mean PPL(Q)-PPL(base)", own.value - base.value,
                std::sqrt(std::max(0.0, difference_variance)));
}

std::string DivergenceStats::report() const {
    std::vector<double> divergences;
    std::vector<double> p_diffs;
    for (const RowDivergence& row : rows_) {
        divergences.push_back(row.divergence);
        p_diffs.push_back(row.p_diff);
    }
    std::sort(divergences.begin(), divergences.end());
    std::sort(p_diffs.begin(), p_diffs.end());
    const auto kl_line = [&](std::string_view what, double fraction) {
        return fmt::format("{:<7} KLD: {:10.6f}\n", what, percentile(divergences, fraction));
    };
    const Estimate kl = divergence();
    const Estimate p_diff = mean(sums_.p_diff, sums_.p_diff2);
    const Estimate rms = rms_p_diff();
    const Estimate top = same_top();
    constexpr std::array<double, 5> kUpper{0.999, 0.99, 0.95, 0.9, 0.75};
    constexpr std::array<double, 5> kLower{0.25, 0.1, 0.05, 0.01, 0.001};
    return perplexity_report() + "\n====== KL divergence statistics ======\n" +
           fmt::format("Mean    KLD: {:10.6f} ± {:10.6f}\n", kl.value, kl.error) +
           kl_line("Maximum", 1) + kl_line("99.9%", 0.999) + kl_line("99.0%", 0.99) +
           kl_line("95.0%", 0.95) + kl_line("90.0%", 0.9) + kl_line("Median", 0.5) +
           kl_line("10.0%", 0.1) + kl_line(" 5.0%", 0.05) + kl_line(" 1.0%", 0.01) +
           kl_line(" 0.1%", 0.001) + kl_line("Minimum", 0) +
           "\n====== Token probability statistics ======\n" +
           fmt::format("Mean    Δp: {:6.3f} ± {:5.3f} %\n", 100 * p_diff.value,
                       100 * p_diff.error) +
           fmt::format("Maximum Δp: {:6.3f}%\n", 100 * p_diffs.back()) +
           percent_lines(p_diffs, "Δp", kUpper) +
           fmt::format("Median  Δp: {:6.3f}%\n", 100 * percentile(p_diffs, 0.5)) +
           percent_lines(p_diffs, "Δp", kLower) +
           fmt::format("Minimum Δp: {:6.3f}%\n", 100 * p_diffs.front()) +
           fmt::format("RMS Δp    : {:6.3f} ± {:5.3f} %\n", 100 * rms.value, 100 * rms.error) +
           fmt::format("Same top p: {:6.3f} ± {:5.3f} %\n", 100 * top.value, 100 * top.error);
}

double percentile(std::span<const double> sorted, double fraction) {
    const double place = std::clamp(fraction, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
    const size_t below = static_cast<size_t>(place);
    const size_t above = std::min(below + 1, sorted.size() - 1);
    const double weight = place - static_cast<double>(below);
    return (1 - weight) * sorted[below] + weight * sorted[above];
}

}  // namespace tessera
