#pragma once
// The chunks of a prompt one after the other with 16-bit operands, as half_scan.cuh, for cards
// without products of warpgroups: a warp holds 16 value rows of the state in the registers of a
// product's result, which are those of a left operand as well, four warps share the operands of a
// chunk in shared memory, and those of the next chunk come in beside its products.
// Bound: 232 products of 16 x 8 x 16 a warp and chunk, a chain: where rows are fewer than quarters
// of multiprocessors (16 for each), the rest of the card stands still. 49 KiB a block and chunk
// through the second-level cache, 97 KiB of shared memory. Measured on an H200: a chunk in 4950
// clocks, 1510 of them products; on an RTX 5090 7420 of 9080 are predicted.

#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/ptx/opaque.cuh"
#include "backends/cuda/recurrent/half_prepare.cuh"
#include "backends/cuda/recurrent/half_stages.cuh"

namespace tessera::cuda {

constexpr int32_t kHalfRowsThreads = 2 * kHalfValueRows;  ///< 16 rows a warp

/// The operands of a chunk, as they stand in the scratch.
struct alignas(128) RowsStage {
    uint16_t keys[2][2][kChunk * 64];      ///< K, Q: an image for each half of their columns
    uint16_t squares[2][kSquareElements];  ///< T', P
    float gates[2][kChunk];
};
constexpr int32_t kBlockRows = 16 * 64;  ///< elements of an image from a block to the one below

struct HalfRowsShared {
    RowsStage stages[2];
};
static_assert(sizeof(HalfRowsShared) <= 101376, "a block of sm_120 has 99 KiB");

/// Operands of a chunk to shared memory, by all threads of the block; they close the group.
__device__ __forceinline__ void fetch_stage(const HalfSource& source,
                                            int32_t chunk,
                                            RowsStage& stage) {
    constexpr uint32_t kTogether = kHalfRowsThreads * 16;  // bytes
    const uint32_t own = threadIdx.x * 16;
    const auto copy = [&](auto& to, const void* from) {
        auto* destination = reinterpret_cast<uint8_t*>(&to) + own;
        const auto* piece = static_cast<const uint8_t*>(from) + own;
#pragma unroll
        for (uint32_t at = 0; at < sizeof(to); at += kTogether)
            if (sizeof(to) % kTogether == 0 || at + own < sizeof(to))
                copy_16(destination + at, piece + at);
    };
    copy(stage.keys, source.keys(chunk));
    copy(stage.squares, source.squares(chunk));
    copy(stage.gates, source.gates(chunk));
    commit_copies();
}

/// A lane's places in images for load_matrices, in the block of 16 x 16 at row and column 0.
struct BlockPlaces {
    int32_t left, right;
    /// The place of the same row in the block `column` blocks further right.
    static __device__ __forceinline__ int32_t across(int32_t place, int32_t column) {
        return place ^ 16 * column;
    }
    static __device__ __forceinline__ BlockPlaces own() {
        auto lane = static_cast<int32_t>(threadIdx.x) % 32;
        // Found anew for every chunk: kept, they and what is made of them take twelve registers.
        make_opaque(lane);
        return {image_place(lane % 16, lane / 16 * 8),
                image_place(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8)};
    }
};

/// out += left keys^T; keys are the two images of K or Q.
template <bool kBf16>
__device__ __forceinline__ void multiply_by_key_rows(const uint32_t (&left)[8][4],
                                                     const uint16_t (&keys)[2][kChunk * 64],
                                                     const BlockPlaces& places,
                                                     float (&out)[kTiles][4]) {
#pragma unroll
    for (int32_t depth = 0; depth < 8; ++depth)
#pragma unroll
        for (int32_t block = 0; block < kBlocks; ++block) {
            uint32_t b[4];
            load_matrices(
                b, keys[depth / 4] + places.across(places.right, depth % 4) + block * kBlockRows);
            mma_16bit<!kBf16>(out[2 * block], left[depth], b[0], b[1]);
            mma_16bit<!kBf16>(out[2 * block + 1], left[depth], b[2], b[3]);
        }
}

/// out += x square^T, where row i of the square ends at column i.
template <bool kBf16>
__device__ __forceinline__ void multiply_by_square_rows(const uint32_t (&x)[kBlocks][4],
                                                        const uint16_t (&square)[kSquareElements],
                                                        const BlockPlaces& places,
                                                        float (&out)[kTiles][4]) {
#pragma unroll
    for (int32_t depth = 0; depth < kBlocks; ++depth)
#pragma unroll
        for (int32_t block = depth; block < kBlocks; ++block) {
            uint32_t b[4];
            load_matrices(b, square + places.across(places.right, depth) + block * kBlockRows);
            mma_16bit<!kBf16>(out[2 * block], x[depth], b[0], b[1]);
            mma_16bit<!kBf16>(out[2 * block + 1], x[depth], b[2], b[3]);
        }
}

/// state += d K.
template <bool kBf16>
__device__ __forceinline__ void add_rows_to_state(const uint32_t (&d)[kBlocks][4],
                                                  const uint16_t (&keys)[2][kChunk * 64],
                                                  const BlockPlaces& places,
                                                  float (&state)[16][4]) {
#pragma unroll
    for (int32_t depth = 0; depth < kBlocks; ++depth)
#pragma unroll
        for (int32_t column = 0; column < 8; ++column) {
            uint32_t b[4];
            load_matrices_transposed(
                b, keys[column / 4] + places.across(places.left, column % 4) + depth * kBlockRows);
            mma_16bit<!kBf16>(state[2 * column], d[depth], b[0], b[1]);
            mma_16bit<!kBf16>(state[2 * column + 1], d[depth], b[2], b[3]);
        }
}

/// What a lane keeps of its warp's rows of the state.
struct HalfRows : HalfStateRows {
    /// Calls body(element of x, its address) for this lane's elements of a chunk that exist.
    /// Addresses are counted up: products of row numbers would take more instructions than all else
    /// here.
    template <class T, class Element, class Body>
    __device__ __forceinline__ void over_tokens(const HeadRows<T>& memory,
                                                const ChunkRows& rows,
                                                Element (&x)[kTiles][4],
                                                const Body& body) const {
        const int32_t pair = threadIdx.x % 4 * 2;
        T* at = memory.at(rows.begin + pair, head) + row;
#pragma unroll
        for (int32_t tile = 0; tile < kTiles; ++tile) {
#pragma unroll
            for (int32_t odd = 0; odd < 2; ++odd) {
                if (8 * tile + pair + odd >= rows.tokens) continue;
                body(x[tile][odd], at + odd * memory.row_stride);
                body(x[tile][odd + 2], at + odd * memory.row_stride + 8);
            }
            at += 8 * memory.row_stride;
        }
    }

    /// Counts what saturates of a masked left operand (and of `left`, if given) and finds the first
    /// tokens from which on x, which it was made of, is not finite. Rare.
    template <bool kBf16>
    __device__ __forceinline__ void take_beyond(uint32_t most,
                                                const uint32_t (&masked)[kBlocks][4],
                                                const uint32_t (*left)[8][4],
                                                const float (&x)[kTiles][4],
                                                Bad& bad) const {
        if (!any_beyond<kBf16>(most)) return;
        if (beyond<kBf16>(most)) {
            const uint32_t more = left != nullptr ? count_beyond<kBf16>(*left) : 0;
            atomicAdd(args.scratch.clamped, count_beyond<kBf16>(masked) + more);
        }
        find_bad(x, bad);
    }
};

/// A chunk of which the values are in v and the operands in shared memory.
template <bool kBf16>
__device__ __forceinline__ void scan_chunk(HalfRows& warp,
                                           const RowsStage& stage,
                                           const ChunkRows& rows,
                                           const float (&v)[kTiles][4]) {
    const int32_t pair = threadIdx.x % 4 * 2;
    const BlockPlaces places = BlockPlaces::own();
    float x[kTiles][4] = {}, o[kTiles][4] = {};
    uint32_t left[8][4], masked[kBlocks][4], most = 0;
    as_left<kBf16, 8>(warp.state, left, most);
    multiply_by_key_rows<kBf16>(left, stage.keys[0], places, x);
    multiply_by_key_rows<kBf16>(left, stage.keys[1], places, o);
    const float scale = warp.args.delta.scale;
#pragma unroll
    for (int32_t tile = 0; tile < kTiles; ++tile) {
        const auto gate = *reinterpret_cast<const float2*>(&stage.gates[0][8 * tile + pair]);
#pragma unroll
        for (int32_t c = 0; c < 4; ++c) {
            const float decay = c % 2 == 0 ? gate.x : gate.y;
            x[tile][c] = fmaf(-decay, x[tile][c], v[tile][c]);
            o[tile][c] *= scale * decay;
        }
    }
    as_masked_left<kBf16>(x, masked, most);
    Bad bad;
    warp.take_beyond<kBf16>(most, masked, &left, x, bad);
    float d[kTiles][4] = {};
    multiply_by_square_rows<kBf16>(masked, stage.squares[0], places, d);
    replace_bad(bad, NAN, d);
    replace_bad(bad, NAN, o);
    most = 0;
    as_masked_left<kBf16>(d, masked, most);
    warp.take_beyond<kBf16>(most, masked, nullptr, d, bad);
    replace_bad(bad, NAN, d);
    replace_bad(bad, NAN, o);
    multiply_by_square_rows<kBf16>(masked, stage.squares[1], places, o);
    warp.over_tokens(warp.args.delta.out, rows, o, [](float from, float* to) { *to = from; });
#pragma unroll
    for (int32_t tile = 0; tile < kTiles; ++tile) {
        const auto gate = *reinterpret_cast<const float2*>(&stage.gates[1][8 * tile + pair]);
#pragma unroll
        for (int32_t c = 0; c < 4; ++c) d[tile][c] *= c % 2 == 0 ? gate.x : gate.y;
    }
    uint32_t decayed[kBlocks][4];
    as_left<kBf16, kBlocks>(d, decayed, most);
    const float decay = stage.gates[0][kChunk - 1];
#pragma unroll
    for (auto& tile : warp.state)
#pragma unroll
        for (float& element : tile) element *= decay;
    add_rows_to_state<kBf16>(decayed, stage.keys[0], places, warp.state);
}

/// Blocks of (prompt sequence, value head, kHalfValueRows of its value rows), through the chunks of
/// the window.
template <bool kBf16>
__global__ void __launch_bounds__(kHalfRowsThreads, 1)
    half_rows(const __grid_constant__ HalfArgs args) {
    extern __shared__ uint4 shared_memory[];
    auto& shared = *reinterpret_cast<HalfRowsShared*>(shared_memory);
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const ScanWork work = scan_work<kHalfValueRows>(args);
    const ScanPart& part = work.part;
    const Place& place = part.place;
    if (part.begin > part.last) return;
    HalfRows warp{{args, work.head, work.row + thread / 32 * 16 + thread % 32 / 4, {}}};
    fetch_stage(work.source, part.begin, shared.stages[0]);
    warp.load_state(place.slot, part.begin == 0 && place.position == 0);
#pragma unroll 1
    for (int32_t chunk = part.begin; chunk <= part.last; ++chunk) {
        const int32_t turn = chunk - part.begin;
        const ChunkRows rows = part.rows(chunk);
        float v[kTiles][4] = {};
        warp.over_tokens(args.delta.v, rows, v, [](float& to, const float* from) { to = *from; });
        wait_copies<0>();
        __syncthreads();  // the operands are there; nobody reads those of the chunk before
        if (chunk < part.last) fetch_stage(work.source, chunk + 1, shared.stages[(turn + 1) % 2]);
        scan_chunk<kBf16>(warp, shared.stages[turn % 2], rows, v);
        if (place.save_slot >= 0 && rows.begin + rows.tokens == place.begin + place.save_after)
            warp.store_state(place.save_slot);
    }
    warp.store_state(place.slot);
}

}  // namespace tessera::cuda
