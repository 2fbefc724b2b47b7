// A draw from a vocabulary without a small top-k: one row is sorted as a whole, many blocks weigh
// the candidates, one block cuts and draws. Sums of 1024 chunks find the borders; where a border
// lies nearer to a candidate's edge than rounding can move it, one thread sums everything again in
// the order of the reference (milliseconds, but next to never). Bound: the sort, 5 passes of 24 V
// bytes for f32 logits, 8 after penalties.
#include <cub/device/device_radix_sort.cuh>

#include "backends/cuda/sample/draw.cuh"

namespace tessera::cuda {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kDrawThreads = 1024;
/// Up to here one thread is fast enough.
constexpr int64_t kInOrder = 1024;
/// Error of two sums of n positive terms in any order and a division, relative to the total:
/// below 4 n 2^-53, with room.
constexpr double kErrorPerTerm = 0x1p-50;
/// Error of two quotients and a product.
constexpr double kErrorOfShare = 0x1p-48;

__global__ void list_tokens(LogitRows rows, int64_t row, Candidates to, int32_t* nan_rows) {
    const int64_t id = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (id >= rows.vocabulary) return;
    const float raw = rows.raw(row, id);
    // Every thread that sees a NaN writes the same.
    if (isnan(raw)) nan_rows[row] = 1;
    to.keys[id] = key_of(rows, row, id, raw);
    to.ids[id] = static_cast<int32_t>(id);
}

/// Weights of the first `count` sorted keys, or of the first *kept.
__global__ void weigh(
    const uint64_t* keys, int32_t count, const int32_t* kept, double temperature, double* weights) {
    const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (i >= (kept == nullptr ? count : *kept)) return;
    weights[i] = weight_of(keys[i], value_of_key(keys[0]), temperature);
}

/// Running sums of chunks of the weights and a border between candidates.
struct Sums {
    double before[kDrawThreads + 1];  ///< sum of all chunks before this one
    int64_t found;
};

__device__ int64_t chunk_length(int64_t count) {
    return (count + kDrawThreads - 1) / kDrawThreads;
}

__device__ void sum_chunks(const double* weights, int64_t count, Sums& sums) {
    const int64_t length = chunk_length(count);
    const int64_t begin = min(threadIdx.x * length, count), end = min(begin + length, count);
    sums.before[threadIdx.x + 1] = sum_in_order(weights + begin, end - begin);
    __syncthreads();  // thread 0 adds up what all have written
    if (threadIdx.x == 0) {
        sums.before[0] = 0.0;
        for (int32_t i = 1; i <= kDrawThreads; ++i) sums.before[i] += sums.before[i - 1];
        sums.found = -1;
    }
    __syncthreads();  // all read the running sums
}

/// First candidate whose running share reaches `share`, -1 where rounding might decide.
__device__ int64_t find_share(const double* weights, int64_t count, double share, Sums& sums) {
    const double total = sums.before[kDrawThreads], target = share * total;
    const double margin = static_cast<double>(count) * kErrorPerTerm * total;
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const bool mine =
        (thread == 0 || sums.before[thread] < target) && sums.before[thread + 1] >= target;
    if (mine) {
        const int64_t length = chunk_length(count);
        const int64_t begin = min(thread * length, count), end = min(begin + length, count);
        double below = sums.before[thread];
        for (int64_t i = begin; i < end; ++i) {
            const double mass = below + weights[i];
            if (mass >= target) {
                // Nothing stands before the first candidate that could take its place.
                const bool sure = mass >= target + margin && (i == 0 || below <= target - margin);
                if (sure) sums.found = i;
                break;
            }
            below = mass;
        }
    }
    __syncthreads();  // all read what one has found
    return sums.found;
}

/// Candidates before the first of a share below min_p times the largest, of `kept` with falling
/// weights (the first is 1); -1 where rounding might decide.
__device__ int64_t count_likely(const double* weights, int64_t kept, double min_p) {
    int64_t low = 1, high = kept;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (weights[middle] >= min_p)
            low = middle + 1;
        else
            high = middle;
    }
    const bool sure = (low == 1 || weights[low - 1] >= min_p * (1.0 + kErrorOfShare)) &&
                      (low == kept || weights[low] <= min_p * (1.0 - kErrorOfShare));
    return sure ? low : -1;
}

__global__ __launch_bounds__(kDrawThreads) void cut_whole(const double* weights,
                                                          int32_t count,
                                                          RowParams params,
                                                          int32_t* kept) {
    __shared__ Sums sums;
    int64_t left = count;
    if (!(params.top_p >= 1.0f)) {
        if (params.top_p <= 0.0f) {
            left = 1;
        } else {
            sum_chunks(weights, count, sums);
            const int64_t last = find_share(weights, count, params.top_p, sums);
            left = last < 0 ? -1 : last + 1;
        }
    }
    if (threadIdx.x != 0) return;
    if (left > 0 && !(params.min_p <= 0.0f)) left = count_likely(weights, left, params.min_p);
    if (left < 0) left = cut_in_order(weights, count, params);
    *kept = static_cast<int32_t>(left);
}

__global__ __launch_bounds__(kDrawThreads) void draw_from_whole(const double* weights,
                                                                const int32_t* sorted_ids,
                                                                const int32_t* kept,
                                                                float uniform,
                                                                const int32_t* nan_row,
                                                                int32_t* id) {
    __shared__ Sums sums;
    const int64_t count = *kept;
    int64_t place = -1;
    if (count > kInOrder) {
        sum_chunks(weights, count, sums);
        place = find_share(weights, count, uniform, sums);
    }
    if (threadIdx.x != 0) return;
    if (*nan_row != 0) {
        *id = -1;
        return;
    }
    if (place < 0) place = draw_in_order(weights, count, uniform);
    *id = sorted_ids[place];
}

/// Sorts lists[0] with lists[1] as its other buffer; returns the index of the sorted list.
int32_t sort_lists(const Candidates (&lists)[2],
                   int64_t vocabulary,
                   int32_t first_bit,
                   void* memory,
                   size_t& bytes,
                   cudaStream_t stream) {
    cub::DoubleBuffer<uint64_t> keys(lists[0].keys, lists[1].keys);
    cub::DoubleBuffer<int32_t> ids(lists[0].ids, lists[1].ids);
    check_cuda(
        cub::DeviceRadixSort::SortPairsDescending(
            memory, bytes, keys, ids, static_cast<int32_t>(vocabulary), first_bit, 64, stream),
        "sort of a vocabulary");
    check(keys.selector == ids.selector, "sample: keys and ids in different buffers");
    return keys.selector;
}

}  // namespace

size_t whole_sort_bytes(int64_t vocabulary) {
    size_t bytes = 0;
    sort_lists({}, vocabulary, 0, nullptr, bytes, nullptr);
    return bytes;
}

void choose_from_whole(Device& device,
                       const LogitRows& rows,
                       int64_t row,
                       const RowParams& params,
                       const WholeWork& work,
                       int32_t* ids) {
    const auto vocabulary = static_cast<int32_t>(rows.vocabulary);
    const dim3 blocks(static_cast<unsigned>(ceil_div(vocabulary, kThreads)));
    device.launch("list_tokens", list_tokens, blocks, dim3(kThreads), 0, rows, row, work.lists[0],
                  work.nan_rows);
    size_t bytes = work.sort_bytes;
    const int32_t sorted =
        sort_lists(work.lists, vocabulary, params.penalized != 0 ? 0 : kFloatKeyBegin,
                   work.sort_memory, bytes, device.stream());
    const Candidates& list = work.lists[sorted];
    // The other buffer of the sort is free again.
    auto* weights = reinterpret_cast<double*>(work.lists[1 - sorted].keys);
    const int32_t* const all = nullptr;
    const double temperature = params.temperature;
    // Top-k has its say first.
    device.launch("weigh", weigh, blocks, dim3(kThreads), 0, list.keys, params.wanted, all, 1.0,
                  weights);
    device.launch("cut_whole", cut_whole, dim3(1), dim3(kDrawThreads), 0, weights, params.wanted,
                  params, work.kept);
    if (temperature != 1.0)
        device.launch("weigh", weigh, blocks, dim3(kThreads), 0, list.keys, params.wanted,
                      work.kept, temperature, weights);
    device.launch("draw_from_whole", draw_from_whole, dim3(1), dim3(kDrawThreads), 0, weights,
                  list.ids, work.kept, params.uniform, work.nan_rows + row, ids + row);
}

}  // namespace tessera::cuda
