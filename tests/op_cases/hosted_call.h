#pragma once
// What HostedOps does around every op.

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "op_cases/hosted_ops.h"

namespace tessera::op_cases {

inline constexpr size_t kHostedGuardBytes =
    256;  // bytes before and behind every operand in device memory
inline constexpr std::byte kHostedGuard{0x5d};

inline size_t span_bytes(const Tensor& tensor) {
    if (tensor.elements() == 0) return 0;
    int64_t last = 0;
    for (size_t axis = 0; axis < static_cast<size_t>(tensor.rank); ++axis)
        last += (tensor.shape[axis] - 1) * tensor.stride[axis];
    if (!is_block_format(tensor.dtype))
        return static_cast<size_t>(dtype_bytes(tensor.dtype, last + 1));
    const int64_t before_row = last - (tensor.cols() - 1);
    return static_cast<size_t>(dtype_bytes(tensor.dtype, before_row) +
                               dtype_bytes(tensor.dtype, tensor.cols()));
}

/// The operands of one op on their way over and back.
class HostedOps::Call {
    template <class Input, class Body>
    static void for_each(Input& input, const Body& body) {
        for (auto* part : {&input.prompt, &input.generated})
            for (auto& view : *part) {
                body(view.values);
                body(view.block_scales);
                body(view.row_scales);
            }
    }
    template <class B>
    static auto parts(B& batch) {
        return std::array{&batch.tokens,     &batch.positions,     &batch.seq_start,
                          &batch.page_table, &batch.outputs,       &batch.slots,
                          &batch.save_slots, &batch.save_positions};
    }

  public:
    Call(HostedOps& ops, Exec& ex) : ops_(ops), ex_(ex), used_(ex.arena.used_bytes()) {}

    /// Names an operand; all of them come before run().
    void add(const Tensor& tensor) {
        const size_t bytes = tensor.absent() ? 0 : span_bytes(tensor);
        if (bytes > 0) regions_.push_back({tensor.as<std::byte>(), bytes, nullptr});
    }
    void add(const GemmInput& input) {
        for_each(input, [&](const Tensor& part) { add(part); });
    }
    void add(const Batch& batch) {
        for (const Tensor* part : parts(batch)) add(*part);
    }
    void add(const KvView& view) {
        add(view.keys);
        add(view.values);
    }
    void add(const RecurrentView& view) {
        for (const Tensor* part : {&view.conv, &view.state, &view.conv_log, &view.delta_log})
            add(*part);
    }
    void add(const ExpertWork& work) {
        add(work.pairs);
        add(work.starts);
    }

    /// Where the device has an operand.
    Tensor at(Tensor tensor) const {
        if (tensor.absent() || tensor.elements() == 0) return tensor;
        auto* host = tensor.as<std::byte>();
        for (const Region& region : regions_)
            if (host >= region.host && host < region.host + region.bytes)
                tensor.data = region.device + (host - region.host);
        return tensor;
    }
    GemmInput at(GemmInput input) const {
        for_each(input, [&](Tensor& part) { part = at(part); });
        return input;
    }
    Batch at(Batch batch) const {
        for (Tensor* part : parts(batch)) *part = at(*part);
        return batch;
    }
    KvView at(const KvView& view) const { return {at(view.keys), at(view.values)}; }
    RecurrentView at(const RecurrentView& view) const {
        return {at(view.conv), at(view.state), at(view.conv_log), at(view.delta_log)};
    }
    ExpertWork at(const ExpertWork& work) const {
        return {at(work.pairs), at(work.starts), work.choices};
    }
    /// The other way: host tensors for what an op has put into the arena (or passed through).
    GemmInput home(GemmInput input) const {
        for_each(input, [&](Tensor& part) { part = home(part); });
        return input;
    }
    Tensor home(Tensor tensor) const {
        if (tensor.absent() || tensor.data == nullptr) return tensor;
        auto* device = tensor.as<std::byte>();
        for (const Region& region : regions_)
            if (device >= region.device && device < region.device + region.bytes)
                tensor.data = region.host + (device - region.device);
        if (device >= ops_.arena_.base && device < ops_.arena_.base + ops_.arena_.bytes)
            tensor.data = host_arena_ + (device - ops_.arena_.base);
        return tensor;
    }

    /// op(exec of the device) with the operands in place.
    template <class Op>
    void run(std::string_view name, bool recordable, const Op& op) {
        send();
        Arena arena(ops_.arena_.base, ops_.arena_.bytes - kHostedGuardBytes);
        arena.allocate_bytes(used_);
        Exec inner{.arena = arena, .prompt_rows = ex_.prompt_rows};
        for (int32_t i = 1; i < ops_.times_; ++i) {
            const Scope again(arena);
            op(inner);
        }
        std::unique_ptr<Recording> recording;
        if (recordable && ops_.recorded_) recording = ops_.inner_->record([&] { op(inner); });
        if (recording != nullptr)
            recording->replay();
        else
            op(inner);
        {
            // The host's arena takes what the device's took.
            const Scope scope(ex_.arena);
            ex_.arena.allocate_bytes(arena.peak_bytes() - used_);
        }
        ex_.arena.allocate_bytes(arena.used_bytes() - used_);
        ops_.inner_->copy_to_host(host_arena_ + used_, ops_.arena_.base + used_,
                                  arena.used_bytes() - used_);
        for (const Region& region : regions_)
            ops_.inner_->copy_to_host(region.host, region.device, region.bytes);
        verify(name);
    }

  private:
    struct Region {
        std::byte* host;
        size_t bytes;
        std::byte* device;
    };

    /// Overlapping operands become one region, so that in place stays in place.
    void merge() {
        std::ranges::sort(regions_, {}, &Region::host);
        std::vector<Region> merged;
        for (const Region& region : regions_) {
            if (!merged.empty() && region.host < merged.back().host + merged.back().bytes) {
                const auto reach = static_cast<size_t>(region.host - merged.back().host);
                merged.back().bytes = std::max(merged.back().bytes, reach + region.bytes);
            } else {
                merged.push_back(region);
            }
        }
        regions_ = std::move(merged);
    }

    void send() {
        merge();
        // The arena of the device is a copy of the host's, at the same offsets.
        std::byte* rest = ex_.arena.allocate_bytes(0);
        host_arena_ = rest - used_;
        const size_t capacity = ex_.arena.capacity_bytes();
        ops_.reserve(ops_.arena_, capacity + kHostedGuardBytes);
        ops_.inner_->copy_to_device(ops_.arena_.base, host_arena_, capacity);
        size_t total = kHostedGuardBytes;
        for (const Region& region : regions_) total += place_bytes(region);
        std::byte* next = ops_.reserve(ops_.operands_, total);
        guards_.assign(kHostedGuardBytes, kHostedGuard);
        ops_.inner_->copy_to_device(next, guards_.data(), kHostedGuardBytes);
        next += kHostedGuardBytes;
        for (Region& region : regions_) {
            if (region.host >= host_arena_ && region.host < host_arena_ + capacity) {
                region.device = ops_.arena_.base + (region.host - host_arena_);
                continue;
            }
            // The same alignment as on the host, up to 64 bytes.
            region.device = next + reinterpret_cast<uintptr_t>(region.host) % 64;
            ops_.inner_->copy_to_device(region.device, region.host, region.bytes);
            std::byte* end = region.device + region.bytes;
            ops_.inner_->copy_to_device(end, guards_.data(), kHostedGuardBytes);
            next += place_bytes(region);
        }
    }
    static size_t place_bytes(const Region& region) {
        return (region.bytes + 64 + kHostedGuardBytes + 63) / 64 * 64;
    }

    void verify(std::string_view name) {
        std::vector<std::byte> found(kHostedGuardBytes);
        for (const Region& region : regions_) {
            if (region.device >= ops_.arena_.base &&
                region.device < ops_.arena_.base + ops_.arena_.bytes)
                continue;
            ops_.inner_->copy_to_host(found.data(), region.device + region.bytes,
                                      kHostedGuardBytes);
            if (found != guards_)
                ops_.faults_.push_back(std::string(name) + " wrote behind an operand");
        }
    }

    HostedOps& ops_;
    Exec& ex_;
    size_t used_;
    std::byte* host_arena_ = nullptr;
    std::vector<Region> regions_;
    std::vector<std::byte> guards_;
};

}  // namespace tessera::op_cases
