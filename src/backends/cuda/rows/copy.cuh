#pragma once
// Copies between strides and formats. Same format: bytes in units of up to 16, bound by bytes.
// Others: an element a thread, or a chunk of 256 values a warp where blocks are encoded; models
// convert nothing while they run.

#include "backends/cuda/rows/encode_k.cuh"
#include "backends/cuda/rows/rows.cuh"

namespace tessera::cuda::rows {

inline constexpr int32_t kCopyThreads = 256;
inline constexpr int32_t kEncodeWarps = 4;  ///< of a block

struct CopyArguments {
    RowMap<const std::byte> from;
    RowMap<std::byte> to;
    DType from_format = DType::kF32;
    DType to_format = DType::kF32;
    int32_t to_block = 1;  ///< values of a block of `to`
    int32_t to_block_bytes = 0;
    int64_t count = 0;    ///< rows * per_row
    int64_t per_row = 0;  ///< units, elements or chunks
    int64_t cols = 0;
};

struct CopyPlace {
    uint32_t row;
    int64_t index;  ///< in the row
};

__device__ __forceinline__ CopyPlace copy_place(int64_t index, const CopyArguments& a) {
    if (a.per_row == a.count) return {0, index};
    if (a.count <= 0xffffffff) {  // the short division
        const uint32_t row = static_cast<uint32_t>(index) / static_cast<uint32_t>(a.per_row);
        return {row, index - row * a.per_row};
    }
    const int64_t row = index / a.per_row;
    return {static_cast<uint32_t>(row), index - row * a.per_row};
}

template <class Unit>
__global__ void __launch_bounds__(kCopyThreads)
    move_kernel(const __grid_constant__ CopyArguments a) {
    const int64_t index = int64_t{blockIdx.x} * kCopyThreads + threadIdx.x;
    if (index >= a.count) return;
    const CopyPlace place = copy_place(index, a);
    reinterpret_cast<Unit*>(a.to.row(place.row))[place.index] =
        reinterpret_cast<const Unit*>(a.from.row(place.row))[place.index];
}

/// To plain formats.
template <class Carrier>
__global__ void __launch_bounds__(kCopyThreads)
    convert_kernel(const __grid_constant__ CopyArguments a) {
    const int64_t index = int64_t{blockIdx.x} * kCopyThreads + threadIdx.x;
    if (index >= a.count) return;
    const CopyPlace place = copy_place(index, a);
    const auto* from = reinterpret_cast<const uint8_t*>(a.from.row(place.row));
    auto* to = reinterpret_cast<uint8_t*>(a.to.row(place.row));
    Carrier value;
    if constexpr (std::is_same_v<Carrier, float>)
        value = read_element(a.from_format, from, place.index);
    else
        value = read_plain<Carrier>(a.from_format, from, place.index);
    write_plain<Carrier>(a.to_format, value, place.index, to);
}

/// To block formats.
static __global__ void __launch_bounds__(32 * kEncodeWarps)
    encode_kernel(const __grid_constant__ CopyArguments a) {
    __shared__ EncodeScratch scratch[kEncodeWarps];
    const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
    const int64_t chunk = int64_t{blockIdx.x} * kEncodeWarps + threadIdx.x / 32;
    if (chunk >= a.count) return;  // a whole warp
    EncodeScratch& s = scratch[threadIdx.x / 32];
    const CopyPlace place = copy_place(chunk, a);
    const int64_t begin = place.index * kChunk;
    const auto count = static_cast<int32_t>(min(int64_t{kChunk}, a.cols - begin));
    const auto* from = reinterpret_cast<const uint8_t*>(a.from.row(place.row));
    uint8_t* to =
        reinterpret_cast<uint8_t*>(a.to.row(place.row)) + begin / a.to_block * a.to_block_bytes;
    const bool k_quant = is_k_quant(a.to_format);
    for (int32_t i = lane; i < count; i += 32) {
        const float value = read_element(a.from_format, from, begin + i);
        s.at(i) = k_quant ? clamped(value, -kHuge, kHuge) : value;
    }
    __syncwarp();  // the values are in place
    if (!k_quant) {
        encode_blocks(a.to_format, s, count, lane, to);
        return;
    }
    const bool six = a.to_format == DType::kQ6_K;
    if (six)
        fit_six(lane, s);
    else
        fit_line(a.to_format, lane, s);
    __syncwarp();  // the fits of all sub-blocks decide on the scales
    if (six)
        round_six(lane, s, to);
    else
        round_line(a.to_format, lane, s);
    __syncwarp();  // codes of several sub-blocks share a byte
    if (six)
        pack_six(lane, s, to);
    else
        pack_line(a.to_format, lane, s, to);
}

}  // namespace tessera::cuda::rows
