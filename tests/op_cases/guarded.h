#pragma once
// Tensors that notice who wrote beside them, and seeded numbers to fill them with.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace tessera::op_cases {

/// splitmix64 (Steele, Lea, Flood 2014): small, seedable, the same on every machine.
class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t next();
    /// Leaves out as many numbers.
    void skip(uint64_t count) { state_ += count * kStep; }
    float uniform(float low, float high);
    int32_t below(int32_t bound);

  private:
    static constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;
    uint64_t state_;
};

/// A tensor between two guards of 64 floats, with `padding` elements after each row of its last
/// axis. Everything around an input is poison (0x7F before it, 0xFF, which is NaN in F32,
/// elsewhere), everything around an output a pattern that must survive.
class Guarded {
  public:
    enum class Role : uint8_t { kInput, kOutput };

    Guarded(std::string name,
            DType dtype,
            const std::vector<int64_t>& shape,
            int64_t padding,
            Role role);
    const Tensor& tensor() const { return tensor_; }

    /// Uniform numbers in [low, high], encoded in the tensor's format.
    void fill(Random& random, float low, float high);
    void set(std::span<const float> values);
    void set(std::span<const int32_t> values);
    /// Every byte of the elements.
    void fill_bytes(uint8_t byte);
    /// Says that this input is complete: its bytes may not change from here on.
    void seal() { sealed_ = memory_; }

    /// Appends the elements, decoded.
    void read(std::vector<float>& values) const;
    /// Appends the elements as they are stored.
    void read_bytes(std::vector<std::byte>& bytes) const;
    /// Appends a line when the surroundings (of an input also the elements) have changed.
    void verify(std::vector<std::string>& faults) const;

  private:
    int64_t row_count() const;
    std::byte* row(int64_t index) const;
    bool is_element(size_t byte) const;

    std::string name_;
    Role role_;
    std::vector<std::byte> memory_;
    std::vector<std::byte> sealed_;
    size_t begin_ = 0;
    size_t row_bytes_ = 0;
    size_t row_stride_bytes_ = 0;
    Tensor tensor_;
};

}  // namespace tessera::op_cases
