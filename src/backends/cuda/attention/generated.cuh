#pragma once
// Attention of generated rows, f32 throughout. A block takes one row, up to eight query heads of
// one kv head, and one split of the keys, so that keys and values are read once for those heads:
// scores of the split to shared memory, their softmax, the weighted sum of the values. A second
// kernel joins the splits. Splits lie at absolute positions: short ones first, so that short
// contexts fill the card too, long ones behind, where there are enough of them. Eight lanes share a
// key: each takes eight neighbouring elements of every 64, so a warp reads four runs of 128 bytes
// (at 16 bits). Bound: bytes of the visible keys and values, read once a row.
//
// A key that the row does not see is neither loaded nor added, and every place of a sum follows
// from the key's offset in its split: the result depends on nothing but the row.

#include <cstdint>

#include "backends/cuda/attention/pages.cuh"

namespace tessera::cuda {

constexpr int32_t kShortSplit = 128, kLongSplit = 512;
constexpr int32_t kShortSplits = 32;
constexpr int32_t kShortKeys = kShortSplits * kShortSplit;
constexpr int32_t kSplitThreads = 128;
constexpr int32_t kLanesAKey = 8;
constexpr int32_t kChunk = 64;  ///< elements of a head that eight lanes take at a time
constexpr int32_t kKeyGroups = kSplitThreads / kLanesAKey;
constexpr int32_t kCombineThreads = 256;
constexpr int32_t kCombineWarps = kCombineThreads / 32;

__host__ __device__ constexpr int32_t split_begin(int32_t split) {
    return split < kShortSplits ? split * kShortSplit
                                : kShortKeys + (split - kShortSplits) * kLongSplit;
}
__host__ __device__ constexpr int32_t split_of(int32_t key) {
    return key < kShortKeys ? key / kShortSplit : kShortSplits + (key - kShortKeys) / kLongSplit;
}

struct GeneratedArgs {
    const float* q;  ///< [T, H, d]
    int64_t q_row_stride, q_head_stride;
    BatchView batch;
    Pages keys, values;
    int32_t kv_heads, group, head_size;
    int32_t head_chunks;  ///< blocks that share the heads of a group
    int32_t first_row;    ///< of this pass
    int32_t window;
    float scale, softcap;
    const float* sinks;   ///< by query head; null: none
    int32_t splits;       ///< places for partial sums a head
    int32_t padded_size;  ///< head size, a multiple of 4
    float* sums;
    float* marks;
    float* out;
    int64_t out_stride;
};

/// The keys of one split that a row sees, [begin, end) counted from the split's first key.
struct SplitKeys {
    int32_t begin, end;
    int32_t first_key;
    const int32_t* table;  ///< pages from first_key on
    int64_t kv_head;

    __device__ const uint8_t* row(const Pages& pages, int32_t key) const {
        return pages.head(table[key / kPageTokens], kv_head) + key % kPageTokens * pages.row_bytes;
    }
};

__device__ __forceinline__ int32_t oldest_visible(int32_t position, int32_t window) {
    return window > 0 ? max(0, position - window + 1) : 0;
}

/// Shared memory of a block, in floats.
template <int32_t kHeads>
struct SplitShared {
    float scores[kLongSplit * kHeads];  ///< [key][head], then probabilities
    float partial[4][kHeads * kChunk];  ///< of the warps
    float reduced[2][4][kHeads];        ///< largest score, total, of the warps
    alignas(16) float queries[1];       ///< [kHeads][head size in chunks], see query_place
};

/// A lane reads its eight elements as two float4; keeping first and second halves apart puts the
/// eight lanes of a key on all banks.
__device__ __forceinline__ int32_t query_place(int32_t element) {
    return element / kChunk * kChunk + element / 4 % 2 * 32 + element / 8 % 8 * 4 + element % 4;
}

template <int32_t kHeads>
__device__ __forceinline__ void load_split_queries(
    const GeneratedArgs& args, int32_t row, int32_t first_head, int32_t heads, float* queries) {
    const int32_t size = (args.head_size + kChunk - 1) / kChunk * kChunk;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < kHeads * size; i += kSplitThreads) {
        const int32_t head = i / size, element = i % size;
        const bool live = head < heads && element < args.head_size;
        queries[head * size + query_place(element)] =
            live ? args.q[row * args.q_row_stride + (first_head + head) * args.q_head_stride +
                          element]
                 : 0.0f;
    }
}

/// Adds `kCount` values over the lanes that differ in bit kMask of their number. Of more than one
/// value each side keeps a half: the lower lanes the first, the upper lanes the second.
template <int32_t kCount, int32_t kMask>
__device__ __forceinline__ void fold(float* values) {
    if constexpr (kCount > 1) {
        constexpr int32_t kHalf = kCount / 2;
        const bool upper = (threadIdx.x & kMask) != 0;
#pragma unroll
        for (int32_t i = 0; i < kHalf; ++i) {
            const float keep = upper ? values[i + kHalf] : values[i];
            const float give = upper ? values[i] : values[i + kHalf];
            values[i] = keep + __shfl_xor_sync(0xffffffffu, give, kMask);
        }
    } else {
        values[0] += __shfl_xor_sync(0xffffffffu, values[0], kMask);
    }
}

/// Scores of the visible keys for all heads, into shared memory.
template <int32_t kHeads, PageFormat kFormat>
__device__ __forceinline__ void score_keys(const GeneratedArgs& args,
                                           const SplitKeys& keys,
                                           SplitShared<kHeads>& shared) {
    constexpr int32_t kKeys = kHeads == 1 ? 8 : 4;  // keys of a lane group at once
    constexpr int32_t kValues = kKeys * kHeads;
    const auto lane = static_cast<int32_t>(threadIdx.x % kLanesAKey);
    const auto key_group = static_cast<int32_t>(threadIdx.x / kLanesAKey);
    const int32_t size = (args.head_size + kChunk - 1) / kChunk * kChunk;
    constexpr int32_t kPass = kKeys * kKeyGroups;
    for (int32_t base = keys.begin / kPass * kPass; base < keys.end; base += kPass) {
        float sums[kValues];
        const uint8_t* rows[kKeys];
#pragma unroll
        for (int32_t i = 0; i < kValues; ++i) sums[i] = 0.0f;
#pragma unroll
        for (int32_t i = 0; i < kKeys; ++i) {
            const int32_t key = base + i * kKeyGroups + key_group;
            const bool live = key >= keys.begin && key < keys.end;
            rows[i] = live ? keys.row(args.keys, key) : nullptr;
        }
        for (int32_t chunk = 0; chunk * kChunk + lane * 8 < args.head_size; ++chunk) {
            Eight<kFormat> raw[kKeys];
#pragma unroll
            for (int32_t i = 0; i < kKeys; ++i) {
                raw[i] = {};
                if (rows[i] != nullptr)
                    raw[i].load(args.keys, rows[i], chunk * 8 + lane, args.head_size);
            }
            float elements[kKeys][8];
#pragma unroll
            for (int32_t i = 0; i < kKeys; ++i) raw[i].unpack(elements[i]);
#pragma unroll
            for (int32_t head = 0; head < kHeads; ++head) {
                const auto* query = reinterpret_cast<const float4*>(shared.queries + head * size +
                                                                    chunk * kChunk + lane * 4);
                const float4 low = query[0], high = query[8];
#pragma unroll
                for (int32_t i = 0; i < kKeys; ++i) {
                    float sum = sums[i * kHeads + head];
                    sum = fmaf(low.x, elements[i][0], sum);
                    sum = fmaf(low.y, elements[i][1], sum);
                    sum = fmaf(low.z, elements[i][2], sum);
                    sum = fmaf(low.w, elements[i][3], sum);
                    sum = fmaf(high.x, elements[i][4], sum);
                    sum = fmaf(high.y, elements[i][5], sum);
                    sum = fmaf(high.z, elements[i][6], sum);
                    sums[i * kHeads + head] = fmaf(high.w, elements[i][7], sum);
                }
            }
        }
        fold<kValues, 1>(sums);
        fold<kValues / 2, 2>(sums);
        fold<kValues / 4, 4>(sums);
        const int32_t first =
            lane % 2 * (kValues / 2) + lane / 2 % 2 * (kValues / 4) + lane / 4 * (kValues / 8);
#pragma unroll
        for (int32_t i = 0; i < kValues / 8; ++i) {
            const int32_t key = base + (first + i) / kHeads * kKeyGroups + key_group;
            float score = sums[i] * args.scale;
            if (args.softcap > 0.0f) score = args.softcap * tanhf(score / args.softcap);
            if (key >= keys.begin && key < keys.end)
                shared.scores[key * kHeads + (first + i) % kHeads] = score;
        }
    }
}

/// Scores to exp(score - largest) for every head; largest and total of head threadIdx.x % kHeads.
template <int32_t kHeads>
__device__ __forceinline__ float2 exponentiate(const SplitKeys& keys, SplitShared<kHeads>& shared) {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const int32_t head = thread % kHeads, warp = thread / 32;
    constexpr int32_t kStep = kSplitThreads / kHeads;
    float largest = -INFINITY;
    for (int32_t key = thread / kHeads; key < keys.end; key += kStep)
        if (key >= keys.begin) largest = fmaxf(largest, shared.scores[key * kHeads + head]);
#pragma unroll
    for (int32_t offset = 16; offset >= kHeads; offset /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
    if (thread % 32 < kHeads) shared.reduced[0][warp][head] = largest;
    __syncthreads();
    largest = shared.reduced[0][0][head];
#pragma unroll
    for (int32_t other = 1; other < 4; ++other)
        largest = fmaxf(largest, shared.reduced[0][other][head]);
    // Scores of -inf alone are probabilities of 0, as next to others: -inf - -inf would be NaN.
    const float level = largest == -INFINITY ? 0.0f : largest;
    float total = 0.0f;
    for (int32_t key = thread / kHeads; key < keys.end; key += kStep)
        if (key >= keys.begin) {
            float& place = shared.scores[key * kHeads + head];
            place = expf(place - level);
            total += place;
        }
#pragma unroll
    for (int32_t offset = 16; offset >= kHeads; offset /= 2)
        total += __shfl_xor_sync(0xffffffffu, total, offset);
    if (thread % 32 < kHeads) shared.reduced[1][warp][head] = total;
    __syncthreads();
    total = shared.reduced[1][0][head];
#pragma unroll
    for (int32_t other = 1; other < 4; ++other) total += shared.reduced[1][other][head];
    return {largest, total};
}

/// Elements [8 index, 8 index + 8) of the sum of the values, over the keys of this lane group.
template <int32_t kHeads, PageFormat kFormat>
__device__ __forceinline__ void sum_values(const GeneratedArgs& args,
                                           const SplitKeys& keys,
                                           const float* probabilities,
                                           int32_t index,
                                           float (&sums)[8 * kHeads]) {
    constexpr int32_t kKeys = kHeads == 1 ? 8 : 4;
    constexpr int32_t kPass = kKeys * kKeyGroups;
    const auto key_group = static_cast<int32_t>(threadIdx.x / kLanesAKey);
    const bool inside = index * 8 < args.head_size;
#pragma unroll
    for (int32_t i = 0; i < 8 * kHeads; ++i) sums[i] = 0.0f;
    for (int32_t base = keys.begin / kPass * kPass; base < keys.end; base += kPass) {
        Eight<kFormat> raw[kKeys];
        bool live[kKeys];
#pragma unroll
        for (int32_t i = 0; i < kKeys; ++i) {
            const int32_t key = base + i * kKeyGroups + key_group;
            live[i] = inside && key >= keys.begin && key < keys.end;
            raw[i] = {};
            if (live[i])
                raw[i].load(args.values, keys.row(args.values, key), index, args.head_size);
        }
#pragma unroll
        for (int32_t i = 0; i < kKeys; ++i) {
            const int32_t key = base + i * kKeyGroups + key_group;
            float elements[8];
            raw[i].unpack(elements);
#pragma unroll
            for (int32_t head = 0; head < kHeads; ++head) {
                const float weight = live[i] ? probabilities[key * kHeads + head] : 0.0f;
#pragma unroll
                for (int32_t j = 0; j < 8; ++j)
                    sums[head * 8 + j] = fmaf(weight, elements[j], sums[head * 8 + j]);
            }
        }
    }
}

/// The sums of all lane groups for the chunk's elements, in shared.partial by warp.
template <int32_t kHeads>
__device__ __forceinline__ void gather_sums(float (&sums)[8 * kHeads],
                                            SplitShared<kHeads>& shared) {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    fold<8 * kHeads, 8>(sums);
    fold<4 * kHeads, 16>(sums);
    const int32_t first = thread / 8 % 2 * (4 * kHeads) + thread / 16 % 2 * (2 * kHeads);
#pragma unroll
    for (int32_t i = 0; i < 2 * kHeads; ++i) {
        const int32_t head = (first + i) / 8, element = thread % kLanesAKey * 8 + (first + i) % 8;
        shared.partial[thread / 32][head * kChunk + element] = sums[i];
    }
}

/// Grid: (rows of the pass * kv heads * head chunks, splits).
template <int32_t kHeads, PageFormat kKeyFormat, PageFormat kValueFormat>
__global__ void __launch_bounds__(kSplitThreads,
                                  kHeads == 8 || kKeyFormat == PageFormat::kAny ? 3 : 4)
    attend_split(const __grid_constant__ GeneratedArgs args) {
    auto& shared = *reinterpret_cast<SplitShared<kHeads>*>(dynamic_shared());
    const auto split = static_cast<int32_t>(blockIdx.y);
    const auto unit = static_cast<int32_t>(blockIdx.x);
    const int32_t first_head = unit % args.head_chunks * kHeads;  // within the group
    const int32_t kv_head = unit / args.head_chunks % args.kv_heads;
    const int32_t pass_row = unit / (args.head_chunks * args.kv_heads);
    const int32_t row = args.first_row + pass_row;
    const int32_t position = args.batch.positions[row];
    const int32_t start = split_begin(split);
    SplitKeys keys;
    keys.begin = max(oldest_visible(position, args.window) - start, 0);
    keys.end = min(position + 1, split_begin(split + 1)) - start;
    if (keys.begin >= keys.end) return;
    keys.first_key = start;
    keys.table = args.batch.table(find_sequence(args.batch, row)) + start / kPageTokens;
    keys.kv_head = kv_head;

    const int32_t heads = min(kHeads, args.group - first_head);
    const int32_t query_head = kv_head * args.group + first_head;
    load_split_queries<kHeads>(args, row, query_head, heads, shared.queries);
    __syncthreads();  // queries are there
    score_keys<kHeads, kKeyFormat>(args, keys, shared);
    __syncthreads();  // scores are there
    const float2 mark = exponentiate(keys, shared);

    const int64_t place =
        (int64_t{pass_row} * args.kv_heads * args.group + query_head) * args.splits + split;
    const auto thread = static_cast<int32_t>(threadIdx.x);
    if (thread < heads)
        reinterpret_cast<float2*>(args.marks)[place + int64_t{thread} * args.splits] = mark;
    float sums[8 * kHeads];
    for (int32_t chunk = 0; chunk * kChunk < args.head_size; ++chunk) {
        sum_values<kHeads, kValueFormat>(args, keys, shared.scores, chunk * 8 + thread % kLanesAKey,
                                         sums);
        gather_sums<kHeads>(sums, shared);
        __syncthreads();  // partial sums are there
        for (int32_t i = thread; i < heads * kChunk; i += kSplitThreads) {
            const int32_t head = i / kChunk, element = chunk * kChunk + i % kChunk;
            float sum = shared.partial[0][i];
#pragma unroll
            for (int32_t warp = 1; warp < 4; ++warp) sum += shared.partial[warp][i];
            if (element < args.head_size)
                args.sums[(place + int64_t{head} * args.splits) * args.padded_size + element] = sum;
        }
        __syncthreads();  // the next chunk overwrites them
    }
}

/// out = sum_i exp(m_i - M) sums_i / sum_i exp(m_i - M) total_i over the splits of a row's head.
/// A sink is one more score, whose values are 0. Each warp sums every eighth split, a lane four
/// elements. Grid: rows of the pass * heads.
__global__ void __launch_bounds__(kCombineThreads)
    combine_splits(const __grid_constant__ GeneratedArgs args) {
    auto* partial = reinterpret_cast<float*>(dynamic_shared());  // [warps][padded size]
    const int32_t heads = args.kv_heads * args.group;
    const auto unit = static_cast<int32_t>(blockIdx.x);
    const int32_t row = args.first_row + unit / heads, head = unit % heads;
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const auto warp = static_cast<int32_t>(threadIdx.x / 32);
    const int32_t position = args.batch.positions[row];
    const int32_t first = split_of(oldest_visible(position, args.window));
    const int32_t last = split_of(position) + 1;
    const auto* marks = reinterpret_cast<const float2*>(args.marks) + int64_t{unit} * args.splits;

    float largest = -INFINITY;
    for (int32_t split = first + lane; split < last; split += 32)
        largest = fmaxf(largest, marks[split].x);
#pragma unroll
    for (int32_t offset = 16; offset > 0; offset /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
    const float sink = args.sinks != nullptr ? args.sinks[head] : -INFINITY;
    largest = fmaxf(largest, sink);
    float total = 0.0f;
    for (int32_t split = first + lane; split < last; split += 32)
        total = fmaf(expf(marks[split].x - largest), marks[split].y, total);
#pragma unroll
    for (int32_t offset = 16; offset > 0; offset /= 2)
        total += __shfl_xor_sync(0xffffffffu, total, offset);
    if (args.sinks != nullptr) total += expf(sink - largest);

    const float* sums = args.sums + int64_t{unit} * args.splits * args.padded_size;
    for (int32_t element = lane * 4; element < args.padded_size; element += 128) {
        float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
        for (int32_t split = first + warp; split < last; split += kCombineWarps) {
            const float weight = expf(marks[split].x - largest);
            const float4 part = *reinterpret_cast<const float4*>(
                sums + int64_t{split} * args.padded_size + element);
            sum.x = fmaf(weight, part.x, sum.x);
            sum.y = fmaf(weight, part.y, sum.y);
            sum.z = fmaf(weight, part.z, sum.z);
            sum.w = fmaf(weight, part.w, sum.w);
        }
        *reinterpret_cast<float4*>(partial + warp * args.padded_size + element) = sum;
    }
    __syncthreads();  // sums of all warps are there
    float* out = args.out + row * args.out_stride + int64_t{head} * args.head_size;
    for (int32_t element = static_cast<int32_t>(threadIdx.x); element < args.head_size;
         element += kCombineThreads) {
        float sum = partial[element];
#pragma unroll
        for (int32_t other = 1; other < kCombineWarps; ++other)
            sum += partial[other * args.padded_size + element];
        out[element] = sum / total;
    }
}

}  // namespace tessera::cuda
