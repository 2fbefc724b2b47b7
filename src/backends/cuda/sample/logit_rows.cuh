#pragma once
// Rows of logits as the kernels that choose tokens read them, and the order of logits as integers.

#include <cstdint>

#include "backends/cuda/device.cuh"

namespace tessera::cuda {

/// Which kernels choose the token of a row; it follows from the row's own parameters alone.
enum class Choice : int32_t {
    kGreedy,  ///< largest logit
    kPrefix,  ///< at most kMaxPrefix sorted candidates
    kWhole    ///< the whole vocabulary sorted
};

/// SampleParams and the random number of one row, as they are copied to the device.
struct RowParams {
    Choice choice = Choice::kGreedy;
    int32_t wanted = 1;     ///< candidates that top-k leaves
    int32_t penalized = 0;  ///< whether counts are read
    float temperature = 0.0f;
    float top_p = 1.0f;
    float min_p = 0.0f;
    float repeat_penalty = 1.0f;
    float frequency_penalty = 0.0f;
    float presence_penalty = 0.0f;
    float uniform = 0.0f;
};
inline constexpr int64_t kRowParamWords = sizeof(RowParams) / sizeof(int32_t);
static_assert(sizeof(RowParams) % sizeof(int32_t) == 0, "rows of parameters are staged as I32");

inline constexpr int32_t kMaxPrefix = 1024;

/// Lowest bit of a key that an f32 logit can set: conversion to f64 leaves 29 bits of the mantissa
/// alike in all numbers of one sign.
inline constexpr int32_t kFloatKeyBegin = 29;

struct LogitRows {
    const float* logits = nullptr;
    int64_t stride = 0;
    int64_t vocabulary = 0;
    const RowParams* params = nullptr;  ///< [rows], null: greedy without penalties
    const int32_t* counts = nullptr;    ///< [rows, vocabulary] how often the history has a token

    __device__ float raw(int64_t row, int64_t id) const { return logits[row * stride + id]; }
    __device__ bool chosen_by(int64_t row, Choice choice) const {
        return (params == nullptr ? Choice::kGreedy : params[row].choice) == choice;
    }
    __device__ bool penalized(int64_t row) const {
        return params != nullptr && params[row].penalized != 0;
    }
};

/// A token's place in the order of logits: falling keys, ties by id. 0 stands for no token.
struct Best {
    uint64_t key;
    int32_t id;
    int32_t nan;  ///< a NaN was seen
};

/// Memory of sorted candidates: lists of rows one behind the other.
struct Candidates {
    uint64_t* keys = nullptr;
    int32_t* ids = nullptr;
};

/// Rises with the value; equal for both zeros; above 0 for every value. NaN, which only penalties
/// without measure make, counts as minus infinity.
__host__ __device__ inline uint64_t ordered_key(double value) {
    constexpr uint64_t kSign = uint64_t{1} << 63;
    union {
        double number;
        uint64_t bits;
    } pun;
    pun.number = value + 0.0;
    if (value != value) pun.bits = uint64_t{0xfff} << 52;
    return (pun.bits & kSign) != 0 ? ~pun.bits : pun.bits | kSign;
}

__host__ __device__ inline double value_of_key(uint64_t key) {
    constexpr uint64_t kSign = uint64_t{1} << 63;
    union {
        uint64_t bits;
        double number;
    } pun;
    pun.bits = (key & kSign) != 0 ? key & ~kSign : ~key;
    return pun.number;
}

/// The logit after penalties, in f64 and without fused multiply-adds, as the reference rounds.
__device__ inline double penalized_logit(double logit, const RowParams& params, int32_t count) {
    if (count == 0) return logit;
    const double repeat = params.repeat_penalty;
    logit = logit > 0.0 ? logit / repeat : __dmul_rn(logit, repeat);
    logit = __dsub_rn(logit, __dmul_rn(count, static_cast<double>(params.frequency_penalty)));
    return __dsub_rn(logit, static_cast<double>(params.presence_penalty));
}

/// Key of a token whose logit is `raw`, not NaN.
__device__ inline uint64_t key_of(const LogitRows& rows, int64_t row, int64_t id, float raw) {
    const double logit = raw;
    if (!rows.penalized(row)) return ordered_key(logit);
    return ordered_key(
        penalized_logit(logit, rows.params[row], rows.counts[row * rows.vocabulary + id]));
}

// ---- steps of an op, host side ----

/// argmax.cu: segments of a row that find their best token each.
int64_t best_segments(int64_t vocabulary);
/// Tokens of the greedy rows among `row_count`; `bests` holds row_count * best_segments().
void choose_greedy(
    Device& device, const LogitRows& rows, int64_t row_count, Best* bests, int32_t* ids);

/// sample_prefix.cu: tokens of the kPrefix rows. nan_rows [row_count] holds zeros on entry.
/// `longest` is the largest `wanted` of those rows.
struct PrefixWork {
    Candidates lists[2];
    int32_t* nan_rows = nullptr;
};
/// Entries of lists[which] for row_count rows whatever their parameters.
int64_t prefix_entries(int64_t row_count, int64_t vocabulary, int32_t which);
void choose_from_prefix(Device& device,
                        const LogitRows& rows,
                        int64_t row_count,
                        int32_t longest,
                        const PrefixWork& work,
                        int32_t* ids);

/// sample_whole.cu: the token of one row of kWhole.
struct WholeWork {
    Candidates lists[2];  ///< vocabulary entries each
    std::byte* sort_memory = nullptr;
    size_t sort_bytes = 0;
    int32_t* kept = nullptr;
    int32_t* nan_rows = nullptr;  ///< as in PrefixWork
};
size_t whole_sort_bytes(int64_t vocabulary);
void choose_from_whole(Device& device,
                       const LogitRows& rows,
                       int64_t row,
                       const RowParams& params,
                       const WholeWork& work,
                       int32_t* ids);

}  // namespace tessera::cuda
