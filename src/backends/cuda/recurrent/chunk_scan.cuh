#pragma once
// The chunks of a prompt one after the other, on tensor cores. A warp holds 16 rows of the state of
// a value head in the registers of a product's result, which are those of a left operand as well,
// so that all of a chunk
//   R = V - exp(G) (S K^T),  D = R T'^T,  O = exp(G) (S Q^T) / sqrt(key size) + D P^T,
//   S <- exp(G_last) S + (exp(G_last - G) D) K
// (tokens in columns) stays in that warp; the warps of a block share keys, queries and squares in
// shared memory. Plain 16-bit operands are not enough. Keys, queries and the rows of S and D that
// meet them are sums of two f16 numbers, those rows scaled by powers of two into the range of f16;
// the product of the lower parts is left out: 3 products for one, about 2^-22 off. In the masked
// products with T' and P a common scale would let later tokens show in the bits of earlier ones:
// their operands are sums of three bf16 numbers, 6 products for one.
// Rows do not meet, so that a row that is not finite spoils itself only; its earlier tokens are
// kept clean by leaving out of the masked products what follows the first bad one. Bound: 3 * 3 *
// 64 * key size + 2 * 6 * 40 * 64 products of 16 bits a value row and chunk; 112 KiB a block and
// chunk through the second-level cache at a key size of 128, fetched during products.

#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/ptx/opaque.cuh"
#include "backends/cuda/recurrent/chunk_squares.cuh"

namespace tessera::cuda {

constexpr int32_t kScanWarps = 4;  ///< at most
constexpr int32_t kWarpRows = 16;
/// Rows of shared operands begin 16 bytes further on in the banks: eight of them without conflict.
constexpr int32_t kSkew = 8;
constexpr int32_t kSquareStride = kChunk + kSkew;

template <int kColumns>
struct ScanShared {
    uint16_t k[2][kChunk][kColumns + kSkew];  ///< high, low
    uint16_t q[2][kChunk][kColumns + kSkew];
    uint16_t square[3][kChunk][kSquareStride];  ///< T', then P
    float gates[2][2][kChunk];                  ///< of even and odd chunks
};

/// A left operand, 16 x 16, as a sum of two f16 numbers.
struct Split {
    uint32_t high[4];
    uint32_t low[4];
};

/// A power of two for each of a lane's two rows, and what undoes it.
struct RowScale {
    float up[2];
    float down[2];
};

/// What brings rows whose largest magnitude is largest[r] to below 2^14.
__device__ __forceinline__ RowScale row_scale(const float (&largest)[2]) {
    constexpr uint32_t kTop = 13, kBias = 127;
    RowScale scale{};
#pragma unroll
    for (int32_t r = 0; r < 2; ++r) {
        // Both powers have to be normal numbers.
        const uint32_t exponent = max(__float_as_uint(largest[r]) >> 23, kTop + 1);
        scale.up[r] = __uint_as_float((2 * kBias + kTop - exponent) << 23);
        scale.down[r] = __uint_as_float((exponent - kTop) << 23);
    }
    return scale;
}

/// The largest magnitude in each of a lane's two rows, the same in all lanes that share them.
template <int kCount>
__device__ __forceinline__ void find_largest(const float (&x)[kCount][4], float (&largest)[2]) {
#pragma unroll
    for (int32_t r = 0; r < 2; ++r) {
        float most = 0.0f;
#pragma unroll
        for (int32_t tile = 0; tile < kCount; ++tile)
            most = fmaxf(most, fmaxf(fabsf(x[tile][2 * r]), fabsf(x[tile][2 * r + 1])));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        largest[r] = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    }
}

/// Two tiles of a result, side by side, as left operand.
__device__ __forceinline__ Split split_tiles(const float (&left)[4],
                                             const float (&right)[4],
                                             const float (&up)[2]) {
    Split out;
    split_f16(left[0] * up[0], left[1] * up[0], out.high[0], out.low[0]);
    split_f16(left[2] * up[1], left[3] * up[1], out.high[1], out.low[1]);
    split_f16(right[0] * up[0], right[1] * up[0], out.high[2], out.low[2]);
    split_f16(right[2] * up[1], right[3] * up[1], out.high[3], out.low[3]);
    return out;
}

/// first and second += a times two right operands of 8 columns each, of f16.
__device__ __forceinline__ void multiply(const Split& a,
                                         const uint32_t (&high)[4],
                                         const uint32_t (&low)[4],
                                         float (&first)[4],
                                         float (&second)[4]) {
    const uint32_t high_first[2] = {high[0], high[1]}, high_second[2] = {high[2], high[3]};
    const uint32_t low_first[2] = {low[0], low[1]}, low_second[2] = {low[2], low[3]};
    mma_f16(first, a.low, high_first);
    mma_f16(second, a.low, high_second);
    mma_f16(first, a.high, low_first);
    mma_f16(second, a.high, low_second);
    mma_f16(first, a.high, high_first);
    mma_f16(second, a.high, high_second);
}

/// The address of this lane's row for a right operand x^T: rows 16 depth.. and columns 16 column..
/// of it stand in x as [columns][depth].
template <int kStride>
__device__ __forceinline__ const uint16_t* transposed_row(const uint16_t (&x)[kChunk][kStride],
                                                          int32_t column,
                                                          int32_t depth) {
    const int32_t lane = threadIdx.x % 32;
    return &x[16 * column + lane / 16 * 8 + lane % 8][16 * depth + lane / 8 % 2 * 8];
}

/// ... and for a right operand x: rows 16 depth.. and columns 16 column.. of x [depth][columns].
template <int kStride>
__device__ __forceinline__ const uint16_t* plain_row(const uint16_t (&x)[kChunk][kStride],
                                                     int32_t column,
                                                     int32_t depth) {
    const int32_t lane = threadIdx.x % 32;
    return &x[16 * depth + lane % 16][16 * column + lane / 16 * 8];
}

/// Rows of 16-bit numbers to shared memory, `count` of them by all threads of the block.
template <int kParts, int kStride>
__device__ __forceinline__ void fetch_rows(const uint16_t* from,
                                           int32_t columns,
                                           uint16_t (&to)[kParts][kChunk][kStride]) {
    const int32_t pieces = columns / 8;
    uint16_t* const first = &to[0][0][0];
    for (auto i = static_cast<int32_t>(threadIdx.x); i < kParts * kChunk * pieces;
         i += static_cast<int32_t>(blockDim.x))
        copy_16(first + i / pieces * kStride + i % pieces * 8, from + static_cast<int64_t>(i) * 8);
}

/// One warp's share of a value head: what it keeps in registers from chunk to chunk.
template <int kColumns>
struct ScanWarp {
    const DeltaArgs& delta;
    int32_t head;
    int32_t row;  ///< of the head, first of 16; may lie behind the last one
    float state[kColumns / 8][4];

    /// Row of element c of a tile of this lane.
    __device__ int32_t row_of(int32_t c) const {
        return row + static_cast<int32_t>(threadIdx.x) % 32 / 4 + c / 2 * 8;
    }
    __device__ float* slot(int32_t index) const {
        return delta.state + index * delta.state_stride +
               static_cast<int64_t>(head) * delta.size * delta.key_size;
    }
    /// Calls body(element of this lane, its address in the slot) where there is one.
    template <class Body>
    __device__ __forceinline__ void over_state(int32_t index, const Body& body) {
        float* const from = slot(index);
#pragma unroll
        for (int32_t tile = 0; tile < kColumns / 8; ++tile)
#pragma unroll
            for (int32_t c = 0; c < 4; ++c) {
                const int32_t column = token_of(tile, c);
                if (row_of(c) < delta.size && column < delta.key_size)
                    body(state[tile][c],
                         from + static_cast<int64_t>(row_of(c)) * delta.key_size + column);
            }
    }
    __device__ void clear() {
#pragma unroll
        for (auto& tile : state)
#pragma unroll
            for (float& element : tile) element = 0.0f;
    }
    __device__ void load(int32_t index) {
        clear();
        over_state(index, [](float& element, const float* from) { element = *from; });
    }
    __device__ void store(int32_t index) {
        over_state(index, [](float element, float* to) { *to = element; });
    }

    /// out += S x^T, the rows of S scaled up, for the tokens of `blocks` blocks.
    template <int kStride>
    __device__ __forceinline__ void multiply_state(const RowScale& scale,
                                                   const uint16_t (&x)[2][kChunk][kStride],
                                                   int32_t blocks,
                                                   float (&out)[kTiles][4]) const {
        // Queries and keys meet the same parts of S: splitting twice costs less than 64 registers.
        float up[2] = {scale.up[0], scale.up[1]};
        make_opaque(up[0]);
        make_opaque(up[1]);
#pragma unroll
        for (int32_t depth = 0; depth < kColumns / 16; ++depth) {
            const Split a = split_tiles(state[2 * depth], state[2 * depth + 1], up);
#pragma unroll
            for (int32_t block = 0; block < kBlocks; ++block) {
                if (block >= blocks) break;
                uint32_t high[4], low[4];
                load_matrices(high, transposed_row(x[0], block, depth));
                load_matrices(low, transposed_row(x[1], block, depth));
                multiply(a, high, low, out[2 * block], out[2 * block + 1]);
            }
        }
    }

    /// S <- decay S + D K for a D that is decayed to the end of the chunk; `largest` magnitudes of
    /// the rows of S.
    __device__ __forceinline__ void move_on(const uint16_t (&k)[2][kChunk][kColumns + kSkew],
                                            float decay,
                                            int32_t blocks,
                                            const float (&d)[kTiles][4],
                                            float (&largest)[2]) {
        float of_d[2];
        find_largest(d, of_d);
        // A common scale: next to a much larger S the last bits of D do not count.
        largest[0] = fmaxf(largest[0] * decay, of_d[0]);
        largest[1] = fmaxf(largest[1] * decay, of_d[1]);
        const RowScale scale = row_scale(largest);
#pragma unroll
        for (auto& tile : state)
#pragma unroll
            for (int32_t c = 0; c < 4; ++c) tile[c] = tile[c] * decay * scale.up[c / 2];
#pragma unroll
        for (int32_t depth = 0; depth < kBlocks; ++depth) {
            if (depth >= blocks) break;
            const Split a = split_tiles(d[2 * depth], d[2 * depth + 1], scale.up);
#pragma unroll
            for (int32_t column = 0; column < kColumns / 16; ++column) {
                uint32_t high[4], low[4];
                load_matrices_transposed(high, plain_row(k[0], column, depth));
                load_matrices_transposed(low, plain_row(k[1], column, depth));
                multiply(a, high, low, state[2 * column], state[2 * column + 1]);
            }
        }
#pragma unroll
        for (auto& tile : state)
#pragma unroll
            for (int32_t c = 0; c < 4; ++c) tile[c] *= scale.down[c / 2];
    }

    /// The values of a chunk, 0 where there are none.
    __device__ __forceinline__ void load_values(const ChunkRows& rows,
                                                float (&v)[kTiles][4]) const {
#pragma unroll
        for (int32_t tile = 0; tile < kTiles; ++tile)
#pragma unroll
            for (int32_t c = 0; c < 4; ++c) {
                const int32_t token = token_of(tile, c);
                v[tile][c] = token < rows.tokens && row_of(c) < delta.size
                                 ? delta.v.at(rows.begin + token, head)[row_of(c)]
                                 : 0.0f;
            }
    }
    __device__ __forceinline__ void store_outputs(const ChunkRows& rows,
                                                  const float (&o)[kTiles][4]) const {
#pragma unroll
        for (int32_t tile = 0; tile < kTiles; ++tile)
#pragma unroll
            for (int32_t c = 0; c < 4; ++c) {
                const int32_t token = token_of(tile, c);
                if (token < rows.tokens && row_of(c) < delta.size)
                    delta.out.at(rows.begin + token, head)[row_of(c)] = o[tile][c];
            }
    }
};

/// out += x square^T, where row i of the square ends at column i.
__device__ __forceinline__ void multiply_square(const float (&x)[kTiles][4],
                                                const uint16_t (&square)[3][kChunk][kSquareStride],
                                                int32_t blocks,
                                                float (&out)[kTiles][4]) {
#pragma unroll
    for (int32_t depth = 0; depth < kBlocks; ++depth) {
        if (depth >= blocks) break;
        uint32_t a[3][4];
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
            uint32_t parts[3];
            const float(&tile)[4] = x[2 * depth + i / 2];
            split_bf16(tile[i % 2 * 2], tile[i % 2 * 2 + 1], parts);
#pragma unroll
            for (int32_t part = 0; part < 3; ++part) a[part][i] = parts[part];
        }
#pragma unroll
        for (int32_t block = depth; block < kBlocks; ++block) {
            if (block >= blocks) break;
                // Parts whose product counts: their numbers add up to 2 at most. Small ones first.
#pragma unroll
            for (int32_t of_b = 2; of_b >= 0; --of_b) {
                uint32_t b[4];
                load_matrices(b, transposed_row(square[of_b], block, depth));
                const uint32_t left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
#pragma unroll
                for (int32_t of_a = 2 - of_b; of_a >= 0; --of_a) {
                    mma_bf16(out[2 * block], a[of_a], left);
                    mma_bf16(out[2 * block + 1], a[of_a], right);
                }
            }
        }
    }
}

/// Where the operands of a sequence's chunks stand in the scratch.
struct ScanSource {
    const ChunkScratch& scratch;
    int64_t key_head, key_heads, head, heads;
    int32_t first;  ///< place of the sequence's chunk 0 in the window; may be negative

    __device__ const uint16_t* keys(int32_t chunk) const {
        return scratch.keys +
               ((first + chunk) * key_heads + key_head) * 4 * kChunk * scratch.columns;
    }
    __device__ const uint16_t* squares(int32_t chunk) const {
        return scratch.squares + ((first + chunk) * heads + head) * 6 * kSquareElements;
    }
    /// Whoever calls these closes the group of copies.
    template <int kColumns>
    __device__ void fetch_k(int32_t chunk, ScanShared<kColumns>& shared) const {
        fetch_rows(keys(chunk), kColumns, shared.k);
    }
    template <int kColumns>
    __device__ void fetch_q_and_gates(int32_t chunk, ScanShared<kColumns>& shared) const {
        fetch_rows(keys(chunk) + 2 * kChunk * kColumns, kColumns, shared.q);
        const float* gates = scratch.gates + ((first + chunk) * heads + head) * 2 * kChunk;
        const auto thread = static_cast<int32_t>(threadIdx.x);
        if (thread < 32) copy_16(&shared.gates[chunk % 2][0][0] + 4 * thread, gates + 4 * thread);
    }
    template <int kColumns>
    __device__ void fetch_t(int32_t chunk, ScanShared<kColumns>& shared) const {
        fetch_rows(squares(chunk), kChunk, shared.square);
    }
    template <int kColumns>
    __device__ void fetch_p(int32_t chunk, ScanShared<kColumns>& shared) const {
        fetch_rows(squares(chunk) + 3 * kSquareElements, kChunk, shared.square);
    }
};

/// Chunk `chunk` of a sequence, `last` being the last one of the window. On entry Q and the gates
/// are in shared memory, K and T' under way; on return those of the next chunk are.
template <int kColumns>
__device__ __forceinline__ void scan_chunk(ScanWarp<kColumns>& warp,
                                           const ScanSource& source,
                                           const Place& place,
                                           int32_t chunk,
                                           int32_t last,
                                           ScanShared<kColumns>& shared) {
    const ChunkRows rows = chunk_rows(place, chunk);
    const int32_t blocks = (rows.tokens + 15) / 16;
    const float(&gates)[2][kChunk] = shared.gates[chunk % 2];
    float x[kTiles][4] = {}, d[kTiles][4] = {}, o[kTiles][4] = {}, v[kTiles][4];
    float largest[2];
    find_largest(warp.state, largest);
    const RowScale scale = row_scale(largest);
    warp.load_values(rows, v);
    warp.multiply_state(scale, shared.q, blocks, o);
#pragma unroll
    for (int32_t tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int32_t c = 0; c < 4; ++c)
            o[tile][c] *= warp.delta.scale * gates[0][token_of(tile, c)] * scale.down[c / 2];
    wait_copies<0>();
    __syncthreads();  // K and T' are there for all; nobody reads Q any more
    if (chunk < last) source.fetch_q_and_gates(chunk + 1, shared);
    commit_copies();
    warp.multiply_state(scale, shared.k, blocks, x);
#pragma unroll
    for (int32_t tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int32_t c = 0; c < 4; ++c)
            x[tile][c] =
                fmaf(-gates[0][token_of(tile, c)], x[tile][c] * scale.down[c / 2], v[tile][c]);
    Bad bad;
    find_bad(x, bad);
    replace_bad(bad, 0.0f, x);
    multiply_square(x, shared.square, blocks, d);
    replace_bad(bad, NAN, d);
    find_bad(d, bad);
    __syncthreads();  // nobody reads T' any more
    source.fetch_p(chunk, shared);
    commit_copies();
#pragma unroll
    for (int32_t tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int32_t c = 0; c < 4; ++c) x[tile][c] = d[tile][c] * gates[1][token_of(tile, c)];
    warp.move_on(shared.k, gates[0][rows.tokens - 1], blocks, x, largest);
    wait_copies<0>();
    __syncthreads();  // P is there, so are the next Q and gates; nobody reads K any more
    if (chunk < last) source.fetch_k(chunk + 1, shared);
    commit_copies();
    if (place.save_slot >= 0 && rows.begin + rows.tokens == place.begin + place.save_after)
        warp.store(place.save_slot);
    replace_bad(bad, 0.0f, d);
    multiply_square(d, shared.square, blocks, o);
    replace_bad(bad, NAN, o);
    warp.store_outputs(rows, o);
    __syncthreads();  // nobody reads P any more
    if (chunk < last) source.fetch_t(chunk + 1, shared);
    commit_copies();
}

/// One sequence, through its chunks in the window, for a value head and a slice of its value rows.
template <int kColumns>
__device__ __forceinline__ void scan_sequence(const ChunkArgs& args,
                                              int32_t sequence,
                                              int32_t head,
                                              int32_t slice,
                                              ScanShared<kColumns>& shared) {
    const DeltaArgs& delta = args.delta;
    const Place place = place_of(delta.batch, sequence);
    const int32_t chunks = chunks_of(delta.batch, place);
    if (chunks == 0) return;
    const int32_t first = chunks_before(delta.batch, sequence) - args.scratch.first;
    const int32_t begin = max(0, -first), last = min(chunks, args.scratch.count - first) - 1;
    if (begin > last) return;
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const int32_t warps = static_cast<int32_t>(blockDim.x) / 32;
    ScanWarp<kColumns> warp{delta, head, (slice * warps + thread / 32) * kWarpRows, {}};
    const ScanSource source{
        args.scratch, head % delta.key_heads, delta.key_heads, head, delta.heads, first};
    source.fetch_q_and_gates(begin, shared);
    source.fetch_k(begin, shared);
    source.fetch_t(begin, shared);
    commit_copies();
    if (begin > 0 || place.position > 0) warp.load(place.slot);
    wait_copies<0>();
    __syncthreads();  // what all threads have copied is there
    for (int32_t chunk = begin; chunk <= last; ++chunk)
        scan_chunk(warp, source, place, chunk, last, shared);
    warp.store(place.slot);
}

/// Blocks of (prompt sequence, value head, slice of its value rows). There are as many as there can
/// be sequences with rows: where empty ones stand between them, a block goes on to later ones.
template <int kColumns>
__global__ void __launch_bounds__(32 * kScanWarps, 2)
    chunk_scan(const __grid_constant__ ChunkArgs args) {
    extern __shared__ uint4 shared_memory[];
    auto& shared = *reinterpret_cast<ScanShared<kColumns>*>(shared_memory);
    const BatchArgs& batch = args.delta.batch;
    const auto block = static_cast<int32_t>(blockIdx.x);
    const int32_t a_sequence = args.slices * args.delta.heads;
    const int32_t head = block / args.slices % args.delta.heads;
    for (int32_t sequence = block / a_sequence;
         sequence < batch.sequences && batch.seq_start[sequence] < batch.prompt_rows;
         sequence += static_cast<int32_t>(gridDim.x) / a_sequence)
        scan_sequence(args, sequence, head, block % args.slices, shared);
}

}  // namespace tessera::cuda
