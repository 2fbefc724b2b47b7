#pragma once
// The borders of top-p and min-p and the draw, by one thread over sorted weights: f64 sums in the
// order of the reference, so that borders fall where its own fall.

#include "backends/cuda/sample/logit_rows.cuh"

namespace tessera::cuda {

/// exp((logit - largest) / temperature); 1 for the largest itself, also where it is infinite.
__device__ inline double weight_of(uint64_t key, double largest, double temperature) {
    const double logit = value_of_key(key);
    const double below = logit == largest ? 0.0 : logit - largest;
    return exp(below / temperature);
}

__device__ inline bool cuts(const RowParams& params) {
    return !(params.top_p >= 1.0f) || !(params.min_p <= 0.0f);
}

__device__ inline double sum_in_order(const double* weights, int64_t count) {
    double sum = 0.0;
#pragma unroll 8
    for (int64_t i = 0; i < count; ++i) sum += weights[i];
    return sum;
}

/// Candidates that top-p and min-p leave of `count` with weights at temperature 1.
__device__ inline int64_t cut_in_order(const double* weights,
                                       int64_t count,
                                       const RowParams& params) {
    const double sum = sum_in_order(weights, count);
    int64_t kept = count;
    if (!(params.top_p >= 1.0f)) {
        double mass = 0.0;
        kept = 0;
        while (kept < count) {
            mass += weights[kept++] / sum;
            if (mass >= static_cast<double>(params.top_p)) break;
        }
    }
    if (!(params.min_p <= 0.0f)) {
        const double bound = static_cast<double>(params.min_p) * (weights[0] / sum);
        int64_t likely = 1;
        while (likely < kept && weights[likely] / sum >= bound) ++likely;
        kept = likely;
    }
    return kept;
}

/// Place of the candidate that `uniform` falls on.
__device__ inline int64_t draw_in_order(const double* weights, int64_t count, float uniform) {
    const double sum = sum_in_order(weights, count);
    double mass = 0.0;
    for (int64_t i = 0; i < count; ++i) {
        mass += weights[i] / sum;
        if (static_cast<double>(uniform) < mass) return i;
    }
    // The shares may sum to a hair less than 1: the draw belongs to the last that has any.
    int64_t last = count - 1;
    while (last > 0 && weights[last] / sum == 0.0) --last;
    return last;
}

}  // namespace tessera::cuda
