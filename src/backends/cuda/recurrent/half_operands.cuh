#pragma once
// The gated delta rule for prompt rows with plain 16-bit operands: what
// half_prepare.cuh leaves for half_scan.cuh. Sums, states, gates and the solve
// of 16 x 16 blocks stay in f32.

#include <type_traits>

#include "backends/cuda/ptx/mma.cuh"
#include "backends/cuda/ptx/mma_f16.cuh"
#include "backends/cuda/ptx/saturate.cuh"
#include "backends/cuda/recurrent/chunks.cuh"
#include "backends/cuda/recurrent/half_call.cuh"

namespace tessera::cuda {

/// f16 has 8 times the precision; bf16 the range. The operands are of the size
/// of 1 in models.
constexpr bool kHalfIsBf16 = false;
/// Bits of the largest finite operand: 65504 or 3.39e38.
constexpr uint32_t kMostHalf = kHalfIsBf16 ? 0x7f7fu : 0x7bffu;

/// Matrices stand as images: rows of 64 elements (128 bytes), the 16-byte piece
/// p of row r in place p ^ (r % 8). K and Q are two images each, one for each
/// half of their columns.
__host__ __device__ constexpr int32_t image_place(int32_t row, int32_t column) {
    return row * 64 + ((column / 8) ^ (row % 8)) * 8 + column % 8;
}

struct HalfArgs {
    DeltaArgs delta{};
    HalfScratch scratch{};
    bool vectors = false;  ///< rows of q, k, v and out may be moved 16 bytes at a time
};

/// x in the lower half; what is out of range saturates.
__device__ __forceinline__ uint32_t pack_half(float x, float y) {
    return kHalfIsBf16 ? saturate_bf16(x, y) : saturate_f16(x, y);
}
__device__ __forceinline__ float2 unpack_half(uint32_t pair) {
    if constexpr (kHalfIsBf16)
        return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
    else
        return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}
__device__ __forceinline__ void mma_half(float (&c)[4],
                                         const uint32_t (&a)[4],
                                         uint32_t b0,
                                         uint32_t b1) {
    const uint32_t b[2] = {b0, b1};
    if constexpr (kHalfIsBf16)
        mma_bf16(c, a, b);
    else
        mma_f16(c, a, b);
}
using HalfPair = std::conditional_t<kHalfIsBf16, __nv_bfloat162, __half2>;

__device__ __forceinline__ HalfPair as_pair(uint32_t pair) {
    return *reinterpret_cast<const HalfPair*>(&pair);
}
__device__ __forceinline__ uint32_t as_bits(HalfPair pair) {
    return *reinterpret_cast<const uint32_t*>(&pair);
}
/// The larger magnitudes of two pairs, NaN before all.
__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) {
    return as_bits(__hmax2_nan(as_pair(a), __habs2(as_pair(b))));
}
/// The same pair with NaN replaced by kMostHalf.
__device__ __forceinline__ uint32_t without_nan(uint32_t pair) {
    return as_bits(__hmin2(as_pair(pair), as_pair(kMostHalf * 0x10001u)));
}
/// Whether one of two magnitudes was beyond what a finite operand holds.
__device__ __forceinline__ bool beyond(uint32_t pair) {
    return (pair & 0x7fffu) >= kMostHalf || (pair >> 16 & 0x7fffu) >= kMostHalf;
}
/// How many of a pair were.
__device__ __forceinline__ uint32_t count_beyond(uint32_t pair) {
    return ((pair & 0x7fffu) >= kMostHalf ? 1 : 0) + ((pair >> 16 & 0x7fffu) >= kMostHalf ? 1 : 0);
}

}  // namespace tessera::cuda
