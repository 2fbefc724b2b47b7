#include "core/arena.h"

#include <algorithm>

namespace tessera {

std::byte* Arena::allocate_bytes(size_t bytes) {
    constexpr size_t kAlignment = 64;
    const size_t begin = used_;
    used_ = begin + (bytes + kAlignment - 1) / kAlignment * kAlignment;
    peak_ = std::max(peak_, used_);
    if (planning()) return nullptr;
    check(used_ <= capacity_, "arena is full: the plan and the run differ");
    return base_ + begin;
}

Tensor Arena::allocate(DType dtype, std::initializer_list<int64_t> shape) {
    Tensor tensor = make_tensor(nullptr, dtype, shape);
    tensor.data = allocate_bytes(static_cast<size_t>(dtype_bytes(dtype, tensor.elements())));
    return tensor;
}

}  // namespace tessera
