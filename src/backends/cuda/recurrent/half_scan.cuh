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

#include "backends/cuda/ptx/load_if.cuh"
#include "backends/cuda/ptx/wgmma.cuh"
#include "backends/cuda/recurrent/half_prepare.cuh"
#include "backends/cuda/recurrent/half_stages.cuh"

namespace tessera::cuda {

using Stage = ScanStage<kHalfValueRows>;
using Shared = HalfScanShared<kHalfValueRows>;
/// Behind the warps that multiply, one that fetches and one that stores.
constexpr int32_t kHalfScanThreads = kGroupLanes + 64;

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
template <bool kBf16>
__device__ __forceinline__ void multiply_by_keys(const uint32_t (&s)[8][4],
                                                 const uint16_t (&keys)[2][kChunk * 64],
                                                 float (&out)[kTiles][4]) {
    const uint64_t right = wgmma_rows_from(wgmma_start(keys));
#pragma unroll
    for (int32_t depth = 0; depth < 8; ++depth)
        wgmma<!kBf16, false>(
            flat(out), s[depth],
            right + static_cast<uint64_t>(depth / 4 * (kChunk * 128 >> 4) + depth % 4 * 2),
            depth > 0);
}

/// out = x square^T, or added to it.
template <bool kBf16, bool kAdd>
__device__ __forceinline__ void multiply_by_square(const uint32_t (&x)[kBlocks][4],
                                                   const uint16_t (&square)[kSquareElements],
                                                   float (&out)[kTiles][4]) {
    const uint64_t right = wgmma_rows_from(wgmma_start(square));
#pragma unroll
    for (int32_t depth = 0; depth < kBlocks; ++depth)
        wgmma<!kBf16, false>(flat(out), x[depth], right + static_cast<uint64_t>(depth * 2),
                             kAdd || depth > 0);
}

/// state += d K.
template <bool kBf16>
__device__ __forceinline__ void add_to_state(const uint32_t (&d)[kBlocks][4],
                                             const uint16_t (&keys)[2][kChunk * 64],
                                             float (&state)[16][4]) {
    const uint64_t right = wgmma_columns_from(wgmma_start(keys), kChunk * 128);
#pragma unroll
    for (int32_t depth = 0; depth < kBlocks; ++depth)
        wgmma<!kBf16, true>(flat(state), d[depth],
                            right + static_cast<uint64_t>(depth * (16 * 128 >> 4)), true);
}

/// What a thread of the scan keeps between chunks.
template <bool kBf16>
struct HalfScan : HalfStateRows {
    uint32_t left[8][4];          ///< the state as left operand
    float o[kTiles][4];           ///< outputs
    float x[kTiles][4];           ///< S K^T, then D
    uint32_t masked[kBlocks][4];  ///< R, then D, as left operand
    uint32_t most;                ///< magnitudes of `left`

    /// A value of the chunk, 0 behind its last token.
    __device__ __forceinline__ float value(const Stage& stage, int32_t tile, int32_t c) const {
        return stage.v[token_of(tile, c)][row % kHalfValueRows + c / 2 * 8];
    }
    /// The outputs that are left from a turn, to the warp that stores.
    __device__ __forceinline__ void store_outputs(Shared& shared, int32_t turn) const {
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
    __device__ __forceinline__ void release(Shared& shared, int32_t turn) const {
        barrier_arrive_if(lane_arrives(), &shared.empty[turn % kHalfStages]);
    }
    /// First tokens from which on R is not finite: R is made again, 16 tokens at a time.
    __device__ __forceinline__ void find_bad_values(const Stage& stage,
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
                mma_16bit<!kBf16>(r[0], left[depth], b[0], b[1]);
                mma_16bit<!kBf16>(r[1], left[depth], b[2], b[3]);
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
    __device__ __forceinline__ void open_chunk(Shared& shared, const Stage& stage, int32_t turn) {
        const int32_t pair = threadIdx.x % 4 * 2;
        wgmma_fence();
        multiply_by_keys<kBf16>(left, stage.keys[0], x);
        wgmma_commit();
        if constexpr (!kFirst) {
            finish_products<1>(o);
            release(shared, turn - 1);
            store_outputs(shared, turn - 1);
            settle(o);
        }
        wgmma_fence();
        multiply_by_keys<kBf16>(left, stage.keys[1], o);
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
        as_masked_left<kBf16>(x, masked, most);
        settle(masked);
        wgmma_fence();
        multiply_by_square<kBf16, false>(masked, stage.squares[0], x);
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
    __device__ __forceinline__ void close_chunk(const Stage& stage, const ChunkRows& rows) {
        const int32_t pair = threadIdx.x % 4 * 2;
        Bad bad;
        if (any_beyond<kBf16>(most)) {
            if (beyond<kBf16>(most))
                atomicAdd(args.scratch.clamped,
                          count_beyond<kBf16>(left) + count_beyond<kBf16>(masked));
            find_bad_values(stage, rows, bad);
            spoil(bad);
        }
        most = 0;
        as_masked_left<kBf16>(x, masked, most);
        if (any_beyond<kBf16>(most)) {
            if (beyond<kBf16>(most)) atomicAdd(args.scratch.clamped, count_beyond<kBf16>(masked));
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
        as_left<kBf16, kBlocks>(x, decayed, most);
        settle(masked);
        settle(decayed);
        settle(state);
        settle(o);
        wgmma_fence();
        add_to_state<kBf16>(decayed, stage.keys[0], state);
        wgmma_commit();
        multiply_by_square<kBf16, true>(masked, stage.squares[1], o);
        wgmma_commit();
        finish_products<1>(state);
        most = 0;
        as_left<kBf16, 8>(state, left, most);
        settle(left);
    }

    /// D and the outputs from the first bad token on.
    __device__ __forceinline__ void spoil(const Bad& bad) {
        replace_bad(bad, NAN, x);
        replace_bad(bad, NAN, o);
    }
};

/// Blocks of (prompt sequence, value head, kHalfValueRows of its value rows), through the chunks of
/// the window.
template <bool kBf16>
__global__ void __launch_bounds__(kHalfScanThreads, 1)
    half_scan(const __grid_constant__ HalfArgs args) {
    extern __shared__ __align__(1024) uint4 shared_memory[];
    auto& shared = *reinterpret_cast<Shared*>(shared_memory);
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const ScanWork work = scan_work<kHalfValueRows>(args);
    const ScanPart& part = work.part;
    const Place& place = part.place;
    const int32_t begin = part.begin, last = part.last;
    if (begin > last) return;
    if (thread == 0) init_barriers(shared, kGroupLanes / 32, kGroupLanes / 32);
    __syncthreads();
    if (thread >= kGroupLanes + 32) return store_chunks(args, work, shared);
    if (thread >= kGroupLanes) return fetch_chunks(args, work, shared);
    HalfScan<kBf16> scan{{args, work.head, work.row + thread / 32 * 16 + thread % 32 / 4, {}}};
    scan.load_state(place.slot, begin == 0 && place.position == 0);
    scan.most = 0;
    as_left<kBf16, 8>(scan.state, scan.left, scan.most);
    const auto wait = [&](int32_t chunk) -> const Stage& {
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
        const Stage* stage = &wait(from);
        scan.template open_chunk<true>(shared, *stage, from - begin);
#pragma unroll 1
        for (int32_t chunk = from; chunk < to; ++chunk) {
            scan.close_chunk(*stage, part.rows(chunk));
            stage = &wait(chunk + 1);
            scan.template open_chunk<false>(shared, *stage, chunk + 1 - begin);
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
