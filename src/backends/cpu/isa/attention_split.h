#pragma once
// Attention of generated rows, written once over a register type V of isa/vector.h. See
// attention_generic.h.

#include "backends/cpu/isa/attention_generic.h"

namespace tessera::cpu {
namespace {

template <class V>
struct SplitAttention {
    using Float = typename V::Float;
    using L = Lane<V>;
    static constexpr int32_t kLanes = V::kLanes;
    static constexpr int32_t kHeads = L::kHeads;

    /// Products of kCount query heads with the four keys at `row`.
    template <DType kType, int32_t kCount>
    static TESSERA_INLINE void four_keys(const std::byte* row,
                                         int64_t row_bytes,
                                         const float* queries,
                                         int64_t head_stride,
                                         int32_t head_size,
                                         float* scores) {
        Float sums[kCount][4];
        for (int32_t head = 0; head < kCount; ++head)
            for (int32_t key = 0; key < 4; ++key) sums[head][key] = V::zero();
        int32_t dim = 0;
        for (; dim + kLanes <= head_size; dim += kLanes) {
            Float keys[4];
            for (int32_t key = 0; key < 4; ++key)
                keys[key] = load_elements<V, kType>(row + key * row_bytes, dim);
            for (int32_t head = 0; head < kCount; ++head) {
                const Float query = V::load(queries + head * head_stride + dim);
                for (int32_t key = 0; key < 4; ++key)
                    sums[head][key] = V::fmadd(query, keys[key], sums[head][key]);
            }
        }
        for (int32_t head = 0; head < kCount; ++head) {
            float* out = scores + head * kSplitKeys;
            L::sum4(sums[head][0], sums[head][1], sums[head][2], sums[head][3], out);
            for (int32_t rest = dim; rest < head_size; ++rest)
                for (int32_t key = 0; key < 4; ++key)
                    out[key] += queries[head * head_stride + rest] *
                                load_element<kType>(row + key * row_bytes, rest);
        }
    }

    template <DType kType, int32_t kCount>
    static void products(const SplitBlock& block, int32_t first_head, float* scores) {
        const float* queries = block.queries + first_head * block.head_stride;
        for (int32_t key = block.begin / 4 * 4; key < block.end; key += 4) {
            const PageRows& page = block.keys[key / kKeys];
            four_keys<kType, kCount>(page.base + key % kKeys * page.row_bytes, page.row_bytes,
                                     queries, block.head_stride, block.shape.head_size,
                                     scores + first_head * kSplitKeys + key);
        }
    }

    /// Products to exp(score - max) for one head; maximum and total into the partial.
    static void soften(const SplitBlock& block, float* scores, float* statistics) {
        const ScoreRule rule(block.shape);
        const int32_t begin = block.begin / kLanes * kLanes;
        const int32_t end = (block.end + kLanes - 1) / kLanes * kLanes;
        for (int32_t key = begin; key < block.begin; ++key) scores[key] = 0.0f;
        for (int32_t key = block.end; key < end; ++key) scores[key] = 0.0f;
        for (int32_t key = begin; key < end; key += kLanes)
            V::store(scores + key, rule.score<V>(V::load(scores + key)));
        for (int32_t key = begin; key < block.begin; ++key) scores[key] = kHidden;
        for (int32_t key = block.end; key < end; ++key) scores[key] = kHidden;
        // Finite, so that scores of -inf alone are weights of 0, as next to others.
        Float lanes = V::set(std::numeric_limits<float>::lowest());
        for (int32_t key = begin; key < end; key += kLanes)
            lanes = V::max(V::load(scores + key), lanes);
        const float maximum = L::largest(lanes);
        Float total = V::zero();
        for (int32_t key = begin; key < end; key += kLanes) {
            const Float weight = exp_of<V>(V::sub(V::load(scores + key), V::set(maximum)));
            V::store(scores + key, weight);
            total = V::add(total, weight);
        }
        statistics[0] = maximum;
        statistics[1] = L::sum(total);
    }
    static constexpr float kHidden = -std::numeric_limits<float>::infinity();

    /// Weighted sums of kRegisters registers of the values for kCount heads.
    template <DType kType, int32_t kCount, int32_t kRegisters>
    static TESSERA_INLINE void sum_values(const SplitBlock& block,
                                          const float* scores,
                                          int32_t dim,
                                          float* partial) {
        Float sums[kCount][kRegisters];
        for (int32_t head = 0; head < kCount; ++head)
            for (int32_t i = 0; i < kRegisters; ++i) sums[head][i] = V::zero();
        for (int32_t key = block.begin; key < block.end; ++key) {
            const PageRows& page = block.values[key / kKeys];
            const std::byte* row = page.base + key % kKeys * page.row_bytes;
            Float values[kRegisters];
            for (int32_t i = 0; i < kRegisters; ++i)
                values[i] = load_elements<V, kType>(row, dim + i * kLanes);
            for (int32_t head = 0; head < kCount; ++head) {
                const Float weight = V::set(scores[head * kSplitKeys + key]);
                for (int32_t i = 0; i < kRegisters; ++i)
                    sums[head][i] = V::fmadd(weight, values[i], sums[head][i]);
            }
        }
        for (int32_t head = 0; head < kCount; ++head)
            for (int32_t i = 0; i < kRegisters; ++i)
                V::store(partial + head * partial_floats(block.shape.head_size) + dim + i * kLanes,
                         sums[head][i]);
    }

    template <DType kType, int32_t kCount>
    static void values(const SplitBlock& block, int32_t first_head, const float* all_scores) {
        const int32_t head_size = block.shape.head_size;
        const float* scores = all_scores + first_head * kSplitKeys;
        float* partial = block.partial + first_head * partial_floats(head_size);
        int32_t dim = 0;
        for (; dim + 4 * kLanes <= head_size; dim += 4 * kLanes)
            sum_values<kType, kCount, 4>(block, scores, dim, partial);
        for (; dim + kLanes <= head_size; dim += kLanes)
            sum_values<kType, kCount, 1>(block, scores, dim, partial);
        for (; dim < head_size; ++dim)
            for (int32_t head = 0; head < kCount; ++head) {
                float sum = 0.0f;
                for (int32_t key = block.begin; key < block.end; ++key) {
                    const PageRows& page = block.values[key / kKeys];
                    sum += scores[head * kSplitKeys + key] *
                           load_element<kType>(page.base + key % kKeys * page.row_bytes, dim);
                }
                partial[head * partial_floats(head_size) + dim] = sum;
            }
    }

    /// Query heads in groups of kHeads and a rest.
    template <class Operation>
    static TESSERA_INLINE void by_heads(int32_t group, Operation operation) {
        int32_t head = 0;
        for (; head + kHeads <= group; head += kHeads) operation.template operator()<kHeads>(head);
        if constexpr (kHeads > 3) {
            if (group - head == 3) return operation.template operator()<3>(head);
            if (group - head == 2) return operation.template operator()<2>(head);
        }
        if (group - head == 1) operation.template operator()<1>(head);
    }

    static void attend(const SplitBlock& block, float* scores) {
        const int32_t group = block.shape.group, head_size = block.shape.head_size;
        with_dtype(block.keys[block.begin / kKeys].dtype, [&]<DType kType>() {
            by_heads(group, [&]<int32_t kCount>(int32_t head) {
                products<kType, kCount>(block, head, scores);
            });
        });
        for (int32_t head = 0; head < group; ++head)
            soften(block, scores + head * kSplitKeys,
                   block.partial + head * partial_floats(head_size) + head_size);
        with_dtype(block.values[block.begin / kKeys].dtype, [&]<DType kType>() {
            by_heads(group, [&]<int32_t kCount>(int32_t head) {
                values<kType, kCount>(block, head, scores);
            });
        });
    }

    static TESSERA_INLINE float exp_one(float x) {
        float lanes[kLanes];
        V::store(lanes, exp_of<V>(V::set(x)));
        return lanes[0];
    }

    static void combine(const float* partials,
                        PartialRange range,
                        int32_t head_size,
                        const float* sink,
                        float* out) {
        float maximum = partials[head_size];
        for (int32_t split = 1; split < range.splits; ++split) {
            const float candidate = partials[split * range.stride + head_size];
            maximum = candidate > maximum ? candidate : maximum;
        }
        if (sink != nullptr && *sink > maximum) maximum = *sink;
        float total = sink != nullptr ? exp_one(*sink - maximum) : 0.0f;
        for (int32_t split = 0; split < range.splits; ++split) {
            const float* partial = partials + split * range.stride;
            const float factor = exp_one(partial[head_size] - maximum);
            total += partial[head_size + 1] * factor;
            for (int32_t dim = 0; dim < head_size; ++dim)
                out[dim] = (split == 0 ? 0.0f : out[dim]) + partial[dim] * factor;
        }
        const float inverse = 1.0f / total;
        for (int32_t dim = 0; dim < head_size; ++dim) out[dim] *= inverse;
    }

    static constexpr SplitKernels table() { return {.attend = attend, .combine = combine}; }
};

}  // namespace
}  // namespace tessera::cpu
