// Greedy choice and the sampling chain, on a fully sorted list of candidates in f64.
#include <algorithm>
#include <cmath>
#include <vector>

#include "backends/reference/reference_class.h"

namespace tessera::reference {
namespace {

struct Candidate {
    int32_t id;
    double logit;
    double probability;
};

void penalize(std::vector<Candidate>& candidates,
              const SampleParams& params,
              std::span<const int32_t> history) {
    std::vector<int32_t> counts(candidates.size(), 0);
    for (const int32_t id : history)
        if (id >= 0 && static_cast<size_t>(id) < counts.size()) ++counts[static_cast<size_t>(id)];
    for (Candidate& candidate : candidates) {
        const int32_t count = counts[static_cast<size_t>(candidate.id)];
        if (count == 0) continue;
        const double repeat = static_cast<double>(params.repeat_penalty);
        candidate.logit =
            candidate.logit > 0.0 ? candidate.logit / repeat : candidate.logit * repeat;
        candidate.logit -= count * static_cast<double>(params.frequency_penalty);
        candidate.logit -= static_cast<double>(params.presence_penalty);
    }
}

/// Softmax of logit / temperature; the candidates are sorted, so the first is the largest.
void set_probabilities(std::vector<Candidate>& candidates, double temperature) {
    const double largest = candidates.front().logit;
    double sum = 0.0;
    for (Candidate& candidate : candidates) {
        const double below = candidate.logit == largest ? 0.0 : candidate.logit - largest;
        candidate.probability = std::exp(below / temperature);
        sum += candidate.probability;
    }
    for (Candidate& candidate : candidates) candidate.probability /= sum;
}

void keep_top_k(std::vector<Candidate>& candidates, int32_t top_k) {
    if (top_k > 0 && static_cast<size_t>(top_k) < candidates.size())
        candidates.resize(static_cast<size_t>(top_k));
}

void keep_top_p(std::vector<Candidate>& candidates, float top_p) {
    if (top_p >= 1.0f) return;
    double mass = 0.0;
    size_t kept = 0;
    while (kept < candidates.size()) {
        mass += candidates[kept++].probability;
        if (mass >= static_cast<double>(top_p)) break;
    }
    candidates.resize(kept);
}

void keep_min_p(std::vector<Candidate>& candidates, float min_p) {
    if (min_p <= 0.0f) return;
    const double bound = static_cast<double>(min_p) * candidates.front().probability;
    size_t kept = 1;
    while (kept < candidates.size() && candidates[kept].probability >= bound) ++kept;
    candidates.resize(kept);
}

int32_t draw(const std::vector<Candidate>& candidates, float uniform) {
    double mass = 0.0;
    for (const Candidate& candidate : candidates) {
        mass += candidate.probability;
        if (static_cast<double>(uniform) < mass) return candidate.id;
    }
    // The probabilities may sum to a hair less than 1: the draw belongs to the last that has any.
    size_t last = candidates.size() - 1;
    while (last > 0 && candidates[last].probability == 0.0) --last;
    return candidates[last].id;
}

int32_t sample_row(std::span<const float> logits,
                   const SampleParams& params,
                   std::span<const int32_t> history,
                   float uniform) {
    std::vector<Candidate> candidates;
    candidates.reserve(logits.size());
    for (size_t i = 0; i < logits.size(); ++i) {
        if (std::isnan(logits[i])) return -1;
        candidates.push_back({static_cast<int32_t>(i), static_cast<double>(logits[i]), 0.0});
    }
    penalize(candidates, params, history);
    std::ranges::stable_sort(candidates, std::ranges::greater{}, &Candidate::logit);
    if (!(params.temperature > 0.0f)) return candidates.front().id;
    keep_top_k(candidates, params.top_k);
    set_probabilities(candidates, 1.0);
    keep_top_p(candidates, params.top_p);
    keep_min_p(candidates, params.min_p);
    set_probabilities(candidates, static_cast<double>(params.temperature));
    return draw(candidates, uniform);
}

}  // namespace

void ReferenceOps::argmax(Exec& ex, const Tensor& logits, const Tensor& ids) {
    check(logits.rank == 2 && ids.rows() == logits.rows(), "argmax: shapes");
    if (ex.planning()) return;
    const Counted counted(*this, "argmax", 0.0, 4.0 * static_cast<double>(logits.elements()));
    for (int64_t t = 0; t < logits.rows(); ++t) {
        const float* row = logits.row<float>(t);
        int32_t best = -1;
        for (int32_t i = 0; i < logits.cols(); ++i) {
            if (std::isnan(row[i])) continue;
            if (best < 0 || row[i] > row[best]) best = i;
        }
        ids.as<int32_t>()[t] = best;
    }
}

void ReferenceOps::sample(Exec& ex,
                          const Tensor& logits,
                          std::span<const SampleParams> params,
                          std::span<const std::span<const int32_t>> history,
                          std::span<const float> uniforms,
                          const Tensor& ids) {
    const auto rows = static_cast<size_t>(logits.rows());
    check(params.size() == rows && history.size() == rows && uniforms.size() == rows &&
              static_cast<size_t>(ids.rows()) == rows,
          "sample: operand counts");
    if (ex.planning()) return;
    const Counted counted(*this, "sample", 0.0, 4.0 * static_cast<double>(logits.elements()));
    for (size_t t = 0; t < rows; ++t)
        ids.as<int32_t>()[t] = sample_row(
            {logits.row<float>(static_cast<int64_t>(t)), static_cast<size_t>(logits.cols())},
            params[t], history[t], uniforms[t]);
}

}  // namespace tessera::reference
