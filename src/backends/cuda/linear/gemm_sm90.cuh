#pragma once
// Many rows of x against four-bit floats on Hopper (wgmma multiplies 2048 pairs of bf16 a clock and
// multiprocessor; 95 % of that in the main loop, 128 columns of a tile in 2140 clocks).
//
// A block computes 128 features x 256 tokens (128 and 64 where tiles would leave multiprocessors
// idle) in stages of 128 columns. The weights are the left operand: each of two warpgroups keeps 64
// features, reads their codes from shared memory as they lie on the device, and decodes them in
// registers while the products of the 32 columns before run. Within 32 columns x is stored
// permuted (ActView::transposed_pairs), so that a lane needs exactly one word of a unit for its
// part of two products: one load of four bytes a row. A third warpgroup starts the copies and turns
// the block scales of a stage to bf16 once for all lanes that need them. Two blocks of a cluster
// work on the same tokens: each brings one half of them to both, as the second-level cache could
// not feed all.
//
// Instructions are what is scarce next to the products, which also take the ports of the register
// file: 50 for 32 columns, 13 of them to look up eight values.
//
// The order of a sum is that of the columns, whatever the tile: the bits of a row do not depend on
// the rows beside it. Tensor cores cut off what they add: 2e-5 of the result in 17408 columns.

#include <algorithm>
#include <cstdint>

#include "backends/cuda/linear/product.cuh"
#include "backends/cuda/ptx/cluster.cuh"
#include "backends/cuda/ptx/load_shared.cuh"
#include "backends/cuda/ptx/mbarrier.cuh"
#include "backends/cuda/ptx/opaque.cuh"
#include "backends/cuda/ptx/permute.cuh"
#include "backends/cuda/ptx/setmaxnreg.cuh"
#include "backends/cuda/ptx/tma.cuh"
#include "backends/cuda/ptx/wgmma.cuh"
#include "backends/cuda/tensor_map.h"

namespace tessera::cuda {
namespace sm90 {

inline constexpr int kStageColumns = 128;
inline constexpr int kStageUnits = kStageColumns / kUnit;
inline constexpr int kHalfColumns = 64;  ///< a row of 128 bytes of bf16
inline constexpr int kWarpgroups = 2;    ///< that multiply
inline constexpr int kFeatures = 64 * kWarpgroups;
inline constexpr int kThreads = 128 * (kWarpgroups + 1);
inline constexpr int kWeightRowBytes = kStageUnits * kPieceBytes;
inline constexpr int kBlocks = 2;    ///< of a cluster
inline constexpr int kBoxRows = 32;  ///< tokens of a copy
inline constexpr int kLoaders = 4;   ///< warps that bring operands
/// Registers of a thread that brings operands and of one that multiplies. A block owns those it was
/// launched with, an equal share a thread in units of eight: asking for more waits for ever.
inline constexpr int kLoaderRegisters = 40, kProductRegisters = 232;
inline constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
static_assert(kLoaderRegisters + kWarpgroups * kProductRegisters <=
              (1 + kWarpgroups) * kLaunchRegisters);

/// What the kernel takes of a Product, and how the tiles are cut.
struct Operands {
    const uint8_t* scales;
    const float* outer;
    const float* bias;
    float* out;
    int64_t out_stride;
    int64_t n;
    int64_t rows;
    int64_t units;
    bool add;
    bool scales_aligned;
    int32_t steps;
    int32_t tile;         ///< tokens of a tile
    int32_t token_tiles;  ///< of this size
    int32_t whole;        ///< tiles that stay whole, the others are cut into `pieces`
    int32_t pieces;
    int32_t items;
};

/// Tokens [token, token + count) against features from `feature`.
struct Item {
    int32_t token, count, feature;
};
__device__ __forceinline__ Item item_of(const Operands& p, int index) {
    int tile = index, piece = 0, count = p.tile;
    if (index >= p.whole) {
        tile = p.whole + (index - p.whole) / p.pieces;
        piece = (index - p.whole) % p.pieces;
        count /= p.pieces;
    }
    return {tile % p.token_tiles * p.tile + piece * count, count, tile / p.token_tiles};
}

template <int Tokens>
constexpr int stages_of() {
    return Tokens == 256 ? 3 : Tokens == 128 ? 5 : 8;
}

template <int Tokens>
struct Shared {
    static constexpr int kStages = stages_of<Tokens>();
    uint8_t x[kStages][Tokens * kStageColumns * 2];
    uint8_t weights[kStages][kFeatures * kWeightRowBytes];
    uint4 scales[kStages][kFeatures];
    Barrier full[kStages], empty[kStages];
    uint2 table;
};

/// Where a role stands in the ring of stages.
template <int Stages>
struct Ring {
    int stage = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void next() {
        if (++stage == Stages) {
            stage = 0;
            parity ^= 1;
        }
    }
    __device__ __forceinline__ int before() const { return stage == 0 ? Stages - 1 : stage - 1; }
};

/// Eight doubled E2M1 values as four pairs of bf16. The first words of the tables come from shared
/// memory: an instruction holds one constant only, and the compiler would move others to a register
/// each time.
struct Decoder {
    uint32_t high0, low0;
    __device__ __forceinline__ explicit Decoder(const uint2& table) {
        const uint2 two = load_shared_two(shared_address(&table));
        high0 = two.x;
        low0 = two.y;
    }
    __device__ __forceinline__ void pairs(uint32_t word, uint32_t (&out)[4]) const {
        const uint32_t first = word & 0x77777777u;
        const uint32_t second = first >> 16;
        const uint32_t high_first = pick_bytes(high0, kBf16High1, first) | (word & 0x80808080u);
        const uint32_t high_second =
            pick_bytes(high0, kBf16High1, second) | ((word << 4) & 0x80808080u);
        const uint32_t low_first = pick_bytes(low0, kBf16Low1, first);
        const uint32_t low_second = pick_bytes(low0, kBf16Low1, second);
        out[0] = pick_bytes(low_first, high_first, 0x5140);
        out[1] = pick_bytes(low_first, high_first, 0x7362);
        out[2] = pick_bytes(low_second, high_second, 0x5140);
        out[3] = pick_bytes(low_second, high_second, 0x7362);
    }
};

__device__ __forceinline__ __nv_bfloat162 bf16_pair(uint32_t bits) {
    return *reinterpret_cast<const __nv_bfloat162*>(&bits);
}
/// Both halves times the half of `scales` that `upper` names.
__device__ __forceinline__ uint32_t scale_pair(uint32_t pair, uint32_t scales, bool upper) {
    const __nv_bfloat162 both =
        upper ? __high2bfloat162(bf16_pair(scales)) : __low2bfloat162(bf16_pair(scales));
    const __nv_bfloat162 out = __hmul2(bf16_pair(pair), both);
    return *reinterpret_cast<const uint32_t*>(&out);
}

/// Scales of the four units of a stage of one row, as they lie in memory.
template <DType F>
struct StageScales {
    static constexpr int kUnitBytes = layout_of(F).group_bytes;
    static constexpr int kBytes = kUnitBytes * kStageUnits;
    static_assert(layout_of(F).group_units == 1 && kBytes <= 8, "a scale or two a unit");
    uint32_t words[2];

    static __device__ __forceinline__ StageScales load(const Operands& p,
                                                       const uint8_t* row,
                                                       int64_t unit) {
        const uint8_t* from = row + kUnitBytes * unit;
        if (p.scales_aligned) {
            if constexpr (kBytes == 8) {
                const uint2 two = __ldg(reinterpret_cast<const uint2*>(from));
                return {{two.x, two.y}};
            } else {
                return {{load_word<uint32_t>(from), 0}};
            }
        }
        StageScales out{};
#pragma unroll
        for (int i = 0; i < kBytes; ++i)
            if (unit + i / kUnitBytes < p.units)
                out.words[i / 4] |= load_word<uint8_t>(from + i) << (8 * (i % 4));
        return out;
    }
};

/// Halves of the scales as bf16, two a word: units 0 to 3 for the first 16 values of a unit, then
/// for the second.
__device__ __forceinline__ uint4 bf16_scales(const StageScales<DType::kNVFP4>& raw) {
    uint32_t out[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        // What is no number counts as 0.
        const uint32_t codes = raw.words[i] & 0x7f7f7f7fu;
        const uint32_t nan = (codes + 0x01010101u) & 0x80808080u;
        const uint32_t clean = codes & ~(nan - (nan >> 7));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            // Bits of E4M3 under the exponent of bf16 are 2^120 too small, subnormal ones included.
            const uint32_t bits =
                half == 0 ? (clean & 0x00ff00ffu) << 4 : (clean >> 4) & 0x0ff00ff0u;
            constexpr uint32_t kTwoTo119 = 0x7b007b00u;
            out[2 * half + i] = multiply_bf16(bits, kTwoTo119);
        }
    }
    return {out[0], out[1], out[2], out[3]};
}
__device__ __forceinline__ uint4 bf16_scales(const StageScales<DType::kMXFP4>& raw) {
    uint32_t out[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        uint32_t halves[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const uint32_t code = (raw.words[0] >> (16 * i + 8 * j)) & 0xffu;
            // Subnormal for the codes 0 and 1.
            halves[j] = code >= 2 ? (code - 1) << 7 : 0x0020u << code;
        }
        out[i] = halves[0] | halves[1] << 16;
    }
    return {out[0], out[1], out[0], out[1]};
}

template <DType F, int Max>
__device__ __forceinline__ void produce(const CUtensorMap* x_map,
                                        const CUtensorMap* weight_map,
                                        const Operands& p,
                                        Shared<Max>& shared) {
    Ring<Shared<Max>::kStages> ring;
    const int block = static_cast<int>(block_in_cluster());
    const int thread = static_cast<int>(threadIdx.x);
    for (int index = static_cast<int>(blockIdx.x) / kBlocks; index < p.items;
         index += static_cast<int>(gridDim.x) / kBlocks) {
        const Item item = item_of(p, index);
        if (item.token >= p.rows) continue;
        const int feature = (item.feature * kBlocks + block) * kFeatures;
        // The blocks of a cluster share their tokens: each brings its part to all of them.
        const int part = item.count / kBlocks;
        const int first = block * part;
        const auto bytes =
            static_cast<uint32_t>(item.count * kStageColumns * 2 + kFeatures * kWeightRowBytes);
        const int64_t row = feature + thread;
        const uint8_t* scales =
            p.scales + (row < p.n ? row : p.n - 1) * p.units * StageScales<F>::kUnitBytes;
        for (int step = 0; step < p.steps; ++step) {
            const auto raw =
                StageScales<F>::load(p, scales, static_cast<int64_t>(step) * kStageUnits);
            const int stage = ring.stage;
            barrier_wait(&shared.empty[stage], ring.parity ^ 1);
            Barrier* full = &shared.full[stage];
            if (thread == 0) {
                barrier_arrive_expect(full, bytes);
                copy_box(shared.weights[stage], weight_map, step * kWeightRowBytes, feature, full);
                for (int half = 0; half < 2; ++half) {
                    const int column = step * kStageColumns + half * kHalfColumns;
                    uint8_t* target = shared.x[stage] + half * item.count * kHalfColumns * 2;
                    for (int at = first; at < first + part; at += kBoxRows) {
                        uint8_t* to = target + at * kHalfColumns * 2;
                        copy_box_multicast(to, x_map, column, item.token + at, full,
                                           uint16_t{(1 << kBlocks) - 1});
                    }
                }
            }
            __syncwarp();
            shared.scales[stage][thread] = bf16_scales(raw);
            __syncwarp();
            if (thread % 32 == 0) barrier_arrive(full);
            ring.next();
        }
    }
}

/// Tells the blocks that read the same tokens that this warp has read a stage.
__device__ __forceinline__ void release(Barrier* empty) {
    const uint32_t lane = threadIdx.x % 32;
    if (lane < kBlocks) barrier_arrive_at(empty, lane);
}

/// Stores this thread's part of a tile; with Add to what is there, which is loaded in batches.
template <int Tokens, bool Add>
__device__ __forceinline__ void store_tile(const Operands& p,
                                           int64_t token,
                                           int64_t feature,
                                           float outer,
                                           const float (&sums)[Tokens / 2]) {
    constexpr int kBatch = 4;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t n = feature + lane / 4, first = token + lane % 4 * 2;
    const int64_t rows = p.rows - first;
    const int left = rows < Tokens ? static_cast<int>(rows) : Tokens;
    const int left_of[2] = {n < p.n ? left : 0, n + 8 < p.n ? left : 0};
    float bias[2] = {-0.0f, -0.0f};  // adds nothing
#pragma unroll
    for (int half = 0; half < 2; ++half)
        if (p.bias != nullptr && left_of[half] > 0) bias[half] = p.bias[n + 8 * half];
    float* rows_of[2] = {p.out + first * p.out_stride + n, nullptr};
    rows_of[1] = rows_of[0] + p.out_stride;
    const int64_t step = 8 * p.out_stride;
#pragma unroll
    for (int batch = 0; batch < Tokens / 8; batch += kBatch) {
        float before[kBatch][2][2];
        if constexpr (Add) {
            const float* from[2] = {rows_of[0], rows_of[1]};
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        before[j][half][i] = 0.0f;
                        if (8 * (batch + j) + i < left_of[half])
                            before[j][half][i] = from[i][8 * half];
                    }
                    from[i] += step;
                    make_opaque(from[i]);
                }
            }
        }
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float value = __fadd_rn(__fmul_rn(sums[4 * (batch + j) + 2 * half + i], outer),
                                            bias[half]);
                    if constexpr (Add) value += before[j][half][i];
                    if (8 * (batch + j) + i < left_of[half]) rows_of[i][8 * half] = value;
                }
                rows_of[i] += step;
                make_opaque(rows_of[i]);
            }
        }
    }
}

template <int Tokens, int Max>
__device__ __forceinline__ void multiply_item(const Operands& p,
                                              Shared<Max>& shared,
                                              Ring<Shared<Max>::kStages>& ring,
                                              int64_t token,
                                              int64_t feature,
                                              float outer) {
    const int thread = static_cast<int>(threadIdx.x) - 128;
    const int lane = thread % 32, warp = thread / 32;
    const int group = lane / 4, t = lane % 4;
    const Decoder decoder(shared.table);
    const uint32_t own_row = static_cast<uint32_t>(warp * 16 + group);
    uint32_t places[kStageUnits];
#pragma unroll
    for (int unit = 0; unit < kStageUnits; ++unit) {
        places[unit] = own_row * kWeightRowBytes + static_cast<uint32_t>(t * 4) +
                       ((static_cast<uint32_t>(group >> 1) ^ static_cast<uint32_t>(unit)) * 16);
        make_opaque(places[unit]);
    }
    const uint32_t scale_place = own_row * 16 + static_cast<uint32_t>(t / 2 * 8);
    feature += warp * 16;
    float sums[Tokens / 2] = {};
    uint32_t a[2][2][4];
    uint32_t words[2];
    uint2 scales[2];
    const auto load_scale_words = [&](int stage) {
        const uint32_t address = shared_address(shared.scales[stage]) + scale_place;
        scales[0] = load_shared_two(address);
        scales[1] = load_shared_two(address + 8 * 16);
    };
    const auto load_words = [&](int stage, int unit) {
        const uint32_t address = shared_address(shared.weights[stage]) + places[unit];
        words[0] = load_shared(address);
        words[1] = load_shared(address + 8 * kWeightRowBytes);
    };
    const auto decode = [&](int unit) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            uint32_t pairs[4];
            decoder.pairs(words[i], pairs);
            const uint32_t two = unit < 2 ? scales[i].x : scales[i].y;
#pragma unroll
            for (int c = 0; c < 4; ++c)
                a[unit % 2][c / 2][c % 2 * 2 + i] = scale_pair(pairs[c], two, unit % 2 == 1);
        }
    };

    barrier_wait(&shared.full[ring.stage], ring.parity);
    load_words(ring.stage, 0);
    load_scale_words(ring.stage);
    decode(0);
    for (int step = 0; step < p.steps; ++step) {
        const int stage = ring.stage, before = ring.before();
        const bool last = step + 1 == p.steps;
        const uint64_t x = wgmma_rows_128(shared_address(shared.x[stage]));
        ring.next();
#pragma unroll
        for (int unit = 0; unit < kStageUnits; ++unit) {
            wgmma_fence();
#pragma unroll
            for (int s = 0; s < 2; ++s) {
                constexpr int kHalfBytes = Tokens * kHalfColumns * 2;
                const int offset = unit / 2 * kHalfBytes + unit % 2 * 64 + s * 32;
                Wgmma<Tokens>::bf16(sums, a[unit % 2][s], x + static_cast<uint64_t>(offset >> 4),
                                    true);
            }
            wgmma_commit();
            if (unit + 1 < kStageUnits) {
                load_words(stage, unit + 1);
            } else if (!last) {
                barrier_wait(&shared.full[ring.stage], ring.parity);
                load_words(ring.stage, 0);
                load_scale_words(ring.stage);
            }
            wgmma_wait<1>();
            // All products of the stage before are done.
            if (unit == 0 && step > 0) release(&shared.empty[before]);
            if (unit + 1 < kStageUnits)
                decode(unit + 1);
            else if (!last)
                decode(0);
        }
    }
    wgmma_wait<0>();
    release(&shared.empty[ring.before()]);
    if (p.add)
        store_tile<Tokens, true>(p, token, feature, outer, sums);
    else
        store_tile<Tokens, false>(p, token, feature, outer, sums);
}

template <int Max>
__device__ __forceinline__ void consume(const Operands& p, Shared<Max>& shared) {
    Ring<Shared<Max>::kStages> ring;
    const float outer = p.outer[0];
    const int block = static_cast<int>(block_in_cluster());
    for (int index = static_cast<int>(blockIdx.x) / kBlocks; index < p.items;
         index += static_cast<int>(gridDim.x) / kBlocks) {
        const Item item = item_of(p, index);
        if (item.token >= p.rows) continue;
        const int64_t feature = (static_cast<int64_t>(item.feature) * kBlocks + block) * kFeatures;
        if constexpr (Max == 256)
            if (item.count == 256) multiply_item<256>(p, shared, ring, item.token, feature, outer);
        if constexpr (Max >= 128)
            if (item.count == 128) multiply_item<128>(p, shared, ring, item.token, feature, outer);
        if (item.count == 64) multiply_item<64>(p, shared, ring, item.token, feature, outer);
    }
}

template <DType F, int Max>
__global__ void __launch_bounds__(kThreads, 1) __cluster_dims__(kBlocks, 1, 1)
    kernel(const __grid_constant__ CUtensorMap x_map,
           const __grid_constant__ CUtensorMap weight_map,
           const __grid_constant__ Operands p) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared<Max>*>(memory);
    if (threadIdx.x == 0) {
#pragma unroll
        for (int i = 0; i < Shared<Max>::kStages; ++i) {
            barrier_init(&shared.full[i], 1 + kLoaders);
            barrier_init(&shared.empty[i], kWarpgroups * 4 * kBlocks);
        }
        barrier_init_fence();
        shared.table = {kBf16High0, kBf16Low0};
    }
    cluster_meet();
    if (threadIdx.x < 128) {
        fewer_registers<kLoaderRegisters>();
        produce<F, Max>(&x_map, &weight_map, p, shared);
    } else {
        more_registers<kProductRegisters>();
        consume<Max>(p, shared);
    }
    __syncwarp();
    // Shared memory stays until nobody writes to it any more.
    cluster_meet();
}

/// Clusters that a card holds at a time.
inline int clusters_of(int multiprocessors) {
    return std::max(multiprocessors / kBlocks, 1);
}

/// Cuts the product into tiles: waves of whole ones, the last tiles in pieces where that is faster.
inline void cut_tiles(Operands& p, int multiprocessors) {
    const int64_t clusters = clusters_of(multiprocessors);
    const int64_t features = ceil_div(p.n, int64_t{kFeatures} * kBlocks);
    // What a tile of 256, 128 and 64 tokens takes.
    const auto cost = [](int tokens) { return tokens == 256 ? 100 : tokens == 128 ? 61 : 50; };
    int64_t least = INT64_MAX;
    for (int tile = 256; tile >= 64; tile /= 2) {
        for (int pieces = 1; tile / pieces >= 64; pieces *= 2) {
            const int64_t tiles = features * ceil_div(p.rows, tile);
            const int64_t whole = pieces == 1 ? tiles : tiles / clusters * clusters;
            const int64_t items = whole + (tiles - whole) * pieces;
            const int64_t time = ceil_div(whole, clusters) * cost(tile) +
                                 ceil_div(items - whole, clusters) * cost(tile / pieces);
            if (time >= least) continue;
            least = time;
            p.tile = tile;
            p.pieces = pieces;
            p.token_tiles = static_cast<int32_t>(ceil_div(p.rows, tile));
            p.whole = static_cast<int32_t>(whole);
            p.items = static_cast<int32_t>(items);
        }
    }
}

template <DType F>
Operands operands_of(const Product& product, int multiprocessors) {
    Operands p{};
    p.scales = product.scales;
    p.outer = product.outer;
    p.bias = product.bias;
    p.out = product.out;
    p.out_stride = product.out_stride;
    p.n = product.n;
    p.rows = product.rows;
    p.units = product.units;
    p.add = product.add;
    constexpr auto kBytes = static_cast<uintptr_t>(StageScales<F>::kBytes);
    p.scales_aligned =
        product.units % kStageUnits == 0 && reinterpret_cast<uintptr_t>(p.scales) % kBytes == 0;
    p.steps = static_cast<int32_t>(ceil_div(product.units, kStageUnits));
    cut_tiles(p, multiprocessors);
    return p;
}

inline CUtensorMap x_map(const Product& product) {
    return tensor_map(
        {.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
         .swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
         .data = product.x,
         .axes = 2,
         .shape = {static_cast<uint64_t>(product.k), static_cast<uint64_t>(product.rows)},
         .stride_bytes = {static_cast<uint64_t>(product.x_stride) * 2},
         .box = {kHalfColumns, kBoxRows}});
}
inline CUtensorMap weight_map(const Product& product) {
    const auto bytes = static_cast<uint64_t>(product.units) * kPieceBytes;
    return tensor_map({.type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
                       .swizzle = CU_TENSOR_MAP_SWIZZLE_64B,
                       .data = product.codes,
                       .axes = 2,
                       .shape = {bytes, static_cast<uint64_t>(product.n)},
                       .stride_bytes = {bytes},
                       .box = {kWeightRowBytes, kFeatures}});
}

template <DType F, int Max>
void launch(Device& device, const Product& product, const Operands& p) {
    const int clusters = std::min(p.items, clusters_of(device.multiprocessors()));
    device.launch("gemm_sm90", kernel<F, Max>, dim3(static_cast<unsigned>(clusters * kBlocks)),
                  dim3(kThreads), sizeof(Shared<Max>), x_map(product), weight_map(product), p);
}

}  // namespace sm90

/// A plain product (no pairs) whose x is bf16 with transposed pairs, its rows
/// aligned to 16 bytes.
template <DType F>
void run_gemm_sm90(Device& device, Product& product) {
    const sm90::Operands p = sm90::operands_of<F>(product, device.multiprocessors());
    // All tiles give the same bits.
    if (p.tile == 256) return sm90::launch<F, 256>(device, product, p);
    return sm90::launch<F, 128>(device, product, p);
}

}  // namespace tessera::cuda
