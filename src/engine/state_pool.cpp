#include "engine/state_pool.h"

#include <array>
#include <utility>

namespace tessera {
namespace {

int64_t delta_log_columns(const RecurrentSpec& spec) {
    return int64_t{spec.key_heads} * spec.key_size +
           int64_t{spec.value_heads} * (int64_t{spec.value_size} + 2);
}

}  // namespace

StatePool::StatePool(StatePoolShape shape) : shape_(std::move(shape)) {
    slots_ = shape_.sequences * (1 + shape_.checkpoints);
    for (int32_t slot = slots_ - 1; slot >= 0; --slot) give(slot);
    for (const RecurrentSpec& spec : shape_.layers) {
        views_.push_back(
            {.conv = make_tensor(nullptr, DType::kF32, {slots_, spec.channels, spec.taps - 1}),
             .state = make_tensor(nullptr, DType::kF32,
                                  {slots_, spec.value_heads, spec.value_size, spec.key_size}),
             .conv_log = make_tensor(nullptr, DType::kF32,
                                     {shape_.sequences, shape_.log_rows, spec.channels}),
             .delta_log =
                 make_tensor(nullptr, DType::kF32,
                             {shape_.sequences, shape_.log_rows, delta_log_columns(spec)})});
    }
    if (shape_.width > 0)
        recent_ = make_tensor(nullptr, DType::kF32, {slots_, shape_.recent_rows, shape_.width});
}

std::vector<int64_t> StatePool::blocks() const {
    std::vector<int64_t> bytes;
    const auto add = [&](const Tensor& tensor) {
        if (!tensor.absent() && tensor.elements() > 0)
            bytes.push_back(tensor.elements() * static_cast<int64_t>(sizeof(float)));
    };
    for (const RecurrentView& view : views_)
        for (const Tensor* tensor : {&view.conv, &view.state, &view.conv_log, &view.delta_log})
            add(*tensor);
    add(recent_);
    return bytes;
}

void StatePool::allocate(Ops& ops) {
    const auto fill = [&](Tensor& tensor) {
        if (!tensor.absent() && tensor.elements() > 0)
            tensor.data = ops.allocate(static_cast<size_t>(tensor.elements()) * sizeof(float));
    };
    for (RecurrentView& view : views_)
        for (Tensor* tensor : {&view.conv, &view.state, &view.conv_log, &view.delta_log})
            fill(*tensor);
    fill(recent_);
}

int32_t StatePool::take(std::vector<int32_t>& free) {
    check(!free.empty(), "state pool is empty although the plan reserved every slot");
    const int32_t slot = free.back();
    free.pop_back();
    return slot;
}

void StatePool::give(int32_t slot) {
    (slot < shape_.sequences ? free_sequences_ : free_checkpoints_).push_back(slot);
}

void StatePool::copy(Ops& ops, Exec& ex, int32_t from, int32_t to) const {
    const auto copy_slot = [&](const Tensor& tensor) {
        ops.copy(ex, tensor.slice_rows(from, 1), tensor.slice_rows(to, 1));
    };
    for (const RecurrentView& view : views_) {
        copy_slot(view.conv);
        copy_slot(view.state);
    }
    if (!recent_.absent()) copy_slot(recent_);
}

}  // namespace tessera
