#pragma once
// Rotary position embedding. Bound by bytes: every rotated element is read and written once. A
// block takes some heads of a token and first tabulates the sines and cosines of the token: one
// power of two in f64 and one sine a pair, whatever the number of heads.
//
// The frequency of a pair is 2^(-i step), so nothing has to be tabulated beforehand (tables would
// have to live somewhere, and a table among the arguments is read one entry at a time). Angles are
// reduced to a fraction of a turn in f64, after which f32 is precise.

#include "backends/cuda/rows/rows.cuh"

namespace tessera::cuda::rows {

struct RopeArguments {
    float* x = nullptr;
    int64_t token_stride = 0;
    int64_t head_stride = 0;
    int32_t heads = 0;
    int32_t heads_per_block = 0;
    const int32_t* positions = nullptr;
    int32_t axes = 1;                     ///< positions a token has: 1 or 3
    const float* freq_factors = nullptr;  ///< null: 1
    int32_t half = 0;                     ///< pairs of a head
    bool adjacent = false;
    bool yarn = false;
    int32_t sections[3] = {0, 0, 0};
    double step = 0.0;  ///< log2(base) * 2 / rotary
    double freq_scale = 1.0;
    double low = 0.0;  ///< of the ramp of YaRN
    double width = 1.0;
    float magnitude = 1.0f;
};

/// Radians a position that pair `i` turns by.
__device__ __forceinline__ double rope_frequency(const RopeArguments& a, int32_t i) {
    double theta = exp2(-i * a.step);
    if (a.freq_factors != nullptr) theta /= static_cast<double>(a.freq_factors[i]);
    if (!a.yarn) return theta * a.freq_scale;
    const double keep = 1.0 - fmin(fmax((i - a.low) / a.width, 0.0), 1.0);
    return theta * a.freq_scale * (1.0 - keep) + theta * keep;
}

/// Cosine and sine of pair `i` at `place`, the positions of a token.
__device__ __forceinline__ float2 rope_turn(const RopeArguments& a,
                                            const int32_t* place,
                                            int32_t i) {
    constexpr double kTurnsPerRadian = 0.15915494309189535;
    const int32_t axis = i % 3;
    const int32_t section = a.sections[axis];
    const int32_t position = place[a.axes == 1 || i >= 3 * section ? 0 : axis];
    double turns = position * rope_frequency(a, i) * kTurnsPerRadian;
    turns -= rint(turns);
    float sine, cosine;
    sincospif(static_cast<float>(2.0 * turns), &sine, &cosine);
    return make_float2(a.magnitude * cosine, a.magnitude * sine);
}

static __global__ void __launch_bounds__(256) rope_kernel(const __grid_constant__ RopeArguments a) {
    extern __shared__ float2 rope_turns[];
    const int64_t token = blockIdx.x;
    const int32_t threads = static_cast<int32_t>(blockDim.x);
    const int32_t first = static_cast<int32_t>(threadIdx.x);
    for (int32_t i = first; i < a.half; i += threads)
        rope_turns[i] = rope_turn(a, a.positions + token * a.axes, i);
    __syncthreads();  // the table is complete

    const int32_t head_begin = static_cast<int32_t>(blockIdx.y) * a.heads_per_block;
    const int32_t heads = min(a.heads_per_block, a.heads - head_begin);
    float* x = a.x + token * a.token_stride + head_begin * a.head_stride;
    for (int32_t index = first; index < heads * a.half; index += threads) {
        const int32_t head = index / a.half;
        const int32_t i = index - head * a.half;
        float* one = x + head * a.head_stride + (a.adjacent ? 2 * i : i);
        float* other = one + (a.adjacent ? 1 : a.half);
        const float2 turn = rope_turns[i];
        const float p = *one, q = *other;
        *one = p * turn.x - q * turn.y;
        *other = p * turn.y + q * turn.x;
    }
}

}  // namespace tessera::cuda::rows
