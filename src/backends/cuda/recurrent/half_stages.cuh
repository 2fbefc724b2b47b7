#pragma once
// What both forms of the scan (half_scan.cuh, half_narrow.cuh) share: the operands of chunks on
// their way through shared memory, the warp that fetches them and the one that stores outputs.

#include "backends/cuda/ptx/bulk_copy.cuh"
#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/recurrent/half_operands.cuh"

namespace tessera::cuda {

constexpr int32_t kGroupLanes = 128;  ///< threads that hold the state

/// The operands of a chunk for a block of kRows value rows.
template <int kRows>
struct alignas(1024) ScanStage {
    uint16_t keys[2][2][kChunk * 64];      ///< K, Q: an image for each half of their columns
    uint16_t squares[2][kSquareElements];  ///< T', P
    float gates[2][kChunk];
    /// Tokens stand so that a warp's fragments of a result do not share a bank.
    float v[kChunk][kRows == 64 ? 68 : 40];
};
constexpr uint32_t kOperandBytes = (2 * kImageElements + 2 * kSquareElements) * 2 + 2 * kChunk * 4;

constexpr int32_t kHalfStages = 3;
/// What the warps of a block share in either form of the scan.
template <int kRows>
struct HalfScanShared {
    ScanStage<kRows> stages[kHalfStages];
    float out[kChunk][kRows == 64 ? 68 : 40];
    Barrier full[kHalfStages], empty[kHalfStages];  ///< of the stages
    Barrier written, stored;                        ///< of `out`
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
    template <int kRows>
    __device__ void fetch(int32_t chunk, ScanStage<kRows>& stage, Barrier* barrier) const {
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

/// What a block of the scan works on: blocks are (prompt sequence, value head, kRows of its value
/// rows). Nothing where part.begin > part.last.
struct ScanWork {
    ScanPart part;
    HalfSource source;
    int32_t head;
    int32_t row;  ///< first value row
};

/// 16 value rows of the state in the registers of a warp, as a product leaves its results.
struct HalfStateRows {
    const HalfArgs& args;
    int32_t head;
    int32_t row;  ///< of the value rows: this lane's first, the other is 8 further on
    float state[16][4];

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
};

/// The warp that fetches.
template <int kRows>
__device__ __forceinline__ void fetch_chunks(const HalfArgs& args,
                                             const ScanWork& work,
                                             HalfScanShared<kRows>& shared) {
    const HeadRows<const float>& values = args.delta.v;
    const ScanPart& part = work.part;
    constexpr int32_t kLanes = kRows / 4, kTogether = 32 / kLanes;  // a token's, and tokens
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    for (int32_t chunk = part.begin; chunk <= part.last; ++chunk) {
        const int32_t turn = chunk - part.begin, stage = turn % kHalfStages;
        ScanStage<kRows>& to = shared.stages[stage];
        const ChunkRows rows = part.rows(chunk);
        if (turn >= kHalfStages)
            barrier_wait(&shared.empty[stage], static_cast<uint32_t>(turn / kHalfStages - 1) & 1);
        if (lane == 0) {
            barrier_arrive_expect(&shared.full[stage], kOperandBytes);
            work.source.fetch(chunk, to, &shared.full[stage]);
        }
        __syncwarp();
        if (args.vectors) {
            const int32_t at = lane % kLanes * 4;
            const float* from = values.at(rows.begin + lane / kLanes, work.head) + work.row + at;
#pragma unroll 8
            for (int32_t token = lane / kLanes; token < kChunk; token += kTogether) {
                copy_16(&to.v[token][at], from, token < rows.tokens ? 16 : 0);
                from += kTogether * values.row_stride;
            }
        } else {
            for (int32_t i = lane; i < kChunk * kRows; i += 32) {
                const int32_t token = i / kRows, at = i % kRows;
                copy_4(&to.v[token][at], values.at(rows.begin + token, work.head) + work.row + at,
                       token < rows.tokens ? 4 : 0);
            }
        }
        barrier_arrive_after_copies(&shared.full[stage]);
    }
}

/// The warp that stores.
template <int kRows>
__device__ __forceinline__ void store_chunks(const HalfArgs& args,
                                             const ScanWork& work,
                                             HalfScanShared<kRows>& shared) {
    const HeadRows<float>& out = args.delta.out;
    const ScanPart& part = work.part;
    constexpr int32_t kLanes = kRows / 4, kTogether = 32 / kLanes;  // a token's, and tokens
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    for (int32_t chunk = part.begin; chunk <= part.last; ++chunk) {
        const int32_t turn = chunk - part.begin;
        const ChunkRows rows = part.rows(chunk);
        barrier_wait(&shared.written, static_cast<uint32_t>(turn) & 1);
        if (args.vectors) {
            const int32_t at = lane % kLanes * 4;
            float* to = out.at(rows.begin + lane / kLanes, work.head) + work.row + at;
#pragma unroll 8
            for (int32_t token = lane / kLanes; token < kChunk; token += kTogether) {
                const auto x = *reinterpret_cast<const float4*>(&shared.out[token][at]);
                if (token < rows.tokens) *reinterpret_cast<float4*>(to) = x;
                to += kTogether * out.row_stride;
            }
        } else {
            for (int32_t i = lane; i < rows.tokens * kRows; i += 32) {
                const int32_t token = i / kRows, at = i % kRows;
                out.at(rows.begin + token, work.head)[work.row + at] = shared.out[token][at];
            }
        }
        __syncwarp();
        barrier_arrive_if(lane_arrives(), &shared.stored);
    }
}

template <int kRows>
__device__ __forceinline__ ScanWork scan_work(const HalfArgs& args) {
    const DeltaArgs& delta = args.delta;
    const int32_t slices = delta.size / kRows;
    const auto block = static_cast<int32_t>(blockIdx.x);
    const int32_t head = block / slices % delta.heads;
    const int32_t sequence = block / slices / delta.heads;
    const Place place = place_of(delta.batch, sequence);
    const int32_t chunks = chunks_of(delta.batch, place);
    const int32_t first = chunks_before(delta.batch, sequence) - args.scratch.first;
    return {{place, max(0, -first), min(chunks, args.scratch.count - first) - 1},
            {args.scratch, head % delta.key_heads, delta.key_heads, head, delta.heads, first},
            head,
            block % slices * kRows};
}

/// The barriers of a block whose `readers` warps read the stages and whose `writers` write outputs.
template <int kRows>
__device__ __forceinline__ void init_barriers(HalfScanShared<kRows>& shared,
                                              uint32_t readers,
                                              uint32_t writers) {
    for (int32_t stage = 0; stage < kHalfStages; ++stage) {
        barrier_init(&shared.full[stage], 1 + 32);
        barrier_init(&shared.empty[stage], readers * kWarpArrivals);
    }
    barrier_init(&shared.written, writers * kWarpArrivals);
    barrier_init(&shared.stored, kWarpArrivals);
    barrier_init_fence();
}

}  // namespace tessera::cuda
