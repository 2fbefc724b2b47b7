// Memory, counters and the factory of the reference backend.
#include "backends/reference/reference_ops.h"

#include <algorithm>

#include "backends/reference/reference_class.h"

namespace tessera::reference {

std::byte* ReferenceOps::allocate(size_t bytes) {
    // A vector aligns to 16 bytes; the contract of the arena, whose memory may come from here, is
    // 64.
    constexpr size_t kAlignment = 64;
    memory_.emplace_back(bytes + kAlignment);
    std::byte* base = memory_.back().data();
    const size_t misplaced = reinterpret_cast<uintptr_t>(base) % kAlignment;
    return misplaced == 0 ? base : base + (kAlignment - misplaced);
}

ReferenceOps::Counted::Counted(ReferenceOps& ops, std::string_view op, double flops, double bytes)
    : ops_(ops) {
    const auto found = std::ranges::find(ops.counts_, op, &OpCount::name);
    index_ = static_cast<size_t>(found - ops.counts_.begin());
    if (found == ops.counts_.end()) ops.counts_.push_back({.name = std::string(op)});
    OpCount& count = ops.counts_[index_];
    count.calls += 1;
    count.flops += flops;
    count.bytes += bytes;
    if (ops.timing_) start_ = Clock::now();
}

ReferenceOps::Counted::~Counted() {
    if (!ops_.timing_ || index_ >= ops_.counts_.size()) return;
    ops_.counts_[index_].seconds += std::chrono::duration<double>(Clock::now() - start_).count();
}

}  // namespace tessera::reference

namespace tessera {

std::unique_ptr<Ops> make_reference_ops(const ReferenceOptions& options) {
    return std::make_unique<reference::ReferenceOps>(options);
}

}  // namespace tessera
