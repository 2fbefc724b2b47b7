#pragma once
// What a block of the products for Hopper is, for hosts as well.

namespace tessera::cuda::hopper {

inline constexpr int kStageColumns = 128;
inline constexpr int kWarpgroups = 2;  ///< that multiply
inline constexpr int kFeatures = 64 * kWarpgroups;
inline constexpr int kThreads = 128 * (kWarpgroups + 1);
inline constexpr int kBlocks = 2;    ///< of a cluster, for the same tokens
inline constexpr int kBoxRows = 32;  ///< tokens of a copy
inline constexpr int kLoaders = 4;   ///< warps that bring operands
/// Where a warpgroup collects 32 tokens of gated values.
inline constexpr int kOutBytes = 32 * 32 * 2;

}  // namespace tessera::cuda::hopper
