#pragma once
// A view of numbers. Row-major, outermost axis first, tokens first: [tokens, dim].

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "core/dtype.h"
#include "core/error.h"

namespace tessera {

/// Non-owning strided view. `shape` and `stride` count elements; the last axis is contiguous
/// (stride 1). `data == nullptr` while memory is being planned, and for an absent optional operand
/// (`rank == 0`). Never knows its device: the Ops that made it does.
struct Tensor {
    void* data = nullptr;
    DType dtype = DType::kF32;
    int32_t rank = 0;
    std::array<int64_t, 4> shape{1, 1, 1, 1};
    std::array<int64_t, 4> stride{0, 0, 0, 0};

    bool absent() const { return rank == 0; }
    int64_t elements() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
    int64_t rows() const { return shape[0]; }
    /// Extent of the last axis.
    int64_t cols() const { return shape[static_cast<size_t>(rank - 1)]; }
    bool contiguous() const;

    template <class T>
    T* as() const {
        return static_cast<T*>(data);
    }
    /// Start of row `index` of the outermost axis; plain formats only.
    template <class T>
    T* row(int64_t index) const {
        return static_cast<T*>(data) + index * stride[0];
    }
    /// Rows [begin, begin + count) of the outermost axis.
    Tensor slice_rows(int64_t begin, int64_t count) const;
    /// The same elements with another shape; the tensor must be contiguous.
    Tensor reshape(std::initializer_list<int64_t> new_shape) const;
    /// Columns [first, first + heads * size) of [T, C] as [T, heads, size]; plain formats only.
    Tensor column_heads(int64_t first, int64_t heads, int64_t size) const;
};

/// A contiguous view of `data` with 1 to 4 axes.
Tensor make_tensor(void* data, DType dtype, std::initializer_list<int64_t> shape);

}  // namespace tessera
