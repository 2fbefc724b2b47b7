#pragma once
// What a chunk of prompt rows needs besides the state, all chunks at once
// (chunk_squares.cuh has the formulas), for 16-bit operands: one block per
// chunk and key head makes K K^T and Q K^T on tensor cores, then four warps per
// value head its gates, T' and P. The inverse of I + L goes by blocks of 16:
// those on the diagonal by substitution in f32, T_ij = -T_ii sum_m L_im T_mj on
// tensor cores.
// Bound: bytes. Per token at 16 key and 48 value heads 16 KiB of f32 in, 20 KiB
// of operands out.

#include "backends/cuda/ptx/exp2.cuh"
#include "backends/cuda/ptx/named_barrier.cuh"
#include "backends/cuda/recurrent/half_operands.cuh"

namespace tessera::cuda {

constexpr int32_t kGroupWarps = 4;
constexpr int32_t kGroupThreads = 32 * kGroupWarps;  ///< work on one value head
constexpr int32_t kMostGroups = 3;
constexpr int32_t kHalfStride = kChunk + 8;
constexpr int32_t kDiagonalStride = 20;
constexpr int32_t kLowerBlocks = 10;  ///< 16 x 16 blocks on and below the diagonal
constexpr int32_t kBlockTasks = 2 * kLowerBlocks;
/// Blocks that a warp of so many groups multiplies at most.
constexpr int32_t block_rounds(int32_t groups) {
    return (kBlockTasks + groups * kGroupWarps - 1) / (groups * kGroupWarps);
}

/// Gates of one value head.
struct alignas(16) HeadGates {
    float2 sums[kChunk];  ///< G / log 2 in two parts
    float beta[kChunk];
    int32_t first_bad;  ///< tokens from here on are not finite
};
/// Squares of one value head.
struct alignas(16) HeadShared {
    uint16_t p[kSquareElements];                   ///< image of P
    uint16_t inverse[kSquareElements];             ///< image of T'; 0 above the diagonal blocks
    uint16_t l[kChunk - 16][kHalfStride];          ///< below the diagonal blocks, from row 16 on
    uint16_t t[4][16][24];                         ///< diagonal blocks of T
    float diagonal[4][16 * kDiagonalStride + 16];  ///< ... of L; two at a time without conflict
};

/// The squares stand where the keys were: what a block takes decides how many hide each other's
/// loads.
template <int kGroups>
struct PrepareShared {
    union {
        uint16_t keys[2][2][kChunk * 64];  ///< images of K, Q
        HeadShared heads[kGroups];
    };
    HeadGates gates[kGroups];
    bool bad[kChunk];  ///< keys that are not finite
};

static_assert(sizeof(PrepareShared<kMostGroups>) <= 101376, "a block of sm_120 has 99 KiB");

/// Blocks that share a multiprocessor where there is room (sm_90): 24 warps, or 20 with 102
/// registers each.
constexpr int32_t prepare_blocks(int32_t groups) {
    return groups == 1 ? 5 : 6 / groups;
}

/// Blocks that share the value heads of a key head, and how many of them each takes.
__host__ __device__ constexpr int32_t prepare_turns(int32_t heads) {
    return (heads + kMostGroups - 1) / kMostGroups;
}
constexpr int32_t prepare_groups(int32_t heads) {
    return (heads + prepare_turns(heads) - 1) / prepare_turns(heads);
}

/// Four columns of a row, 0 where there is none.
__device__ __forceinline__ float4 load_columns(const float* row, bool vectors) {
    if (vectors) return *reinterpret_cast<const float4*>(row);
    return {row[0], row[1], row[2], row[3]};
}

/// K and Q as 16-bit images, in shared memory and, unless null, in `images`.
template <bool kBf16>
__device__ __forceinline__ void load_keys(const HalfArgs& args,
                                          const ChunkRows& rows,
                                          int32_t head,
                                          uint16_t* images,
                                          uint16_t (&keys)[2][2][kChunk * 64],
                                          bool (&bad_keys)[kChunk]) {
    constexpr int32_t kTogether = 8;  // as many loads of a lane are under way
    const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32;
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    const int32_t warps = static_cast<int32_t>(blockDim.x) / 32;
    uint32_t clamped = 0;
    for (int32_t base = kTogether * warp; base < 2 * kChunk; base += kTogether * warps) {
        const bool is_q = base >= kChunk;
        float4 x[kTogether];
#pragma unroll
        for (int32_t i = 0; i < kTogether; ++i) {
            const int32_t row = base % kChunk + i;
            const HeadRows<const float>& from = is_q ? args.delta.q : args.delta.k;
            x[i] = row < rows.tokens
                       ? load_columns(from.at(rows.begin + row, head) + 4 * lane, args.vectors)
                       : float4{0.0f, 0.0f, 0.0f, 0.0f};
        }
#pragma unroll
        for (int32_t i = 0; i < kTogether; ++i) {
            const int32_t row = base % kChunk + i;
            uint2 pairs{pack_half<kBf16>(x[i].x, x[i].y), pack_half<kBf16>(x[i].z, x[i].w)};
            bool bad = false;
            if (beyond<kBf16>(larger<kBf16>(larger<kBf16>(0, pairs.x), pairs.y))) {
                clamped += count_beyond<kBf16>(pairs.x) + count_beyond<kBf16>(pairs.y);
                // Finite numbers stay so; of the others none may meet the rest of K
                // K^T, whereas a query spoils its own output only.
                const float sum =
                    (x[i].x - x[i].x) + (x[i].y - x[i].y) + (x[i].z - x[i].z) + (x[i].w - x[i].w);
                bad = !is_q && sum != 0.0f;
            }
            bad = __any_sync(0xffffffffu, bad);
            if (bad) pairs = {0, 0};
            if (lane == 0 && !is_q) bad_keys[row] = bad;
            const int32_t at = lane / 16 * kChunk * 64 + image_place(row, lane % 16 * 4);
            *reinterpret_cast<uint2*>(&keys[is_q][0][at]) = pairs;
            if (images != nullptr)
                *reinterpret_cast<uint2*>(images + is_q * kImageElements + at) = pairs;
        }
    }
    if (clamped > 0) atomicAdd(args.scratch.clamped, clamped);
}

/// This lane's row of a 16 x 16 block of an image, for load_matrices: as left
/// operand.
__device__ __forceinline__ const uint16_t* image_left(const uint16_t* image,
                                                      int32_t row,
                                                      int32_t column) {
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    return image + image_place(row + lane % 16, column + lane / 16 * 8);
}
/// ... as right operand that is the transposed of it.
__device__ __forceinline__ const uint16_t* image_right(const uint16_t* image,
                                                       int32_t row,
                                                       int32_t column) {
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    return image + image_place(row + lane / 16 * 8 + lane % 8, column + lane / 8 % 2 * 8);
}

/// Row of the block of the lower triangle that counts as `index`-th.
__device__ __forceinline__ int32_t lower_row(int32_t index) {
    return index < 1 ? 0 : index < 3 ? 1 : index < 6 ? 2 : 3;
}

/// A 16 x 16 block of the lower triangle of K K^T or Q K^T.
struct BlockTask {
    bool exists, of_q;
    int32_t row, column;  ///< in blocks
};
__device__ __forceinline__ BlockTask block_task(int32_t round) {
    const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32;
    const int32_t task = warp + round * (static_cast<int32_t>(blockDim.x) / 32);
    const int32_t index = task % kLowerBlocks, row = lower_row(index);
    return {task < kBlockTasks, task >= kLowerBlocks, row, index - row * (row + 1) / 2};
}

/// The products of this warp's blocks.
template <bool kBf16, int kRounds>
__device__ __forceinline__ void multiply_keys(const uint16_t (&keys)[2][2][kChunk * 64],
                                              float (&sums)[kRounds][2][4]) {
#pragma unroll
    for (int32_t round = 0; round < kRounds; ++round) {
        const BlockTask task = block_task(round);
        if (!task.exists) break;
#pragma unroll
        for (int32_t depth = 0; depth < 8; ++depth) {
            uint32_t a[4], b[4];
            const int32_t at = depth % 4 * 16;
            load_matrices(a, image_left(keys[task.of_q][depth / 4], 16 * task.row, at));
            load_matrices(b, image_right(keys[0][depth / 4], 16 * task.column, at));
            mma_16bit<!kBf16>(sums[round][0], a, b[0], b[1]);
            mma_16bit<!kBf16>(sums[round][1], a, b[2], b[3]);
        }
    }
}

/// The gates of two tokens, on their way from memory.
struct GatePair {
    float decay[2], beta[2];
    __device__ __forceinline__ void load(const DeltaArgs& delta,
                                         const ChunkRows& rows,
                                         int32_t head) {
        const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
#pragma unroll
        for (int32_t i = 0; i < 2; ++i) {
            const bool exists = 2 * lane + i < rows.tokens;
            const int64_t t = static_cast<int64_t>(rows.begin) + 2 * lane + i;
            decay[i] = exists ? *delta.log_decay.at(t, head) : 0.0f;
            beta[i] = exists ? *delta.beta.at(t, head) : 0.0f;
        }
    }
};

/// G, beta and the two exponentials, by one warp. Behind the last token G stays and beta is 0.
__device__ __forceinline__ void open_half_gates(const GatePair& pair,
                                                const bool (&bad)[kChunk],
                                                HeadGates& head,
                                                float* gates) {
    constexpr double kPerLog2 = 1.4426950408889634;
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    constexpr unsigned kAll = 0xffffffffu;
    double decays[2];
    int32_t first_bad = kChunk;
#pragma unroll
    for (int32_t i = 1; i >= 0; --i) {
        const int32_t token = 2 * lane + i;
        const float decay = pair.decay[i];
        const bool lost = bad[token] || decay != decay || !isfinite(pair.beta[i]);
        if (lost) first_bad = token;
        decays[i] = lost ? 0.0 : fmax(static_cast<double>(decay), kLowestDecay) * kPerLog2;
        head.beta[token] = lost ? 0.0f : pair.beta[i];
    }
    first_bad = static_cast<int32_t>(__reduce_min_sync(kAll, static_cast<unsigned>(first_bad)));
    if (lane == 0) head.first_bad = first_bad;
    const DecaySums sums = sum_decays(decays, lane);
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
        const int32_t token = 2 * lane + i;
        const auto high = static_cast<float>(sums.own[i]);
        head.sums[token] = {high, static_cast<float>(sums.own[i] - static_cast<double>(high))};
        // A token that is lost spoils the outputs and states from it on.
        gates[token] = token < first_bad ? fast_exp2(high) : NAN;
        gates[kChunk + token] =
            first_bad < kChunk ? NAN : fast_exp2(static_cast<float>(sums.last - sums.own[i]));
    }
}

/// P, or L, of a block whose products are `sums`. What lies behind the diagonal is left out, not
/// multiplied by 0.
template <bool kBf16>
__device__ __forceinline__ void decay_block(const BlockTask& task,
                                            const float (&sums)[2][4],
                                            float scale,
                                            const HeadGates& gates,
                                            HeadShared& head) {
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    const bool diagonal = task.row == task.column;
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
        const int32_t i = 16 * task.row + lane / 4 + 8 * half;
        const float2 own = gates.sums[i];
        const float factor = task.of_q ? scale : i < gates.first_bad ? gates.beta[i] : 0.0f;
#pragma unroll
        for (int32_t tile = 0; tile < 2; ++tile) {
            const int32_t j = 16 * task.column + 8 * tile + lane % 4 * 2;
            const auto other = *reinterpret_cast<const float4*>(&gates.sums[j]);
            float x[2] = {
                factor * sums[tile][2 * half] * fast_exp2((own.x - other.x) + (own.y - other.y)),
                factor * sums[tile][2 * half + 1] *
                    fast_exp2((own.x - other.z) + (own.y - other.w))};
            // Also what is NaN for a token that is lost must not meet the others in L.
            const int32_t end = task.of_q ? i + 1 : i < gates.first_bad ? i : 0;
            if (diagonal || end == 0) {
                if (j >= end) x[0] = 0.0f;
                if (j + 1 >= end) x[1] = 0.0f;
            }
            if (task.of_q)
                *reinterpret_cast<uint32_t*>(head.p + image_place(i, j)) =
                    pack_half<kBf16>(x[0], x[1]);
            else if (diagonal)
                *reinterpret_cast<float2*>(
                    &head.diagonal[task.row][i % 16 * kDiagonalStride + j % 16]) = {x[0], x[1]};
            else
                *reinterpret_cast<uint32_t*>(&head.l[i - 16][j]) = pack_half<kBf16>(x[0], x[1]);
        }
    }
}

/// Zeros in what stands above the diagonal blocks of an image, by the threads of a group.
__device__ __forceinline__ void clear_upper(uint16_t* image, int32_t thread) {
    for (int32_t i = thread; i < 48 * 8; i += kGroupThreads) {
        const int32_t row = i / 8, column = i % 8 * 8;
        if (column / 16 > row / 16)
            *reinterpret_cast<uint4*>(image + image_place(row, column)) = {0, 0, 0, 0};
    }
}

/// Column j of a diagonal block of T by one thread: x_i = [i = j] - sum_{m < i} L_im x_m.
template <bool kBf16>
__device__ __forceinline__ void solve_block(HeadShared& head,
                                            float beta,
                                            int32_t block,
                                            int32_t j) {
    float x[16];
#pragma unroll
    for (int32_t i = 0; i < 16; ++i) {
        float sums[2] = {};
#pragma unroll
        for (int32_t m = 0; m < i; m += 4) {
            const auto l =
                *reinterpret_cast<const float4*>(&head.diagonal[block][i * kDiagonalStride + m]);
            sums[0] = fmaf(l.x, x[m], sums[0]);
            if (m + 1 < i) sums[1] = fmaf(l.y, x[m + 1], sums[1]);
            if (m + 2 < i) sums[0] = fmaf(l.z, x[m + 2], sums[0]);
            if (m + 3 < i) sums[1] = fmaf(l.w, x[m + 3], sums[1]);
        }
        x[i] = i == j ? 1.0f : i < j ? 0.0f : -(sums[0] + sums[1]);
        const uint32_t pair = pack_half<kBf16>(x[i], x[i] * beta);
        head.t[block][i][j] = static_cast<uint16_t>(pair);
        head.inverse[image_place(16 * block + i, 16 * block + j)] =
            static_cast<uint16_t>(pair >> 16);
    }
}

/// The blocks of T' below diagonal block j by one warp, T_ij = -T_ii sum_m L_im T_mj one after the
/// other; transposed, so that what a product leaves is left operand of the next.
template <bool kBf16>
__device__ __forceinline__ void merge_blocks(HeadShared& head, const HeadGates& gates, int32_t j) {
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    const int32_t row = lane / 16 * 8 + lane % 8, column = lane / 8 % 2 * 8;
    const float beta[2] = {gates.beta[16 * j + lane / 4], gates.beta[16 * j + lane / 4 + 8]};
    uint32_t t[3][4];
    load_matrices_transposed(t[0], &head.t[j][row][column]);
#pragma unroll
    for (int32_t below = 1; below < 4; ++below) {
        const int32_t i = j + below;
        if (i >= 4) break;
        float sums[2][4] = {};
        uint32_t b[4];
#pragma unroll
        for (int32_t m = 0; m < below; ++m) {
            load_matrices(b, &head.l[16 * (i - 1) + row][16 * (j + m) + column]);
            mma_16bit<!kBf16>(sums[0], t[m], b[0], b[1]);
            mma_16bit<!kBf16>(sums[1], t[m], b[2], b[3]);
        }
        const uint32_t a[4] = {
            pack_half<kBf16>(sums[0][0], sums[0][1]), pack_half<kBf16>(sums[0][2], sums[0][3]),
            pack_half<kBf16>(sums[1][0], sums[1][1]), pack_half<kBf16>(sums[1][2], sums[1][3])};
        load_matrices(b, &head.t[i][row][column]);
        float out[2][4] = {};
        mma_16bit<!kBf16>(out[0], a, b[0], b[1]);
        mma_16bit<!kBf16>(out[1], a, b[2], b[3]);
        if (below < 3)
#pragma unroll
            for (int32_t c = 0; c < 4; ++c)
                t[below][c] = pack_half<kBf16>(-out[c / 2][c % 2 * 2], -out[c / 2][c % 2 * 2 + 1]);
#pragma unroll
        for (int32_t c = 0; c < 8; ++c)
            head.inverse[image_place(16 * i + c / 4 * 8 + lane % 4 * 2 + c % 2,
                                     16 * j + lane / 4 + c / 2 % 2 * 8)] =
                static_cast<uint16_t>(pack_half<kBf16>(-out[c / 4][c % 4] * beta[c / 2 % 2], 0.0f));
    }
}

/// An image to the scratch, by `threads` threads.
__device__ __forceinline__ void copy_image(const uint16_t* image,
                                           uint16_t* to,
                                           int32_t thread,
                                           int32_t threads) {
#pragma unroll 4
    for (int32_t i = 8 * thread; i < kSquareElements; i += 8 * threads)
        *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(image + i);
}

/// Blocks of (chunk of the window, key head, turn), kGroupThreads for each of kGroups value heads:
/// more heads than that take turns, in blocks of their own.
template <bool kBf16, int kGroups>
__global__ void __launch_bounds__(kGroupThreads* kGroups, prepare_blocks(kGroups))
    half_prepare(const __grid_constant__ HalfArgs args) {
    extern __shared__ uint4 shared_memory[];
    auto& shared = *reinterpret_cast<PrepareShared<kGroups>*>(shared_memory);
    const DeltaArgs& delta = args.delta;
    const int32_t turns = prepare_turns(delta.heads / delta.key_heads);
    const int32_t turn = static_cast<int32_t>(blockIdx.x) % turns;
    const int32_t index = static_cast<int32_t>(blockIdx.x) / turns;
    const int32_t chunk = index / delta.key_heads, key_head = index % delta.key_heads;
    const ChunkRows rows = find_chunk(delta.batch, args.scratch.first + chunk);
    if (rows.tokens == 0) return;
    const int32_t group = static_cast<int32_t>(threadIdx.x) / kGroupThreads;
    const int32_t thread = static_cast<int32_t>(threadIdx.x) % kGroupThreads;
    HeadShared& own = shared.heads[group];
    HeadGates& gates = shared.gates[group];
    const int32_t first = key_head + turn * kGroups * delta.key_heads;
    const int32_t head = first + group * delta.key_heads;
    const bool exists = head < delta.heads;
    const int64_t place = static_cast<int64_t>(chunk) * delta.heads + head;
    uint16_t* const squares = args.scratch.squares + place * 2 * kSquareElements;
    GatePair pair{};
    if (thread < 32 && exists) pair.load(delta, rows, head);
    uint16_t* const images = args.scratch.keys + int64_t{index} * kOneHead;
    load_keys<kBf16>(args, rows, key_head, turn == 0 ? images : nullptr, shared.keys, shared.bad);
    __syncthreads();
    if (thread < 32 && exists)
        open_half_gates(pair, shared.bad, gates, args.scratch.gates + place * 2 * kChunk);
    constexpr int32_t kRounds = block_rounds(kGroups);
    float sums[kRounds][2][4] = {};
    multiply_keys<kBf16>(shared.keys, sums);
    __syncthreads();  // the gates are there, the keys have been read
    clear_upper(own.p, thread);
    clear_upper(own.inverse, thread);
#pragma unroll
    for (int32_t round = 0; round < kRounds; ++round) {
        const BlockTask task = block_task(round);
        if (!task.exists) break;
#pragma unroll 1
        for (int32_t i = 0; i < kGroups; ++i)
            if (first + i * delta.key_heads < delta.heads)
                decay_block<kBf16>(task, sums[round], delta.scale, shared.gates[i],
                                   shared.heads[i]);
    }
    __syncthreads();
    if (!exists) return;
    if (thread < kChunk)
        solve_block<kBf16>(own, gates.beta[thread], thread / 16, thread % 16);
    else
        copy_image(own.p, squares + kSquareElements, thread - kChunk, kGroupThreads - kChunk);
    named_sync(1 + group, kGroupThreads);
    if (thread < 96) merge_blocks<kBf16>(own, gates, thread / 32);
    named_sync(1 + group, kGroupThreads);
    copy_image(own.inverse, squares, thread, kGroupThreads);
}

}  // namespace tessera::cuda
