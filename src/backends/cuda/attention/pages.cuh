#pragma once
// Key/value pages as kernels see them: addresses, and eight neighbouring elements at a time in any
// of the formats. Blocks of Q8_0 take 34 bytes, so their codes are aligned to 2 bytes only.

#include <cuda_fp16.h>

#include <cstdint>

#include "backends/cuda/device.cuh"
#include "backends/cuda/ptx/cvt_e4m3.cuh"
#include "ops/batch.h"

namespace tessera::cuda {

/// Formats of pages; kAny stands, as a template argument, for a format known when the kernel runs.
enum class PageFormat : int32_t { kF32, kF16, kBF16, kF8, kQ8_0, kAny };

/// Keys or values of one layer.
struct Pages {
    uint8_t* data;
    int64_t page_bytes, head_bytes, row_bytes;
    PageFormat format;
    /// Eight elements that start at a multiple of eight never end behind the row, and can be read
    /// at once.
    bool aligned;

    __host__ __device__ uint8_t* head(int64_t page, int64_t kv_head) const {
        return data + page * page_bytes + kv_head * head_bytes;
    }
};

inline PageFormat page_format(DType dtype) {
    switch (dtype) {
        case DType::kF32:
            return PageFormat::kF32;
        case DType::kF16:
            return PageFormat::kF16;
        case DType::kBF16:
            return PageFormat::kBF16;
        case DType::kF8_E4M3:
            return PageFormat::kF8;
        default:
            check(dtype == DType::kQ8_0, "key/value pages: format");
            return PageFormat::kQ8_0;
    }
}

inline Pages pages_of(const Tensor& cache) {
    Pages pages{.data = cache.as<uint8_t>(),
                .page_bytes = dtype_bytes(cache.dtype, cache.stride[0]),
                .head_bytes = dtype_bytes(cache.dtype, cache.stride[1]),
                .row_bytes = dtype_bytes(cache.dtype, cache.stride[2]),
                .format = page_format(cache.dtype),
                .aligned = true};
    if (pages.format != PageFormat::kQ8_0) {
        const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(cache.data));
        const int64_t all = address | pages.page_bytes | pages.head_bytes | pages.row_bytes;
        const int64_t unit = pages.format == PageFormat::kF8 ? 8 : 16;  // bytes of one load
        pages.aligned = cache.shape[3] % 8 == 0 && all % unit == 0;
    }
    return pages;
}

/// Rank, page size, heads and head size of a layer's keys or values.
inline void check_pages(const Tensor& cache, int64_t kv_heads, int64_t head_size) {
    check(cache.rank == 4 && cache.shape[1] == kv_heads && cache.shape[2] == kPageTokens &&
              cache.shape[3] == head_size,
          "key/value pages: shape");
}

// ---- eight elements ----

/// Elements [8 i, 8 i + 8) of a row: load() only reads, so that several loads can be under way
/// before the first unpack(). A value-initialised object holds zeros.
template <PageFormat kFormat>
struct Eight;

template <>
struct Eight<PageFormat::kF32> {
    float4 low, high;
    __device__ __forceinline__ void load(const Pages&, const uint8_t* row, int32_t index, int32_t) {
        const auto* source = reinterpret_cast<const float4*>(row) + 2 * index;
        low = source[0];
        high = source[1];
    }
    __device__ __forceinline__ void unpack(float (&out)[8]) const {
        out[0] = low.x, out[1] = low.y, out[2] = low.z, out[3] = low.w;
        out[4] = high.x, out[5] = high.y, out[6] = high.z, out[7] = high.w;
    }
};

__device__ __forceinline__ float f32_of_f16(uint32_t bits) {
    return __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
}

template <>
struct Eight<PageFormat::kF16> {
    uint4 bits;
    __device__ __forceinline__ void load(const Pages&, const uint8_t* row, int32_t index, int32_t) {
        bits = reinterpret_cast<const uint4*>(row)[index];
    }
    __device__ __forceinline__ void unpack(float (&out)[8]) const {
        const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
            out[2 * i] = f32_of_f16(words[i] & 0xffffu);
            out[2 * i + 1] = f32_of_f16(words[i] >> 16);
        }
    }
};

template <>
struct Eight<PageFormat::kBF16> {
    uint4 bits;
    __device__ __forceinline__ void load(const Pages&, const uint8_t* row, int32_t index, int32_t) {
        bits = reinterpret_cast<const uint4*>(row)[index];
    }
    __device__ __forceinline__ void unpack(float (&out)[8]) const {
        const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
            out[2 * i] = __uint_as_float(words[i] << 16);
            out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        }
    }
};

template <>
struct Eight<PageFormat::kF8> {
    uint2 bits;
    __device__ __forceinline__ void load(const Pages&, const uint8_t* row, int32_t index, int32_t) {
        bits = reinterpret_cast<const uint2*>(row)[index];
    }
    __device__ __forceinline__ void unpack(float (&out)[8]) const {
        const uint32_t words[2] = {bits.x, bits.y};
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
            const auto codes = static_cast<uint16_t>(words[i / 2] >> i % 2 * 16);
            const uint32_t pair = f16_pair_of_e4m3(codes);
            out[2 * i] = f32_of_f16(pair & 0xffffu);
            out[2 * i + 1] = f32_of_f16(pair >> 16);
        }
    }
};

template <>
struct Eight<PageFormat::kQ8_0> {
    uint16_t codes[4];  ///< two int8 each
    uint16_t scale;     ///< f16
    __device__ __forceinline__ void load(const Pages&, const uint8_t* row, int32_t index, int32_t) {
        const auto* block = reinterpret_cast<const uint16_t*>(row + index / 4 * 34);
        scale = block[0];
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) codes[i] = block[1 + index % 4 * 4 + i];
    }
    __device__ __forceinline__ void unpack(float (&out)[8]) const {
        const float d = f32_of_f16(scale);
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
            out[2 * i] = d * static_cast<float>(static_cast<int8_t>(codes[i] & 0xffu));
            out[2 * i + 1] = d * static_cast<float>(static_cast<int8_t>(codes[i] >> 8));
        }
    }
};

/// Any format, any alignment, and rows that end inside the eight.
template <>
struct Eight<PageFormat::kAny> {
    float values[8];
    template <PageFormat kFormat>
    __device__ __forceinline__ void load_as(const Pages& pages, const uint8_t* row, int32_t index) {
        Eight<kFormat> eight;
        eight.load(pages, row, index, 0);
        eight.unpack(values);
    }
    __device__ __forceinline__ static float element(PageFormat format,
                                                    const uint8_t* row,
                                                    int32_t at) {
        if (format == PageFormat::kF32) return reinterpret_cast<const float*>(row)[at];
        if (format == PageFormat::kF8) return f32_of_f16(f16_pair_of_e4m3(row[at]) & 0xffffu);
        const uint32_t bits = reinterpret_cast<const uint16_t*>(row)[at];
        return format == PageFormat::kF16 ? f32_of_f16(bits) : __uint_as_float(bits << 16);
    }
    __device__ __forceinline__ void load(const Pages& pages,
                                         const uint8_t* row,
                                         int32_t index,
                                         int32_t head_size) {
        if (!pages.aligned) {
#pragma unroll
            for (int32_t i = 0; i < 8; ++i)
                values[i] =
                    8 * index + i < head_size ? element(pages.format, row, 8 * index + i) : 0.0f;
        } else if (pages.format == PageFormat::kF32) {
            load_as<PageFormat::kF32>(pages, row, index);
        } else if (pages.format == PageFormat::kF16) {
            load_as<PageFormat::kF16>(pages, row, index);
        } else if (pages.format == PageFormat::kBF16) {
            load_as<PageFormat::kBF16>(pages, row, index);
        } else if (pages.format == PageFormat::kF8) {
            load_as<PageFormat::kF8>(pages, row, index);
        } else {
            load_as<PageFormat::kQ8_0>(pages, row, index);
        }
    }
    __device__ __forceinline__ void unpack(float (&out)[8]) const {
#pragma unroll
        for (int32_t i = 0; i < 8; ++i) out[i] = values[i];
    }
};

// ---- rows and sequences ----

/// The batch as kernels see it.
struct BatchView {
    const int32_t* positions;
    const int32_t* seq_start;
    const int32_t* page_table;
    int64_t table_stride;
    int32_t sequences;

    explicit BatchView(const Batch& batch)
        : positions(batch.positions.as<int32_t>()),
          seq_start(batch.seq_start.as<int32_t>()),
          page_table(batch.page_table.as<int32_t>()),
          table_stride(batch.page_table.stride[0]),
          sequences(batch.sequence_count()) {}

    __device__ const int32_t* table(int32_t sequence) const {
        return page_table + sequence * table_stride;
    }
};

/// The sequence of a row, for all threads of a block together: the last one that starts at or
/// before it. Holds barriers.
__device__ __forceinline__ int32_t find_sequence(const BatchView& batch, int32_t row) {
    int32_t started = 0;
    for (int32_t base = 0; base < batch.sequences; base += static_cast<int32_t>(blockDim.x)) {
        const int32_t s = base + static_cast<int32_t>(threadIdx.x);
        started += __syncthreads_count(s < batch.sequences && batch.seq_start[s] <= row);
    }
    return started - 1;
}

/// The shared memory that the launch asked for.
__device__ __forceinline__ uint8_t* dynamic_shared() {
    extern __shared__ __align__(128) uint8_t shared_bytes[];
    return shared_bytes;
}

}  // namespace tessera::cuda
