#pragma once
// Bump allocation with RAII marks. An arena without memory plans: the same forward function runs,
// ops return at once, and `peak_bytes` is what a real run needs. No allocation happens during
// inference.

#include <cstddef>
#include <initializer_list>

#include "core/tensor.h"

namespace tessera {

class Arena {
  public:
    /// Memory of `capacity` bytes at `base` (64-byte aligned, owned by the caller). `base ==
    /// nullptr` plans.
    Arena(std::byte* base, size_t capacity) : base_(base), capacity_(capacity) {}
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    bool planning() const { return base_ == nullptr; }
    size_t used_bytes() const { return used_; }
    size_t peak_bytes() const { return peak_; }
    size_t capacity_bytes() const { return capacity_; }

    /// `bytes` of uninitialised memory, 64-byte aligned; nullptr while planning. Running over is a
    /// bug: the plan decides the capacity.
    std::byte* allocate_bytes(size_t bytes);
    /// A contiguous uninitialised tensor.
    Tensor allocate(DType dtype, std::initializer_list<int64_t> shape);

  private:
    friend class Scope;
    std::byte* base_;
    size_t capacity_;
    size_t used_ = 0;
    size_t peak_ = 0;
};

/// Gives back everything that was allocated since its construction.
class Scope {
  public:
    explicit Scope(Arena& arena) : arena_(arena), mark_(arena.used_) {}
    ~Scope() { arena_.used_ = mark_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

  private:
    Arena& arena_;
    size_t mark_;
};

}  // namespace tessera
