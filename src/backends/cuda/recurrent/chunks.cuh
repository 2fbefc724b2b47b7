#pragma once
// Where the chunks of a batch lie, and the rows of a chunk as they stand in registers: value rows
// down, tokens in columns, in the fragments of ptx/mma.cuh.

#include "backends/cuda/recurrent/delta_args.cuh"

namespace tessera::cuda {

constexpr int32_t kChunk = kChunkTokens;
constexpr int32_t kSquareElements = kChunk * kChunk;
/// Any decay below has the same effect; running sums of it stay exact enough in f64.
constexpr double kLowestDecay = -1e4;

constexpr int32_t kTiles = kChunk / 8;    ///< tiles of 8 tokens: columns of a result
constexpr int32_t kBlocks = kChunk / 16;  ///< of 16 tokens: depth of a product

/// Chunks of a sequence: 0 unless it consists of prompt rows.
__device__ __forceinline__ int32_t chunks_of(const BatchArgs& batch, const Place& place) {
    if (place.rows == 0 || place.begin >= batch.prompt_rows) return 0;
    return (place.position % kChunk + place.rows + kChunk - 1) / kChunk;
}

/// Tokens of one chunk: `begin` counts rows of the batch.
struct ChunkRows {
    int32_t begin = 0;
    int32_t tokens = 0;
};

/// Chunk `index` of a sequence.
__device__ __forceinline__ ChunkRows chunk_rows(const Place& place, int32_t index) {
    const int32_t inside = place.position % kChunk;
    const int32_t from = index == 0 ? 0 : index * kChunk - inside;
    const int32_t to = min((index + 1) * kChunk - inside, place.rows);
    return {place.begin + from, to - from};
}

/// Chunks of the sequences before `sequence`. Called by whole warps.
__device__ __forceinline__ int32_t chunks_before(const BatchArgs& batch, int32_t sequence) {
    const int32_t lane = threadIdx.x % 32;
    int32_t count = 0;
    for (int32_t s = lane; s < sequence; s += 32) count += chunks_of(batch, place_of(batch, s));
#pragma unroll
    for (int32_t distance = 16; distance > 0; distance /= 2)
        count += __shfl_xor_sync(0xffffffffu, count, distance);
    return count;
}

/// Chunk `index` of the whole batch; no tokens when there are fewer. Called by whole warps.
__device__ __forceinline__ ChunkRows find_chunk(const BatchArgs& batch, int32_t index) {
    const int32_t lane = threadIdx.x % 32;
    constexpr unsigned kAll = 0xffffffffu;
    for (int32_t base = 0; base < batch.sequences; base += 32) {
        const int32_t own =
            base + lane < batch.sequences ? chunks_of(batch, place_of(batch, base + lane)) : 0;
        int32_t end = own;  // chunks up to and with this lane's sequence
#pragma unroll
        for (int32_t distance = 1; distance < 32; distance *= 2) {
            const int32_t before = __shfl_up_sync(kAll, end, distance);
            if (lane >= distance) end += before;
        }
        const unsigned beyond = __ballot_sync(kAll, index < end);
        if (beyond == 0) {
            index -= __shfl_sync(kAll, end, 31);
            continue;
        }
        const int32_t found = __ffs(static_cast<int32_t>(beyond)) - 1;
        const int32_t inside = index - __shfl_sync(kAll, end - own, found);
        return chunk_rows(place_of(batch, base + found), inside);
    }
    return {};
}

// ---- a chunk in registers ----

/// Token of column `c` of a tile of this lane.
__device__ __forceinline__ int32_t token_of(int32_t tile, int32_t c) {
    return 8 * tile + threadIdx.x % 4 * 2 + c % 2;
}

/// First token of each of a lane's two rows from which on nothing is finite.
struct Bad {
    int32_t from[2] = {kChunk, kChunk};
    __device__ __forceinline__ bool any() const { return from[0] < kChunk || from[1] < kChunk; }
};

/// Finds what is not finite in the rows of x. All lanes that share a row get the same answer.
__device__ __forceinline__ void find_bad(const float (&x)[kTiles][4], Bad& bad) {
    constexpr unsigned kAll = 0xffffffffu;
    // Almost never is anything: 0 times it is NaN.
    float witness = 0.0f;
#pragma unroll
    for (int32_t tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int32_t c = 0; c < 4; ++c) witness = fmaf(x[tile][c], 0.0f, witness);
    if (__any_sync(kAll, witness != witness) == 0) return;
#pragma unroll
    for (int32_t tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int32_t c = 0; c < 4; ++c)
            if (!isfinite(x[tile][c])) bad.from[c / 2] = min(bad.from[c / 2], token_of(tile, c));
#pragma unroll
    for (int32_t& from : bad.from) {
        from = min(from, __shfl_xor_sync(kAll, from, 1));
        from = min(from, __shfl_xor_sync(kAll, from, 2));
    }
}

/// x = value from the first bad token of its row on.
__device__ __forceinline__ void replace_bad(const Bad& bad, float value, float (&x)[kTiles][4]) {
    if (!bad.any()) return;
#pragma unroll
    for (int32_t tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int32_t c = 0; c < 4; ++c)
            if (token_of(tile, c) >= bad.from[c / 2]) x[tile][c] = value;
}

}  // namespace tessera::cuda
