#pragma once
// Heads of keys and values to their places in pages. The conversions give the bytes of
// core/numeric.h and core/codec_q.cpp.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "backends/cuda/attention/pages.cuh"
#include "backends/cuda/rows/codec.cuh"

namespace tessera::cuda {

struct StoreSource {
    const float* data;  ///< [T, Hkv, head size]
    int64_t row_stride, head_stride;
    int32_t head_size;
    Pages pages;

    __device__ __forceinline__ const float* head(int64_t row, int64_t kv_head) const {
        return data + row * row_stride + kv_head * head_stride;
    }
};

__device__ __forceinline__ uint16_t f16_bits(float value) {
    const uint32_t bits = __float_as_uint(value);
    // The instruction makes every NaN the same; core keeps sign and payload.
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return static_cast<uint16_t>((bits >> 16 & 0x8000u) | 0x7e00u | (bits >> 13 & 0x3ffu));
    return __half_as_ushort(__float2half_rn(value));
}

__device__ __forceinline__ uint16_t bf16_bits(float value) {
    const uint32_t bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// A block of 32 values, one a lane. Each operation is rounded on its own: a product fused with the
/// subtraction behind it would round other ties than the host does.
__device__ __forceinline__ void store_q8_block(float value, int32_t lane, uint8_t* block) {
    float largest = fabsf(value);
    if (!(largest >= 0.0f)) largest = 0.0f;  // a NaN has no say in the scale
#pragma unroll
    for (int32_t offset = 16; offset > 0; offset /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
    const float scale = __fdiv_rn(largest, 127.0f);
    float inverse = scale == 0.0f ? 0.0f : __fdiv_rn(1.0f, scale);
    if (isinf(inverse)) inverse = 0.0f;
    const float scaled = __fmul_rn(value, inverse);
    const auto whole = static_cast<int32_t>(scaled);
    const float rest = __fsub_rn(scaled, static_cast<float>(whole));
    const int32_t code = whole + (rest >= 0.5f ? 1 : 0) - (rest <= -0.5f ? 1 : 0);
    block[2 + lane] = static_cast<uint8_t>(code);
    if (lane == 0) *reinterpret_cast<uint16_t*>(block) = f16_bits(fminf(scale, 65504.0f));
}

/// One head of one row, by a warp.
__device__ __forceinline__ void store_head(const StoreSource& source,
                                           const float* values,
                                           int32_t lane,
                                           uint8_t* target) {
    switch (source.pages.format) {
        case PageFormat::kF32:
            for (int32_t i = lane; i < source.head_size; i += 32)
                reinterpret_cast<float*>(target)[i] = values[i];
            return;
        case PageFormat::kF16:
            for (int32_t i = lane; i < source.head_size; i += 32)
                reinterpret_cast<uint16_t*>(target)[i] = f16_bits(values[i]);
            return;
        case PageFormat::kBF16:
            for (int32_t i = lane; i < source.head_size; i += 32)
                reinterpret_cast<uint16_t*>(target)[i] = bf16_bits(values[i]);
            return;
        case PageFormat::kF8:
            for (int32_t i = lane; i < source.head_size; i += 32)
                target[i] = rows::e4m3_of_f32(values[i]);
            return;
        default:
            for (int32_t i = 0; i < source.head_size; i += 32)
                store_q8_block(values[i + lane], lane, target + i / 32 * 34);
    }
}

}  // namespace tessera::cuda
