#pragma once
// Rotary position embedding. Bound by bytes: every rotated element is read and written once. A
// block takes some heads of a token and first tabulates the sines and cosines of the token: one
// power of two in f64 and one sine a pair, whatever the number of heads.

#include "backends/cuda/rows/rope_turn.cuh"

namespace tessera::cuda::rows {

struct RopeArguments {
    float* x = nullptr;
    int64_t token_stride = 0;
    int64_t head_stride = 0;
    int32_t heads = 0;
    int32_t heads_per_block = 0;
    RopeAngles angles;
};

static __global__ void __launch_bounds__(256) rope_kernel(const __grid_constant__ RopeArguments a) {
    extern __shared__ float2 rope_turns[];
    const int64_t token = blockIdx.x;
    const int32_t threads = static_cast<int32_t>(blockDim.x);
    const int32_t first = static_cast<int32_t>(threadIdx.x);
    const int32_t half = a.angles.half;
    for (int32_t i = first; i < half; i += threads) rope_turns[i] = rope_turn(a.angles, token, i);
    __syncthreads();  // the table is complete

    const int32_t head_begin = static_cast<int32_t>(blockIdx.y) * a.heads_per_block;
    const int32_t heads = min(a.heads_per_block, a.heads - head_begin);
    float* x = a.x + token * a.token_stride + head_begin * a.head_stride;
    for (int32_t index = first; index < heads * half; index += threads) {
        const int32_t head = index / half;
        const int32_t i = index - head * half;
        float* values = x + head * a.head_stride;
        const int2 pair = rope_pair(a.angles, i);
        rotate_pair(values + pair.x, values + pair.y, rope_turns[i]);
    }
}

}  // namespace tessera::cuda::rows
