#pragma once
// Angles of rotary position embedding. The frequency of a pair is 2^(-i step), so nothing has to be
// tabulated beforehand (tables would have to live somewhere, and a table among the arguments is
// read one entry at a time). Angles are reduced to a fraction of a turn in f64, after which f32 is
// precise. Every rounding is written out, so that all kernels that rotate give the same bits.

#include <cuda_runtime.h>

#include <cstdint>

namespace tessera::cuda::rows {

struct RopeAngles {
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
__device__ __forceinline__ double rope_frequency(const RopeAngles& a, int32_t i) {
    double theta = exp2(__dmul_rn(-i, a.step));
    if (a.freq_factors != nullptr) theta = __ddiv_rn(theta, static_cast<double>(a.freq_factors[i]));
    const double scaled = __dmul_rn(theta, a.freq_scale);
    if (!a.yarn) return scaled;
    const double keep = __dsub_rn(1.0, fmin(fmax(__ddiv_rn(i - a.low, a.width), 0.0), 1.0));
    return __fma_rn(scaled, __dsub_rn(1.0, keep), __dmul_rn(theta, keep));
}

/// Cosine and sine of pair `i` of a token.
__device__ __forceinline__ float2 rope_turn(const RopeAngles& a, int64_t token, int32_t i) {
    constexpr double kTurnsPerRadian = 0.15915494309189535;
    const int32_t* place = a.positions + token * a.axes;
    const int32_t axis = i % 3;
    const int32_t section = a.sections[axis];
    const int32_t position = place[a.axes == 1 || i >= 3 * section ? 0 : axis];
    double turns = __dmul_rn(__dmul_rn(position, rope_frequency(a, i)), kTurnsPerRadian);
    turns = __dsub_rn(turns, rint(turns));
    float sine, cosine;
    sincospif(static_cast<float>(__dmul_rn(2.0, turns)), &sine, &cosine);
    return make_float2(__fmul_rn(a.magnitude, cosine), __fmul_rn(a.magnitude, sine));
}

/// Where the two elements of pair `i` stand in a head.
__device__ __forceinline__ int2 rope_pair(const RopeAngles& a, int32_t i) {
    return a.adjacent ? make_int2(2 * i, 2 * i + 1) : make_int2(i, i + a.half);
}

__device__ __forceinline__ void rotate_pair(float* one, float* other, float2 turn) {
    const float p = *one, q = *other;
    *one = __fmaf_rn(p, turn.x, -__fmul_rn(q, turn.y));
    *other = __fmaf_rn(p, turn.y, __fmul_rn(q, turn.x));
}

}  // namespace tessera::cuda::rows
