#pragma once
// Norms of rows and what follows them. Bound by bytes: a row is read once and written once (short
// ones are kept in registers between the two passes). Rows of up to 256 columns (heads) take a warp
// each, longer ones a block.

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
    int64_t cols = 0;
    uint32_t rows = 0;
    uint32_t heads = 1;
    bool vector = false;
};

inline constexpr int32_t kWarpCols = 256;     ///< rows up to this length take a warp
inline constexpr int32_t kWarpsPerBlock = 8;  ///< then
inline constexpr int32_t kMaxThreads = 1024;  ///< of a block that takes a row
/// Fours that a thread keeps: all of a row of up to 256 (a warp) or 16384 columns (a block).
/// Several loads are under way at once, and several blocks fit a multiprocessor: while one waits
/// for its sum, others load.
inline constexpr int32_t kWarpHeld = 2;
inline constexpr int32_t kBlockHeld = 4;

/// 1 / sqrt(sum of squares (/ cols) + eps) of the row, in every thread of its group.
/// `for_each(f)` calls f with every value of the thread, in the order in which `mine` took them.
template <NormKind kKind, bool kWarp, class ForEach>
__device__ __forceinline__ float norm_factor(const Sum& mine,
                                             const ForEach& for_each,
                                             int64_t cols,
                                             float eps) {
    const Sum sum = reduce<kWarp>(mine, Sum{0.0f, 0.0f}, Add{});
    const float squares = __fadd_rn(sum.high, sum.low);
    const float count = kKind == NormKind::kL2 ? 1.0f : static_cast<float>(cols);
    // Inside these limits no square that matters has left the range of f32.
    if (squares > 1e-25f && squares < 1e37f)
        return __frsqrt_rn(__fadd_rn(__fdiv_rn(squares, count), eps));
    double wide = 0.0;
    for_each([&wide](float value) {
        wide = __fma_rn(static_cast<double>(value), static_cast<double>(value), wide);
    });
    wide = reduce<kWarp>(wide, 0.0, Add{});
    return static_cast<float>(1.0 /
                              sqrt(wide / static_cast<double>(count) + static_cast<double>(eps)));
}

/// Columns [column, column + 4) of a row that `factor` norms; `gain` null: 1.
__device__ __forceinline__ void norm_scale(
    Four& four, float factor, const float* gain, int64_t column, int64_t cols, bool vector) {
    Four gains{{1.0f, 1.0f, 1.0f, 1.0f}};
    if (gain != nullptr) gains = load_four(gain, column, cols, vector);
#pragma unroll
    for (int32_t i = 0; i < 4; ++i)
        four.value[i] = __fmul_rn(__fmul_rn(four.value[i], factor), gains.value[i]);
}

/// `gate`: of kGatedInput.
template <NormKind kKind>
__device__ __forceinline__ void norm_store(Four four,
                                           const Four& gate,
                                           uint32_t row,
                                           int64_t column,
                                           float factor,
                                           const NormArguments& a) {
    norm_scale(four, factor, a.gain, column, a.cols, a.vector);
    if constexpr (kKind == NormKind::kRmsInput) {
        a.sink.store(four, row, column, a.cols, a.vector);
    } else if constexpr (kKind == NormKind::kGatedInput) {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i)
            four.value[i] = activate(Glu::kSwiGlu, gate.value[i]) * four.value[i];
        const uint32_t token = row / a.heads;
        const int64_t first = (row - token * a.heads) * a.cols;
        a.sink.store(four, token, first + column, first + a.cols, a.vector);
    } else {
        store_four(four, column, a.cols, a.vector, a.out.row(row));
    }
}

template <NormKind kKind, bool kWarp>
__global__ void __launch_bounds__(kWarp ? 32 * kWarpsPerBlock : kMaxThreads, 1)
    norm_kernel(const __grid_constant__ NormArguments a) {
    // Longer rows would hold more than there are registers.
    constexpr bool kGates = kWarp && kKind == NormKind::kGatedInput;
    constexpr int32_t kHeld = kWarp ? kWarpHeld : kBlockHeld;
    const int32_t lanes = kWarp ? 32 : static_cast<int32_t>(blockDim.x);
    const int32_t lane = static_cast<int32_t>(kWarp ? threadIdx.x % 32 : threadIdx.x);
    const uint32_t row = kWarp ? blockIdx.x * kWarpsPerBlock + threadIdx.x / 32 : blockIdx.x;
    if (row >= a.rows) return;  // a whole warp at a time
    const float* x = a.x.row(row);
    Four held[kHeld];
    Sum sum{0.0f, 0.0f};
    const auto square = [&sum](const Four& four) {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) sum.add_square(four.value[i]);
    };
#pragma unroll
    for (int32_t g = 0; g < kHeld; ++g)
        held[g] = load_four(x, 4 * (int64_t{g} * lanes + lane), a.cols, a.vector);
    const auto gate_of = [&](int64_t column) {
        if constexpr (kKind == NormKind::kGatedInput)
            return load_four(a.z.row(row), column, a.cols, a.vector);
        return Four{};
    };
    Four gates[kHeld];
    if constexpr (kGates) {
#pragma unroll
        for (int32_t g = 0; g < kHeld; ++g) gates[g] = gate_of(4 * (int64_t{g} * lanes + lane));
    }
#pragma unroll
    for (int32_t g = 0; g < kHeld; ++g) square(held[g]);
    const int64_t rest = 4 * (int64_t{kHeld} * lanes + lane);
    for (int64_t column = rest; column < a.cols; column += 4 * lanes)
        square(load_four(x, column, a.cols, a.vector));

    const auto for_each = [&](const auto& f) {
        const auto four_values = [&f](const Four& four) {
#pragma unroll
            for (int32_t i = 0; i < 4; ++i) f(four.value[i]);
        };
#pragma unroll
        for (int32_t g = 0; g < kHeld; ++g) four_values(held[g]);
        for (int64_t column = rest; column < a.cols; column += 4 * lanes)
            four_values(load_four(x, column, a.cols, a.vector));
    };
    const float factor = norm_factor<kKind, kWarp>(sum, for_each, a.cols, a.eps);
#pragma unroll
    for (int32_t g = 0; g < kHeld; ++g) {
        const int64_t column = 4 * (int64_t{g} * lanes + lane);
        if (column >= a.cols) continue;
        norm_store<kKind>(held[g], kGates ? gates[g] : gate_of(column), row, column, factor, a);
    }
    // In place, a thread reads again only what it alone writes.
    for (int64_t column = rest; column < a.cols; column += 4 * lanes) {
        norm_store<kKind>(load_four(x, column, a.cols, a.vector), gate_of(column), row, column,
                          factor, a);
    }
}

}  // namespace tessera::cuda::rows
