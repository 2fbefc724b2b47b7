#pragma once
// The end of gated products: values in the threads that have the sums, and on Hopper 32 tokens of a
// warpgroup's 32 features to bf16. There a warp has eight features: rows 0 to 7 of its products are
// their gate, rows 8 to 15 their up, so that a thread has sums[4 j + i] of gate and
// sums[4 j + 2 + i] of up for token 8 j + 2 t + i.

#include <cuda_bf16.h>

#include "backends/cuda/linear/hopper_tiles.cuh"
#include "backends/cuda/ptx/named_barrier.cuh"
#include "backends/cuda/rows/rows.cuh"

namespace tessera::cuda::hopper {

/// act(gate) * up of 32 tokens for one feature of this thread, of which it has gates[4 j + i] and
/// ups[4 j + i] for token 8 j + 2 t + i; their factors are those of rows 0 and 1 of `factors` at
/// tokens from `place`.
template <Glu kKind, class Factors>
__device__ __forceinline__ void gate_values_of(
    const Factors& factors, int place, const float* gates, const float* ups, float (&values)[8]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const float2 of_tokens = factors.of_tokens(place + 8 * j);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float of_token = i == 0 ? of_tokens.x : of_tokens.y;
            const float gate = __fmul_rn(gates[4 * j + i], factors.of(0, of_token));
            const float up = __fmul_rn(ups[4 * j + i], factors.of(1, of_token));
            values[2 * j + i] = rows::activate(kKind, gate) * up;
        }
    }
}
template <class Factors>
__device__ __forceinline__ void gate_values(Glu kind,
                                            const Factors& factors,
                                            int place,
                                            const float* gates,
                                            const float* ups,
                                            float (&values)[8]) {
    if (kind == Glu::kSwiGlu)
        gate_values_of<Glu::kSwiGlu>(factors, place, gates, ups, values);
    else
        gate_values_of<Glu::kReGlu>(factors, place, gates, ups, values);
}

/// Values of one token for a feature and its neighbour, rounded: token 8 j + 2 t of threads with an
/// even feature, 8 j + 2 t + 1 of those with an odd one. The lanes of a warp together.
__device__ __forceinline__ __nv_bfloat162 gated_pair(const float (&values)[8], int j, bool odd) {
    const float sent = odd ? values[2 * j] : values[2 * j + 1];
    const float got = __shfl_xor_sync(kAllLanes, sent, 4);
    return __floats2bfloat162_rn(odd ? got : values[2 * j], odd ? values[2 * j + 1] : got);
}

/// Where gated values go.
struct GatedOut {
    const CUtensorMap* map;
    unsigned char* collected;  ///< kOutBytes of the warpgroup
    bool pairs;                ///< ActView::transposed_pairs, else in order
};

/// Stores 32 tokens of a warpgroup's 32 features: neighbours in a feature make words of pairs,
/// shared memory collects the words of the four warps, the copy engine stores rows of 64 bytes as
/// far as they are inside of the result.
__device__ __forceinline__ void store_gated_round(
    const GatedOut& out, int thread, int32_t token, int32_t feature, const float (&values)[8]) {
    const int warpgroup = thread / 128;
    const int warp = thread / 32 % 4, lane = thread % 32, group = lane / 4, t = lane % 4;
    const bool odd = group % 2 == 1;
    const int word = out.pairs ? group / 2 * 4 + warp : warp * 4 + group / 2;
    // What was there before has been read.
    if (thread % 128 == 0) store_wait_read();
    __syncwarp();
    named_sync(1 + warpgroup, 128);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const int row = 8 * j + 2 * t + group % 2;
        *reinterpret_cast<__nv_bfloat162*>(out.collected + row * 64 + word * 4) =
            gated_pair(values, j, odd);
    }
    fence_async_proxy();
    named_sync(1 + warpgroup, 128);
    if (thread % 128 == 0) {
        store_box(out.map, feature, token, out.collected);
        store_commit();
    }
}

}  // namespace tessera::cuda::hopper
