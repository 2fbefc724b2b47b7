// Draws from at most kMaxPrefix candidates. Blocks sort segments of a row and keep the best
// `longest` of each; rounds of the same over the kept lists end with one sorted list. The sort is
// stable and segments stay in the order of ids, so ties fall to the lower id. One thread then cuts
// and draws in the order of the reference. Bound: 4 V bytes read, but the passes of the block sort
// over 4096 keys (9 of 4 bits for f32 logits, 16 after penalties) take longer. A selection by
// histograms would read less shared memory and needs as many passes through the device's.
#include <cub/block/block_radix_sort.cuh>

#include "backends/cuda/sample/draw.cuh"

namespace tessera::cuda {
namespace {

constexpr int32_t kSortThreads = 512;
constexpr int32_t kSortItems = 8;
constexpr int64_t kSortSegment = kSortThreads * kSortItems;
static_assert(kSortSegment >= 2 * kMaxPrefix, "every round has to shorten the lists");
constexpr int32_t kDrawThreads = 128;

using Sorter = cub::BlockRadixSort<uint64_t, kSortThreads, kSortItems, int32_t>;

struct SortRound {
    LogitRows rows;
    Candidates from;       ///< null keys: the logits themselves
    int64_t count = 0;     ///< entries of a row in `from`
    int64_t segments = 0;  ///< of a row
    int32_t longest = 0;   ///< entries that a segment leaves
    Candidates to;         ///< [rows, segments, longest]
    int32_t* nan_rows = nullptr;
};

/// One segment of one row. Places behind the end have key 0, below all tokens.
__global__ __launch_bounds__(kSortThreads,
                             1) void sort_segments(const __grid_constant__ SortRound round) {
    __shared__ Sorter::TempStorage memory;
    const int64_t row = blockIdx.x / round.segments, segment = blockIdx.x % round.segments;
    if (!round.rows.chosen_by(row, Choice::kPrefix)) return;
    const int64_t begin = segment * kSortSegment + static_cast<int64_t>(threadIdx.x) * kSortItems;
    uint64_t keys[kSortItems];
    int32_t ids[kSortItems];
#pragma unroll
    for (int32_t i = 0; i < kSortItems; ++i) {
        const int64_t at = begin + i;
        keys[i] = 0;
        ids[i] = -1;
        if (at >= round.count) continue;
        if (round.from.keys != nullptr) {
            keys[i] = round.from.keys[row * round.count + at];
            ids[i] = round.from.ids[row * round.count + at];
            continue;
        }
        const float raw = round.rows.raw(row, at);
        // Every thread that sees a NaN writes the same.
        if (isnan(raw)) round.nan_rows[row] = 1;
        keys[i] = key_of(round.rows, row, at, raw);
        ids[i] = static_cast<int32_t>(at);
    }
    const int32_t first_bit = round.rows.penalized(row) ? 0 : kFloatKeyBegin;
    Sorter(memory).SortDescending(keys, ids, first_bit, 64);
    const int64_t list = (row * round.segments + segment) * round.longest;
#pragma unroll
    for (int32_t i = 0; i < kSortItems; ++i) {
        const int32_t rank = static_cast<int32_t>(threadIdx.x) * kSortItems + i;
        if (rank >= round.longest) break;
        round.to.keys[list + rank] = keys[i];
        round.to.ids[list + rank] = ids[i];
    }
}

/// A block per row; `sorted` holds `longest` entries a row.
__global__ __launch_bounds__(kDrawThreads) void draw_from_prefix(
    LogitRows rows, Candidates sorted, int32_t longest, const int32_t* nan_rows, int32_t* ids) {
    __shared__ double weights[kMaxPrefix];
    __shared__ int32_t kept;
    const int64_t row = blockIdx.x;
    if (!rows.chosen_by(row, Choice::kPrefix)) return;
    const RowParams params = rows.params[row];
    const uint64_t* keys = sorted.keys + row * longest;
    const auto thread = static_cast<int32_t>(threadIdx.x);
    if (nan_rows[row] != 0) {
        if (thread == 0) ids[row] = -1;
        return;
    }
    const double largest = value_of_key(keys[0]);
    int32_t count = params.wanted;
    if (cuts(params)) {
        for (int32_t i = thread; i < count; i += kDrawThreads)
            weights[i] = weight_of(keys[i], largest, 1.0);
        __syncthreads();  // thread 0 reads all weights
        if (thread == 0) kept = static_cast<int32_t>(cut_in_order(weights, count, params));
        __syncthreads();  // all threads read `kept` and write new weights
        count = kept;
    }
    for (int32_t i = thread; i < count; i += kDrawThreads)
        weights[i] = weight_of(keys[i], largest, params.temperature);
    __syncthreads();  // thread 0 reads all weights
    if (thread != 0) return;
    ids[row] = sorted.ids[row * longest + draw_in_order(weights, count, params.uniform)];
}

}  // namespace

int64_t prefix_entries(int64_t row_count, int64_t vocabulary, int32_t which) {
    const int64_t longest = vocabulary < kMaxPrefix ? vocabulary : kMaxPrefix;
    int64_t segments = ceil_div(vocabulary, kSortSegment);
    if (which == 1) segments = ceil_div(segments * longest, kSortSegment);
    return row_count * segments * longest;
}

void choose_from_prefix(Device& device,
                        const LogitRows& rows,
                        int64_t row_count,
                        int32_t longest,
                        const PrefixWork& work,
                        int32_t* ids) {
    SortRound round{.rows = rows,
                    .from = {},
                    .count = rows.vocabulary,
                    .segments = ceil_div(rows.vocabulary, kSortSegment),
                    .longest = longest,
                    .to = work.lists[0],
                    .nan_rows = work.nan_rows};
    int32_t target = 0;
    for (;;) {
        device.launch("sort_segments", sort_segments,
                      dim3(static_cast<unsigned>(row_count * round.segments)), dim3(kSortThreads),
                      0, round);
        if (round.segments == 1) break;
        target = 1 - target;
        round.from = round.to;
        round.to = work.lists[target];
        round.count = round.segments * longest;
        round.segments = ceil_div(round.count, kSortSegment);
    }
    device.launch("draw_from_prefix", draw_from_prefix, dim3(static_cast<unsigned>(row_count)),
                  dim3(kDrawThreads), 0, rows, round.to, longest, work.nan_rows, ids);
}

}  // namespace tessera::cuda
