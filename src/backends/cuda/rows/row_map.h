#pragma once
// Host side of rows.cuh: tensors as the kernels along rows take them.

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "backends/cuda/rows/rows.cuh"

namespace tessera::cuda::rows {

/// Elements, or bytes when T is std::byte, between `elements` elements of `tensor`.
template <class T>
int64_t distance(const Tensor& tensor, int64_t elements) {
    if constexpr (std::is_same_v<std::remove_const_t<T>, std::byte>)
        return dtype_bytes(tensor.dtype, elements);
    else
        return elements;
}

/// All axes but the last; rows must fit the x extent of a grid.
inline uint32_t row_count(const Tensor& tensor) {
    const int64_t rows = tensor.cols() == 0 ? 0 : tensor.elements() / tensor.cols();
    check(rows <= std::numeric_limits<int32_t>::max(), "rows: too many for one launch");
    return static_cast<uint32_t>(rows);
}

template <class T>
RowMap<T> row_map(const Tensor& tensor) {
    RowMap<T> map;
    map.data = tensor.as<T>();
    int64_t extents[3] = {1, 1, 1};
    int32_t used = 0;
    for (int32_t axis = tensor.rank - 2; axis >= 0; --axis) {
        const int64_t extent = tensor.shape[static_cast<size_t>(axis)];
        const int64_t stride = distance<T>(tensor, tensor.stride[static_cast<size_t>(axis)]);
        if (extent == 1) continue;
        if (used > 0 && stride == extents[used - 1] * map.stride[used - 1]) {
            extents[used - 1] *= extent;
            continue;
        }
        extents[used] = extent;
        map.stride[used++] = stride;
    }
    if (used < 2) return map;
    map.extent[0] = Divider(static_cast<uint32_t>(extents[0]));
    map.extent[1] = Divider(static_cast<uint32_t>(extents[1]));
    return map;
}

/// Whether every row starts at a multiple of 16 bytes.
inline bool aligned(const Tensor& tensor) {
    if (tensor.absent()) return true;
    if (reinterpret_cast<uintptr_t>(tensor.data) % 16 != 0) return false;
    for (int32_t axis = 0; axis + 1 < tensor.rank; ++axis) {
        const auto a = static_cast<size_t>(axis);
        if (tensor.shape[a] > 1 && tensor.stride[a] % 4 != 0) return false;
    }
    return true;
}

inline double bytes_of(const Tensor& tensor) {
    const DTypeInfo& info = dtype_info(tensor.dtype);
    return static_cast<double>(tensor.elements()) * info.block_bytes / info.block_elements;
}

/// Where kernels store the rows of an input; every view is one that `allocate_input` made, or is
/// left out by its caller.
inline InputSink sink_of(const GemmInput& input, int64_t prompt_rows) {
    InputSink sink;
    sink.prompt_rows = static_cast<uint32_t>(std::min(prompt_rows, input.rows));
    sink.cols = input.cols;
    sink.policy = input.nvfp4;
    const auto take = [](const ActViews& views, float*& f32, __nv_bfloat16*& bf16) {
        for (const ActView& view : views) {
            if (view.values.absent()) continue;
            if (view.format == ActFormat::kF32) f32 = view.values.as<float>();
            if (view.format == ActFormat::kBF16) bf16 = view.values.as<__nv_bfloat16>();
        }
    };
    take(input.prompt, sink.f32[0], sink.bf16[0]);
    take(input.generated, sink.f32[1], sink.bf16[1]);
    for (const ActView& view : input.prompt) {
        sink.transposed_pairs = sink.transposed_pairs || view.transposed_pairs;
        if (view.row_scales.absent()) continue;
        if (view.format == ActFormat::kFp8) sink.e4m3 = view.values.as<uint8_t>();
        sink.transposed_quads = sink.transposed_quads || view.transposed_quads;
        if (view.format == ActFormat::kNvfp4) sink.nvfp4 = view.values.as<__nv_bfloat16>();
        if (view.format == ActFormat::kFp4) {
            sink.fp4 = view.values.as<uint8_t>();
            sink.fp4_scales = view.block_scales.as<uint8_t>();
        }
        sink.row_scales = view.row_scales.as<float>();
    }
    return sink;
}

}  // namespace tessera::cuda::rows
