#pragma once
// The gated norm of short heads: a block takes the heads of a token, a warp several at a time.
// Bound by bytes (10 an element) once their instructions are few: sums of four heads are joined
// together. Before, a warp took one head: 93 us for 2048 tokens of 48 heads of 128 on an H200.

#include "backends/cuda/rows/norm.cuh"

namespace tessera::cuda::rows {

inline constexpr int32_t kGatedCols = 128;  ///< of heads of which a warp has several under way
inline constexpr int32_t kGatedHeads = 4;
inline constexpr int32_t kGatedWarps = 12;  ///< of a block then, at most

/// kGatedInput of heads of up to kGatedCols columns, whole and aligned. A warp takes kGatedHeads
/// heads at a time. Grid: tokens, shares of their heads.
__global__ void __launch_bounds__(32 * kGatedWarps, 2)
    gated_norm_kernel(const __grid_constant__ NormArguments a) {
    const auto warp = static_cast<int32_t>(threadIdx.x / 32);
    const auto column = 4 * static_cast<int32_t>(threadIdx.x % 32);
    const auto warps = static_cast<int32_t>(blockDim.x / 32);
    const auto heads = static_cast<int32_t>(a.heads);
    const int32_t step = static_cast<int32_t>(gridDim.y) * warps;
    const uint32_t first_row = blockIdx.x * a.heads;
    const bool mine = column < a.cols;
    Four gains{{1.0f, 1.0f, 1.0f, 1.0f}};
    if (mine && a.gain != nullptr) gains = load_whole_four(a.gain + column);
    for (int32_t first = static_cast<int32_t>(blockIdx.y) * warps + warp; first < heads;
         first += kGatedHeads * step) {
        Four held[kGatedHeads], gates[kGatedHeads];
#pragma unroll
        for (int32_t h = 0; h < kGatedHeads; ++h) {
            const int32_t head = first + h * step;
            held[h] = gates[h] = Four{{0.0f, 0.0f, 0.0f, 0.0f}};
            if (head >= heads || !mine) continue;
            const uint32_t row = first_row + static_cast<uint32_t>(head);
            held[h] = load_whole_four_once(a.x.row(row) + column);
            gates[h] = load_whole_four_once(a.z.row(row) + column);
        }
        float factors[kGatedHeads];
        const int32_t there = (heads - first + step - 1) / step;
        norm_factors<NormKind::kGatedInput>(held, there, a.cols, a.eps, factors);
        const RowSink sink = a.sink.row(blockIdx.x);
#pragma unroll
        for (int32_t h = 0; h < kGatedHeads; ++h) {
            if (h >= there) break;
            if (!mine) continue;
            norm_scale(held[h], factors[h], gains);
            apply_gate(held[h], gates[h]);
            sink.store_whole(held[h], (first + h * step) * a.cols + column);
        }
    }
}

}  // namespace tessera::cuda::rows
