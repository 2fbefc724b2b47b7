#pragma once
// The chunks of a prompt one after the other with 16-bit operands (sm_90a), tokens in columns:
//   R = V - exp(G) (S K^T),  D = R T'^T,  O = exp(G) (S Q^T) / sqrt(key size) + D P^T,
//   S <- exp(G_last) S + (exp(G_last - G) D) K.
// A warpgroup holds 64 rows of the state of a value head in the registers of a product's result,
// which are those of a left operand as well, so that the whole chain of a chunk stays there. Its
// products run beside the work on other registers: S Q^T beside R, D P^T beside the next left
// operand of S. One more warp fetches chunks ahead and one stores outputs: a load or store of
// global memory in the warpgroup would hold the chain up. Rows do not meet; earlier tokens of a row
// that is not finite are kept clean by leaving out of the masked products what follows the first
// bad one.
// Bound: the chain of a chunk, 640 clocks of tensor cores (1024 with the outputs beside it) and the
// conversions between. 65 KiB a block and chunk through the second-level cache.

#include "backends/cuda/ptx/bulk_copy.cuh"
#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/ptx/load_if.cuh"
#include "backends/cuda/ptx/wgmma.cuh"
#include "backends/cuda/recurrent/half_prepare.cuh"

namespace tessera::cuda {

constexpr int32_t kGroupLanes = 128;  ///< threads that hold the state

/// Value rows of a token stand so that a lane's tokens and rows do not share a bank.
constexpr int32_t kValueStride = kHalfValueRows + 4;

/// The operands of a chunk.
struct alignas(1024) ScanStage {
    uint16_t keys[2][2][kChunk * 64];      ///< K, Q: an image for each half of their columns
    uint16_t squares[2][kSquareElements];  ///< T', P
    float gates[2][kChunk];
    float v[kChunk][kValueStride];
};
constexpr uint32_t kOperandBytes = (2 * kImageElements + 2 * kSquareElements) * 2 + 2 * kChunk * 4;

constexpr int32_t kHalfStages = 3;
/// Behind the warps that multiply, one that fetches and one that stores.
constexpr int32_t kHalfScanThreads = kGroupLanes + 64;

struct HalfScanShared {
    ScanStage stages[kHalfStages];
    float out[kChunk][kValueStride];
    Barrier full[kHalfStages], empty[kHalfStages];  ///< of the stages
    Barrier written, stored;                        ///< of `out`
};

// ---- products of the warpgroup ----

template <int Pending, int kCount>
__device__ __forceinline__ void finish_products(float (&sums)[kCount][4]) {
    wgmma_wait<Pending>();
    settle(sums);
}

/// Sums as wgmma.cuh has them.
template <int kCount>
__device__ __forceinline__ float (&flat(float (&sums)[kCount][4]))[4 * kCount] {
    return reinterpret_cast<float(&)[4 * kCount]>(sums);
}

/// out = S keys^T; keys are the two images of K or Q.
__device__ __forceinline__ void multiply_by_keys(const uint32_t (&s)[8][4],
                                                 const uint16_t (&keys)[2][kChunk * 64],
                                                 float (&out)[kTiles][4]) {
    const uint64_t right = wgmma_rows_from(wgmma_start(keys));
#pragma unroll
    for (int32_t depth = 0; depth < 8; ++depth)
        wgmma<!kHalfIsBf16, false>(
            flat(out), s[depth],
            right + static_cast<uint64_t>(depth / 4 * (kChunk * 128 >> 4) + depth % 4 * 2),
            depth > 0);
}

/// out = x square^T, or added to it.
template <bool kAdd>
__device__ __forceinline__ void multiply_by_square(const uint32_t (&x)[kBlocks][4],
                                                   const uint16_t (&square)[kSquareElements],
                                                   float (&out)[kTiles][4]) {
    const uint64_t right = wgmma_rows_from(wgmma_start(square));
#pragma unroll
    for (int32_t depth = 0; depth < kBlocks; ++depth)
        wgmma<!kHalfIsBf16, false>(flat(out), x[depth], right + static_cast<uint64_t>(depth * 2),
                                   kAdd || depth > 0);
}

/// state += d K.
__device__ __forceinline__ void add_to_state(const uint32_t (&d)[kBlocks][4],
                                             const uint16_t (&keys)[2][kChunk * 64],
                                             float (&state)[16][4]) {
    const uint64_t right = wgmma_columns_from(wgmma_start(keys), kChunk * 128);
#pragma unroll
    for (int32_t depth = 0; depth < kBlocks; ++depth)
        wgmma<!kHalfIsBf16, true>(flat(state), d[depth],
                                  right + static_cast<uint64_t>(depth * (16 * 128 >> 4)), true);
}

/// Tiles side by side as left operands; `most` takes the largest magnitudes.
template <int kCount>
__device__ __forceinline__ void as_left(const float (&x)[2 * kCount][4],
                                        uint32_t (&left)[kCount][4],
                                        uint32_t& most) {
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i)
#pragma unroll
        for (int32_t c = 0; c < 4; ++c) {
            left[i][c] = pack_half(x[2 * i + c / 2][c % 2 * 2], x[2 * i + c / 2][c % 2 * 2 + 1]);
            most = larger(most, left[i][c]);
        }
}
/// The same for a masked product: no number may be other than finite.
__device__ __forceinline__ void as_masked_left(const float (&x)[kTiles][4],
                                               uint32_t (&left)[kBlocks][4],
                                               uint32_t& most) {
    as_left<kBlocks>(x, left, most);
#pragma unroll
    for (auto& block : left)
#pragma unroll
        for (uint32_t& pair : block) pair = without_nan(pair);
}
template <int kCount>
__device__ __forceinline__ uint32_t count_beyond(const uint32_t (&left)[kCount][4]) {
    uint32_t count = 0;
#pragma unroll
    for (const auto& block : left)
#pragma unroll
        for (const uint32_t pair : block) count += count_beyond(pair);
    return count;
}

__device__ __forceinline__ bool any_beyond(uint32_t most) {
    return __any_sync(0xffffffffu, beyond(most)) != 0;
}

/// What a thread of the scan keeps between chunks.
struct HalfScan {
    const HalfArgs& args;
    int32_t head;
    int32_t row;  ///< of the value rows: this lane's first, the other is 8 further on
    float state[16][4];
    uint32_t left[8][4];          ///< the state as left operand
    float o[kTiles][4];           ///< outputs
    float x[kTiles][4];           ///< S K^T, then D
    uint32_t masked[kBlocks][4];  ///< R, then D, as left operand
    uint32_t most;                ///< magnitudes of `left`

    __device__ __forceinline__ float* state_at(int32_t slot) const {
        const DeltaArgs& delta = args.delta;
        return delta.state + slot * delta.state_stride +
               (static_cast<int64_t>(head) * delta.size + row) * kHalfKeys + threadIdx.x % 4 * 2;
    }
    __device__ __forceinline__ void load_state(int32_t slot, bool zeros) {
        const float* from = state_at(slot);
#pragma unroll
        for (int32_t tile = 0; tile < 16; ++tile)
#pragma unroll
            for (int32_t c = 0; c < 4; ++c)
                state[tile][c] = zeros ? 0.0f : from[c / 2 * 8 * kHalfKeys + 8 * tile + c % 2];
    }
    __device__ __forceinline__ void store_state(int32_t slot) const {
        float* to = state_at(slot);
#pragma unroll
        for (int32_t tile = 0; tile < 16; ++tile)
#pragma unroll
            for (int32_t c = 0; c < 4; ++c)
                to[c / 2 * 8 * kHalfKeys + 8 * tile + c % 2] = state[tile][c];
    }
    /// A value of the chunk, 0 behind its last token.
    __device__ __forceinline__ float value(const ScanStage& stage, int32_t tile, int32_t c) const {
        return stage.v[token_of(tile, c)][row % kHalfValueRows + c / 2 * 8];
    }
    /// The outputs that are left from a turn, to the warp that stores.
    __device__ __forceinline__ void store_outputs(HalfScanShared& shared, int32_t turn) const {
        if (turn > 0) barrier_wait(&shared.stored, static_cast<uint32_t>(turn - 1) & 1);
#pragma unroll
        for (int32_t tile = 0; tile < kTiles; ++tile)
#pragma unroll
            for (int32_t c = 0; c < 4; ++c)
                shared.out[token_of(tile, c)][row % kHalfValueRows + c / 2 * 8] = o[tile][c];
        __syncwarp();
        barrier_arrive_if(lane_arrives(), &shared.written);
    }
    /// This warp has read the operands of a turn.
    __device__ __forceinline__ void release(HalfScanShared& shared, int32_t turn) const {
        barrier_arrive_if(lane_arrives(), &shared.empty[turn % kHalfStages]);
    }
    /// First tokens from which on R is not finite: R is made again, 16 tokens at a time.
    __device__ __forceinline__ void find_bad_values(const ScanStage& stage,
                                                    const ChunkRows& rows,
                                                    Bad& bad) const {
        const HeadRows<const float>& values = args.delta.v;
        const int32_t pair = threadIdx.x % 4 * 2;
#pragma unroll 1
        for (int32_t column = kBlocks - 1; column >= 0; --column) {
            float r[2][4] = {};
#pragma unroll
            for (int32_t depth = 0; depth < 8; ++depth) {
                uint32_t b[4];
                load_matrices(b,
                              image_right(stage.keys[0][depth / 4], 16 * column, depth % 4 * 16));
                mma_16bit<!kHalfIsBf16>(r[0], left[depth], b[0], b[1]);
                mma_16bit<!kHalfIsBf16>(r[1], left[depth], b[2], b[3]);
            }
#pragma unroll
            for (int32_t c = 7; c >= 0; --c) {
                const int32_t token = 16 * column + c / 4 * 8 + pair + c % 2;
                const float value = load_if(
                    token < rows.tokens, values.at(rows.begin + token, head) + row + c / 2 % 2 * 8);
                const float sum = fmaf(-stage.gates[0][token], r[c / 4][c % 4], value);
                int32_t& from = bad.from[c / 2 % 2];
                if (!isfinite(sum)) from = min(from, token);
            }
        }
#pragma unroll
        for (int32_t& from : bad.from) {
            from = min(from, __shfl_xor_sync(0xffffffffu, from, 1));
            from = min(from, __shfl_xor_sync(0xffffffffu, from, 2));
        }
    }

    /// A chunk as far as D, in x. Unless it is the first, what is left of the turn before it ends
    /// meanwhile.
    template <bool kFirst>
    __device__ __forceinline__ void open_chunk(HalfScanShared& shared,
                                               const ScanStage& stage,
                                               int32_t turn) {
        const int32_t pair = threadIdx.x % 4 * 2;
        wgmma_fence();
        multiply_by_keys(left, stage.keys[0], x);
        wgmma_commit();
        if constexpr (!kFirst) {
            finish_products<1>(o);
            release(shared, turn - 1);
            store_outputs(shared, turn - 1);
            settle(o);
        }
        wgmma_fence();
        multiply_by_keys(left, stage.keys[1], o);
        wgmma_commit();
        finish_products<1>(x);
#pragma unroll
        for (int32_t tile = 0; tile < kTiles; ++tile) {
            const auto gate = *reinterpret_cast<const float2*>(&stage.gates[0][8 * tile + pair]);
#pragma unroll
            for (int32_t c = 0; c < 4; ++c)
                x[tile][c] =
                    fmaf(-(c % 2 == 0 ? gate.x : gate.y), x[tile][c], value(stage, tile, c));
        }
        as_masked_left(x, masked, most);
        settle(masked);
        wgmma_fence();
        multiply_by_square<false>(masked, stage.squares[0], x);
        wgmma_commit();
        finish_products<1>(o);
        const float decay = stage.gates[0][kChunk - 1];
#pragma unroll
        for (int32_t tile = 0; tile < kTiles; ++tile) {
            const auto gate = *reinterpret_cast<const float2*>(&stage.gates[0][8 * tile + pair]);
#pragma unroll
            for (int32_t c = 0; c < 4; ++c)
                o[tile][c] *= args.delta.scale * (c % 2 == 0 ? gate.x : gate.y);
        }
#pragma unroll
        for (auto& tile : state)
#pragma unroll
            for (float& value : tile) value *= decay;
        finish_products<0>(x);
    }

    /// The rest of it; the outputs are left under way.
    __device__ __forceinline__ void close_chunk(const ScanStage& stage, const ChunkRows& rows) {
        const int32_t pair = threadIdx.x % 4 * 2;
        Bad bad;
        if (any_beyond(most)) {
            if (beyond(most))
                atomicAdd(args.scratch.clamped, count_beyond(left) + count_beyond(masked));
            find_bad_values(stage, rows, bad);
            spoil(bad);
        }
        most = 0;
        as_masked_left(x, masked, most);
        if (any_beyond(most)) {
            if (beyond(most)) atomicAdd(args.scratch.clamped, count_beyond(masked));
            find_bad(x, bad);
            spoil(bad);
        }
#pragma unroll
        for (int32_t tile = 0; tile < kTiles; ++tile) {
            const auto gate = *reinterpret_cast<const float2*>(&stage.gates[1][8 * tile + pair]);
#pragma unroll
            for (int32_t c = 0; c < 4; ++c) x[tile][c] *= c % 2 == 0 ? gate.x : gate.y;
        }
        uint32_t decayed[kBlocks][4];
        as_left<kBlocks>(x, decayed, most);
        settle(masked);
        settle(decayed);
        settle(state);
        settle(o);
        wgmma_fence();
        add_to_state(decayed, stage.keys[0], state);
        wgmma_commit();
        multiply_by_square<true>(masked, stage.squares[1], o);
        wgmma_commit();
        finish_products<1>(state);
        most = 0;
        as_left<8>(state, left, most);
        settle(left);
    }

    /// D and the outputs from the first bad token on.
    __device__ __forceinline__ void spoil(const Bad& bad) {
        replace_bad(bad, NAN, x);
        replace_bad(bad, NAN, o);
    }
};

/// The operands of chunks, on their way from the scratch to shared memory.
struct HalfSource {
    const HalfScratch& scratch;
    int64_t key_head, key_heads, head, heads;
    int32_t first;  ///< place of the sequence's chunk 0 in the window; may be negative

    __device__ const uint16_t* keys(int32_t chunk) const {
        return scratch.keys + ((first + chunk) * key_heads + key_head) * kOneHead;
    }
    __device__ const uint16_t* squares(int32_t chunk) const {
        return scratch.squares + ((first + chunk) * heads + head) * 2 * kSquareElements;
    }
    __device__ const float* gates(int32_t chunk) const {
        return scratch.gates + ((first + chunk) * heads + head) * 2 * kChunk;
    }
    /// By one thread; reports to the barrier.
    __device__ void fetch(int32_t chunk, ScanStage& stage, Barrier* barrier) const {
        copy_block(stage.keys, keys(chunk), sizeof(stage.keys), barrier);
        copy_block(stage.squares, squares(chunk), sizeof(stage.squares), barrier);
        copy_block(stage.gates, gates(chunk), sizeof(stage.gates), barrier);
    }
};

/// The chunks of a sequence that a block goes through.
struct ScanPart {
    Place place;
    int32_t begin = 0;
    int32_t last = -1;
    __device__ __forceinline__ ChunkRows rows(int32_t chunk) const {
        return chunk <= last ? chunk_rows(place, chunk) : ChunkRows{};
    }
};

/// The warp that fetches.
__device__ __forceinline__ void fetch_chunks(const HalfArgs& args,
                                             const ScanPart& part,
                                             const HalfSource& source,
                                             int32_t row,
                                             HalfScanShared& shared) {
    const HeadRows<const float>& values = args.delta.v;
    const auto head = static_cast<int32_t>(source.head);
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    for (int32_t chunk = part.begin; chunk <= part.last; ++chunk) {
        const int32_t turn = chunk - part.begin, stage = turn % kHalfStages;
        ScanStage& to = shared.stages[stage];
        const ChunkRows rows = part.rows(chunk);
        if (turn >= kHalfStages)
            barrier_wait(&shared.empty[stage], static_cast<uint32_t>(turn / kHalfStages - 1) & 1);
        if (lane == 0) {
            barrier_arrive_expect(&shared.full[stage], kOperandBytes);
            source.fetch(chunk, to, &shared.full[stage]);
        }
        __syncwarp();
        if (args.vectors) {
            const int32_t at = lane % 16 * 4;
            const float* from = values.at(rows.begin + lane / 16, head) + row + at;
#pragma unroll 8
            for (int32_t token = lane / 16; token < kChunk; token += 2) {
                copy_16(&to.v[token][at], from, token < rows.tokens ? 16 : 0);
                from += 2 * values.row_stride;
            }
        } else {
            for (int32_t i = lane; i < kChunk * kHalfValueRows; i += 32) {
                const int32_t token = i / kHalfValueRows, at = i % kHalfValueRows;
                copy_4(&to.v[token][at], values.at(rows.begin + token, head) + row + at,
                       token < rows.tokens ? 4 : 0);
            }
        }
        barrier_arrive_after_copies(&shared.full[stage]);
    }
}

/// The warp that stores.
__device__ __forceinline__ void store_chunks(
    const HalfArgs& args, const ScanPart& part, int32_t head, int32_t row, HalfScanShared& shared) {
    const HeadRows<float>& out = args.delta.out;
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    for (int32_t chunk = part.begin; chunk <= part.last; ++chunk) {
        const int32_t turn = chunk - part.begin;
        const ChunkRows rows = part.rows(chunk);
        barrier_wait(&shared.written, static_cast<uint32_t>(turn) & 1);
        if (args.vectors) {
            const int32_t at = lane % 16 * 4;
            float* to = out.at(rows.begin + lane / 16, head) + row + at;
#pragma unroll 8
            for (int32_t token = lane / 16; token < kChunk; token += 2) {
                const auto x = *reinterpret_cast<const float4*>(&shared.out[token][at]);
                if (token < rows.tokens) *reinterpret_cast<float4*>(to) = x;
                to += 2 * out.row_stride;
            }
        } else {
            for (int32_t i = lane; i < rows.tokens * kHalfValueRows; i += 32) {
                const int32_t token = i / kHalfValueRows, at = i % kHalfValueRows;
                out.at(rows.begin + token, head)[row + at] = shared.out[token][at];
            }
        }
        __syncwarp();
        barrier_arrive_if(lane_arrives(), &shared.stored);
    }
}

/// Blocks of (prompt sequence, value head, kHalfValueRows of its value rows), through the chunks of
/// the window.
__global__ void __launch_bounds__(kHalfScanThreads, 1)
    half_scan(const __grid_constant__ HalfArgs args) {
    extern __shared__ __align__(1024) uint4 shared_memory[];
    auto& shared = *reinterpret_cast<HalfScanShared*>(shared_memory);
    const DeltaArgs& delta = args.delta;
    const int32_t slices = delta.size / kHalfValueRows;
    const auto block = static_cast<int32_t>(blockIdx.x);
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const int32_t head = block / slices % delta.heads;
    const int32_t sequence = block / slices / delta.heads;
    const Place place = place_of(delta.batch, sequence);
    const int32_t chunks = chunks_of(delta.batch, place);
    if (chunks == 0) return;
    const int32_t first = chunks_before(delta.batch, sequence) - args.scratch.first;
    const int32_t begin = max(0, -first), last = min(chunks, args.scratch.count - first) - 1;
    if (begin > last) return;
    const HalfSource source{
        args.scratch, head % delta.key_heads, delta.key_heads, head, delta.heads, first};
    const ScanPart part{place, begin, last};
    const int32_t slice = block % slices * kHalfValueRows;
    if (thread == 0) {
        for (int32_t stage = 0; stage < kHalfStages; ++stage) {
            barrier_init(&shared.full[stage], 1 + 32);
            barrier_init(&shared.empty[stage], kGroupLanes / 32 * kWarpArrivals);
        }
        barrier_init(&shared.written, kGroupLanes / 32 * kWarpArrivals);
        barrier_init(&shared.stored, kWarpArrivals);
        barrier_init_fence();
    }
    __syncthreads();
    if (thread >= kGroupLanes + 32) return store_chunks(args, part, head, slice, shared);
    if (thread >= kGroupLanes) return fetch_chunks(args, part, source, slice, shared);
    HalfScan scan{args, head, slice + thread / 32 * 16 + thread % 32 / 4};
    scan.load_state(place.slot, begin == 0 && place.position == 0);
    scan.most = 0;
    as_left<8>(scan.state, scan.left, scan.most);
    const auto wait = [&](int32_t chunk) -> const ScanStage& {
        const int32_t turn = chunk - begin, stage = turn % kHalfStages;
        barrier_wait(&shared.full[stage], static_cast<uint32_t>(turn / kHalfStages) & 1);
        return shared.stages[stage];
    };
    // Parts that end where a copy of the state is wanted, or at the end.
    for (int32_t from = begin; from <= last;) {
        int32_t to = last;
        if (place.save_slot >= 0) {
            const int32_t saved = (place.position % kChunk + place.save_after) / kChunk - 1;
            if (saved >= from && saved < to) to = saved;
        }
        const ScanStage* stage = &wait(from);
        scan.open_chunk<true>(shared, *stage, from - begin);
#pragma unroll 1
        for (int32_t chunk = from; chunk < to; ++chunk) {
            scan.close_chunk(*stage, part.rows(chunk));
            stage = &wait(chunk + 1);
            scan.open_chunk<false>(shared, *stage, chunk + 1 - begin);
        }
        const ChunkRows rows = part.rows(to);
        scan.close_chunk(*stage, rows);
        finish_products<0>(scan.o);
        scan.release(shared, to - begin);
        scan.store_outputs(shared, to - begin);
        if (place.save_slot >= 0 && rows.begin + rows.tokens == place.begin + place.save_after)
            scan.store_state(place.save_slot);
        from = to + 1;
    }
    scan.store_state(place.slot);
}

}  // namespace tessera::cuda
