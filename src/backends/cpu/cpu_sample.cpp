// Choosing tokens. Sampling never sorts a vocabulary unless it must: the kept tokens are a prefix
// of the falling order, so the candidates for it are collected by a threshold first (a running k-th
// best for top-k, a distance from the largest logit otherwise) and only those are sorted.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu/isa/rows_kernels.h"

namespace tessera::cpu {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

struct Candidate {
    float logit;
    int32_t id;
    /// Falling logits, ties by id.
    friend bool operator<(const Candidate& a, const Candidate& b) {
        return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
    }
};

/// Memory for one row: a copy of the logits, counts by token and candidates, all of size V.
struct Workspace {
    float* logits;
    int32_t* counts;
    Candidate* candidates;
};

struct Row {
    const RowKernels& kernels;
    const float* logits;
    int64_t vocabulary;
    float largest;
    Candidate* candidates;
};

bool penalises(const SampleParams& params) {
    return params.repeat_penalty != 1.0f || params.frequency_penalty != 0.0f ||
           params.presence_penalty != 0.0f;
}

/// A copy of the logits with the penalties of `history`.
void apply_penalties(const float* logits,
                     int64_t vocabulary,
                     const SampleParams& params,
                     std::span<const int32_t> history,
                     const Workspace& work) {
    std::copy_n(logits, vocabulary, work.logits);
    const auto known = [vocabulary](int32_t token) { return token >= 0 && token < vocabulary; };
    for (const int32_t token : history)
        if (known(token)) work.counts[token] = 0;
    for (const int32_t token : history)
        if (known(token)) ++work.counts[token];
    for (const int32_t token : history) {
        if (!known(token)) continue;
        const int32_t count = work.counts[token];
        if (count == 0) continue;  // this token has had its penalty
        work.counts[token] = 0;
        float& logit = work.logits[token];
        logit = logit > 0 ? logit / params.repeat_penalty : logit * params.repeat_penalty;
        logit -= static_cast<float>(count) * params.frequency_penalty + params.presence_penalty;
    }
}

/// The `wanted` best tokens, sorted.
int64_t collect_best(const Row& row, int64_t wanted) {
    Candidate* begin = row.candidates;
    int64_t count = 0;
    if (wanted * 4 >= row.vocabulary) {
        for (; count < row.vocabulary; ++count)
            begin[count] = {row.logits[count], static_cast<int32_t>(count)};
    } else {
        // The buffer is cut back to the best `wanted` whenever it is full; from then on only what
        // beats the last of them is looked at. A later token of equal logit loses by its id.
        float floor = kLowest;
        const int64_t room = std::max<int64_t>(2 * wanted, 256);
        for (int64_t id = 0;; ++id) {
            id = row.kernels.find_at_least(row.logits, id, row.vocabulary, floor);
            if (id >= row.vocabulary) break;
            begin[count++] = {row.logits[id], static_cast<int32_t>(id)};
            if (count < room) continue;
            std::nth_element(begin, begin + wanted - 1, begin + count);
            count = wanted;
            floor = begin[wanted - 1].logit;
        }
    }
    const int64_t kept = std::min(count, wanted);
    std::partial_sort(begin, begin + kept, begin + count);
    return kept;
}

/// All tokens whose logit is at least `floor`, sorted.
int64_t collect_above(const Row& row, float floor) {
    int64_t count = 0;
    for (int64_t id = 0;; ++id) {
        id = row.kernels.find_at_least(row.logits, id, row.vocabulary, floor);
        if (id >= row.vocabulary) break;
        row.candidates[count++] = {row.logits[id], static_cast<int32_t>(id)};
    }
    std::sort(row.candidates, row.candidates + count);
    return count;
}

/// exp((logit - largest) / temperature); the largest itself weighs 1 even where it is infinite.
double weight_of(float logit, float largest, float temperature) {
    if (logit == largest) return 1.0;
    const double below = static_cast<double>(logit) - static_cast<double>(largest);
    return std::exp(below / static_cast<double>(temperature));
}

/// Length of the shortest prefix with at least `share` of `total`; `count` if it never gets there.
int64_t prefix_with_mass(const Row& row, int64_t count, double share, double total, bool* reached) {
    double mass = 0;
    for (int64_t i = 0; i < count; ++i) {
        mass += weight_of(row.candidates[i].logit, row.largest, 1.0f);
        if (mass >= share * total) {
            *reached = true;
            return i + 1;
        }
    }
    *reached = false;
    return count;
}

/// Sorted candidates that survive top-k, top-p and min-p; at least one.
int64_t keep_tokens(const Row& row, const SampleParams& params) {
    const double share = static_cast<double>(params.top_p),
                 rest = static_cast<double>(params.min_p);
    int64_t count = 0;
    if (params.top_k > 0) {
        count = collect_best(row, std::min<int64_t>(params.top_k, row.vocabulary));
        if (share < 1) {
            double total = 0;
            for (int64_t i = 0; i < count; ++i)
                total += weight_of(row.candidates[i].logit, row.largest, 1.0f);
            bool reached = false;
            count = prefix_with_mass(row, count, share, total, &reached);
        }
    } else if (share < 1) {
        double total = 0;
        for (int64_t id = 0; id < row.vocabulary; ++id)
            total += weight_of(row.logits[id], row.largest, 1.0f);
        // Wider and wider bands below the largest logit until they hold the mass.
        const float floors[] = {row.largest - 4.0f, row.largest - 12.0f, kLowest};
        bool reached = false;
        for (const float floor : floors) {
            if (reached) break;
            count = collect_above(row, floor);
            count = prefix_with_mass(row, count, share, total, &reached);
        }
    } else if (rest > 0) {
        // A little wide: the exact rule below decides.
        const double band = std::log(std::min(rest, 1.0)) - 0.01;
        count = collect_above(row, static_cast<float>(static_cast<double>(row.largest) + band));
    } else {
        count = collect_above(row, kLowest);
    }
    if (rest > 0)
        while (count > 1 && weight_of(row.candidates[count - 1].logit, row.largest, 1.0f) < rest)
            --count;
    return std::max<int64_t>(count, 1);
}

/// Inverse CDF over the kept tokens at the given temperature.
int32_t draw(const Row& row, int64_t count, float temperature, float uniform) {
    const auto weight = [&](int64_t i) {
        return weight_of(row.candidates[i].logit, row.largest, temperature);
    };
    double total = 0;
    for (int64_t i = 0; i < count; ++i) total += weight(i);
    const double target = static_cast<double>(uniform) * total;
    double mass = 0;
    for (int64_t i = 0; i < count; ++i) {
        mass += weight(i);
        if (mass > target) return row.candidates[i].id;
    }
    return row.candidates[count - 1].id;
}

int32_t argmax_row(const RowKernels& kernels, const float* logits, int64_t count) {
    bool has_nan = false;
    const float largest = kernels.largest(logits, count, &has_nan);
    // A row of NaN gives -inf here and no element that reaches it.
    const int64_t index = kernels.find_at_least(logits, 0, count, largest);
    return index < count ? static_cast<int32_t>(index) : -1;
}

/// What one row is asked for.
struct Request {
    const float* logits;
    int64_t vocabulary;
    const SampleParams& params;
    std::span<const int32_t> history;
    float uniform;
};

int32_t sample_row(const RowKernels& kernels, const Request& request, const Workspace& work) {
    const SampleParams& params = request.params;
    const float* values = request.logits;
    if (penalises(params) && !request.history.empty()) {
        apply_penalties(values, request.vocabulary, params, request.history, work);
        values = work.logits;
    }
    bool has_nan = false;
    const float largest = kernels.largest(values, request.vocabulary, &has_nan);
    if (has_nan) return -1;
    if (!(params.temperature > 0)) return argmax_row(kernels, values, request.vocabulary);
    const Row row{kernels, values, request.vocabulary, largest, work.candidates};
    return draw(row, keep_tokens(row, params), params.temperature, request.uniform);
}

}  // namespace

void CpuOps::argmax(Exec& ex, const Tensor& logits, const Tensor& ids) {
    check(logits.rank == 2 && ids.rows() == logits.rows(), "argmax: shapes");
    if (ex.planning() || logits.elements() == 0) return;
    const auto elements = static_cast<double>(logits.elements());
    const Timed timed(*this, "argmax", elements, 4 * elements);
    const int64_t rows = logits.rows(), cols = logits.cols();
    const bool worth = rows > 1 && rows * cols >= 16384;
    parallel_rows(pool_, rows, worth, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
            ids.as<int32_t>()[row] = argmax_row(*rows_->kernels, logits.row<float>(row), cols);
    });
}

void CpuOps::sample(Exec& ex,
                    const Tensor& logits,
                    std::span<const SampleParams> params,
                    std::span<const std::span<const int32_t>> history,
                    std::span<const float> uniforms,
                    const Tensor& ids) {
    const int64_t rows = logits.rows(), vocabulary = logits.cols();
    check(logits.rank == 2 && ids.rows() == rows, "sample: shapes");
    const Scope scope(ex.arena);
    const int64_t teams = std::min<int64_t>(pool_.size(), rows);
    const auto row_bytes =
        static_cast<size_t>(vocabulary) * (sizeof(float) + sizeof(int32_t) + sizeof(Candidate));
    std::byte* memory = ex.arena.allocate_bytes(static_cast<size_t>(teams) * row_bytes);
    if (ex.planning() || logits.elements() == 0) return;
    check(static_cast<int64_t>(params.size()) == rows &&
              static_cast<int64_t>(history.size()) == rows &&
              static_cast<int64_t>(uniforms.size()) == rows,
          "sample: one set of parameters a row");
    const auto elements = static_cast<double>(logits.elements());
    const Timed timed(*this, "sample", 10 * elements, 4 * elements);
    const auto sample_share = [&](int64_t team, int64_t begin, int64_t end) {
        std::byte* own = memory + static_cast<size_t>(team) * row_bytes;
        Workspace work{};
        work.candidates = reinterpret_cast<Candidate*>(own);
        work.logits = reinterpret_cast<float*>(work.candidates + vocabulary);
        work.counts = reinterpret_cast<int32_t*>(work.logits + vocabulary);
        for (int64_t row = begin; row < end; ++row) {
            const auto r = static_cast<size_t>(row);
            const Request request{logits.row<float>(row), vocabulary, params[r], history[r],
                                  uniforms[r]};
            ids.as<int32_t>()[row] = sample_row(*rows_->kernels, request, work);
        }
    };
    parallel_rows(pool_, teams, teams > 1, [&](int64_t first, int64_t last) {
        for (int64_t team = first; team < last; ++team)
            sample_share(team, rows * team / teams, rows * (team + 1) / teams);
    });
}

}  // namespace tessera::cpu
