#pragma once
// Ends of products on Hopper: sums that are put aside or joined, results in f32, gated results in
// bf16. A thread holds, for every 8 tokens of its tile, sums[4 j + 2 half + i]: row group + 8 half
// of its warp, token 8 j + 2 t + i (ptx/wgmma.cuh).

#include "backends/cuda/linear/gated_tiles.cuh"
#include "backends/cuda/linear/gemm_sm90_operands.cuh"
#include "backends/cuda/ptx/named_barrier.cuh"
#include "backends/cuda/ptx/reduce_add.cuh"

namespace tessera::cuda::sm90 {

inline constexpr int kSums = kLargestTile / 2;  ///< of a thread
/// Fours of sums that are loaded together: those of a step of tokens, so that all of them exist.
inline constexpr int kBatch = kTileStep / 8;
inline constexpr int kOwners = 128 * kWarpgroups;  ///< threads that have sums

/// Where this thread's sums begin among those of its block, and four of them: a warp's lie
/// together.
__device__ __forceinline__ float4* own_sums(float4* block) {
    float4* own = block + (static_cast<int>(threadIdx.x) - 128);
    make_opaque(own);  // not kept in registers through the products
    return own;
}
__device__ __forceinline__ float4* sums_of(float4* block, int index) {
    return block + index * kOwners;
}
__device__ __forceinline__ void add_four(const float4& four, float* sums) {
    // In this order, but an f32 addition is the same the other way round.
    sums[0] = __fadd_rn(four.x, sums[0]);
    sums[1] = __fadd_rn(four.y, sums[1]);
    sums[2] = __fadd_rn(four.z, sums[2]);
    sums[3] = __fadd_rn(four.w, sums[3]);
}
__device__ __forceinline__ void put_aside(float4* block, int count, const float (&sums)[kSums]) {
    float4* const own = own_sums(block);
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i) {
        if (8 * i >= count) break;
        *sums_of(own, i) =
            make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
    }
}

/// Adds what this thread has put aside before.
__device__ __forceinline__ void add_running(float4* block, int count, float (&sums)[kSums]) {
    float4* const own = own_sums(block);
#pragma unroll
    for (int i = 0; i < kSums / 4; i += kBatch) {
        if (8 * i >= count) break;
        float4 before[kBatch];
#pragma unroll
        for (int j = 0; j < kBatch; ++j) before[j] = __ldcg(sums_of(own, i + j));
#pragma unroll
        for (int j = 0; j < kBatch; ++j) add_four(before[j], sums + 4 * (i + j));
    }
}

/// Puts the sums of one chunk of an item aside. The last of the warpgroups that share the item's
/// features gets them all, added by rising chunk; for others the result is false. `kFours` of a
/// thread's sums are loaded at a time.
template <int kFours>
__device__ __forceinline__ bool join_sums(const Operands& p,
                                          const Item& item,
                                          Fixed& fixed,
                                          float (&sums)[kSums]) {
    const int chunks = p.cut.chunks.count;
    const int block = static_cast<int>(blockIdx.x) % kBlocks;
    static_assert(kBatch % kFours == 0);
    int thread = static_cast<int>(threadIdx.x) - 128;
    make_opaque(thread);  // what follows from it is not kept through the products
    const int warpgroup = thread / 128;
    const int64_t block_sums = static_cast<int64_t>(sum_bytes(p.cut.tile) / sizeof(float4));
    const auto sums_at = [&](int chunk) {
        const int place = item.place - item.first_chunk + chunk;
        return p.shared + (int64_t{place} * kBlocks + block) * block_sums;
    };
    put_aside(sums_at(item.first_chunk), item.count, sums);
    __threadfence();
    named_sync(1 + warpgroup, 128);
    if (thread % 128 == 0) {
        uint32_t* ticket =
            p.tickets + (item.place / chunks * kBlocks + block) * kWarpgroups + warpgroup;
        const uint32_t before = atomicAdd(ticket, 1u);
        // All have come: nobody looks at the ticket before the next launch.
        if (before + 1 == static_cast<uint32_t>(chunks)) *ticket = 0;
        __threadfence();
        fixed.ticket[warpgroup] = before;
    }
    __syncwarp();
    named_sync(1 + warpgroup, 128);
    if (fixed.ticket[warpgroup] + 1 != static_cast<uint32_t>(chunks)) return false;
#pragma unroll
    for (int i = 0; i < kSums / 4; i += kFours) {
        if (8 * i >= item.count) break;
        float4 all[kFours] = {};
#pragma unroll 1
        for (int chunk = 0; chunk < item.first_chunk; ++chunk) {
            float4* const from = own_sums(sums_at(chunk));
#pragma unroll
            for (int j = 0; j < kFours; ++j) {
                float4 four = __ldcg(sums_of(from, i + j));
                if (chunk > 0) add_four(all[j], &four.x);
                all[j] = four;
            }
        }
        if (item.first_chunk > 0) {
#pragma unroll
            for (int j = 0; j < kFours; ++j) add_four(all[j], sums + 4 * (i + j));
        }
#pragma unroll 1
        for (int chunk = item.end_chunk; chunk < chunks; ++chunk) {
            float4* const from = own_sums(sums_at(chunk));
#pragma unroll
            for (int j = 0; j < kFours; ++j)
                add_four(__ldcg(sums_of(from, i + j)), sums + 4 * (i + j));
        }
    }
    return true;
}

/// Stores this thread's part of a tile; with Add adds it to what is there, which the second-level
/// cache does by itself: nobody waits for what was there. Each element has one such addition.
template <bool Add>
__device__ __forceinline__ void store_tile(const Operands& p,
                                           const Item& item,
                                           int64_t feature,
                                           const float (&sums)[kSums]) {
    const float outer = p.outer[0];
    int lane = static_cast<int>(threadIdx.x) % 32;
    make_opaque(lane);
    const int64_t n = feature + lane / 4, first = item.token + lane % 4 * 2;
    const int left = item.end - item.token - lane % 4 * 2;
    const int left_of[2] = {n < p.n ? left : 0, n + 8 < p.n ? left : 0};
    float bias[2] = {-0.0f, -0.0f};  // adds nothing
#pragma unroll
    for (int half = 0; half < 2; ++half)
        if (p.bias != nullptr && left_of[half] > 0) bias[half] = p.bias[n + 8 * half];
    float* rows_of[2] = {p.out + first * p.out_stride + n, nullptr};
    rows_of[1] = rows_of[0] + p.out_stride;
    const int64_t step = 8 * p.out_stride;
#pragma unroll
    for (int batch = 0; batch < kSums / 4; batch += kBatch) {
        if (8 * batch >= item.count) break;
#pragma unroll
        for (int j = batch; j < batch + kBatch; ++j) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float value =
                        __fadd_rn(__fmul_rn(sums[4 * j + 2 * half + i], outer), bias[half]);
                    if (8 * j + i >= left_of[half]) continue;
                    if constexpr (Add)
                        reduce_add(rows_of[i] + 8 * half, value);
                    else
                        rows_of[i][8 * half] = value;
                }
                rows_of[i] += step;
                make_opaque(rows_of[i]);
            }
        }
    }
}

/// Factors of gate and up.
struct OuterFactors {
    float2 outer;
    __device__ __forceinline__ float2 of_tokens(int) const { return {1.0f, 1.0f}; }
    __device__ __forceinline__ float of(int half, float) const {
        return half == 0 ? outer.x : outer.y;
    }
};

/// Rows 0 to 7 of a warp are the gate of its eight features, rows 8 to 15 their up. `feature`: the
/// first of the warpgroup.
__device__ __forceinline__ void store_gated(const Operands& p,
                                            const Item& item,
                                            const CUtensorMap* map,
                                            unsigned char* collected,
                                            int32_t feature,
                                            float (&sums)[kSums]) {
    constexpr int kRounds = 2;  ///< of 32 tokens between moves of the sums
    if (feature >= p.n) return;
    const OuterFactors factors{make_float2(p.outer[0], p.up_outer[0])};
    int thread = static_cast<int>(threadIdx.x) - 128;
    make_opaque(thread);  // what follows from it is not kept through the products
    // A loop, as the activation is long: the sums move instead of the places that are read.
#pragma unroll 1
    for (int token = item.token; token < item.end; token += 32 * kRounds) {
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            if (token + 32 * round >= item.end) break;
            float values[8];
            hopper::gate_values(p.glu, factors, 32 * round, sums + 16 * round, values);
            hopper::store_gated_round({map, collected, p.out_pairs}, thread, token + 32 * round,
                                      feature, values);
        }
#pragma unroll
        for (int i = 0; i + 16 * kRounds < kSums; ++i) sums[i] = sums[i + 16 * kRounds];
    }
}

}  // namespace tessera::cuda::sm90
