// The largest logit of each row, in two passes: blocks find the best token of a segment of a row,
// then a warp finds the best of the segments. The order (key, lower id) is total, so no result
// depends on the cut. Bound: 4 V bytes read per row; one row of 248,320 logits is 61 blocks.
#include "backends/cuda/sample/logit_rows.cuh"

namespace tessera::cuda {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kItems = 16;
constexpr int64_t kSegment = kThreads * kItems;
constexpr int32_t kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ Best better(const Best& a, const Best& b) {
    const bool first = a.key != b.key ? a.key > b.key : a.id < b.id;
    Best best = first ? a : b;
    best.nan = a.nan | b.nan;
    return best;
}

__device__ Best best_of_warp(Best best) {
    for (int32_t distance = kWarp / 2; distance > 0; distance /= 2) {
        Best other;
        other.key = __shfl_xor_sync(kAllLanes, best.key, distance);
        other.id = __shfl_xor_sync(kAllLanes, best.id, distance);
        other.nan = __shfl_xor_sync(kAllLanes, best.nan, distance);
        best = better(best, other);
    }
    return best;
}

__global__ __launch_bounds__(kThreads) void best_of_segments(LogitRows rows,
                                                             int64_t segments,
                                                             Best* bests) {
    __shared__ Best of_warps[kThreads / kWarp];
    const int64_t row = blockIdx.x / segments, segment = blockIdx.x % segments;
    if (!rows.chosen_by(row, Choice::kGreedy)) return;
    const int64_t begin = segment * kSegment + threadIdx.x;
    Best best{0, INT32_MAX, 0};
    float raw[kItems];
#pragma unroll
    for (int32_t i = 0; i < kItems; ++i) {
        const int64_t id = begin + i * kThreads;
        // The first logit of the row stands in for those behind its end: nothing is added.
        raw[i] = rows.raw(row, id < rows.vocabulary ? id : 0);
    }
#pragma unroll
    for (int32_t i = 0; i < kItems; ++i) {
        const int64_t id = begin + i * kThreads;
        if (id >= rows.vocabulary) continue;
        if (isnan(raw[i])) {
            best.nan = 1;
            continue;
        }
        best = better(best, {key_of(rows, row, id, raw[i]), static_cast<int32_t>(id), 0});
    }
    best = best_of_warp(best);
    const int32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    if (lane == 0) of_warps[warp] = best;
    __syncthreads();  // the bests of all warps are there
    if (threadIdx.x != 0) return;
    for (int32_t i = 1; i < kThreads / kWarp; ++i) best = better(best, of_warps[i]);
    bests[row * segments + segment] = best;
}

/// A warp per row.
__global__ void best_of_rows(LogitRows rows, int64_t segments, const Best* bests, int32_t* ids) {
    const int64_t row = blockIdx.x;
    if (!rows.chosen_by(row, Choice::kGreedy)) return;
    Best best{0, INT32_MAX, 0};
    for (int64_t i = threadIdx.x; i < segments; i += kWarp)
        best = better(best, bests[row * segments + i]);
    best = best_of_warp(best);
    // A draw from a row with a NaN fails; argmax, which has no parameters, passes over it.
    const bool fails = best.key == 0 || (rows.params != nullptr && best.nan != 0);
    if (threadIdx.x == 0) ids[row] = fails ? -1 : best.id;
}

}  // namespace

int64_t best_segments(int64_t vocabulary) {
    return ceil_div(vocabulary, kSegment);
}

void choose_greedy(
    Device& device, const LogitRows& rows, int64_t row_count, Best* bests, int32_t* ids) {
    const int64_t segments = best_segments(rows.vocabulary);
    device.launch("best_of_segments", best_of_segments,
                  dim3(static_cast<unsigned>(row_count * segments)), dim3(kThreads), 0, rows,
                  segments, bests);
    device.launch("best_of_rows", best_of_rows, dim3(static_cast<unsigned>(row_count)), dim3(kWarp),
                  0, rows, segments, bests, ids);
}

void CudaOps::argmax(Exec& ex, const Tensor& logits, const Tensor& ids) {
    check(logits.rank == 2 && ids.rows() == logits.rows(), "argmax: shapes");
    const int64_t row_count = logits.rows(), vocabulary = logits.cols();
    if (row_count == 0) return;
    const Scope scope(ex.arena);
    std::byte* bests = ex.arena.allocate_bytes(
        static_cast<size_t>(row_count * best_segments(vocabulary)) * sizeof(Best));
    if (ex.planning()) return;
    const auto elements = static_cast<double>(logits.elements());
    const Timed timed(*this, "argmax", elements, 4 * elements);
    const LogitRows rows{
        .logits = logits.as<float>(), .stride = logits.stride[0], .vocabulary = vocabulary};
    choose_greedy(*device_, rows, row_count, reinterpret_cast<Best*>(bests), ids.as<int32_t>());
}

}  // namespace tessera::cuda
