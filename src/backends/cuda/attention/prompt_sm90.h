#pragma once
// The way of prompt rows on Hopper.

#include <cstdint>

namespace tessera::cuda {

class Device;
struct PromptArgs;

/// Launches prompt_sm90.cuh where card, formats and alignments allow it; else does nothing and
/// returns false. `page_count`: pages of the pool.
bool attend_wide(Device& device, const PromptArgs& args, int64_t page_count);

}  // namespace tessera::cuda
