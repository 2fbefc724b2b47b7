#pragma once
// What an instruction set provides for the gated delta net. Generated rows run the token
// recurrence on the state as memory holds it, [value rows][key size]; prompt rows run the chunk
// form on strips of value rows, [strip][key size][strip rows], where every product has the value
// rows in its lanes and needs no sum over lanes. cpu_recurrent.cpp schedules both.

#include <cstddef>
#include <cstdint>

#include "ops/batch.h"

namespace tessera::cpu {

struct Extent {
    int64_t rows = 0;
    int64_t cols = 0;
    int64_t out_stride = 0;
};

/// Rows, one a token, that the run after this one will read or write: to be fetched meanwhile.
/// They are far apart, so that no hardware foresees them.
struct Upcoming {
    const float* x = nullptr;
    int64_t stride = 0;
    int64_t floats = 0;
    int64_t rows = 0;
};

/// Consecutive tokens of one value head; strides are floats between tokens.
struct DeltaRun {
    const float* q = nullptr;  ///< null: only the state moves on
    int64_t q_stride = 0;
    const float* k = nullptr;
    int64_t k_stride = 0;
    const float* v = nullptr;  ///< first value row of the block
    int64_t v_stride = 0;
    const float* log_decay = nullptr;
    int64_t decay_stride = 0;
    const float* beta = nullptr;
    int64_t beta_stride = 0;
    float* out = nullptr;  ///< first value row of the block
    int64_t out_stride = 0;
    int64_t tokens = 0;
    int64_t key_size = 0;
    int64_t rows = 0;  ///< value rows of the block
    /// Strips of a chunk and key head are taken in this order, from 0 on: kernels may make what
    /// the next strip (null: none) needs of keys and queries during the one before, and decay it.
    int64_t order = 0;
    float* next_strip = nullptr;
    /// Whether the run before this one is of the same value head, and the next one is.
    bool of_same_head = false, next_of_head = false;
    const Upcoming* upcoming = nullptr;
    int64_t upcoming_count = 0;
};

/// What the value heads of a key head share in a chunk of at most kChunkTokens tokens, in tiles of
/// tile_rows, each of which a product reads from front to back.
struct ChunkKeys {
    float* q_rows = nullptr;        ///< [token tiles][key size][tile]
    float* k_rows = nullptr;        ///< [token tiles][key size][tile]
    float* k_cols = nullptr;        ///< [key tiles][kChunkTokens][tile]
    float* q_transposed = nullptr;  ///< [key size][kChunkTokens]
    float* k_transposed = nullptr;  ///< [key size][kChunkTokens]
    float* kk = nullptr;            ///< [j][i] k_i . k_j, i > j; kChunkTokens squared
    float* qk = nullptr;            ///< [j][i] q_i . k_j, i >= j
    float* tiles = nullptr;         ///< `tile_floats` of the kernels' own
};

/// What the strips of a value head share in a chunk.
struct ChunkGates {
    /// [tiles of i][j][tile] -beta_i exp(G_i - G_j) k_i.k_j, j < i.
    float* solve = nullptr;
    /// [tiles of i][j][tile] exp(G_i - G_j) q_i.k_j, j <= i.
    float* mix = nullptr;
    float* since = nullptr;  ///< [kChunkTokens] exp(G_i)
    float* until = nullptr;  ///< [kChunkTokens] exp(G_last - G_i)
    float* beta = nullptr;   ///< [kChunkTokens]
};

struct RecurrentKernels {
    /// Value rows of a strip.
    int64_t strip_rows = 0;
    /// Rows of a register tile, and value rows that the token recurrence takes together: blocks
    /// begin at multiples of it.
    int64_t tile_rows = 0;
    /// out[col * extent.out_stride + row] = x[row * stride + col].
    void (*transpose)(const float* x, int64_t stride, const Extent& extent, float* out) = nullptr;
    /// out[c] = silu(sum_i taps[i * count + c] sources[i][c]), i ascending, c < count.
    void (*convolve)(const float* const* sources,
                     const float* taps,
                     int64_t width,
                     int64_t count,
                     float* out) = nullptr;
    /// Floats of scratch that `advance` needs.
    int64_t (*advance_floats)(int64_t key_size) = nullptr;
    /// The token recurrence over state [rows][key size]. Which tokens come in one call does not
    /// show in the bits.
    void (*advance)(const DeltaRun& run, float* scratch, float* state) = nullptr;
    /// Floats of ChunkKeys::tiles; absent: none.
    int64_t (*tile_floats)(int64_t key_size) = nullptr;
    /// Around all chunk calls of a thread, where set.
    void (*enter)() = nullptr;
    void (*leave)() = nullptr;
    /// Fills `keys` from `tokens` rows of the run.
    void (*open_chunk)(const DeltaRun& run, const ChunkKeys& keys) = nullptr;
    void (*open_gates)(const DeltaRun& run,
                       const ChunkKeys& keys,
                       const ChunkGates& gates) = nullptr;
    /// One chunk through one strip, `rows` <= strip_rows value rows of it live. `deltas`
    /// [kChunkTokens][strip_rows] is scratch.
    void (*run_strip)(const DeltaRun& run,
                      const ChunkKeys& keys,
                      const ChunkGates& gates,
                      float* deltas,
                      float* strip) = nullptr;
    /// `rows` <= strip_rows rows of a state to a strip (dead rows become 0) and back.
    void (*load_strip)(const float* state, int64_t rows, int64_t key_size, float* strip) = nullptr;
    void (*store_strip)(const float* strip, int64_t rows, int64_t key_size, float* state) = nullptr;
};

const RecurrentKernels& recurrent_kernels_scalar();
#if defined(__x86_64__)
const RecurrentKernels& recurrent_kernels_avx2();
const RecurrentKernels& recurrent_kernels_avx512();
const RecurrentKernels& recurrent_kernels_amx();
#endif

}  // namespace tessera::cpu
