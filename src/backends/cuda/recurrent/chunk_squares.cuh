#pragma once
// What a chunk of prompt rows needs besides the state, all chunks at once. With k_i, q_i the keys
// and queries of the chunk and G the running sum of log_decay,
//   L_ij = beta_i exp(G_i - G_j) k_i.k_j (i > j),  T' = (I + L)^-1 diag(beta),
//   P_ij = exp(G_i - G_j) q_i.k_j / sqrt(key size) (i >= j).
// chunk_keys makes the products that the value heads of a key head share, chunk_solve T' and P of a
// value head. Entries of T are products of contractions, at most beta |k| |k|: multiplying by the
// inverse is as good as solving. Keys and queries are left as sums of two f16 numbers, T' and P of
// three bf16 numbers: see chunk_scan.cuh.
// Bound: 2 * 64 * 64 * key size f32 products a key head and chunk, half of them skipped, and a
// chain of 64 dependent sums a value head and chunk.

#include "backends/cuda/ptx/mma.cuh"
#include "backends/cuda/ptx/mma_f16.cuh"
#include "backends/cuda/recurrent/chunks.cuh"

namespace tessera::cuda {

/// What passes from chunk_keys over chunk_solve to chunk_scan, for the chunks of one window.
struct ChunkScratch {
    uint16_t* keys = nullptr;     ///< [chunk][key head][k high, k low, q high, q low][64][columns]
    float* products = nullptr;    ///< [chunk][key head][k k^T, q k^T][64][64]
    uint16_t* squares = nullptr;  ///< [chunk][head][three parts of T', of P][64][64]
    float* gates = nullptr;       ///< [chunk][head][exp(G_i), exp(G_last - G_i)][64]
    int32_t columns = 0;          ///< key size, rounded up to what chunk_scan takes
    int32_t first = 0;            ///< chunk of the batch that the window begins with
    int32_t count = 0;            ///< chunks of the window
};

struct ChunkArgs {
    DeltaArgs delta{};
    ChunkScratch scratch{};
    int32_t slices = 0;  ///< blocks that share the value rows of a head in chunk_scan
};

/// x and y as high + low, each a pair of f16 in one register, x in the lower half: 22 bits of what
/// lies between 2^-2 and 2^15, to within 2^-25 below.
__device__ __forceinline__ void split_f16(float x, float y, uint32_t& high, uint32_t& low) {
    high = pack_f16(x, y);
    const float2 rounded = __half22float2(*reinterpret_cast<const __half2*>(&high));
    low = pack_f16(__fsub_rn(x, rounded.x), __fsub_rn(y, rounded.y));
}

/// x and y as sums of three bf16 numbers, the largest first: 24 bits at every magnitude.
__device__ __forceinline__ void split_bf16(float x, float y, uint32_t (&parts)[3]) {
#pragma unroll
    for (uint32_t& part : parts) {
        part = pack_bf16(x, y);
        x = __fsub_rn(x, __uint_as_float(part << 16));
        y = __fsub_rn(y, __uint_as_float(part & 0xffff0000u));
    }
}

// ---- keys and queries ----

constexpr int32_t kKeyThreads = 256;
constexpr int32_t kSlab = 64;  ///< columns that are multiplied together
/// Rows 16 bytes apart in banks: eight lanes read eight rows without conflict.
constexpr int32_t kSlabStride = kSlab + 4;

struct ChunkKeysShared {
    float k[kChunk][kSlabStride];
    float q[kChunk][kSlabStride];
};

/// Columns [first, first + columns) of the chunk to shared memory, 0 where there are none, and to
/// `split` in two f16 numbers each.
__device__ __forceinline__ void load_slab(const HeadRows<const float>& x,
                                          const ChunkRows& rows,
                                          int32_t head,
                                          int32_t first,
                                          const ChunkArgs& args,
                                          float (&slab)[kChunk][kSlabStride],
                                          uint16_t* split) {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const int32_t columns = args.scratch.columns, key_size = args.delta.key_size;
    const int32_t pair = thread % 32 * 2;
    if (first + pair >= columns) return;
    for (int32_t row = thread / 32; row < kChunk; row += kKeyThreads / 32) {
        float values[2] = {0.0f, 0.0f};
        if (row < rows.tokens) {
            const float* from = x.at(rows.begin + row, head) + first + pair;
            if (first + pair < key_size) values[0] = from[0];
            if (first + pair + 1 < key_size) values[1] = from[1];
        }
        slab[row][pair] = values[0];
        slab[row][pair + 1] = values[1];
        uint32_t high, low;
        split_f16(values[0], values[1], high, low);
        auto* out = reinterpret_cast<uint32_t*>(split + row * columns + first + pair);
        out[0] = high;
        out[kChunk * columns / 2] = low;
    }
}

/// x . y added to `sum`, in the order of the columns.
__device__ __forceinline__ void add_products(const float4& x, const float4& y, float& sum) {
    sum = fmaf(x.x, y.x, sum);
    sum = fmaf(x.y, y.y, sum);
    sum = fmaf(x.z, y.z, sum);
    sum = fmaf(x.w, y.w, sum);
}

/// Blocks of (chunk of the window, key head). A thread makes the products of tokens i = a + 16 r
/// and j = b + 16 c with c <= r: those above the diagonal are not wanted.
__global__ void __launch_bounds__(kKeyThreads) chunk_keys(const __grid_constant__ ChunkArgs args) {
    extern __shared__ uint4 shared_memory[];
    auto& shared = *reinterpret_cast<ChunkKeysShared*>(shared_memory);
    const int32_t key_heads = args.delta.key_heads, columns = args.scratch.columns;
    const int32_t chunk = static_cast<int32_t>(blockIdx.x) / key_heads;
    const int32_t head = static_cast<int32_t>(blockIdx.x) % key_heads;
    const ChunkRows rows = find_chunk(args.delta.batch, args.scratch.first + chunk);
    if (rows.tokens == 0) return;
    const int64_t place = static_cast<int64_t>(chunk) * key_heads + head;
    uint16_t* const split = args.scratch.keys + place * 4 * kChunk * columns;
    const int32_t a = static_cast<int32_t>(threadIdx.x) / 16;
    const int32_t b = static_cast<int32_t>(threadIdx.x) % 16;
    float kk[4][4] = {}, qk[4][4] = {};
    for (int32_t first = 0; first < columns; first += kSlab) {
        __syncthreads();  // the slab before has been read
        load_slab(args.delta.k, rows, head, first, args, shared.k, split);
        load_slab(args.delta.q, rows, head, first, args, shared.q, split + 2 * kChunk * columns);
        __syncthreads();
        for (int32_t i = 0; i < min(kSlab, columns - first); i += 4) {
            float4 right[4];
#pragma unroll
            for (int32_t c = 0; c < 4; ++c)
                right[c] = *reinterpret_cast<const float4*>(&shared.k[b + 16 * c][i]);
#pragma unroll
            for (int32_t r = 0; r < 4; ++r) {
                const auto k = *reinterpret_cast<const float4*>(&shared.k[a + 16 * r][i]);
                const auto q = *reinterpret_cast<const float4*>(&shared.q[a + 16 * r][i]);
#pragma unroll
                for (int32_t c = 0; c <= r; ++c) {
                    add_products(k, right[c], kk[r][c]);
                    add_products(q, right[c], qk[r][c]);
                }
            }
        }
    }
    float* const out = args.scratch.products + place * 2 * kSquareElements;
#pragma unroll
    for (int32_t r = 0; r < 4; ++r)
#pragma unroll
        for (int32_t c = 0; c <= r; ++c) {
            const int32_t at = (a + 16 * r) * kChunk + b + 16 * c;
            out[at] = kk[r][c];
            out[kSquareElements + at] = qk[r][c];
        }
}

// ---- gates and the inverse ----

constexpr int32_t kSolveThreads = 128;
constexpr int32_t kSolveStride = kChunk + 4;

struct ChunkSolveShared {
    float l[kChunk][kSolveStride];  ///< read as float4
    double sums[kChunk];            ///< G
    float beta[kChunk];
};

/// G, beta and the two exponentials of a chunk, by one warp. Behind the last token G stays and beta
/// is 0.
__device__ __forceinline__ void open_gates(const DeltaArgs& delta,
                                           const ChunkRows& rows,
                                           int32_t head,
                                           ChunkSolveShared& shared,
                                           float* gates) {
    const int32_t lane = threadIdx.x % 32;
    constexpr unsigned kAll = 0xffffffffu;
    double decays[2];
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
        const int32_t token = 2 * lane + i;
        const bool exists = token < rows.tokens;
        const int64_t t = static_cast<int64_t>(rows.begin) + token;
        const double decay = exists ? static_cast<double>(*delta.log_decay.at(t, head)) : 0.0;
        decays[i] = decay < kLowestDecay ? kLowestDecay : decay;
        shared.beta[token] = exists ? *delta.beta.at(t, head) : 0.0f;
    }
    // In f64: a strong decay must not cost the weak ones around it their digits.
    double sum = decays[0] + decays[1];
#pragma unroll
    for (int32_t distance = 1; distance < 32; distance *= 2) {
        const double before = __shfl_up_sync(kAll, sum, distance);
        if (lane >= distance) sum += before;
    }
    const double before = __shfl_up_sync(kAll, sum, 1);
    const double last = __shfl_sync(kAll, sum, 31);
    const double sums[2] = {(lane == 0 ? 0.0 : before) + decays[0], sum};
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
        const int32_t token = 2 * lane + i;
        shared.sums[token] = sums[i];
        gates[token] = expf(static_cast<float>(sums[i]));
        gates[kChunk + token] = expf(static_cast<float>(last - sums[i]));
    }
}

/// L to shared memory, P to `squares`. What lies behind the diagonal is left out, not multiplied by
/// 0: it may be NaN.
__device__ __forceinline__ void decay_products(const float* products,
                                               int32_t tokens,
                                               float scale,
                                               ChunkSolveShared& shared,
                                               uint16_t* squares) {
    for (auto at = static_cast<int32_t>(threadIdx.x) * 2; at < kSquareElements;
         at += kSolveThreads * 2) {
        const int32_t i = at / kChunk, j = at % kChunk;
        float p[2] = {0.0f, 0.0f};
#pragma unroll
        for (int32_t c = 0; c < 2; ++c) {
            float l = 0.0f;
            if (i < tokens && j + c <= i) {
                const float decay = expf(static_cast<float>(shared.sums[i] - shared.sums[j + c]));
                p[c] = scale * (decay * products[kSquareElements + at + c]);
                if (j + c < i) l = shared.beta[i] * (decay * products[at + c]);
            }
            shared.l[i][j + c] = l;
        }
        uint32_t parts[3];
        split_bf16(p[0], p[1], parts);
        auto* out = reinterpret_cast<uint32_t*>(squares + 3 * kSquareElements + at);
#pragma unroll
        for (int32_t part = 0; part < 3; ++part) out[part * kSquareElements / 2] = parts[part];
    }
}

/// Column j of T' by one thread: x_i = [i = j] - sum_{m < i} L_im x_m, which nobody else needs.
__device__ __forceinline__ void solve_column(const ChunkSolveShared& shared,
                                             int32_t j,
                                             uint16_t* squares) {
    float x[kChunk];
    const float beta = shared.beta[j];
#pragma unroll
    for (int32_t i = 0; i < kChunk; ++i) {
        float sums[4] = {};
#pragma unroll
        for (int32_t m = 0; m < i; m += 4) {
            const auto l = *reinterpret_cast<const float4*>(&shared.l[i][m]);
            sums[0] = fmaf(l.x, x[m], sums[0]);
            if (m + 1 < i) sums[1] = fmaf(l.y, x[m + 1], sums[1]);
            if (m + 2 < i) sums[2] = fmaf(l.z, x[m + 2], sums[2]);
            if (m + 3 < i) sums[3] = fmaf(l.w, x[m + 3], sums[3]);
        }
        const float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        x[i] = i == j ? 1.0f : i < j ? 0.0f : -sum;
        uint32_t parts[3];
        split_bf16(i < j ? 0.0f : x[i] * beta, 0.0f, parts);
#pragma unroll
        for (int32_t part = 0; part < 3; ++part)
            squares[part * kSquareElements + i * kChunk + j] = static_cast<uint16_t>(parts[part]);
    }
}

/// Blocks of (chunk of the window, value head).
__global__ void __launch_bounds__(kSolveThreads)
    chunk_solve(const __grid_constant__ ChunkArgs args) {
    extern __shared__ uint4 shared_memory[];
    auto& shared = *reinterpret_cast<ChunkSolveShared*>(shared_memory);
    const DeltaArgs& delta = args.delta;
    const int32_t chunk = static_cast<int32_t>(blockIdx.x) / delta.heads;
    const int32_t head = static_cast<int32_t>(blockIdx.x) % delta.heads;
    const ChunkRows rows = find_chunk(delta.batch, args.scratch.first + chunk);
    if (rows.tokens == 0) return;
    const int64_t place = static_cast<int64_t>(chunk) * delta.heads + head;
    const int64_t key_place =
        static_cast<int64_t>(chunk) * delta.key_heads + head % delta.key_heads;
    uint16_t* const squares = args.scratch.squares + place * 6 * kSquareElements;
    const auto thread = static_cast<int32_t>(threadIdx.x);
    if (thread < 32) open_gates(delta, rows, head, shared, args.scratch.gates + place * 2 * kChunk);
    __syncthreads();
    decay_products(args.scratch.products + key_place * 2 * kSquareElements, rows.tokens,
                   delta.scale, shared, squares);
    __syncthreads();
    if (thread < kChunk) solve_column(shared, thread, squares);
}

}  // namespace tessera::cuda
