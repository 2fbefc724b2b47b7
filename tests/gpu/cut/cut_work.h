#pragma once
// How the products for Hopper are cut into work (gemm_sm90_cut.h), as the kernel finds its items.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera {

struct CutProduct {
    int64_t features;  ///< of the weight, or of each of gate and up
    int64_t columns;
    bool gated = false;
};

/// A chunk of columns of an item of work.
struct WorkChunk {
    int32_t feature;     ///< tile of a cluster
    int32_t token, end;  ///< tokens [token, end)
    int32_t count;       ///< columns of products for them
    int32_t first_stage, end_stage;
    int32_t place;  ///< where its sums lie aside, or -1
    bool last;      ///< of its item
};

struct CutWork {
    int32_t feature_tiles;  ///< of a cluster
    int32_t stages;         ///< of all columns
    int32_t chunks;         ///< of the tiles from `first` on, others have one
    int32_t first;
    size_t place_bytes;  ///< of the sums of an item that lie aside
    size_t sums_bytes;   ///< of all of them
    size_t most_sums_bytes;
    std::vector<WorkChunk> work;  ///< by item and chunk; items without a token have none
};

/// The work for `rows` tokens on a card that holds so many clusters.
CutWork cut_work(const CutProduct& product, int64_t rows, int64_t clusters);

}  // namespace tessera
