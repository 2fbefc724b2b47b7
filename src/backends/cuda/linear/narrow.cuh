#pragma once
// Few features (alpha and beta of the delta net, routers, keys of small models), many rows of x:
// tiles of 128 features would leave most multiprocessors without work. A block takes 32 tokens and
// up to 48 features, its eight warps an eighth of K each and no barrier until they are through:
// x and the weights go from the second-level cache to registers, where a unit of 32 columns
// belongs to one lane both of a feature and of a token. The order in which tensor cores meet the
// columns does not matter as long as both operands agree on it, so neither shared memory nor
// exchanges between lanes are needed. Bound: the latency of a warp's share of K, 16.5 of the 19 us
// that Q8_0 48x5120 takes with 2048 tokens on an H200; the second-level cache could bring the
// operands in half of that.
//
// 64 columns sum from zero in the tensor cores, which cut off what they add, and are added with a
// proper rounding; at the end the eighths in the order of the columns. The order of a sum depends
// on K alone.

#include <algorithm>
#include <span>

#include "backends/cuda/linear/product.cuh"

namespace tessera::cuda {
namespace narrow {

inline constexpr int kTokens = 32;  ///< of a block
inline constexpr int kTokenGroups = kTokens / 8;
inline constexpr int kTiles = 3;  ///< of 16 features: the most that a block takes
inline constexpr int kFeatures = kTiles * 16;
inline constexpr int kWarps = kProductThreads / 32;
inline constexpr int kUnits = 4;  ///< of a step: one for each of the lanes that share a row
/// Rows of x with a K of whole units have transposed pairs where kernels for Hopper are built.
inline constexpr bool kPaired = TESSERA_SM90A != 0;
inline constexpr int kMostParts = static_cast<int>(kMostNarrow);

/// Products of the same rows of x with several weights of one format.
struct Call {
    Product parts[kMostParts];
    int32_t chunks[kMostParts];  ///< blocks along the features of each part, 0 behind the last
    int32_t all_chunks;
};

/// Tiles of features that a block takes, the same number in all blocks but the last.
__host__ __device__ constexpr int tiles_of(int64_t n) {
    return static_cast<int>((n + 15) / 16);
}
__host__ __device__ constexpr int chunks_of(int64_t n) {
    return (tiles_of(n) + kTiles - 1) / kTiles;
}
__host__ __device__ constexpr int tiles_of_chunk(int64_t n) {
    return (tiles_of(n) + chunks_of(n) - 1) / chunks_of(n);
}

struct Shared {
    /// A row of 4 floats more than it needs: lanes of eight features and four tokens meet
    /// different banks.
    float sums[kWarps][kTokens][kFeatures + 4];
};

/// The lane's unit of 8 tokens.
struct TokenUnit {
    uint4 chunks[4];
};

/// What a lane gives to the left operands: its units of features g and g + 8, pair w of chunk i
/// beside pair w of the same chunk of x.
struct FeatureUnits {
    uint32_t pairs[2][4][4];
};

template <DType F>
__device__ __forceinline__ void decode_units(const typename Format<F>::Raw (&raw)[2],
                                             FeatureUnits& out) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        uint32_t words[4][4];
#pragma unroll
        for (int q = 0; q < 4; ++q) decode_bf16<F>(raw[half], q, words[q]);
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int w = 0; w < 4; ++w) out.pairs[half][i][w] = kPaired ? words[w][i] : words[i][w];
    }
}

/// sums += 16 features times 32 tokens over the columns of a step.
__device__ __forceinline__ void multiply_units(const FeatureUnits& features,
                                               const TokenUnit (&tokens)[kTokenGroups],
                                               float (&sums)[kTokenGroups][4]) {
#pragma unroll
    for (int first = 0; first < 4; first += 2) {
        float part[kTokenGroups][4] = {};
#pragma unroll
        for (int i = first; i < first + 2; ++i) {
#pragma unroll
            for (int w = 0; w < 4; w += 2) {
                const uint32_t left[4] = {features.pairs[0][i][w], features.pairs[1][i][w],
                                          features.pairs[0][i][w + 1], features.pairs[1][i][w + 1]};
#pragma unroll
                for (int n = 0; n < kTokenGroups; ++n) {
                    const uint32_t right[2] = {word_of(tokens[n].chunks[i], w),
                                               word_of(tokens[n].chunks[i], w + 1)};
                    mma_bf16(part[n], left, right);
                }
            }
        }
#pragma unroll
        for (int n = 0; n < kTokenGroups; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[n][i] += part[n][i];
    }
}

/// What a block works on.
struct Place {
    int64_t first_token, first_feature;
    int tiles;
};

/// The warp's share of K for the block's features and tokens.
template <DType F>
__device__ __forceinline__ void multiply_share(const Product& p,
                                               const Place& place,
                                               float (&sums)[kTiles][kTokenGroups][4]) {
    // Registers leave no room for a second tile of 16-bit weights, nor of those whose codes have
    // bits in several places.
    constexpr bool kAhead = layout_of(F).pieces < 4 && F != DType::kQ5_0 && F != DType::kQ5_1 &&
                            F != DType::kQ5_K && F != DType::kQ6_K;
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int group = lane / 4, t = lane % 4;
    const int units = static_cast<int>(p.units), steps = (units + kUnits - 1) / kUnits;
    const int begin = steps * warp / kWarps, end = steps * (warp + 1) / kWarps;
    // Where the rows of x start, in pieces of 16 bytes. Tokens and features behind the last are the
    // last: nobody stores what comes of them.
    const auto* x = static_cast<const uint4*>(p.x);
    uint32_t rows[kTokenGroups];
#pragma unroll
    for (int n = 0; n < kTokenGroups; ++n) {
        const int64_t token = place.first_token + 8 * n + group;
        rows[n] = static_cast<uint32_t>((token < p.rows ? token : p.rows - 1) * (p.x_stride / 8));
    }
    typename Format<F>::Raw raw[2];
    // Units behind the last are the last, too: x has zeros there.
    const auto load = [&](int step, int tile) {
        const int unit = min(step * kUnits + t, units - 1);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int64_t feature = place.first_feature + 16 * tile + 8 * half + group;
            raw[half] = load_present_unit<F>(
                weight_row(p, layout_of(F), 0, feature < p.n ? feature : p.n - 1), unit, units);
        }
    };
    if (kAhead && begin < end) load(begin, 0);
#pragma unroll 1
    for (int step = begin; step < end; ++step) {
        const int unit = step * kUnits + t;
        const bool present = unit < units;
        TokenUnit tokens[kTokenGroups];
#pragma unroll
        for (int n = 0; n < kTokenGroups; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                tokens[n].chunks[i] = {0, 0, 0, 0};
                if (present)
                    tokens[n].chunks[i] = __ldg(x + rows[n] + static_cast<uint32_t>(unit * 4 + i));
            }
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            // The same in all threads of the block.
            if (tile >= place.tiles) continue;
            if (!kAhead) load(step, tile);
            FeatureUnits features;
            decode_units<F>(raw, features);
            // The next tile's codes are under way during the products of this one.
            const bool more = tile + 1 < place.tiles;
            if (kAhead) load(more ? step : step + 1, more ? tile + 1 : 0);
            multiply_units(features, tokens, sums[tile]);
        }
    }
}

/// Adds the shares of the warps and stores what they are the sums of.
__device__ __forceinline__ void store_block(const Product& p,
                                            const Place& place,
                                            const Shared& shared) {
    const float outer = p.outer[0];
    for (int index = static_cast<int>(threadIdx.x); index < kTokens * kFeatures;
         index += kProductThreads) {
        const int token = index / kFeatures, feature = index % kFeatures;
        const int64_t n = place.first_feature + feature;
        const int64_t row = place.first_token + token;
        if (feature >= 16 * place.tiles || n >= p.n || row >= p.rows) continue;
        float sum = shared.sums[0][token][feature];
#pragma unroll
        for (int warp = 1; warp < kWarps; ++warp) sum += shared.sums[warp][token][feature];
        float* out = p.out + row * p.out_stride + n;
        *out = finish(p, sum, outer, n, p.add ? *out : 0.0f);
    }
}

template <DType F>
__global__ void __launch_bounds__(kProductThreads, 1) kernel(const __grid_constant__ Call call) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared*>(memory);
    int chunk = static_cast<int>(blockIdx.x % static_cast<unsigned>(call.all_chunks));
    int part = 0;
    while (chunk >= call.chunks[part]) chunk -= call.chunks[part++];
    const Product& p = call.parts[part];
    const int tiles = tiles_of_chunk(p.n), left = tiles_of(p.n) - chunk * tiles;
    const Place place{int64_t{blockIdx.x / static_cast<unsigned>(call.all_chunks)} * kTokens,
                      int64_t{chunk} * tiles * 16, left < tiles ? left : tiles};

    float sums[kTiles][kTokenGroups][4] = {};
    multiply_share<F>(p, place, sums);

    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int n = 0; n < kTokenGroups; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                shared.sums[warp][8 * n + lane % 4 * 2 + i % 2][16 * tile + i / 2 * 8 + lane / 4] =
                    sums[tile][n][i];
    // All shares are there.
    __syncthreads();
    store_block(p, place, shared);
}

}  // namespace narrow

template <DType F>
void run_narrow(Device& device, std::span<const Product> products) {
    static_assert(sizeof(narrow::Shared) <= 101376, "a block of sm_120 has 99 KiB");
    check(products.size() <= narrow::kMostParts, "narrow: too many weights for one launch");
    check(products[0].x_aligned && products[0].x_paired == narrow::kPaired, "narrow: rows of x");
    narrow::Call call{};
    for (size_t i = 0; i < products.size(); ++i) {
        call.parts[i] = products[i];
        call.chunks[i] = narrow::chunks_of(products[i].n);
        call.all_chunks += call.chunks[i];
    }
    const int64_t groups = ceil_div(products[0].rows, narrow::kTokens);
    device.launch("narrow", narrow::kernel<F>,
                  dim3(static_cast<unsigned>(groups * call.all_chunks)), dim3(kProductThreads),
                  sizeof(narrow::Shared), call);
}

}  // namespace tessera::cuda
