// Which cut of a product on Hopper is fastest: a model of what was measured, see gemm_sm90_cut.h.
#include "backends/cuda/device.cuh"
#include "backends/cuda/linear/gemm_sm90_cut.h"

namespace tessera::cuda::sm90 {
namespace {

/// Clocks, roughly: what a stage of a tile takes, what begins and ends an item, and what it takes
/// to put the sums of a chunk aside. Adding them to the result, as plain products do, counts as
/// much: at a quarter of it, what was measured would be cut the same.
int64_t clocks_of(int tokens, int stages) {
    const int stage = tokens <= 128 ? 800 + tokens * 75 / 16 : 660 + tokens * 185 / 32;
    return int64_t{stages} * stage + 2500 + 16 * tokens;
}
int64_t clocks_aside(int tokens) {
    return 24 * tokens;
}
int64_t clocks_shared(int tokens) {
    return 6000 + 20 * tokens;
}

}  // namespace

Cut cut_tiles(int64_t rows, int64_t feature_tiles, int64_t columns, int64_t clusters, bool shares) {
    const Chunks chunks = chunks_of(columns, shares ? feature_tiles : 0);
    Cut best{};
    int64_t least = INT64_MAX;
    const auto consider = [&](int tile, int64_t whole, int64_t chunked, int piece) {
        const int64_t token_tiles = ceil_div(rows, tile), tiles = token_tiles * feature_tiles;
        const int64_t pieces = ceil_div(tile, piece);
        const int64_t parts = (tiles - whole - chunked) * pieces * chunks.count;
        const Cut cut{.token_tiles = static_cast<int32_t>(token_tiles),
                      .whole = static_cast<int32_t>(whole),
                      .chunked = static_cast<int32_t>(chunked),
                      .piece = piece,
                      .pieces = static_cast<int32_t>(pieces),
                      .items = static_cast<int32_t>(whole + chunked * chunks.count + parts),
                      .chunks = chunks,
                      .tile = tile};
        if (sums_bytes(cut, clusters, shares) > kSumsBytes) return;
        const int64_t aside = (chunks.count - 1) * clocks_aside(tile);
        const auto shared = [&](int tokens) {
            return clocks_of(tokens, chunks.each) + (chunks.count > 1 ? clocks_shared(tokens) : 0);
        };
        const int64_t time = ceil_div(whole, clusters) * (clocks_of(tile, chunks.stages) + aside) +
                             ceil_div(chunked * chunks.count, clusters) * shared(tile) +
                             ceil_div(parts, clusters) * shared(piece);
        if (time >= least) return;
        least = time;
        best = cut;
    };
    for (int tile = kLargestTile; tile >= kLeastTile; tile -= kTileStep) {
        const int64_t tiles = ceil_div(rows, tile) * feature_tiles;
        if (chunks.first > 0) {
            const int64_t before = ceil_div(rows, tile) * chunks.first;
            consider(tile, tiles, 0, tile);
            consider(tile, before, tiles - before, tile);
            continue;
        }
        const int64_t whole = tiles / clusters * clusters, rest = tiles - whole;
        const int64_t chunked = rest * chunks.count / clusters * clusters / chunks.count;
        consider(tile, tiles, 0, tile);
        if (chunks.count > 1 && !shares) continue;
        if (chunks.count > 1) consider(tile, whole, rest, tile);
        for (int piece = kLeastTile; piece < tile; piece += kTileStep) {
            consider(tile, whole, 0, piece);
            if (chunks.count > 1) consider(tile, whole, chunked, piece);
        }
    }
    return best;
}

}  // namespace tessera::cuda::sm90
