#pragma once
// The gated delta rule for prompt rows with plain 16-bit operands, as others call it.

#include "backends/cuda/device.cuh"
#include "backends/cuda/recurrent/chunks.cuh"

namespace tessera::cuda {

constexpr int32_t kHalfKeys = 128;                      ///< key size of this form
constexpr int32_t kHalfValueRows = 64;                  ///< value rows of a block of the scan
constexpr int32_t kImageElements = kChunk * kHalfKeys;  ///< K or Q of a chunk
constexpr int32_t kOneHead = 2 * kImageElements;

struct HalfScratch {
    uint16_t* keys = nullptr;               ///< [chunk][key head][K, Q][2 images]
    uint16_t* squares = nullptr;            ///< [chunk][head][T', P]
    float* gates = nullptr;                 ///< [chunk][head][exp(G_i), exp(G_last - G_i)][64]
    unsigned long long* clamped = nullptr;  ///< counts operands that are beyond(), NaN among them
    int32_t first = 0;                      ///< chunk of the batch that the window begins with
    int32_t count = 0;                      ///< chunks of the window
};

/// Whether the form takes these sizes.
inline bool half_rule_takes(const DeltaArgs& delta) {
    return delta.key_size == kHalfKeys && delta.size % kHalfValueRows == 0;
}

/// The prompt rows of at most `chunks` chunks, in windows of the chunks that the scratch holds.
/// `operands`: kF16 or kBF16.
void run_half(
    Device& device, const DeltaArgs& delta, HalfScratch scratch, int64_t chunks, DType operands);

struct HalfArgs;
/// Launches the scan of a window on Hopper.
void scan_half_sm90(Device& device, const HalfArgs& args, DType operands);

}  // namespace tessera::cuda
