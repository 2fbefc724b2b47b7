#pragma once
// How the blocks that live as long as the card share the mappings that the driver gives. Arithmetic
// alone, so that a plan of memory can be made as exactly as the memory is taken, without a card.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera::cuda {

class Pools {
  public:
    static constexpr size_t kAlignment = 256;
    /// What the driver rounds large mappings to.
    static constexpr size_t kGranule = size_t{2} << 20;
    static constexpr size_t kPoolBytes = size_t{32} << 20;

    struct Place {
        size_t mapping = 0;      ///< number of the mapping, in order of their making
        size_t offset = 0;       ///< in it, a multiple of kAlignment
        size_t fresh_bytes = 0;  ///< not 0: the mapping is new, of so many bytes
    };

    /// A place for a block. It goes where it leaves least; blocks that fit nowhere get a mapping:
    /// small ones one for as many of their size as kPoolBytes hold, as a model's layers are alike.
    Place take(size_t bytes) {
        const size_t rounded = round_up(std::max<size_t>(bytes, 1), kAlignment);
        auto best = rests_.end();
        for (auto rest = rests_.begin(); rest != rests_.end(); ++rest)
            if (rest->bytes >= rounded && (best == rests_.end() || rest->bytes < best->bytes))
                best = rest;
        Place place;
        if (best == rests_.end()) {
            const size_t alike = rounded < kPoolBytes / 4 ? kPoolBytes / rounded : 1;
            place = {.mapping = mappings_++, .fresh_bytes = round_up(alike * rounded, kGranule)};
            mapped_ += place.fresh_bytes;
            rests_.push_back({place.mapping, 0, place.fresh_bytes});
            best = rests_.end() - 1;
        } else {
            place = {.mapping = best->mapping, .offset = best->offset};
        }
        best->offset += rounded;
        best->bytes -= rounded;
        if (best->bytes == 0) rests_.erase(best);
        return place;
    }

    /// Bytes of all mappings.
    size_t mapped_bytes() const { return mapped_; }

  private:
    struct Rest {
        size_t mapping;
        size_t offset;
        size_t bytes;
    };
    static size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

    std::vector<Rest> rests_;
    size_t mappings_ = 0;
    size_t mapped_ = 0;
};

/// Each of the two device buffers that weights pass through on their way (linear/upload.cu).
inline constexpr size_t kUploadBytes = size_t{8} << 20;
/// Code of the kernels, which the driver loads when one is first launched, and what it keeps for
/// itself.
inline constexpr size_t kKernelBytes = size_t{64} << 20;
/// Recordings of passes. Passes that find no room for theirs run without.
inline constexpr size_t kRecordingBytes = size_t{64} << 20;

/// Memory of a card that an engine takes beside these blocks (in the order of their allocation):
/// unused ends of mappings, buffers of the upload, kernels and recordings.
inline int64_t bytes_beside(std::span<const int64_t> blocks) {
    Pools pools;
    int64_t asked = 0;
    for (int i = 0; i < 2; ++i) pools.take(kUploadBytes);
    for (const int64_t bytes : blocks) {
        pools.take(static_cast<size_t>(bytes));
        asked += bytes;
    }
    return static_cast<int64_t>(pools.mapped_bytes() + kKernelBytes + kRecordingBytes) - asked;
}

}  // namespace tessera::cuda
