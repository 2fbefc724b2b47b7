#pragma once
// Attention in f32, written once over a register type V of isa/vector.h.
//
// Prompt rows: blocks of 2 kLanes query columns (token x query head of one kv head), a column per
// lane. S^T = K Q^T and O^T += V^T P^T are register tiles of kTile keys (dims) x 2 registers, K and
// V elements broadcast from the packed page; the statistics of softmax are lane-wise. The state is
// rescaled page by page in order, and a page in which a column sees nothing changes nothing, so a
// column's result depends on its own query and on the absolute positions only.
//
// Generated rows: dot products along the head, a split of 128 keys at a time, K and V read in the
// cache's own format; each loaded key serves up to kHeads query heads.

#include <cstring>
#include <limits>

#include "backends/cpu/isa/attention_kernels.h"
#include "backends/cpu/isa/rows_vector.h"

namespace tessera::cpu {
namespace {

constexpr int32_t kKeys = kPageTokens;
/// Below any score and finite, so that differences of maxima are never inf - inf.
constexpr float kNothingSeen = -1e30f;

/// A register of elements [index, index + kLanes) of a cache row; Q8_0 blocks hold whole registers.
template <class V, DType kType>
TESSERA_INLINE typename V::Float load_elements(const std::byte* row, int32_t index) {
    if constexpr (kType == DType::kF32) {
        return V::load(reinterpret_cast<const float*>(row) + index);
    } else if constexpr (kType == DType::kF16) {
        return V::load_half(row + 2 * index);
    } else if constexpr (kType == DType::kBF16) {
        return Lane<V>::load_bf16(reinterpret_cast<const uint16_t*>(row) + index);
    } else if constexpr (kType == DType::kF8_E4M3) {
        return Lane<V>::load_e4m3(reinterpret_cast<const uint8_t*>(row) + index);
    } else {
        const std::byte* block = row + index / 32 * 34;
        const float scale = half_to_float(load_as<uint16_t>(block));
        return V::mul(V::set(scale), V::to_float(V::load_i8(block + 2 + index % 32)));
    }
}

/// One element, for the end of a row that does not fill a register.
template <DType kType>
TESSERA_INLINE float load_element(const std::byte* row, int32_t index) {
    if constexpr (kType == DType::kF32) {
        return load_as<float>(row + 4 * index);
    } else if constexpr (kType == DType::kF16) {
        return half_to_float(load_as<uint16_t>(row + 2 * index));
    } else if constexpr (kType == DType::kBF16) {
        const uint32_t bits = static_cast<uint32_t>(load_as<uint16_t>(row + 2 * index)) << 16;
        return load_as<float>(&bits);
    } else if constexpr (kType == DType::kF8_E4M3) {
        return e4m3_to_float(load_as<uint8_t>(row + index));
    } else {
        const std::byte* block = row + index / 32 * 34;
        return half_to_float(load_as<uint16_t>(block)) *
               static_cast<float>(load_as<int8_t>(block + 2 + index % 32));
    }
}

/// Calls operation.template operator()<dtype>() for a cache format.
template <class Operation>
TESSERA_INLINE void with_dtype(DType dtype, Operation operation) {
    switch (dtype) {
        case DType::kF32:
            return operation.template operator()<DType::kF32>();
        case DType::kF16:
            return operation.template operator()<DType::kF16>();
        case DType::kBF16:
            return operation.template operator()<DType::kBF16>();
        case DType::kF8_E4M3:
            return operation.template operator()<DType::kF8_E4M3>();
        default:
            return operation.template operator()<DType::kQ8_0>();
    }
}

/// What turns a raw product into an exponent: exp(factor (s - max)). A soft cap or a scale that is
/// not positive needs the score itself first, and then the factor is 1.
struct ScoreRule {
    explicit ScoreRule(const AttentionShape& shape)
        : direct(shape.softcap <= 0.0f && shape.scale > 0.0f),
          factor(direct ? shape.scale : 1.0f),
          scale(shape.scale),
          softcap(shape.softcap) {}
    bool direct;
    float factor, scale, softcap;

    template <class V>
    TESSERA_INLINE typename V::Float score(typename V::Float product) const {
        const typename V::Float scaled = V::mul(product, V::set(scale));
        if (softcap <= 0.0f) return scaled;
        const typename V::Float cap = V::set(softcap);
        return V::mul(cap, tanh_of<V>(V::div(scaled, cap)));
    }
};

template <class V>
struct PromptAttention {
    using Float = typename V::Float;
    using L = Lane<V>;
    static constexpr int32_t kLanes = V::kLanes;
    static constexpr int32_t kColumns = 2 * kLanes;
    static constexpr int32_t kTile = L::kTile;

    static int64_t packed_bytes(int32_t head_size) {
        return (int64_t{2} * kKeys * head_size * 4 + 63) / 64 * 64;
    }
    static int64_t state_floats(int32_t head_size) {
        return (int64_t{kColumns} * (head_size + 2) + 15) / 16 * 16;
    }
    static int64_t scratch_bytes(int32_t head_size) {
        return int64_t{kColumns} * (head_size + kKeys) * 4;
    }

    /// [64 keys][head_size] in f32 for K, then for V.
    static void pack_page(const PageRows& keys,
                          const PageRows& values,
                          int32_t head_size,
                          int32_t live,
                          std::byte* packed) {
        auto* target = reinterpret_cast<float*>(packed);
        unpack_rows(keys, head_size, live, target);
        unpack_rows(values, head_size, live, target + int64_t{kKeys} * head_size);
    }
    static void unpack_rows(const PageRows& rows, int32_t head_size, int32_t live, float* target) {
        with_dtype(rows.dtype, [&]<DType kType>() {
            for (int32_t key = 0; key < live; ++key) {
                const std::byte* row = rows.base + key * rows.row_bytes;
                float* out = target + int64_t{key} * head_size;
                int32_t dim = 0;
                for (; dim + kLanes <= head_size; dim += kLanes)
                    V::store(out + dim, load_elements<V, kType>(row, dim));
                for (; dim < head_size; ++dim) out[dim] = load_element<kType>(row, dim);
            }
        });
        std::memset(target + int64_t{live} * head_size, 0,
                    static_cast<size_t>(kKeys - live) * static_cast<size_t>(head_size) * 4);
    }

    /// out[r][column] (+)= sum_i left(r, i) * right[i][column] for kRows rows; left(r, i) is
    /// left[r * row_stride + i * step].
    template <int32_t kRows>
    static TESSERA_INLINE void multiply_tile(const float* left,
                                             int64_t row_stride,
                                             int64_t step,
                                             const float* right,
                                             int32_t count,
                                             float* out) {
        Float sums[kRows][2];
        for (int32_t r = 0; r < kRows; ++r) {
            sums[r][0] = V::load(out + r * kColumns);
            sums[r][1] = V::load(out + r * kColumns + kLanes);
        }
        for (int32_t i = 0; i < count; ++i) {
            const Float first = V::load(right + i * kColumns);
            const Float second = V::load(right + i * kColumns + kLanes);
            for (int32_t r = 0; r < kRows; ++r) {
                const Float element = V::set(left[r * row_stride + i * step]);
                sums[r][0] = V::fmadd(element, first, sums[r][0]);
                sums[r][1] = V::fmadd(element, second, sums[r][1]);
            }
        }
        for (int32_t r = 0; r < kRows; ++r) {
            V::store(out + r * kColumns, sums[r][0]);
            V::store(out + r * kColumns + kLanes, sums[r][1]);
        }
    }
    static void multiply(const float* left,
                         int64_t row_stride,
                         int64_t step,
                         const float* right,
                         int32_t count,
                         int32_t rows,
                         float* out) {
        const int64_t whole = rows / kTile * kTile;
        for (int64_t r = 0; r < whole; r += kTile)
            multiply_tile<kTile>(left + r * row_stride, row_stride, step, right, count,
                                 out + r * kColumns);
        left += whole * row_stride;
        out += whole * kColumns;
        for (int64_t r = 0; r < rows % kTile; ++r)
            multiply_tile<1>(left + r * row_stride, row_stride, step, right, count,
                             out + r * kColumns);
    }

    /// Keys that the columns see, relative to the page: low < key <= high.
    struct Sight {
        float low[kColumns], high[kColumns];
        bool all, none;
    };
    static void look(const PromptBlock& block, int32_t page, Sight& sight) {
        const int32_t start = page * kKeys;
        sight.all = true;
        sight.none = true;
        for (int32_t i = 0; i < kColumns; ++i) {
            const int32_t index = i < block.columns ? i : block.columns - 1;
            const int32_t position =
                block.positions[(block.first_column + index) / block.shape.group];
            const int32_t high = position - start;
            const int32_t low = block.shape.window > 0 ? high - block.shape.window : -1;
            sight.high[i] = static_cast<float>(high);
            sight.low[i] = static_cast<float>(low);
            sight.all &= high >= kKeys - 1 && low < 0;
            sight.none &= high < 0 || low >= kKeys - 1;
        }
    }

    static void soften(
        float* scores, const Sight& sight, const ScoreRule& rule, int32_t head_size, float* state) {
        float* maxima = state + int64_t{head_size} * kColumns;
        float* totals = maxima + kColumns;
        const Float factor = V::set(rule.factor);
        for (int32_t half = 0; half < kColumns; half += kLanes) {
            const Float low = V::load(sight.low + half), high = V::load(sight.high + half);
            const Float before = V::load(maxima + half);
            Float after = before;
            for (int32_t key = 0; key < kKeys; ++key) {
                float* row = scores + key * kColumns + half;
                Float score = V::load(row);
                if (!rule.direct) score = rule.score<V>(score);
                if (!sight.all)
                    score = L::between(low, V::set(static_cast<float>(key)), high, score,
                                       V::set(-std::numeric_limits<float>::infinity()));
                V::store(row, score);
                after = V::max(score, after);
            }
            if (L::any_differs(before, after)) {
                V::store(maxima + half, after);
                const Float shrink = exp_of<V>(V::mul(V::sub(before, after), factor));
                for (int32_t dim = 0; dim < head_size; ++dim) {
                    float* row = state + dim * kColumns + half;
                    V::store(row, V::mul(V::load(row), shrink));
                }
                V::store(totals + half, V::mul(V::load(totals + half), shrink));
            }
            Float total = V::load(totals + half);
            for (int32_t key = 0; key < kKeys; ++key) {
                float* row = scores + key * kColumns + half;
                const Float weight = exp_of<V>(V::mul(V::sub(V::load(row), after), factor));
                V::store(row, weight);
                total = V::add(total, weight);
            }
            V::store(totals + half, total);
        }
    }

    static bool all_finite(const float* values, int32_t count) {
        constexpr uint32_t kExponent = 0x7f800000;
        bool finite = true;
        for (int32_t i = 0; i < count; ++i)
            finite &= (load_as<uint32_t>(values + i) & kExponent) != kExponent;
        return finite;
    }

    /// state += weights values. A weight of 0 does not keep out a value that is not finite: the
    /// keys of such values are added to the columns that see them only.
    static void add_values(const float* values,
                           const Sight& sight,
                           const float* weights,
                           int32_t head_size,
                           float* state) {
        const auto add = [&](int32_t begin, int32_t end) {
            if (begin < end)
                multiply(values + int64_t{begin} * head_size, 1, head_size,
                         weights + begin * kColumns, end - begin, head_size, state);
        };
        int32_t added = 0;
        for (int32_t key = 0; key < kKeys && !sight.all; ++key) {
            const float* row = values + int64_t{key} * head_size;
            if (all_finite(row, head_size)) continue;
            add(added, key);
            added = key + 1;
            for (int32_t half = 0; half < kColumns; half += kLanes) {
                const Float low = V::load(sight.low + half), high = V::load(sight.high + half);
                const Float weight = V::load(weights + key * kColumns + half);
                const Float place = V::set(static_cast<float>(key));
                for (int32_t dim = 0; dim < head_size; ++dim) {
                    float* sums = state + dim * kColumns + half;
                    const Float before = V::load(sums);
                    const Float after = V::fmadd(V::set(row[dim]), weight, before);
                    V::store(sums, L::between(low, place, high, after, before));
                }
            }
        }
        add(added, kKeys);
    }

    static void load_queries(const PromptBlock& block, float* queries) {
        const int32_t group = block.shape.group;
        for (int32_t i = 0; i < kColumns; ++i) {
            const int32_t column = block.first_column + i;
            const bool live = i < block.columns;
            const float* query = block.queries + column / group * block.token_stride +
                                 column % group * block.head_stride;
            for (int32_t dim = 0; dim < block.shape.head_size; ++dim)
                queries[dim * kColumns + i] = live ? query[dim] : 0.0f;
        }
    }

    /// Lets each column's sink take part: its maximum may become the new one.
    static void add_sinks(const PromptBlock& block, const ScoreRule& rule, float* state) {
        const int32_t group = block.shape.group, head_size = block.shape.head_size;
        float* maxima = state + int64_t{head_size} * kColumns;
        float* totals = maxima + kColumns;
        float sinks[kColumns];
        for (int32_t i = 0; i < kColumns; ++i)
            sinks[i] = block.sinks[(block.first_column + i) % group];
        for (int32_t half = 0; half < kColumns; half += kLanes) {
            const Float sink = V::load(sinks + half);
            const Float before = V::mul(V::load(maxima + half), V::set(rule.factor));
            const Float after = V::max(sink, before);
            const Float shrink = exp_of<V>(V::sub(before, after));
            for (int32_t dim = 0; dim < head_size; ++dim) {
                float* row = state + dim * kColumns + half;
                V::store(row, V::mul(V::load(row), shrink));
            }
            const Float own = exp_of<V>(V::sub(sink, after));
            V::store(totals + half, V::add(V::mul(V::load(totals + half), shrink), own));
        }
    }

    static void store_output(const PromptBlock& block, const float* state) {
        const int32_t group = block.shape.group, head_size = block.shape.head_size;
        const float* totals = state + int64_t{head_size + 1} * kColumns;
        for (int32_t i = 0; i < block.columns; ++i) {
            const int32_t column = block.first_column + i;
            float* out =
                block.out + column / group * block.out_stride + int64_t{column % group} * head_size;
            const float inverse = 1.0f / totals[i];
            for (int32_t dim = 0; dim < head_size; ++dim)
                out[dim] = state[dim * kColumns + i] * inverse;
        }
    }

    static void attend(const PromptBlock& block, std::byte* scratch) {
        const int32_t head_size = block.shape.head_size;
        auto* queries = reinterpret_cast<float*>(scratch);
        float* scores = queries + int64_t{head_size} * kColumns;
        float* state = block.state;
        const ScoreRule rule(block.shape);
        load_queries(block, queries);
        if (block.opens) {
            std::memset(state, 0, static_cast<size_t>(state_floats(head_size)) * 4);
            for (int32_t i = 0; i < kColumns; ++i)
                state[int64_t{head_size} * kColumns + i] = kNothingSeen;
        }
        Sight sight;
        for (int32_t page = block.first_page; page < block.last_page; ++page) {
            look(block, page, sight);
            if (sight.none) continue;
            const auto* keys = reinterpret_cast<const float*>(
                block.packed + (page - block.first_page) * packed_bytes(head_size));
            std::memset(scores, 0, size_t{kKeys} * kColumns * 4);
            multiply(keys, head_size, 1, queries, head_size, kKeys, scores);
            soften(scores, sight, rule, head_size, state);
            add_values(keys + int64_t{kKeys} * head_size, sight, scores, head_size, state);
        }
        if (!block.closes) return;
        if (block.sinks != nullptr) add_sinks(block, rule, state);
        store_output(block, state);
    }

    static constexpr PromptKernels table() {
        return {.block_columns = kColumns,
                .packed_bytes = packed_bytes,
                .state_floats = state_floats,
                .scratch_bytes = scratch_bytes,
                .pack_page = pack_page,
                .attend = attend};
    }
};

}  // namespace
}  // namespace tessera::cpu
