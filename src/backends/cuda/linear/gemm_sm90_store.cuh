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

/// Where the sums of a chunk of an item lie that shares its features and tokens with others.
__device__ __forceinline__ float4* shared_sums(const Operands& p, const Item& item, int chunk) {
    const int block = static_cast<int>(blockIdx.x) % kBlocks;
    const int place = item.place - item.first_chunk + chunk;
    return p.sums + (int64_t{place} * kBlocks + block) *
                        static_cast<int64_t>(sum_bytes(p.cut.tile) / sizeof(float4));
}

/// Where this thread's part of the results of an item goes; the first row of a warp's is `feature`.
struct OutPlace {
    float* rows[2];  ///< of two tokens, each at two features
    int64_t step;    ///< to 8 tokens later
    int left[2];     ///< tokens from the first one on, by feature
    float outer;
    float bias[2];

    /// `chunk`: the bias belongs to the first one.
    __device__ __forceinline__ OutPlace(const Operands& p,
                                        const Item& item,
                                        int64_t feature,
                                        int chunk) {
        int lane = static_cast<int>(threadIdx.x) % 32;
        make_opaque(lane);
        const int64_t n = feature + lane / 4, first = item.token + lane % 4 * 2;
        const int tokens = item.end - item.token - lane % 4 * 2;
        left[0] = n < p.n ? tokens : 0;
        left[1] = n + 8 < p.n ? tokens : 0;
        outer = p.outer[0];
        bias[0] = bias[1] = -0.0f;  // adds nothing
#pragma unroll
        for (int half = 0; half < 2; ++half)
            if (p.bias != nullptr && chunk == 0 && left[half] > 0)
                bias[half] = p.bias[n + 8 * half];
        rows[0] = p.out + first * p.out_stride + n;
        rows[1] = rows[0] + p.out_stride;
        step = 8 * p.out_stride;
    }
    __device__ __forceinline__ float value(float sum, int half) const {
        return __fadd_rn(__fmul_rn(sum, outer), bias[half]);
    }
    __device__ __forceinline__ void next() {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            rows[i] += step;
            make_opaque(rows[i]);
        }
    }
};

/// Stores this thread's sums of a chunk; with Add adds them to what is there, which the
/// second-level cache does by itself: nobody waits for what was there. All additions to an element
/// are one thread's, in their order.
template <bool Add>
__device__ __forceinline__ void store_tile(
    const Operands& p, const Item& item, int64_t feature, int chunk, const float (&sums)[kSums]) {
    OutPlace to(p, item, feature, chunk);
#pragma unroll
    for (int batch = 0; batch < kSums / 4; batch += kBatch) {
        if (8 * batch >= item.count) break;
#pragma unroll
        for (int j = batch; j < batch + kBatch; ++j) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float value = to.value(sums[4 * j + 2 * half + i], half);
                    if (8 * j + i >= to.left[half]) continue;
                    if constexpr (Add)
                        reduce_add(to.rows[i] + 8 * half, value);
                    else
                        to.rows[i][8 * half] = value;
                }
            }
            to.next();
        }
    }
}

/// Results of 32 tokens of an item from the sums of its chunks, which lie aside, with the bits of
/// store_tile() chunk after chunk.
__device__ __forceinline__ void join_chunks(const Operands& p,
                                            const Item& item,
                                            int64_t feature,
                                            int batch) {
    OutPlace to(p, item, feature, 0);
    float values[kBatch][2][2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        to.rows[i] += batch * kBatch * to.step;
        to.left[i] -= batch * kTileStep;
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                values[j][half][i] =
                    p.add && 8 * j + i < to.left[half] ? to.rows[i][j * to.step + 8 * half] : 0.0f;
    for (int chunk = 0; chunk < p.cut.chunks.count; ++chunk) {
        const float4* const from = sums_of(own_sums(shared_sums(p, item, chunk)), batch * kBatch);
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
            const float4 four = __ldcg(from + j * kOwners);
            const float sums[2][2] = {{four.x, four.y}, {four.z, four.w}};
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const float value = to.value(sums[half][i], half);
                    float& all = values[j][half][i];
                    all = p.add || chunk > 0 ? add_flushing(all, value) : value;
                }
        }
        to.bias[0] = to.bias[1] = -0.0f;
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                if (8 * j + i < to.left[half]) to.rows[i][8 * half] = values[j][half][i];
        to.next();
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
            const float* gates = sums + 16 * round;
            hopper::gate_values(p.glu, factors, 32 * round, gates, gates + 2, values);
            hopper::store_gated_round({map, collected, p.out_pairs}, thread, token + 32 * round,
                                      feature, values);
        }
#pragma unroll
        for (int i = 0; i + 16 * kRounds < kSums; ++i) sums[i] = sums[i + 16 * kRounds];
    }
}

}  // namespace tessera::cuda::sm90
