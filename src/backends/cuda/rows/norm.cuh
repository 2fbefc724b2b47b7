#pragma once
// Norms of rows and what follows them. Bound by bytes: a row is read once, kept in registers until
// its sum is known, and written once. Rows of up to 256 columns (heads) take a warp each, longer
// ones a block; a gated norm of short heads takes a block a token. Every load of a thread is under
// way before it waits for the first, gains among them: a lone row waits for memory once.
//
// Instructions are nearly as scarce as bytes, those fetched for the first time by a lone row above
// all: only whole aligned rows of values whose squares stay in f32 take the short path. The others
// are read again for each step (norm_from_memory), with the same threads and sums.

#include "backends/cuda/rows/rows.cuh"

namespace tessera::cuda::rows {

enum class NormKind : uint8_t {
    kRms,         ///< out = x / sqrt(mean + eps) * gain
    kRmsInput,    ///< the same as a matrix input
    kGatedInput,  ///< times silu(z), `heads` rows making one row of the input
    kL2           ///< out = x / sqrt(sum + eps)
};

struct NormArguments {
    RowMap<const float> x;
    RowMap<const float> z;        ///< kGatedInput
    RowMap<float> out;            ///< kRms, kL2
    InputSink sink;               ///< kRmsInput, kGatedInput
    const float* gain = nullptr;  ///< null: 1
    float eps = 0.0f;
    int32_t cols = 0;
    uint32_t rows = 0;
    uint32_t heads = 1;
    bool vector = false;  ///< whole fours only, each at a multiple of 16 bytes
};

inline constexpr int32_t kWarpCols = 256;     ///< rows up to this length take a warp
inline constexpr int32_t kWarpsPerBlock = 8;  ///< then
inline constexpr int32_t kMaxThreads = 576;   ///< of a block that takes a row
/// Fours that a thread keeps: all of a row of up to 256 (a warp) or 9216 columns (a block).
inline constexpr int32_t kWarpHeld = 2;
inline constexpr int32_t kBlockHeld = 4;

/// Whether no square that matters has left the range of f32.
__device__ __forceinline__ bool in_range(float squares) {
    return squares > 1e-25f && squares < 1e37f;
}

/// 1 / sqrt(squares (/ cols) + eps) of a sum in range.
template <NormKind kKind>
__device__ __forceinline__ float factor_in_range(float squares, int64_t cols, float eps) {
    const float count = kKind == NormKind::kL2 ? 1.0f : static_cast<float>(cols);
    return __frsqrt_rn(__fadd_rn(__fdiv_rn(squares, count), eps));
}

/// The same of any sum in f64.
template <NormKind kKind>
__device__ __forceinline__ float factor_beyond(double squares, int64_t cols, float eps) {
    const double count = kKind == NormKind::kL2 ? 1.0 : static_cast<double>(cols);
    return static_cast<float>(1.0 / sqrt(squares / count + static_cast<double>(eps)));
}

/// 1 / sqrt(sum of squares (/ cols) + eps) of the row, in every thread of its group.
/// `for_each(f)` calls f with every value of the thread, in the order in which `mine` took them.
template <NormKind kKind, bool kWarp, class ForEach>
__device__ __forceinline__ float norm_factor(const Sum& mine,
                                             const ForEach& for_each,
                                             int64_t cols,
                                             float eps) {
    const float squares = reduce<kWarp>(mine, Sum{0.0f, 0.0f}, Add{}).value();
    if (in_range(squares)) return factor_in_range<kKind>(squares, cols, eps);
    double wide = 0.0;
    for_each([&wide](float value) {
        wide = __fma_rn(static_cast<double>(value), static_cast<double>(value), wide);
    });
    return factor_beyond<kKind>(reduce<kWarp>(wide, 0.0, Add{}), cols, eps);
}

/// norm_factor of four rows that a warp holds, a four a lane; `rows` of them are there.
template <NormKind kKind>
__device__ __forceinline__ void norm_factors(
    const Four (&fours)[4], int32_t rows, int64_t cols, float eps, float (&factors)[4]) {
    Sum sums[4];
#pragma unroll
    for (int32_t r = 0; r < 4; ++r) {
        sums[r] = Sum{0.0f, 0.0f};
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) sums[r].add_square(fours[r].value[i]);
    }
    // Eight lanes work on a factor.
    const float squares = reduce_four(sums, Add{}).value();
    const bool fine = in_range(squares) || static_cast<int32_t>(threadIdx.x % 32) / 8 >= rows;
    float factor = factor_in_range<kKind>(squares, cols, eps);
    if (!__all_sync(0xffffffffu, fine)) {
        double wide[4] = {0.0, 0.0, 0.0, 0.0};
#pragma unroll
        for (int32_t r = 0; r < 4; ++r)
#pragma unroll
            for (int32_t i = 0; i < 4; ++i) {
                const auto value = static_cast<double>(fours[r].value[i]);
                wide[r] = __fma_rn(value, value, wide[r]);
            }
        const float other = factor_beyond<kKind>(reduce_four(wide, Add{}), cols, eps);
        if (!fine) factor = other;
    }
#pragma unroll
    for (int32_t r = 0; r < 4; ++r) factors[r] = __shfl_sync(0xffffffffu, factor, 8 * r);
}

__device__ __forceinline__ void norm_scale(Four& four, float factor, const Four& gains) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i)
        four.value[i] = __fmul_rn(__fmul_rn(four.value[i], factor), gains.value[i]);
}

/// Columns [column, column + 4) of a row that `factor` norms; `gain` null: 1.
__device__ __forceinline__ void norm_scale(
    Four& four, float factor, const float* gain, int64_t column, int64_t cols, bool vector) {
    Four gains{{1.0f, 1.0f, 1.0f, 1.0f}};
    if (gain != nullptr) gains = load_four(gain, column, cols, vector);
    norm_scale(four, factor, gains);
}

/// Where a row of any kind goes; the columns of a head start at `first` of its token.
template <NormKind kKind>
struct NormTarget {
    RowSink sink;
    float* out = nullptr;
    int64_t first = 0;

    __device__ __forceinline__ NormTarget(const NormArguments& a, uint32_t row) {
        if constexpr (kKind == NormKind::kRmsInput) {
            sink = a.sink.row(row);
        } else if constexpr (kKind == NormKind::kGatedInput) {
            const uint32_t token = row / a.heads;
            sink = a.sink.row(token);
            first = static_cast<int64_t>(row - token * a.heads) * a.cols;
        } else {
            out = a.out.row(row);
        }
    }
    __device__ __forceinline__ void store(const Four& four,
                                          int32_t column,
                                          const NormArguments& a) const {
        if constexpr (kKind == NormKind::kRmsInput || kKind == NormKind::kGatedInput)
            sink.store(four, first + column, first + a.cols, a.vector);
        else
            store_four(four, column, a.cols, a.vector, out);
    }
    __device__ __forceinline__ void store_whole(const Four& four, int32_t column) const {
        if constexpr (kKind == NormKind::kRmsInput)
            sink.store_whole(four, column);
        else
            *reinterpret_cast<float4*>(out + column) =
                make_float4(four.value[0], four.value[1], four.value[2], four.value[3]);
    }
};

/// A row of any length and any values, from memory each time: columns are those of the same threads
/// as in registers, sums in the same order.
template <NormKind kKind, bool kWarp>
__device__ __forceinline__ void norm_from_memory(const NormArguments& a,
                                                 uint32_t row,
                                                 int32_t lane,
                                                 int32_t lanes) {
    if constexpr (!kWarp) __syncthreads();  // the sum before this one has been read
    const float* x = a.x.row(row);
    const auto for_each = [&](const auto& f) {
        for (int32_t column = 4 * lane; column < a.cols; column += 4 * lanes) {
            const Four four = load_four(x, column, a.cols, a.vector);
#pragma unroll
            for (int32_t i = 0; i < 4; ++i) f(four.value[i]);
        }
    };
    Sum sum{0.0f, 0.0f};
    for_each([&sum](float value) { sum.add_square(value); });
    const float factor = norm_factor<kKind, kWarp>(sum, for_each, a.cols, a.eps);
    const NormTarget<kKind> target(a, row);
    // In place, a thread reads again only what it alone writes.
    for (int32_t column = 4 * lane; column < a.cols; column += 4 * lanes) {
        Four four = load_four(x, column, a.cols, a.vector);
        norm_scale(four, factor, a.gain, column, a.cols, a.vector);
        if constexpr (kKind == NormKind::kGatedInput)
            apply_gate(four, load_four(a.z.row(row), column, a.cols, a.vector));
        target.store(four, column, a);
    }
}

template <NormKind kKind, bool kWarp>
__global__ void __launch_bounds__(kWarp ? 32 * kWarpsPerBlock : kMaxThreads, kWarp ? 4 : 2)
    norm_kernel(const __grid_constant__ NormArguments a) {
    constexpr int32_t kHeld = kWarp ? kWarpHeld : kBlockHeld;
    const int32_t lanes = kWarp ? 32 : static_cast<int32_t>(blockDim.x);
    const int32_t lane = static_cast<int32_t>(kWarp ? threadIdx.x % 32 : threadIdx.x);
    const uint32_t row = kWarp ? blockIdx.x * kWarpsPerBlock + threadIdx.x / 32 : blockIdx.x;
    if (row >= a.rows) return;  // a whole warp at a time
    // Gates would not fit into the registers, either.
    if (kKind != NormKind::kGatedInput && a.vector && a.cols <= 4 * kHeld * lanes) {
        const float* x = a.x.row(row);
        Four held[kHeld], gains[kHeld];
#pragma unroll
        for (int32_t g = 0; g < kHeld; ++g) {
            const int32_t column = 4 * (g * lanes + lane);
            held[g] = Four{{0.0f, 0.0f, 0.0f, 0.0f}};
            if (column < a.cols) held[g] = load_whole_four(x + column);
        }
#pragma unroll
        for (int32_t g = 0; g < kHeld; ++g) {
            const int32_t column = 4 * (g * lanes + lane);
            gains[g] = Four{{1.0f, 1.0f, 1.0f, 1.0f}};
            if (kKind != NormKind::kL2 && a.gain != nullptr && column < a.cols)
                gains[g] = load_whole_four(a.gain + column);
        }
        Sum sum{0.0f, 0.0f};
#pragma unroll
        for (int32_t g = 0; g < kHeld; ++g)
#pragma unroll
            for (int32_t i = 0; i < 4; ++i) sum.add_square(held[g].value[i]);
        const float squares = reduce<kWarp>(sum, Sum{0.0f, 0.0f}, Add{}).value();
        if (in_range(squares)) {
            const float factor = factor_in_range<kKind>(squares, a.cols, a.eps);
            const NormTarget<kKind> target(a, row);
#pragma unroll
            for (int32_t g = 0; g < kHeld; ++g) {
                const int32_t column = 4 * (g * lanes + lane);
                if (column >= a.cols) break;
                norm_scale(held[g], factor, gains[g]);
                target.store_whole(held[g], column);
            }
            return;
        }
    }
    norm_from_memory<kKind, kWarp>(a, row, lane, lanes);
}

}  // namespace tessera::cuda::rows
