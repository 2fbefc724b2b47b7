#pragma once
// The gated delta rule for prompt rows with plain 16-bit operands: what
// half_prepare.cuh leaves for half_scan.cuh. Sums, states, gates and the solve
// of 16 x 16 blocks stay in f32.

#include <type_traits>

#include "backends/cuda/ptx/mma_f16.cuh"
#include "backends/cuda/ptx/saturate.cuh"
#include "backends/cuda/recurrent/chunks.cuh"
#include "backends/cuda/recurrent/half_call.cuh"

namespace tessera::cuda {

/// Bits of the largest finite operand: 65504 or 3.39e38. f16 has 8 times the precision of bf16; the
/// operands are of the size of 1 in models.
template <bool kBf16>
constexpr uint32_t kMostHalf = kBf16 ? 0x7f7fu : 0x7bffu;

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
template <bool kBf16>
__device__ __forceinline__ uint32_t pack_half(float x, float y) {
    return kBf16 ? saturate_bf16(x, y) : saturate_f16(x, y);
}
template <bool kBf16>
using HalfPair = std::conditional_t<kBf16, __nv_bfloat162, __half2>;

template <bool kBf16>
__device__ __forceinline__ HalfPair<kBf16> as_pair(uint32_t pair) {
    return *reinterpret_cast<const HalfPair<kBf16>*>(&pair);
}
template <class Pair>
__device__ __forceinline__ uint32_t as_bits(Pair pair) {
    return *reinterpret_cast<const uint32_t*>(&pair);
}
/// The larger magnitudes of two pairs, NaN before all.
template <bool kBf16>
__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) {
    return as_bits(__hmax2_nan(as_pair<kBf16>(a), __habs2(as_pair<kBf16>(b))));
}
/// The same pair with NaN replaced by the largest finite operand.
template <bool kBf16>
__device__ __forceinline__ uint32_t without_nan(uint32_t pair) {
    return as_bits(__hmin2(as_pair<kBf16>(pair), as_pair<kBf16>(kMostHalf<kBf16> * 0x10001u)));
}
/// How many of two operands have the largest finite magnitude, as larger ones were given, or NaN.
template <bool kBf16>
__device__ __forceinline__ uint32_t count_beyond(uint32_t pair) {
    return ((pair & 0x7fffu) >= kMostHalf<kBf16> ? 1 : 0) +
           ((pair >> 16 & 0x7fffu) >= kMostHalf<kBf16> ? 1 : 0);
}
template <bool kBf16>
__device__ __forceinline__ bool beyond(uint32_t pair) {
    return count_beyond<kBf16>(pair) > 0;
}

/// Tiles side by side as left operands; `most` takes the largest magnitudes.
template <bool kBf16, int kCount>
__device__ __forceinline__ void as_left(const float (&x)[2 * kCount][4],
                                        uint32_t (&left)[kCount][4],
                                        uint32_t& most) {
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i)
#pragma unroll
        for (int32_t c = 0; c < 4; ++c) {
            left[i][c] =
                pack_half<kBf16>(x[2 * i + c / 2][c % 2 * 2], x[2 * i + c / 2][c % 2 * 2 + 1]);
            most = larger<kBf16>(most, left[i][c]);
        }
}
/// The same for a masked product: no number may be other than finite.
template <bool kBf16>
__device__ __forceinline__ void as_masked_left(const float (&x)[kTiles][4],
                                               uint32_t (&left)[kBlocks][4],
                                               uint32_t& most) {
    as_left<kBf16, kBlocks>(x, left, most);
#pragma unroll
    for (auto& block : left)
#pragma unroll
        for (uint32_t& pair : block) pair = without_nan<kBf16>(pair);
}
template <bool kBf16, int kCount>
__device__ __forceinline__ uint32_t count_beyond(const uint32_t (&left)[kCount][4]) {
    uint32_t count = 0;
#pragma unroll
    for (const auto& block : left)
#pragma unroll
        for (const uint32_t pair : block) count += count_beyond<kBf16>(pair);
    return count;
}

template <bool kBf16>
__device__ __forceinline__ bool any_beyond(uint32_t most) {
    return __any_sync(0xffffffffu, beyond<kBf16>(most)) != 0;
}

}  // namespace tessera::cuda
