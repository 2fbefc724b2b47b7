#pragma once
// The scan of half_scan.cuh where blocks are few: tokens and keys down, value rows across,
//   R^T = V^T - exp(G) K S^T,  D^T = T' R^T,  O^T = exp(G) Q S^T / sqrt(key size) + P D^T,
//   (S <- exp(G_last) S + (exp(G_last - G) D) K)^T,
// the same products of the same operands, summed in the same order: the results have the same bits.
// A product of a warpgroup has 64 rows but as few columns as one likes, so that a block can do with
// 32 value rows: half the numbers that a thread converts between two products of the chain.
// Operands that are results go through shared memory, and two warpgroups share a block: one has R,
// D and the first half of the keys of S, the other the outputs and the second half. K, Q, T' and P
// go to twice as many blocks: more than one a multiprocessor, and the wide form is faster.
// Bound: the chain of a chunk, three products and three exchanges (the products' results, a fence
// for the tensor cores, a barrier), 2200 clocks; the wide form's takes 2700.

#include "backends/cuda/ptx/named_barrier.cuh"
#include "backends/cuda/ptx/store_matrices.cuh"
#include "backends/cuda/recurrent/half_scan.cuh"

namespace tessera::cuda {

constexpr int32_t kNarrowRows = 32;
constexpr int32_t kNarrowTiles = kNarrowRows / 8;
constexpr int32_t kNarrowImage = kNarrowRows * 64;
constexpr int32_t kNarrowThreads = 2 * kGroupLanes + 64;

/// Barriers of the block by number.
enum NarrowBarrier : int32_t { kChainMeets = 1, kDeltaMade, kStateMade, kBadFound };

struct NarrowShared : HalfScanShared<kNarrowRows> {
    // Images whose rows are value rows.
    alignas(1024) uint16_t s[2][kNarrowImage];  ///< S, a half of its keys each
    uint16_t r[kNarrowImage];                   ///< R
    uint16_t d[2][kNarrowImage];                ///< D, and decayed
    int32_t first_bad[kNarrowRows];             ///< tokens from which on D is not finite
};

using NarrowSums = float[kNarrowTiles][4];

/// Where matrices of a stage start behind it, in units of 16 bytes.
constexpr uint32_t kKeysAt = 0, kQueriesAt = kKeysAt + 2 * (kChunk * 128 >> 4);
constexpr uint32_t kSolvedAt = kQueriesAt + 2 * (kChunk * 128 >> 4);
constexpr uint32_t kScoresAt = kSolvedAt + (kSquareElements * 2 >> 4);

/// sums (+)= a b of kDepth x 16 terms, both in rows along them from their starts on.
template <bool kBf16, int kDepth>
__device__ __forceinline__ void multiply_images(uint32_t a,
                                                uint32_t b,
                                                bool add,
                                                NarrowSums& sums) {
    constexpr uint32_t kImageA = kChunk * 128 >> 4, kImageB = kNarrowRows * 128 >> 4;
#pragma unroll
    for (uint32_t depth = 0; depth < kDepth; ++depth)
        wgmma_shared<!kBf16, false>(
            flat(sums), wgmma_rows_from(a + depth / 4 * kImageA + depth % 4 * 2),
            wgmma_rows_from(b + depth / 4 * kImageB + depth % 4 * 2), add || depth > 0);
}

/// A half of (state + d K)^T.
template <bool kBf16>
__device__ __forceinline__ void add_to_half(uint32_t keys, uint32_t d, NarrowSums& state) {
#pragma unroll
    for (uint32_t depth = 0; depth < kBlocks; ++depth)
        wgmma_shared<!kBf16, true>(flat(state),
                                   wgmma_columns_from(keys + depth * (16 * 128 >> 4), kChunk * 128),
                                   wgmma_rows_from(d + depth * 2), true);
}

/// What a thread of the narrow scan keeps between chunks. Its results are rows `row` and row + 8 of
/// 64 tokens or keys, and of tile j the value rows 8j + column and the next.
template <bool kBf16>
struct NarrowScan {
    const HalfArgs& args;
    NarrowShared& shared;
    const ScanWork& work;
    int32_t half;  ///< the warpgroup, and which half of the keys of S it has
    int32_t row, column;
    NarrowSums state;

    __device__ __forceinline__ float* state_at(int32_t slot) const {
        const DeltaArgs& delta = args.delta;
        const int64_t first = static_cast<int64_t>(work.head) * delta.size + work.row + column;
        return delta.state + slot * delta.state_stride + first * kHalfKeys + 64 * half + row;
    }
    __device__ __forceinline__ void load_state(int32_t slot, bool zeros) {
        const float* from = state_at(slot);
#pragma unroll
        for (int32_t tile = 0; tile < kNarrowTiles; ++tile)
#pragma unroll
            for (int32_t c = 0; c < 4; ++c)
                state[tile][c] = zeros ? 0.0f : from[(8 * tile + c % 2) * kHalfKeys + c / 2 * 8];
    }
    __device__ __forceinline__ void store_state(int32_t slot) const {
        float* to = state_at(slot);
#pragma unroll
        for (int32_t tile = 0; tile < kNarrowTiles; ++tile)
#pragma unroll
            for (int32_t c = 0; c < 4; ++c)
                to[(8 * tile + c % 2) * kHalfKeys + c / 2 * 8] = state[tile][c];
    }
    __device__ __forceinline__ void scale_state(float decay) {
#pragma unroll
        for (auto& tile : state)
#pragma unroll
            for (float& value : tile) value *= decay;
    }
    __device__ __forceinline__ const ScanStage<kNarrowRows>& wait_for(int32_t turn) const {
        const int32_t stage = turn % kHalfStages;
        barrier_wait(&shared.full[stage], static_cast<uint32_t>(turn / kHalfStages) & 1);
        return shared.stages[stage];
    }
    /// Where the stage of a turn starts. All lanes say the same, which the compiler must know:
    /// descriptors stand in registers of the whole warp.
    __device__ __forceinline__ uint32_t start_of(int32_t turn) const {
        return __shfl_sync(0xffffffffu, wgmma_start(&shared.stages[turn % kHalfStages]), 0);
    }
    __device__ __forceinline__ void release(int32_t turn) const {
        barrier_arrive_if(lane_arrives(), &shared.empty[turn % kHalfStages]);
    }

    /// x as operand of the next product; the largest magnitudes come back. kMasked: none is NaN.
    template <bool kMasked>
    __device__ __forceinline__ uint32_t put(const NarrowSums& x, uint16_t* image) const {
        const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
        uint32_t most = 0;
#pragma unroll
        for (int32_t i = 0; i < kNarrowTiles / 2; ++i) {
            uint32_t pairs[4];
#pragma unroll
            for (int32_t c = 0; c < 4; ++c) {
                const float(&tile)[4] = x[2 * i + c / 2];
                pairs[c] = pack_half<kBf16>(tile[c % 2 * 2], tile[c % 2 * 2 + 1]);
                most = larger<kBf16>(most, pairs[c]);
                if (kMasked) pairs[c] = without_nan<kBf16>(pairs[c]);
            }
            const int32_t at =
                image_place(16 * i + lane / 16 * 8 + lane % 8, row / 16 * 16 + lane / 8 % 2 * 8);
            store_matrices_transposed(image + at, pairs);
        }
        return most;
    }
    /// Counts what put() had to clamp, if anything.
    __device__ __forceinline__ void count(const NarrowSums& x, uint32_t most) const {
        if (!beyond<kBf16>(most)) return;
        uint32_t clamped = 0;
#pragma unroll
        for (const auto& tile : x)
            clamped += count_beyond<kBf16>(pack_half<kBf16>(tile[0], tile[1])) +
                       count_beyond<kBf16>(pack_half<kBf16>(tile[2], tile[3]));
        atomicAdd(args.scratch.clamped, clamped);
    }
    __device__ __forceinline__ void put_state() const {
        const uint32_t most = put<false>(state, shared.s[half]);
        fence_async_proxy();
        count(state, most);
    }
    /// Notes from which token on the value rows of x are not finite.
    __device__ __forceinline__ void find_bad_rows(const NarrowSums& x) const {
#pragma unroll
        for (int32_t tile = 0; tile < kNarrowTiles; ++tile)
#pragma unroll
            for (int32_t c = 0; c < 4; ++c)
                if (!isfinite(x[tile][c]))
                    atomicMin(&shared.first_bad[8 * tile + column + c % 2], row + c / 2 * 8);
    }
    /// NaN from there on.
    __device__ __forceinline__ void spoil(NarrowSums& x) const {
#pragma unroll
        for (int32_t tile = 0; tile < kNarrowTiles; ++tile)
#pragma unroll
            for (int32_t c = 0; c < 4; ++c)
                if (row + c / 2 * 8 >= shared.first_bad[8 * tile + column + c % 2])
                    x[tile][c] = NAN;
    }

    /// The first warpgroup in a chunk, up to D; its largest magnitudes come back.
    __device__ __forceinline__ uint32_t make_delta(const ScanStage<kNarrowRows>& stage,
                                                   uint32_t start,
                                                   NarrowSums& d) {
        const float gates[2] = {stage.gates[0][row], stage.gates[0][row + 8]};
        NarrowSums r;
        wgmma_fence();
        multiply_images<kBf16, 8>(start + kKeysAt, wgmma_start(shared.s), false, r);
        wgmma_commit();
        const float decay = stage.gates[0][kChunk - 1];
        float2 v[kNarrowTiles][2];
#pragma unroll
        for (int32_t tile = 0; tile < kNarrowTiles; ++tile)
#pragma unroll
            for (int32_t i = 0; i < 2; ++i)
                v[tile][i] =
                    *reinterpret_cast<const float2*>(&stage.v[row + 8 * i][8 * tile + column]);
        finish_products<0>(r);
        // Not beside the product: the compiler would end it before.
        scale_state(decay);
#pragma unroll
        for (int32_t tile = 0; tile < kNarrowTiles; ++tile)
#pragma unroll
            for (int32_t i = 0; i < 2; ++i) {
                r[tile][2 * i] = fmaf(-gates[i], r[tile][2 * i], v[tile][i].x);
                r[tile][2 * i + 1] = fmaf(-gates[i], r[tile][2 * i + 1], v[tile][i].y);
            }
        uint32_t most = put<true>(r, shared.r);
        fence_async_proxy();
        const bool doubtful = named_any(kChainMeets, kGroupLanes, beyond<kBf16>(most));
        if (doubtful) {
            count(r, most);
            find_bad_rows(r);
            named_sync(kChainMeets, kGroupLanes);
        }
        wgmma_fence();
        multiply_images<kBf16, kBlocks>(start + kSolvedAt, wgmma_start(shared.r), false, d);
        wgmma_commit();
        finish_products<0>(d);
        if (doubtful) spoil(d);
        most = put<true>(d, shared.d[0]);
        put_decayed(stage, d);
        fence_async_proxy();
        return most;
    }
    __device__ __forceinline__ void put_decayed(const ScanStage<kNarrowRows>& stage,
                                                const NarrowSums& d) const {
        const float gates[2] = {stage.gates[1][row], stage.gates[1][row + 8]};
        NarrowSums decayed;
#pragma unroll
        for (int32_t tile = 0; tile < kNarrowTiles; ++tile)
#pragma unroll
            for (int32_t c = 0; c < 4; ++c) decayed[tile][c] = d[tile][c] * gates[c / 2];
        put<false>(decayed, shared.d[1]);
    }

    /// The second warpgroup meanwhile: outputs as far as they come from the state before.
    __device__ __forceinline__ void begin_outputs(const ScanStage<kNarrowRows>& stage,
                                                  uint32_t start,
                                                  NarrowSums& o) {
        const float gates[2] = {stage.gates[0][row], stage.gates[0][row + 8]};
        wgmma_fence();
        multiply_images<kBf16, 8>(start + kQueriesAt, wgmma_start(shared.s), false, o);
        wgmma_commit();
        const float decay = stage.gates[0][kChunk - 1];
        finish_products<0>(o);
        scale_state(decay);
#pragma unroll
        for (int32_t tile = 0; tile < kNarrowTiles; ++tile)
#pragma unroll
            for (int32_t c = 0; c < 4; ++c) o[tile][c] *= args.delta.scale * gates[c / 2];
    }
    /// Both groups: D is there, its rows behind values that are not finite are NaN. `x`: D, or
    /// outputs; `most`: of D, or 0.
    __device__ __forceinline__ void meet_at_delta(const ScanStage<kNarrowRows>& stage,
                                                  uint32_t most,
                                                  NarrowSums& x) {
        if (!named_any(kDeltaMade, 2 * kGroupLanes, beyond<kBf16>(most))) return;
        if (half == 0) {
            count(x, most);
            find_bad_rows(x);
        }
        named_sync(kBadFound, 2 * kGroupLanes);
        spoil(x);
        if (half == 0) {
            put_decayed(stage, x);
            fence_async_proxy();
        }
        named_sync(kBadFound, 2 * kGroupLanes);
        if (threadIdx.x < kNarrowRows) shared.first_bad[threadIdx.x] = kChunk;
    }
    __device__ __forceinline__ void store_outputs(const NarrowSums& o, int32_t turn) const {
        if (turn > 0) barrier_wait(&shared.stored, static_cast<uint32_t>(turn - 1) & 1);
#pragma unroll
        for (int32_t tile = 0; tile < kNarrowTiles; ++tile)
#pragma unroll
            for (int32_t i = 0; i < 2; ++i)
                *reinterpret_cast<float2*>(&shared.out[row + 8 * i][8 * tile + column]) = {
                    o[tile][2 * i], o[tile][2 * i + 1]};
        __syncwarp();
        barrier_arrive_if(lane_arrives(), &shared.written);
    }

    /// A copy of the state where one is wanted behind this chunk.
    __device__ __forceinline__ void save(int32_t chunk) const {
        const Place& place = work.part.place;
        if (place.save_slot < 0) return;
        const ChunkRows rows = work.part.rows(chunk);
        if (rows.begin + rows.tokens == place.begin + place.save_after)
            store_state(place.save_slot);
    }

    /// Behind D: the first warpgroup ends its half of the state.
    __device__ __forceinline__ void end_chain(uint32_t start, int32_t chunk) {
        settle(state);
        wgmma_fence();
        add_to_half<kBf16>(start + kKeysAt, wgmma_start(shared.d[1]), state);
        wgmma_commit();
        finish_products<0>(state);
        release(chunk - work.part.begin);
        if (chunk < work.part.last) put_state();
        save(chunk);
    }
    /// The second one its half, and the outputs.
    __device__ __forceinline__ void end_outputs(uint32_t start, int32_t chunk, NarrowSums& o) {
        settle(state);
        settle(o);
        wgmma_fence();
        add_to_half<kBf16>(start + kKeysAt + (kChunk * 128 >> 4), wgmma_start(shared.d[1]), state);
        wgmma_commit();
        multiply_images<kBf16, kBlocks>(start + kScoresAt, wgmma_start(shared.d), true, o);
        wgmma_commit();
        finish_products<1>(state);
        // Also behind the last chunk: a branch would end the products beside it.
        const uint32_t most = put<false>(state, shared.s[1]);
        fence_async_proxy();
        finish_products<0>(o);
        release(chunk - work.part.begin);
        if (chunk < work.part.last) count(state, most);
        save(chunk);
    }
    /// All chunks. The groups meet at one place each time: checkers of barriers want that.
    __device__ __forceinline__ void run() {
#pragma unroll 1
        for (int32_t chunk = work.part.begin; chunk <= work.part.last; ++chunk) {
            const int32_t turn = chunk - work.part.begin;
            const uint32_t start = start_of(turn);
            const ScanStage<kNarrowRows>& stage = wait_for(turn);
            NarrowSums sums;  // D, or outputs
            uint32_t most = 0;
            if (half == 0)
                most = make_delta(stage, start, sums);
            else
                begin_outputs(stage, start, sums);
            meet_at_delta(stage, most, sums);
            if (half == 0)
                end_chain(start, chunk);
            else
                end_outputs(start, chunk, sums);
            named_sync(kStateMade, 2 * kGroupLanes);
            if (half == 1) store_outputs(sums, turn);
        }
    }
};

/// Blocks of (prompt sequence, value head, kNarrowRows of its value rows), through the chunks of
/// the window.
template <bool kBf16>
__global__ void __launch_bounds__(kNarrowThreads, 1)
    half_narrow(const __grid_constant__ HalfArgs args) {
    extern __shared__ __align__(1024) uint4 shared_memory[];
    auto& shared = *reinterpret_cast<NarrowShared*>(shared_memory);
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const ScanWork work = scan_work<kNarrowRows>(args);
    const ScanPart& part = work.part;
    if (part.begin > part.last) return;
    if (thread == 0) init_barriers(shared, 2 * kGroupLanes / 32, kGroupLanes / 32);
    if (thread < kNarrowRows) shared.first_bad[thread] = kChunk;
    __syncthreads();
    if (thread >= 2 * kGroupLanes + 32) return store_chunks(args, work, shared);
    if (thread >= 2 * kGroupLanes) return fetch_chunks(args, work, shared);
    NarrowScan<kBf16> scan{args,
                           shared,
                           work,
                           thread / kGroupLanes,
                           thread % kGroupLanes / 32 * 16 + thread % 32 / 4,
                           thread % 4 * 2};
    scan.load_state(part.place.slot, part.begin == 0 && part.place.position == 0);
    scan.put_state();
    named_sync(kStateMade, 2 * kGroupLanes);
    scan.run();
    scan.store_state(part.place.slot);
}

}  // namespace tessera::cuda
