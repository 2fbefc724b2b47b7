#pragma once
// Loops that show what a card does at best.

#include <cstdint>

namespace tessera::cuda {

class Device;

/// What a loop of products is made of.
enum class LoopKind : uint8_t { kF32, kBF16, kHopperBF16, kHopperFp8 };

/// Queues a loop on all multiprocessors and returns its operations. `sink`: a device word that
/// keeps the compiler from leaving the loop out.
double queue_loop(Device& device, LoopKind kind, float* sink);

/// The same for LoopKind::kHopper...; only in builds for Hopper.
double queue_loop_sm90(Device& device, LoopKind kind, float* sink);

}  // namespace tessera::cuda
