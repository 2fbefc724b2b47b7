#pragma once
// How a product on Hopper is cut into work for clusters of blocks (gemm_sm90.cuh). None of this
// changes a bit of a result.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backends/cuda/linear/hopper_blocks.h"

namespace tessera::cuda::sm90 {

using hopper::kBlocks;
using hopper::kStageColumns;
using hopper::kWarpgroups;

inline constexpr int kTileStep = 32;      ///< tokens of a tile are a multiple
inline constexpr int kLeastTile = 64;     ///< smaller ones take as long
inline constexpr int kLargestTile = 256;  ///< what the registers of a block hold
/// Stages that a sum takes before it leaves the tensor cores and a new one is begun: they cut off
/// what they add, and few tokens need several blocks along the columns to fill a card. 46 make
/// three chunks of 17408 columns.
inline constexpr int kMostChunkStages = 46;
/// Clusters of a card of 132 multiprocessors. Feature tiles beyond a multiple of them leave most of
/// such a card idle when tokens are few: their columns are cut into kTailChunks, if they are few
/// enough for that and the columns not cut anyway. The number belongs to the order of sums, on
/// every card.
inline constexpr int kTailClusters = 66;
inline constexpr int kTailChunks = 4;
inline constexpr int kLeastTailStages = 4;  ///< of a chunk: shorter ones do not pay for joining
/// Memory of sums that lie aside: those of chunks that wait for the others of their tile.
inline constexpr size_t kSumsBytes = size_t{64} << 20;

/// Chunks of the columns of a product: they depend on the shape of the weight, and on whether the
/// product is gated, alone, as the order of a sum does.
struct Chunks {
    int32_t stages;  ///< of all columns
    int32_t count;
    int32_t each;   ///< stages of a chunk, the last one takes what is left
    int32_t first;  ///< feature tile from which on there are chunks: those before have one
};
/// `feature_tiles`: of a cluster; 0: no tail, for gated products.
inline Chunks chunks_of(int64_t columns, int64_t feature_tiles) {
    const auto up = [](int64_t a, int64_t b) { return static_cast<int32_t>((a + b - 1) / b); };
    Chunks chunks{};
    chunks.stages = up(columns, kStageColumns);
    const auto cut_into = [&](int32_t count) {
        chunks.each = up(chunks.stages, count);
        chunks.count = up(chunks.stages, chunks.each);
    };
    cut_into(up(chunks.stages, kMostChunkStages));
    const auto tail = static_cast<int32_t>(feature_tiles % kTailClusters);
    if (chunks.count == 1 && feature_tiles > kTailClusters && tail > 0 &&
        tail * kTailChunks <= kTailClusters && chunks.stages >= kTailChunks * kLeastTailStages) {
        chunks.first = static_cast<int32_t>(feature_tiles) - tail;
        cut_into(kTailChunks);
    }
    return chunks;
}

/// Tiles [0, whole) are each the work of a cluster, chunk after chunk. Each chunk of the next
/// `chunked` tiles is an item of work, and of all others each chunk of each piece of tokens.
struct Cut {
    int32_t token_tiles;  ///< for the same features
    int32_t whole;
    int32_t chunked;
    int32_t piece;  ///< tokens
    int32_t pieces;
    int32_t items;  ///< of all kinds
    Chunks chunks;
    int32_t tile;  ///< tokens
};

/// Bytes of the sums of a block for a tile of so many tokens.
inline constexpr size_t sum_bytes(int tokens) {
    return size_t{4} * 64 * kWarpgroups * static_cast<size_t>(tokens);
}
/// Bytes of the sums that lie aside: one for each block of an item that is a chunk of its tile, or,
/// where none `shares` (gated products), one for each block at work. Chunks of a whole
/// tile of other products are added to the result.
inline size_t sums_bytes(const Cut& cut, int64_t clusters, bool shares) {
    if (cut.chunks.count == 1) return 0;
    const int64_t places = shares ? cut.items - cut.whole : std::min<int64_t>(cut.whole, clusters);
    return static_cast<size_t>(places) * kBlocks * sum_bytes(cut.tile);
}

/// The fastest cut of `rows` tokens for `feature_tiles` tiles of features of a cluster. `shares`:
/// several clusters may share a sum of more than one chunk, and tails have such; else a cluster
/// puts the sums of a tile aside between its chunks.
Cut cut_tiles(int64_t rows, int64_t feature_tiles, int64_t columns, int64_t clusters, bool shares);

}  // namespace tessera::cuda::sm90
