#include "op_cases/guarded.h"

#include <algorithm>
#include <cstring>

#include "core/codec.h"

namespace tessera::op_cases {
namespace {

constexpr size_t kGuardBytes = 64 * sizeof(float);
constexpr size_t kAlignment = 64;

std::byte pattern(size_t index) {
    return static_cast<std::byte>((index * 29) ^ 0xa5);
}

Tensor strided_tensor(DType dtype, const std::vector<int64_t>& shape, int64_t padding) {
    Tensor tensor;
    tensor.dtype = dtype;
    tensor.rank = static_cast<int32_t>(shape.size());
    int64_t stride = 1;
    for (size_t axis = shape.size(); axis-- > 0;) {
        tensor.shape[axis] = shape[axis];
        tensor.stride[axis] = stride;
        stride *= shape[axis];
        if (axis + 1 == shape.size()) stride += padding;
    }
    return tensor;
}

}  // namespace

uint64_t Random::next() {
    state_ += kStep;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

float Random::uniform(float low, float high) {
    const double unit = static_cast<double>(next() >> 11) * 0x1p-53;
    return static_cast<float>(static_cast<double>(low) +
                              unit * (static_cast<double>(high) - static_cast<double>(low)));
}

int32_t Random::below(int32_t bound) {
    return static_cast<int32_t>(next() % static_cast<uint64_t>(bound));
}

Guarded::Guarded(
    std::string name, DType dtype, const std::vector<int64_t>& shape, int64_t padding, Role role)
    : name_(std::move(name)), role_(role), tensor_(strided_tensor(dtype, shape, padding)) {
    row_bytes_ = static_cast<size_t>(dtype_bytes(dtype, shape.back()));
    row_stride_bytes_ = static_cast<size_t>(dtype_bytes(dtype, shape.back() + padding));
    const size_t payload = static_cast<size_t>(row_count()) * row_stride_bytes_;
    memory_.resize(payload + 2 * kGuardBytes + kAlignment);
    const size_t address = reinterpret_cast<uintptr_t>(memory_.data()) + kGuardBytes;
    begin_ = kGuardBytes + (kAlignment - address % kAlignment) % kAlignment;
    for (size_t i = 0; i < memory_.size(); ++i) {
        const std::byte poison = i < begin_ ? std::byte{0x7f} : std::byte{0xff};
        memory_[i] = role == Role::kInput ? poison : pattern(i);
    }
    tensor_.data = memory_.data() + begin_;
    if (role == Role::kOutput) fill_bytes(0xff);
}

int64_t Guarded::row_count() const {
    int64_t rows = 1;
    for (size_t axis = 0; axis + 1 < static_cast<size_t>(tensor_.rank); ++axis)
        rows *= tensor_.shape[axis];
    return rows;
}

std::byte* Guarded::row(int64_t index) const {
    return tensor_.as<std::byte>() + static_cast<size_t>(index) * row_stride_bytes_;
}

void Guarded::fill(Random& random, float low, float high) {
    std::vector<float> values(static_cast<size_t>(tensor_.elements()));
    for (float& value : values) value = random.uniform(low, high);
    set(std::span<const float>(values));
}

void Guarded::set(std::span<const float> values) {
    check(static_cast<int64_t>(values.size()) == tensor_.elements(), "test data: element count");
    for (int64_t i = 0; i < row_count(); ++i)
        quantize_row(tensor_.dtype, values.data() + i * tensor_.cols(), tensor_.cols(), row(i),
                     Nvfp4Policy::kAmax6);
}

void Guarded::set(std::span<const int32_t> values) {
    check(tensor_.dtype == DType::kI32 && tensor_.contiguous() &&
              static_cast<int64_t>(values.size()) == tensor_.elements(),
          "test data: integers");
    std::ranges::copy(values, tensor_.as<int32_t>());
}

void Guarded::fill_bytes(uint8_t byte) {
    for (int64_t i = 0; i < row_count(); ++i) std::memset(row(i), byte, row_bytes_);
}

void Guarded::read(std::vector<float>& values) const {
    const auto cols = static_cast<size_t>(tensor_.cols());
    for (int64_t i = 0; i < row_count(); ++i) {
        values.resize(values.size() + cols);
        dequantize_row(tensor_.dtype, row(i), tensor_.cols(), values.data() + values.size() - cols);
    }
}

void Guarded::read_bytes(std::vector<std::byte>& bytes) const {
    for (int64_t i = 0; i < row_count(); ++i)
        bytes.insert(bytes.end(), row(i), row(i) + row_bytes_);
}

bool Guarded::is_element(size_t byte) const {
    if (byte < begin_) return false;
    const size_t offset = byte - begin_;
    return offset < static_cast<size_t>(row_count()) * row_stride_bytes_ &&
           offset % row_stride_bytes_ < row_bytes_;
}

void Guarded::verify(std::vector<std::string>& faults) const {
    const bool input = role_ == Role::kInput;
    if (input && (sealed_.empty() || memory_ == sealed_)) return;
    for (size_t i = 0; i < memory_.size(); ++i) {
        if (!input && is_element(i)) {
            // Elements may be anything: on to the end of their row.
            i += row_bytes_ - (i - begin_) % row_stride_bytes_ - 1;
            continue;
        }
        if (memory_[i] == (input ? sealed_[i] : pattern(i))) continue;
        faults.push_back((input ? "input " : "surroundings of ") + name_ + " overwritten at byte " +
                         std::to_string(static_cast<int64_t>(i) - static_cast<int64_t>(begin_)));
        return;
    }
}

}  // namespace tessera::op_cases
