#pragma once
// What the parts of gemm_sm90.cuh share: operands, the shared memory of a block, items of work.

#include "backends/cuda/linear/gemm_sm90_cut.h"
#include "backends/cuda/linear/hopper_tiles.cuh"

namespace tessera::cuda::sm90 {

using hopper::kBoxRows;
using hopper::kFeatures;
using hopper::kLoaders;
using hopper::kOutBytes;
using hopper::kOwnFeatures;
using hopper::kStageUnits;
using hopper::kThreads;
using hopper::kWeightRowBytes;
using hopper::Maps;
using hopper::StageScales;

inline constexpr int kHalfColumns = 64;  ///< a row of 128 bytes of bf16
static_assert(kBoxRows == kTileStep, "copies bring whole steps of a tile");

/// What the kernel takes of a Product, and how the tiles are cut.
struct Operands : hopper::ProductOperands {
    int32_t stages;  ///< of the ring
    int32_t stage_bytes;
    Cut cut;
    float4* sums;  ///< that lie aside: of items that are chunks; gated: of blocks
};

/// Tokens [token, end), in `count` columns of products, against features from `feature`, chunks
/// [first_chunk, end_chunk).
struct Item {
    int32_t token, end, count, feature;
    int32_t first_chunk, end_chunk;
    int32_t place;  ///< among those that share sums with others, or -1
};
/// Also on the host, for tests.
__host__ __device__ __forceinline__ Item item_of(const Operands& p, int index) {
    const Cut& cut = p.cut;
    int chunks = cut.chunks.count, pieces = cut.pieces, token_tiles = cut.token_tiles;
#ifdef __CUDA_ARCH__
    // Divisors that nobody prepares for: the ends of items need the registers.
    make_opaque(chunks);
    make_opaque(pieces);
    make_opaque(token_tiles);
#endif
    Item item{0, 0, cut.tile, 0, 0, chunks, -1};
    int tile = index, piece = 0;
    if (index >= cut.whole) {
        const int part = index - cut.whole;
        if (chunks > 1) {
            item.place = part;
            item.first_chunk = part % chunks;
            item.end_chunk = item.first_chunk + 1;
        }
        const int group = part / chunks;
        tile = cut.whole + group;
        if (group >= cut.chunked) {
            piece = (group - cut.chunked) % pieces;
            tile = cut.whole + cut.chunked + (group - cut.chunked) / pieces;
            item.count = min(cut.piece, cut.tile - piece * cut.piece);
        }
    }
    item.feature = tile / token_tiles;
    if (item.feature < cut.chunks.first) item.end_chunk = 1;
    item.token = tile % token_tiles * cut.tile + piece * cut.piece;
    item.end = item.token + item.count;
    const int64_t left = p.rows - item.token;
    if (left < item.count) {
        // Columns of products without a token cost time.
        item.end = static_cast<int32_t>(p.rows);
        item.count = (static_cast<int>(left) + kTileStep - 1) / kTileStep * kTileStep;
    }
    if (item.count < kLeastTile) item.count = kLeastTile;
    return item;
}
__host__ __device__ __forceinline__ int stages_of(const Operands& p, const Item& item, int chunk) {
    const Chunks& chunks = p.cut.chunks;
    const int end = item.feature < chunks.first ? 1 : chunks.count;
    return chunk + 1 < end ? chunks.each : chunks.stages - chunk * chunks.each;
}

inline constexpr int kMostStages = 8;
inline constexpr int kWeightBytes = kFeatures * kWeightRowBytes;
inline constexpr int kScaleBytes = kFeatures * 16;
inline constexpr size_t kSharedMost = 232448;
struct Fixed {
    Barrier full[kMostStages], empty[kMostStages];
    uint2 table;
    int32_t item[4 * kWarpgroups];  ///< that a warp works on
};
/// Weights, scales and x of a stage.
inline constexpr int stage_bytes(int tokens) {
    return kWeightBytes + kScaleBytes + tokens * kStageColumns * 2;
}
static_assert(stage_bytes(kTileStep) % 1024 == 0, "swizzled boxes start at multiples");
inline int stage_count(int tokens) {
    const size_t most = kSharedMost - kWarpgroups * kOutBytes - sizeof(Fixed);
    return std::min(kMostStages, static_cast<int>(most) / stage_bytes(tokens));
}
inline size_t shared_bytes(int tokens) {
    return kWarpgroups * kOutBytes + sizeof(Fixed) +
           static_cast<size_t>(stage_count(tokens) * stage_bytes(tokens));
}

/// The shared memory of a block: collected results, the ring, the rest.
struct Memory {
    unsigned char* start;
    int32_t stages;
    int32_t stage_bytes;

    __device__ __forceinline__ unsigned char* out(int warpgroup) const {
        return start + warpgroup * kOutBytes;
    }
    __device__ __forceinline__ unsigned char* weights(int slot) const {
        return start + kWarpgroups * kOutBytes + slot * stage_bytes;
    }
    __device__ __forceinline__ unsigned char* scales(int slot) const {
        return weights(slot) + kWeightBytes;
    }
    __device__ __forceinline__ unsigned char* x(int slot) const {
        return weights(slot) + kWeightBytes + kScaleBytes;
    }
    __device__ __forceinline__ Fixed& fixed() const {
        return *reinterpret_cast<Fixed*>(weights(stages));
    }
};

/// Where a role stands in the ring.
struct Place {
    int slot = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void next(int stages) {
        if (++slot == stages) {
            slot = 0;
            parity ^= 1;
        }
    }
    __device__ __forceinline__ int before(int stages) const {
        return slot == 0 ? stages - 1 : slot - 1;
    }
};

}  // namespace tessera::cuda::sm90
