#include "core/tensor.h"

namespace tessera {
namespace {

/// Fills in row-major strides; axes beyond the rank get the stride of the whole tensor.
void set_contiguous_strides(Tensor& tensor) {
    int64_t stride = 1;
    for (int32_t axis = tensor.rank - 1; axis >= 0; --axis) {
        tensor.stride[static_cast<size_t>(axis)] = stride;
        stride *= tensor.shape[static_cast<size_t>(axis)];
    }
}

}  // namespace

bool Tensor::contiguous() const {
    int64_t expected = 1;
    for (int32_t axis = rank - 1; axis >= 0; --axis) {
        const auto index = static_cast<size_t>(axis);
        if (shape[index] != 1 && stride[index] != expected) return false;
        expected *= shape[index];
    }
    return true;
}

Tensor Tensor::slice_rows(int64_t begin, int64_t count) const {
    check(begin >= 0 && count >= 0 && begin + count <= shape[0], "slice_rows out of range");
    Tensor view = *this;
    view.shape[0] = count;
    if (data != nullptr)
        view.data = static_cast<std::byte*>(data) + dtype_bytes(dtype, begin * stride[0]);
    return view;
}

Tensor Tensor::column_heads(int64_t first, int64_t heads, int64_t size) const {
    check(rank == 2 && first >= 0 && first + heads * size <= shape[1], "column_heads out of range");
    Tensor view = *this;
    view.rank = 3;
    view.shape = {shape[0], heads, size, 1};
    view.stride = {stride[0], size, 1, 0};
    if (data != nullptr) view.data = static_cast<std::byte*>(data) + dtype_bytes(dtype, first);
    return view;
}

Tensor Tensor::reshape(std::initializer_list<int64_t> new_shape) const {
    check(contiguous(), "reshape of a strided tensor");
    const Tensor view = make_tensor(data, dtype, new_shape);
    check(view.elements() == elements(), "reshape changes the number of elements");
    return view;
}

Tensor make_tensor(void* data, DType dtype, std::initializer_list<int64_t> shape) {
    check(shape.size() >= 1 && shape.size() <= 4, "tensors have 1 to 4 axes");
    Tensor tensor;
    tensor.data = data;
    tensor.dtype = dtype;
    tensor.rank = static_cast<int32_t>(shape.size());
    size_t axis = 0;
    for (const int64_t extent : shape) tensor.shape[axis++] = extent;
    set_contiguous_strides(tensor);
    return tensor;
}

}  // namespace tessera
