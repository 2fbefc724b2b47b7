// Choice of experts, grouping of (token, choice) pairs, combination of results.
// route: a warp per row keeps f64 probabilities and ordered keys in shared memory, as the
// reference computes them, and takes the best key `choices` times. Bound: latency; 4 E bytes a row.
// group_experts: counting sort with integers only. Chunks of pairs count their experts, one block
// turns counts into first places, a warp per chunk places its pairs in order; up to one chunk of
// pairs all of it is one launch. A block per expert that scans all pairs would read E times as
// much. combine: bound by 4 (choices + 1) N bytes a row.
#include "backends/cuda/device.cuh"
#include "backends/cuda/sample/logit_rows.cuh"
#include "ops/checks.h"

namespace tessera::cuda {
namespace {

constexpr int32_t kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr size_t kSharedBytes = 48 * 1024;

// ---- route ----

constexpr int32_t kRouteWarps = 4;
/// As in the reference: sums of weights below the smallest normal f16 are taken for it.
constexpr double kLeastSum = 0x1p-14;

struct RouteArgs {
    const float* logits;
    int64_t logits_stride;
    const float* bias;  ///< or null
    int32_t* ids;
    int64_t ids_stride;
    float* weights;
    int64_t weights_stride;
    int64_t rows;
    int32_t experts, choices;
    RouteParams params;
};

/// Shared memory of one row: probabilities, keys (0: taken), chosen ids.
__host__ __device__ size_t route_bytes(int32_t experts, int32_t choices) {
    return static_cast<size_t>(experts) * (sizeof(double) + sizeof(uint64_t)) +
           static_cast<size_t>(choices + choices % 2) * sizeof(int32_t);
}

__device__ __forceinline__ double sum_of_warp(double value) {
    for (int32_t distance = kWarp / 2; distance > 0; distance /= 2)
        value += __shfl_xor_sync(kAllLanes, value, distance);
    return value;
}

__device__ __forceinline__ double largest_of_warp(double value) {
    for (int32_t distance = kWarp / 2; distance > 0; distance /= 2)
        value = fmax(value, __shfl_xor_sync(kAllLanes, value, distance));
    return value;
}

/// p of this lane's experts. NaN stands for minus infinity; a row of nothing else is uniform.
__device__ __forceinline__ void set_probabilities(const RouteArgs& args,
                                                  const float* logits,
                                                  int32_t lane,
                                                  double* p) {
    double largest = -INFINITY;
    for (int32_t e = lane; e < args.experts; e += kWarp) {
        p[e] = isnan(logits[e]) ? -INFINITY : static_cast<double>(logits[e]);
        largest = fmax(largest, p[e]);
    }
    if (args.params.sigmoid) {
        for (int32_t e = lane; e < args.experts; e += kWarp) p[e] = 1.0 / (1.0 + exp(-p[e]));
        return;
    }
    largest = largest_of_warp(largest);
    double sum = 0.0;
    for (int32_t e = lane; e < args.experts; e += kWarp) {
        // Equal infinities have no difference.
        p[e] = p[e] == largest ? 1.0 : exp(p[e] - largest);
        sum += p[e];
    }
    sum = sum_of_warp(sum);
    for (int32_t e = lane; e < args.experts; e += kWarp) p[e] /= sum;
}

/// Best expert of this lane that is not taken.
__device__ __forceinline__ void best_of_lane(
    const uint64_t* keys, int32_t experts, int32_t lane, uint64_t& best, int32_t& id) {
    best = 0;
    id = experts;
    for (int32_t e = lane; e < experts; e += kWarp) {
        if (keys[e] <= best) continue;
        best = keys[e];
        id = e;
    }
}

__global__ void route_rows(const __grid_constant__ RouteArgs args) {
    extern __shared__ double route_memory[];
    const int32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int64_t row = int64_t{blockIdx.x} * (blockDim.x / kWarp) + warp;
    if (row >= args.rows) return;  // whole warps: no barrier of the block follows
    double* p = route_memory + warp * (route_bytes(args.experts, args.choices) / sizeof(double));
    auto* keys = reinterpret_cast<uint64_t*>(p + args.experts);
    auto* chosen = reinterpret_cast<int32_t*>(keys + args.experts);
    const float* logits = args.logits + row * args.logits_stride;
    set_probabilities(args, logits, lane, p);
    // Both functions rise with the logit, so without a bias the logits decide: that sees
    // differences that p has rounded away.
    for (int32_t e = lane; e < args.experts; e += kWarp)
        keys[e] = ordered_key(args.bias == nullptr ? static_cast<double>(logits[e])
                                                   : p[e] + static_cast<double>(args.bias[e]));
    uint64_t mine = 0;
    int32_t mine_id = 0;
    best_of_lane(keys, args.experts, lane, mine, mine_id);
    for (int32_t j = 0; j < args.choices; ++j) {
        uint64_t best = mine;
        int32_t id = mine_id;
        for (int32_t distance = kWarp / 2; distance > 0; distance /= 2) {
            const uint64_t other = __shfl_xor_sync(kAllLanes, best, distance);
            const int32_t other_id = __shfl_xor_sync(kAllLanes, id, distance);
            if (other > best || (other == best && other_id < id)) {
                best = other;
                id = other_id;
            }
        }
        if (id % kWarp == lane) {
            chosen[j] = id;
            keys[id] = 0;
            best_of_lane(keys, args.experts, lane, mine, mine_id);
        }
    }
    __syncwarp();  // chosen ids and p of other lanes are read
    double sum = 0.0;
    for (int32_t j = 0; j < args.choices; ++j) sum += p[chosen[j]];
    const double divisor = args.params.normalize ? fmax(sum, kLeastSum) : 1.0;
    for (int32_t j = lane; j < args.choices; j += kWarp) {
        args.ids[row * args.ids_stride + j] = chosen[j];
        args.weights[row * args.weights_stride + j] =
            static_cast<float>(p[chosen[j]] / divisor * static_cast<double>(args.params.scale));
    }
}

// ---- group_experts ----

constexpr int32_t kGroupThreads = 256;
constexpr int32_t kChunkPairs = 1024;

struct GroupArgs {
    const int32_t* ids;
    int64_t ids_stride;
    int32_t pair_count, choices, experts;
    int32_t* pairs;
    int32_t* starts;
    int32_t* places;  ///< [chunks, experts] counts, then first places; absent for one chunk
    FaultWord* faults;
};

/// A chunk of pairs and where their experts' next pairs go.
struct Chunk {
    int32_t begin, count;
    int32_t* experts;  ///< of the pairs, [kChunkPairs] in shared memory
};

__device__ __forceinline__ Chunk chunk_of(const GroupArgs& args, int32_t index, int32_t* experts) {
    const int32_t begin = index * kChunkPairs;
    return {begin, min(kChunkPairs, args.pair_count - begin), experts};
}

/// Reads the experts of a chunk, by all threads of the block. A pair whose id is none is reported
/// and goes to expert 0: what follows stays within its memory, and nobody sees the result.
__device__ __forceinline__ void load_chunk(const GroupArgs& args, const Chunk& chunk) {
    for (int32_t i = threadIdx.x; i < chunk.count; i += kGroupThreads) {
        const int32_t token = (chunk.begin + i) / args.choices;
        const int32_t choice = chunk.begin + i - token * args.choices;
        const int32_t id = args.ids[token * args.ids_stride + choice];
        const bool known = id >= 0 && id < args.experts;
        chunk.experts[i] = known ? id : 0;
        if (!known && atomicCAS(&args.faults->fault, static_cast<int32_t>(Fault::kNone),
                                static_cast<int32_t>(Fault::kExpertId)) ==
                          static_cast<int32_t>(Fault::kNone)) {
            args.faults->arguments[0] = id;
            args.faults->arguments[1] = args.experts;
        }
    }
}

/// Counts of experts in a loaded chunk, by all threads of the block.
__device__ __forceinline__ void count_chunk(const GroupArgs& args,
                                            const Chunk& chunk,
                                            int32_t* counts) {
    for (int32_t e = threadIdx.x; e < args.experts; e += kGroupThreads) counts[e] = 0;
    __syncthreads();  // zeros before counts
    for (int32_t i = threadIdx.x; i < chunk.count; i += kGroupThreads)
        atomicAdd(counts + chunk.experts[i], 1);
    __syncthreads();  // counts are complete
}

/// Turns counts[chunk * experts + e] into first places and writes starts; by one block.
__device__ __forceinline__ void place_experts(const GroupArgs& args,
                                              int64_t chunks,
                                              int32_t* counts) {
    __shared__ int32_t of_warps[kGroupThreads / kWarp];
    const int32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    int32_t done = 0;  // pairs of the experts before this round's
    for (int32_t first = 0; first < args.experts; first += kGroupThreads) {
        const int32_t e = first + static_cast<int32_t>(threadIdx.x);
        int32_t count = 0;
        if (e < args.experts)
#pragma unroll 8
            for (int64_t chunk = 0; chunk < chunks; ++chunk)
                count += counts[chunk * args.experts + e];
        int32_t inclusive = count;
        for (int32_t distance = 1; distance < kWarp; distance *= 2) {
            const int32_t lower = __shfl_up_sync(kAllLanes, inclusive, distance);
            if (lane >= distance) inclusive += lower;
        }
        if (lane == kWarp - 1) of_warps[warp] = inclusive;
        __syncthreads();  // sums of all warps are there
        int32_t before = done;
        for (int32_t i = 0; i < kGroupThreads / kWarp; ++i) {
            if (i < warp) before += of_warps[i];
            done += of_warps[i];
        }
        __syncthreads();  // the next round writes of_warps
        if (e >= args.experts) continue;
        int32_t place = before + inclusive - count;
        args.starts[e] = place;
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
            const int32_t here = counts[chunk * args.experts + e];
            counts[chunk * args.experts + e] = place;
            place += here;
        }
    }
    if (threadIdx.x == 0) args.starts[args.experts] = done;
}

/// Writes the pairs of a loaded chunk from the places of their experts on, in order; by one warp.
__device__ __forceinline__ void place_chunk(const GroupArgs& args,
                                            const Chunk& chunk,
                                            int32_t* places) {
    const int32_t lane = threadIdx.x % kWarp;
    for (int32_t first = 0; first < chunk.count; first += kWarp) {
        const int32_t i = first + lane;
        const bool valid = i < chunk.count;
        const int32_t expert = valid ? chunk.experts[i] : -1;
        const unsigned same = __match_any_sync(kAllLanes, expert);
        const int32_t rank = __popc(same & ((1u << lane) - 1));
        const int32_t place = valid ? places[expert] + rank : 0;
        __syncwarp();  // all have read the places before one moves them on
        if (valid) {
            args.pairs[place] = chunk.begin + i;
            if (rank == 0) places[expert] += __popc(same);
        }
        __syncwarp();  // places have moved before the next pairs read them
    }
}

/// All of it, for pairs of one chunk.
__global__ __launch_bounds__(kGroupThreads) void group_small(
    const __grid_constant__ GroupArgs args) {
    extern __shared__ int32_t counts[];
    __shared__ int32_t experts[kChunkPairs];
    const Chunk chunk = chunk_of(args, 0, experts);
    load_chunk(args, chunk);
    count_chunk(args, chunk, counts);
    place_experts(args, 1, counts);
    __syncthreads();  // places are complete
    if (threadIdx.x < kWarp) place_chunk(args, chunk, counts);
}

__global__ __launch_bounds__(kGroupThreads) void count_experts(
    const __grid_constant__ GroupArgs args) {
    extern __shared__ int32_t counts[];
    __shared__ int32_t experts[kChunkPairs];
    const Chunk chunk = chunk_of(args, blockIdx.x, experts);
    load_chunk(args, chunk);
    count_chunk(args, chunk, counts);
    int32_t* to = args.places + int64_t{blockIdx.x} * args.experts;
    for (int32_t e = threadIdx.x; e < args.experts; e += kGroupThreads) to[e] = counts[e];
}

__global__ __launch_bounds__(kGroupThreads) void scan_experts(
    const __grid_constant__ GroupArgs args, int64_t chunks) {
    place_experts(args, chunks, args.places);
}

/// All threads load a chunk, one warp places it.
__global__ __launch_bounds__(kGroupThreads) void place_pairs(
    const __grid_constant__ GroupArgs args) {
    extern __shared__ int32_t places[];
    __shared__ int32_t experts[kChunkPairs];
    const Chunk chunk = chunk_of(args, blockIdx.x, experts);
    const int32_t* from = args.places + int64_t{blockIdx.x} * args.experts;
    for (int32_t e = threadIdx.x; e < args.experts; e += kGroupThreads) places[e] = from[e];
    load_chunk(args, chunk);
    __syncthreads();  // places and experts are loaded
    if (threadIdx.x < kWarp) place_chunk(args, chunk, places);
}

// ---- combine ----

constexpr int32_t kCombineThreads = 128;

struct CombineArgs {
    const float* y;
    int64_t y_stride;
    const float* weights;
    int64_t weights_stride;
    float* out;
    int64_t out_stride;
    int64_t cols;
    int32_t choices;
    bool add;
};

template <int32_t kWidth>
struct alignas(kWidth * sizeof(float)) Floats {
    float values[kWidth];
};

/// A row per grid.x, kWidth columns per thread.
template <int32_t kWidth>
__global__ __launch_bounds__(kCombineThreads) void combine_rows(
    const __grid_constant__ CombineArgs args) {
    using Vector = Floats<kWidth>;
    const int64_t row = blockIdx.x;
    const int64_t column = (int64_t{blockIdx.y} * kCombineThreads + threadIdx.x) * kWidth;
    if (column >= args.cols) return;
    const float* weights = args.weights + row * args.weights_stride;
    const float* y = args.y + row * args.choices * args.y_stride + column;
    Vector sums{};
#pragma unroll 4
    for (int32_t j = 0; j < args.choices; ++j) {
        const Vector from = *reinterpret_cast<const Vector*>(y + j * args.y_stride);
        const float weight = weights[j];
#pragma unroll
        for (int32_t i = 0; i < kWidth; ++i)
            sums.values[i] = fmaf(weight, from.values[i], sums.values[i]);
    }
    auto* to = reinterpret_cast<Vector*>(args.out + row * args.out_stride + column);
    if (args.add) {
        const Vector old = *to;
#pragma unroll
        for (int32_t i = 0; i < kWidth; ++i) sums.values[i] += old.values[i];
    }
    *to = sums;
}

bool fits_vectors(const Tensor& tensor) {
    return reinterpret_cast<uintptr_t>(tensor.data) % (4 * sizeof(float)) == 0 &&
           tensor.stride[0] % 4 == 0 && tensor.cols() % 4 == 0;
}

}  // namespace

void CudaOps::route(Exec& ex,
                    const Tensor& logits,
                    const Tensor& bias,
                    const RouteParams& params,
                    const Tensor& ids,
                    const Tensor& weights) {
    const int64_t rows = logits.rows(), experts = logits.cols(), choices = ids.cols();
    check_route(logits, bias, ids, weights);
    if (ex.planning() || rows == 0) return;
    const auto elements = static_cast<double>(logits.elements());
    const Timed timed(*this, "route", 8 * elements, 4 * elements);
    const RouteArgs args{.logits = logits.as<float>(),
                         .logits_stride = logits.stride[0],
                         .bias = bias.as<float>(),
                         .ids = ids.as<int32_t>(),
                         .ids_stride = ids.stride[0],
                         .weights = weights.as<float>(),
                         .weights_stride = weights.stride[0],
                         .rows = rows,
                         .experts = static_cast<int32_t>(experts),
                         .choices = static_cast<int32_t>(choices),
                         .params = params};
    const size_t bytes = route_bytes(args.experts, args.choices);
    const int32_t warps = kRouteWarps * bytes <= kSharedBytes ? kRouteWarps : 1;
    device_->launch("route_rows", route_rows, dim3(static_cast<unsigned>(ceil_div(rows, warps))),
                    dim3(static_cast<unsigned>(warps * kWarp)), static_cast<size_t>(warps) * bytes,
                    args);
}

ExpertWork CudaOps::group_experts(Exec& ex, const Tensor& ids, int32_t experts) {
    check(ids.rank == 2 && ids.dtype == DType::kI32, "group_experts: ids are I32 [T, k]");
    check(experts > 0 && ids.elements() <= INT32_MAX, "group_experts: sizes");
    const int64_t pair_count = ids.elements(), chunks = ceil_div(pair_count, kChunkPairs);
    const ExpertWork work{
        .pairs = ex.arena.allocate(DType::kI32, {pair_count}),
        .starts = ex.arena.allocate(DType::kI32, {experts + 1}),
        .choices = static_cast<int32_t>(ids.cols()),
    };
    const Scope scope(ex.arena);
    const Tensor places = chunks > 1 ? ex.arena.allocate(DType::kI32, {chunks, experts}) : Tensor{};
    if (ex.planning()) return work;
    const Timed timed(*this, "group_experts", 0, 8 * static_cast<double>(pair_count));
    const GroupArgs args{.ids = ids.as<int32_t>(),
                         .ids_stride = ids.stride[0],
                         .pair_count = static_cast<int32_t>(pair_count),
                         .choices = work.choices,
                         .experts = experts,
                         .pairs = work.pairs.as<int32_t>(),
                         .starts = work.starts.as<int32_t>(),
                         .places = places.as<int32_t>(),
                         .faults = device_->faults()};
    const size_t bytes = static_cast<size_t>(experts) * sizeof(int32_t);
    if (chunks <= 1) {
        device_->launch("group_small", group_small, dim3(1), dim3(kGroupThreads), bytes, args);
        return work;
    }
    const dim3 grid(static_cast<unsigned>(chunks));
    device_->launch("count_experts", count_experts, grid, dim3(kGroupThreads), bytes, args);
    device_->launch("scan_experts", scan_experts, dim3(1), dim3(kGroupThreads), 0, args, chunks);
    device_->launch("place_pairs", place_pairs, grid, dim3(kGroupThreads), bytes, args);
    return work;
}

void CudaOps::combine(
    Exec& ex, const Tensor& y, const Tensor& weights, const Tensor& out, Accumulate accumulate) {
    const int64_t rows = weights.rows(), choices = weights.cols(), cols = y.cols();
    check_combine(y, weights, out);
    if (ex.planning() || rows == 0) return;
    const auto elements = static_cast<double>(y.elements());
    const Timed timed(*this, "combine", 2 * elements,
                      4 * elements + 4 * static_cast<double>(out.elements()));
    const CombineArgs args{.y = y.as<float>(),
                           .y_stride = y.stride[0],
                           .weights = weights.as<float>(),
                           .weights_stride = weights.stride[0],
                           .out = out.as<float>(),
                           .out_stride = out.stride[0],
                           .cols = cols,
                           .choices = static_cast<int32_t>(choices),
                           .add = accumulate == Accumulate::kAdd};
    const bool wide = fits_vectors(y) && fits_vectors(out);
    const dim3 grid(static_cast<unsigned>(rows),
                    static_cast<unsigned>(ceil_div(cols, kCombineThreads * (wide ? 4 : 1))));
    device_->launch("combine_rows", wide ? combine_rows<4> : combine_rows<1>, grid,
                    dim3(kCombineThreads), 0, args);
}

}  // namespace tessera::cuda
