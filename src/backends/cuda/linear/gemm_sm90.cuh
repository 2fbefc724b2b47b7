#pragma once
// Many rows of x on Hopper's tensor cores (wgmma; bound: 2048 products of bf16 a clock and
// multiprocessor). Weights are the left operand: a warp decodes its rows straight into registers,
// exactly, while the products of the unit before are under way; x is the right one, in shared
// memory. Columns of x stand in the order of ActView::transposed_pairs, so that a lane needs one
// word of a unit and one scale for two products of 16 columns.
//
// A block has a warpgroup that brings stages of 128 columns (copies of boxes by the copy engine,
// block scales as bf16) and two that multiply 64 rows of the weight each. Two blocks form a cluster
// that shares tokens: each brings half of them to both. Blocks stay and take one tile after the
// other, tokens fastest; the last tiles, which would leave blocks idle, are cut along the tokens.
// The sum of a result runs over K in one order whatever the tile, so all tiles give the same bits.
//
// Measured on an H200, NVFP4, 2048 rows (docs/measurements.md): 17408 x 5120 and 5120 x 17408 at
// 1.02 and 0.95 times cuBLAS with bf16 weights.

#include <cuda_bf16.h>

#include <cstdint>

#include "backends/cuda/ptx/mbarrier.cuh"
#include "backends/cuda/ptx/opaque.cuh"
#include "backends/cuda/ptx/permute.cuh"
#include "backends/cuda/ptx/shared_load.cuh"
#include "backends/cuda/ptx/tma.cuh"
#include "backends/cuda/ptx/wgmma.cuh"

namespace tessera::cuda {
namespace sm90 {

inline constexpr int kStageColumns = 128;
inline constexpr int kStageUnits = kStageColumns / 32;
inline constexpr int kHalfColumns = 64;  ///< a row of 128 bytes of bf16
inline constexpr int kWarpgroups = 2;    ///< that multiply
inline constexpr int kFeatures = 64 * kWarpgroups;
inline constexpr int kThreads = 128 * (kWarpgroups + 1);
inline constexpr int kWeightRowBytes = 64;
inline constexpr int kBoxRows = 32;  ///< tokens of a copy
inline constexpr int kLoaders = 4;   ///< warps that bring operands

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

/// Bytes of bf16(2 v) for the magnitudes v of E2M1.
inline constexpr uint32_t kHigh0 = 0x40403f00u, kHigh1 = 0x41414040u;
inline constexpr uint32_t kLow0 = 0x40008000u, kLow1 = 0x4000c080u;

/// Eight doubled E2M1 values as four pairs of bf16. The first words of the tables come from shared
/// memory: an instruction holds one constant only, and the compiler would move others to a register
/// each time.
struct Decoder {
    uint32_t high0, low0;
    __device__ __forceinline__ explicit Decoder(const uint2& table) {
        const uint2 two = load_shared_pair(shared_address(&table));
        high0 = two.x;
        low0 = two.y;
    }
    __device__ __forceinline__ void pairs(uint32_t word, uint32_t (&out)[4]) const {
        const uint32_t first = word & 0x77777777u;
        const uint32_t second = first >> 16;
        const uint32_t high_first = pick_bytes(high0, kHigh1, first) | (word & 0x80808080u);
        const uint32_t high_second =
            pick_bytes(high0, kHigh1, second) | ((word << 4) & 0x80808080u);
        const uint32_t low_first = pick_bytes(low0, kLow1, first);
        const uint32_t low_second = pick_bytes(low0, kLow1, second);
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

/// Scales of the units of a stage of one row: 2 bytes a unit.
struct RawScales {
    uint32_t words[2];
};
__device__ __forceinline__ RawScales load_scales(const Operands& p,
                                                 const uint8_t* row,
                                                 int64_t unit) {
    if (p.scales_aligned) {
        const uint2 two = __ldg(reinterpret_cast<const uint2*>(row + 2 * unit));
        return {{two.x, two.y}};
    }
    RawScales raw{};
#pragma unroll
    for (int i = 0; i < kStageUnits; ++i)
        if (unit + i < p.units)
            raw.words[i / 2] |=
                uint32_t{__ldg(reinterpret_cast<const uint16_t*>(row + 2 * (unit + i)))}
                << (16 * (i % 2));
    return raw;
}
/// Halves of the scales as bf16: those of the first halves of the four units, then of the second
/// halves. Codes that are no number count as 0. Bits of E4M3 under the exponent of bf16 are 2^120
/// too small, subnormal ones included.
__device__ __forceinline__ uint4 scales_of(const RawScales& raw) {
    uint32_t out[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const uint32_t codes = raw.words[i] & 0x7f7f7f7fu;
        const uint32_t nan = (codes + 0x01010101u) & 0x80808080u;
        const uint32_t clean = codes & ~(nan - (nan >> 7));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint32_t bits =
                half == 0 ? (clean & 0x00ff00ffu) << 4 : (clean >> 4) & 0x0ff00ff0u;
            const __nv_bfloat162 scaled = __hmul2(bf16_pair(bits), bf16_pair(0x7b007b00u));
            out[2 * half + i] = *reinterpret_cast<const uint32_t*>(&scaled);
        }
    }
    return {out[0], out[1], out[2], out[3]};
}

template <int Max, int Blocks>
__device__ __forceinline__ void produce(const CUtensorMap* x_map,
                                        const CUtensorMap* weight_map,
                                        const Operands& p,
                                        Shared<Max>& shared) {
    Ring<Shared<Max>::kStages> ring;
    const int block = Blocks == 1 ? 0 : static_cast<int>(block_in_cluster());
    const int thread = static_cast<int>(threadIdx.x);
    for (int index = static_cast<int>(blockIdx.x) / Blocks; index < p.items;
         index += static_cast<int>(gridDim.x) / Blocks) {
        const Item item = item_of(p, index);
        if (item.token >= p.rows) continue;
        const int feature = (item.feature * Blocks + block) * kFeatures;
        // The blocks of a cluster share their tokens: each brings its part to all of them.
        const int part = item.count / Blocks;
        const int first = block * part;
        const auto bytes =
            static_cast<uint32_t>(item.count * kStageColumns * 2 + kFeatures * kWeightRowBytes);
        const int64_t row = feature + thread;
        const uint8_t* scales = p.scales + (row < p.n ? row : p.n - 1) * p.units * 2;
        for (int step = 0; step < p.steps; ++step) {
            const RawScales raw = load_scales(p, scales, static_cast<int64_t>(step) * kStageUnits);
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
                        if constexpr (Blocks == 1)
                            copy_box(to, x_map, column, item.token + at, full);
                        else
                            copy_box_multicast(to, x_map, column, item.token + at, full,
                                               static_cast<uint16_t>((1 << Blocks) - 1));
                    }
                }
            }
            __syncwarp();
            shared.scales[stage][thread] = scales_of(raw);
            __syncwarp();
            if (thread % 32 == 0) barrier_arrive(full);
            ring.next();
        }
    }
}

/// Tells the blocks that read the same tokens that this warp has read a stage.
template <int Blocks>
__device__ __forceinline__ void release(Barrier* empty) {
    const uint32_t lane = threadIdx.x % 32;
    if constexpr (Blocks == 1) {
        if (lane == 0) barrier_arrive(empty);
    } else {
        if (lane < Blocks) barrier_arrive_at(empty, lane);
    }
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
                    if constexpr (Add) value = __fadd_rn(value, before[j][half][i]);
                    if (8 * (batch + j) + i < left_of[half]) rows_of[i][8 * half] = value;
                }
                rows_of[i] += step;
                make_opaque(rows_of[i]);
            }
        }
    }
}

template <int Tokens, int Max, int Blocks>
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
        scales[0] = load_shared_pair(address);
        scales[1] = load_shared_pair(address + 8 * 16);
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
            if (unit == 0 && step > 0) release<Blocks>(&shared.empty[before]);
            if (unit + 1 < kStageUnits)
                decode(unit + 1);
            else if (!last)
                decode(0);
        }
    }
    wgmma_wait<0>();
    release<Blocks>(&shared.empty[ring.before()]);
    if (p.add)
        store_tile<Tokens, true>(p, token, feature, outer, sums);
    else
        store_tile<Tokens, false>(p, token, feature, outer, sums);
}

template <int Max, int Blocks>
__device__ __forceinline__ void consume(const Operands& p, Shared<Max>& shared) {
    Ring<Shared<Max>::kStages> ring;
    const float outer = p.outer[0];
    const int block = Blocks == 1 ? 0 : static_cast<int>(block_in_cluster());
    for (int index = static_cast<int>(blockIdx.x) / Blocks; index < p.items;
         index += static_cast<int>(gridDim.x) / Blocks) {
        const Item item = item_of(p, index);
        if (item.token >= p.rows) continue;
        const int64_t feature = (static_cast<int64_t>(item.feature) * Blocks + block) * kFeatures;
        if constexpr (Max == 256)
            if (item.count == 256)
                multiply_item<256, Max, Blocks>(p, shared, ring, item.token, feature, outer);
        if constexpr (Max >= 128)
            if (item.count == 128)
                multiply_item<128, Max, Blocks>(p, shared, ring, item.token, feature, outer);
        if (item.count == 64)
            multiply_item<64, Max, Blocks>(p, shared, ring, item.token, feature, outer);
    }
}

template <int Max, int Blocks>
__global__ void __launch_bounds__(kThreads, 1) __cluster_dims__(Blocks, 1, 1)
    kernel(const __grid_constant__ CUtensorMap x_map,
           const __grid_constant__ CUtensorMap weight_map,
           const __grid_constant__ Operands p) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared<Max>*>(memory);
    if (threadIdx.x == 0) {
#pragma unroll
        for (int i = 0; i < Shared<Max>::kStages; ++i) {
            barrier_init(&shared.full[i], 1 + kLoaders);
            barrier_init(&shared.empty[i], kWarpgroups * 4 * Blocks);
        }
        barrier_init_fence();
        shared.table = {kHigh0, kLow0};
    }
    if constexpr (Blocks > 1)
        cluster_meet();
    else
        __syncthreads();
    if (threadIdx.x < 128) {
        fewer_registers<40>();
        produce<Max, Blocks>(&x_map, &weight_map, p, shared);
    } else {
        more_registers<232>();
        consume<Max, Blocks>(p, shared);
    }
    __syncwarp();
    // Shared memory stays until nobody writes to it any more.
    if constexpr (Blocks > 1) cluster_meet();
}

}  // namespace sm90
}  // namespace tessera::cuda
