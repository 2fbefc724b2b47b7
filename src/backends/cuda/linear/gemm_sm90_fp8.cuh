#pragma once
// The product of gemm_sm90.cuh with e4m3 operands: wgmma multiplies 4096 pairs of them a clock and
// multiprocessor. The block scale is folded into the weights: a table in shared memory has the
// eight magnitudes times every scale as e4m3 (one load of eight bytes, then a permutation looks up
// four weights at once). The sum is multiplied by a factor per row of the weight, of which the
// power of two keeps the largest scale of the row at 112 or less, and by a factor per row of x.
//
// Of NVFP4 the table has two thirds of the products, and the factor of the row is 1.5 times the
// power of two. Magnitudes are 1 or 1.5 times a power of two, and scales have three bits behind the
// point as e4m3 does: either the first ones are exact or the second ones are, 6 and 3 among them,
// in which most of the power lies (rule amax/6). Off by 1.4e-2 instead of 2.15e-2 (root mean
// square; 1.7e-2 instead of 1.9e-2 where many scales are amax/4). Of 64
// factors it is the best; choosing one of them for each row gains 2%.
//
// Within 32 columns x is stored permuted (ActView::transposed_quads), so that word t of a unit is
// what lane t needs.
//
// Tensor cores cut off sums of e4m3 at some 14 bits: 1.7e-3 of the result in 5120 columns, 3.4e-3
// in 17408, where rounding the operands costs 3e-2. Sums of more columns are cut into chunks
// (chunk_of), which are added where the result lies. Sums that start anew every 128 columns are
// 1.7e-4 off and took 1.16 times as long: they need registers beside the sums, so that tiles are
// multiplied in halves.
//
// Instructions are what is scarce next to the products, as in gemm_sm90.cuh: the eight bytes of an
// entry made of two by additions took 28 % less of shared memory and 40 % more instructions, and
// 334 us instead of 303 for 2048 tokens of 17408 x 5120. Loading a unit ahead of its decoding
// changes nothing. Half of all instructions were the loader warps': places of normal scales two at
// a time made it 289 us.

#include <cuda_fp8.h>

#include "backends/cuda/linear/gated_tiles.cuh"
#include "backends/cuda/linear/hopper_tiles.cuh"
#include "backends/cuda/ptx/named_barrier.cuh"

namespace tessera::cuda {
namespace sm90_fp8 {

using hopper::kBlocks;
using hopper::kFeatures;
using hopper::kOwnFeatures;
using hopper::kStageColumns;
using hopper::kStageUnits;
using hopper::kThreads;
using hopper::kWarpgroups;
using hopper::kWeightRowBytes;
using hopper::StageScales;
using hopper::TileFactors;

struct Operands : hopper::Operands {
    const float* row_factors;     ///< of the weight: find_row_factors
    const float* x_factors;       ///< per row of x: the value is code * factor
    int32_t chunk;                ///< stages whose sums stay in the tensor cores; gated: all
    const float* up_row_factors;  ///< gated alone
};

inline constexpr int kTableEntries = 128;
/// Entry 8 (e + 9) + m of the table is for scales 2^e (1 + m / 8).
inline constexpr int kTableBias = 9;
inline constexpr int kLargestExponent = 6;
/// What the products of magnitudes and scales are multiplied by in the table.
__host__ __device__ constexpr float fold_of(DType format) {
    return format == DType::kNVFP4 ? 2.0f / 3.0f : 1.0f;
}

/// Exponent and three bits of the fraction of a scale, as f32 would have them.
__device__ __forceinline__ int scale_place(DType format, uint32_t code) {
    if (format == DType::kMXFP4) return static_cast<int>(code) * 8;
    code &= 0x7fu;
    // What is no number counts as 0.
    const float scale = code == 0x7fu ? 0.0f : __uint_as_float(code << 20) * 0x1p120f;
    return static_cast<int>(__float_as_uint(scale) >> 20);
}

template <int Tokens>
constexpr int stages_of() {
    return Tokens == 256 ? 4 : 6;
}

template <int Tokens>
struct Shared {
    static constexpr int kStages = stages_of<Tokens>();
    uint8_t x[kStages][Tokens * kStageColumns];
    uint8_t weights[kStages][kFeatures * kWeightRowBytes];
    unsigned char out[kWarpgroups][hopper::kOutBytes];  ///< gated alone
    uint4 places[kStages][kFeatures][2];  ///< of table entries: first halves of units, second ones
    uint2 table[kTableEntries];
    float x_factors[kWarpgroups][Tokens];
    Barrier full[kStages], empty[kStages];
};

/// The eight magnitudes times a scale times `fold`.
__device__ inline uint2 table_entry(int index, float fold) {
    constexpr float kMagnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    const float scale =
        index == 0 ? 0.0f
                   : ldexpf(1.0f + static_cast<float>(index % 8) / 8.0f, index / 8 - kTableBias);
    uint32_t words[2] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i)
        words[i / 4] |= static_cast<uint32_t>(__nv_cvt_float_to_fp8(kMagnitudes[i] * scale * fold,
                                                                    __NV_SATFINITE, __NV_E4M3))
                        << (8 * (i % 4));
    return {words[0], words[1]};
}

/// A place less the code, for scales of NVFP4 that are normal numbers.
inline constexpr int kCodeToPlace = 8 * 120;
/// Whether all scales of a stage are such.
__device__ __forceinline__ bool all_normal(const uint32_t (&words)[2]) {
    uint32_t others = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const uint32_t codes = words[i] & 0x7f7f7f7fu;
        others |= (codes - 0x08080808u) | (codes + 0x01010101u);
    }
    return (others & 0x80808080u) == 0;
}

/// Addresses of the entries for the scales of a stage of one row.
template <DType F>
__device__ __forceinline__ void entries_of(const StageScales<F>& raw,
                                           int offset,
                                           uint32_t table,
                                           uint4 (&out)[2]) {
    constexpr int kUnitBytes = StageScales<F>::kUnitBytes;
    if constexpr (F == DType::kNVFP4) {
        if (all_normal(raw.words)) {
            // Two scales of two units at a time, in 16 bits each.
            const uint32_t shift = static_cast<uint32_t>(kCodeToPlace - offset) & 0xffffu;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                uint32_t addresses[kStageUnits];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const uint32_t codes = raw.words[i] >> (8 * half) & 0x007f007fu;
                    const uint32_t two = __viaddmax_s16x2(codes, shift | shift << 16, 0);
                    addresses[2 * i] = table + (two & 0xffffu) * 8;
                    addresses[2 * i + 1] = table + (two >> 16) * 8;
                }
                out[half] = {addresses[0], addresses[1], addresses[2], addresses[3]};
            }
            return;
        }
    }
    uint32_t places[kUnitBytes][kStageUnits];
#pragma unroll
    for (int i = 0; i < StageScales<F>::kBytes; ++i) {
        const uint32_t code = (raw.words[i / 4] >> (8 * (i % 4))) & 0xffu;
        const int index = max(scale_place(F, code) - offset, 0);
        places[i % kUnitBytes][i / kUnitBytes] = table + static_cast<uint32_t>(index) * 8;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const auto& four = places[half % kUnitBytes];
        out[half] = {four[0], four[1], four[2], four[3]};
    }
}

/// From the place of the largest scale of a row to the exponent bits of its factor, which leaves
/// scales of 112 at most: 6 * 112 * 2 / 3 is 448. Scales of MXFP4 are powers of two, 64 at most.
__host__ __device__ constexpr int factor_exponent(int largest) {
    const int bits = (largest + 1) / 8 - kLargestExponent;
    return bits < 1 ? 1 : bits;
}

/// What the loader warps of hopper::produce make of the scales: addresses of table entries.
template <class Shared>
struct Form {
    static constexpr int kColumnBytes = 1;
    Shared& shared;
    const Operands& p;
    uint32_t table;
    int offset = 0;

    __device__ __forceinline__ void row(int64_t row, bool up) {
        const float factor = (up ? p.up_row_factors : p.row_factors)[row];
        offset = (static_cast<int>(__float_as_uint(factor) >> 23) - kTableBias) * 8;
    }
    template <DType F>
    __device__ __forceinline__ void put(const StageScales<F>& raw, int stage, int thread) const {
        uint4 places[2];
        entries_of<F>(raw, offset, table, places);
        shared.places[stage][thread][0] = places[0];
        shared.places[stage][thread][1] = places[1];
    }
};

/// The weights of a thread for one stage, decoded unit by unit: two of a warp's 16 rows, or a row
/// of eight of gate and one of eight of up.
template <int Max, bool kGated>
struct Weights {
    static constexpr uint32_t kSecond = kGated ? kFeatures / 2 : 8;  ///< rows to the other one
    uint32_t a[kStageUnits][4];
    uint32_t offsets[kStageUnits];
    uint32_t own_places;
    uint4 entries[2];

    __device__ __forceinline__ explicit Weights(int warp, int lane) {
        const int group = lane / 4, t = lane % 4;
        const auto row = static_cast<uint32_t>(warp * (kGated ? 8 : 16) + group);
#pragma unroll
        for (int unit = 0; unit < kStageUnits; ++unit) {
            offsets[unit] =
                row * kWeightRowBytes + static_cast<uint32_t>(t * 4) +
                ((static_cast<uint32_t>(group >> 1) ^ static_cast<uint32_t>(unit)) * 16);
            make_opaque(offsets[unit]);
        }
        own_places = row * 32 + static_cast<uint32_t>(t / 2 * 16);
    }
    __device__ __forceinline__ void load_places(const Shared<Max>& shared, int stage) {
        const uint32_t places = shared_address(shared.places[stage]) + own_places;
        entries[0] = load_shared_four(places);
        entries[1] = load_shared_four(places + kSecond * 32);
    }
    __device__ __forceinline__ void decode(const Shared<Max>& shared, int stage, int unit) {
        const uint32_t address = shared_address(shared.weights[stage]) + offsets[unit];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32_t word =
                load_shared(address + static_cast<uint32_t>(i) * kSecond * kWeightRowBytes);
            const uint2 eight = load_shared_two(word_of(entries[i], unit));
            const uint32_t first = word & 0x77777777u;
            a[unit][i] = pick_bytes(eight.x, eight.y, first) | (word & 0x80808080u);
            a[unit][2 + i] =
                pick_bytes(eight.x, eight.y, first >> 16) | ((word << 4) & 0x80808080u);
        }
    }
};

/// Sums of `steps` stages.
template <int Tokens, int Max, bool kGated>
__device__ __forceinline__ void multiply(int steps,
                                         Shared<Max>& shared,
                                         Ring<Shared<Max>::kStages>& ring,
                                         Weights<Max, kGated>& weights,
                                         float (&sums)[Tokens / 2]) {
    constexpr int kAhead = 2;
    barrier_wait(&shared.full[ring.slot], ring.parity);
    weights.load_places(shared, ring.slot);
#pragma unroll
    for (int unit = 0; unit < kAhead; ++unit) weights.decode(shared, ring.slot, unit);
    for (int step = 0; step < steps; ++step) {
        const int stage = ring.slot, before = ring.before();
        const bool last = step + 1 == steps;
        const uint64_t x = wgmma_rows_from(wgmma_start(shared.x[stage]));
        ring.next();
#pragma unroll
        for (int unit = 0; unit < kStageUnits; ++unit) {
            wgmma_fence();
            wgmma_e4m3(sums, weights.a[unit], x + static_cast<uint64_t>((unit * kUnit) >> 4), true);
            wgmma_commit();
            const int ahead = unit + kAhead;
            if (ahead == kStageUnits && !last) {
                barrier_wait(&shared.full[ring.slot], ring.parity);
                weights.load_places(shared, ring.slot);
            }
            // The products of the unit whose place is taken are done.
            wgmma_wait<kAhead>();
            if (unit == kAhead - 1 && step > 0) hopper::release(&shared.empty[before]);
            if (ahead < kStageUnits)
                weights.decode(shared, stage, ahead);
            else if (!last)
                weights.decode(shared, ring.slot, ahead - kStageUnits);
        }
    }
    wgmma_wait<0>();
    hopper::release(&shared.empty[ring.before()]);
}

/// Stores act(gate) * up of a tile; `feature`: the first of the warpgroup.
template <int Tokens>
__device__ __forceinline__ void store_gated(const Operands& p,
                                            const hopper::GatedOut& out,
                                            int32_t token,
                                            int32_t feature,
                                            const TileFactors& factors,
                                            float (&sums)[Tokens / 2]) {
    constexpr int kRounds = 2;  ///< of 32 tokens between moves of the sums
    if (feature >= p.n) return;
    int thread = static_cast<int>(threadIdx.x) - 128;
    make_opaque(thread);  // what follows from it is not kept through the products
    // A loop, as the activation is long: the sums move instead of the places that are read.
#pragma unroll 1
    for (int first = 0; first < Tokens; first += 32 * kRounds) {
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            const int place = first + 32 * round;
            if (token + place >= p.rows) return;
            float values[8];
            const float* gates = sums + 16 * round;
            hopper::gate_values(p.glu, factors, place, gates, gates + 2, values);
            hopper::store_gated_round(out, thread, token + place, feature, values);
        }
#pragma unroll
        for (int i = 0; i + 16 * kRounds < Tokens / 2; ++i) sums[i] = sums[i + 16 * kRounds];
    }
}

/// Factors of the rows of a thread's two halves: of 16 of a warp, or of gate and up.
template <bool kGated>
__device__ __forceinline__ TileFactors factors_of(const Operands& p,
                                                  int64_t feature,
                                                  const float* tokens) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    TileFactors factors{{}, tokens + lane % 4 * 2};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const bool up = kGated && half == 1;
        const int64_t wanted = feature + lane / 4 + (kGated ? 0 : 8 * half);
        const int64_t n = wanted < p.n ? wanted : p.n - 1;
        factors.features[half] =
            (up ? p.up_outer : p.outer)[0] * (up ? p.up_row_factors : p.row_factors)[n];
    }
    return factors;
}

template <int Tokens, int Max, bool kGated>
__device__ __forceinline__ void multiply_item(const Operands& p,
                                              const hopper::Maps& maps,
                                              Shared<Max>& shared,
                                              Ring<Shared<Max>::kStages>& ring,
                                              int64_t token,
                                              int64_t feature) {
    const int thread = static_cast<int>(threadIdx.x) - 128;
    const int lane = thread % 32, warp = thread / 32, warpgroup = thread / 128;
    Weights<Max, kGated> weights(warp, lane);
    // Nobody reads the factors of the item before any more.
    named_sync(1 + warpgroup, 128);
    for (int i = thread % 128; i < Tokens; i += 128)
        shared.x_factors[warpgroup][i] = token + i < p.rows ? p.x_factors[token + i] : 0.0f;
    named_sync(1 + warpgroup, 128);
    const float* const of_tokens = shared.x_factors[warpgroup];
    if constexpr (kGated) {
        float sums[Tokens / 2] = {};
        multiply<Tokens>(p.steps, shared, ring, weights, sums);
        const TileFactors factors = factors_of<true>(p, feature + warp * 8, of_tokens);
        store_gated<Tokens>(p, {&maps.out, shared.out[warpgroup], p.out_pairs},
                            static_cast<int32_t>(token),
                            static_cast<int32_t>(feature) + warpgroup * 32, factors, sums);
        return;
    }
    feature += warp * 16;
    for (int first = 0; first < p.steps; first += p.chunk) {
        float sums[Tokens / 2] = {};
        const int left = p.steps - first;
        multiply<Tokens>(left < p.chunk ? left : p.chunk, shared, ring, weights, sums);
        const TileFactors factors = factors_of<false>(p, feature, of_tokens);
        const float* bias = first == 0 ? p.bias : nullptr;
        if (p.add || first > 0)
            hopper::store_tile<Tokens, true>(p, token, feature, bias, factors, sums);
        else
            hopper::store_tile<Tokens, false>(p, token, feature, bias, factors, sums);
    }
}

template <int Max, bool kGated>
__device__ __forceinline__ void consume(const Operands& p,
                                        const hopper::Maps& maps,
                                        Shared<Max>& shared) {
    Ring<Shared<Max>::kStages> ring;
    hopper::consume<Max, kGated>(p, [&]<int Tokens>(int64_t token, int64_t feature) {
        multiply_item<Tokens, Max, kGated>(p, maps, shared, ring, token, feature);
    });
    if (kGated && threadIdx.x % 128 == 0) store_wait();
}

template <int Max, bool kGated>
__global__ void __launch_bounds__(kThreads, 1) __cluster_dims__(kBlocks, 1, 1)
    kernel(const __grid_constant__ hopper::Maps maps, const __grid_constant__ Operands p) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared<Max>*>(memory);
    hopper::init_barriers(shared.full, shared.empty);
    if (threadIdx.x < kTableEntries)
        shared.table[threadIdx.x] = table_entry(static_cast<int>(threadIdx.x), fold_of(p.format));
    cluster_meet();
    if (threadIdx.x < 128) {
        fewer_registers<hopper::kLoaderRegisters>();
        const Form<Shared<Max>> form{shared, p, shared_address(shared.table)};
        if (p.format == DType::kNVFP4)
            hopper::produce<DType::kNVFP4, kGated>(maps, p, shared, form);
        else
            hopper::produce<DType::kMXFP4, kGated>(maps, p, shared, form);
    } else {
        more_registers<hopper::kProductRegisters>();
        consume<Max, kGated>(p, maps, shared);
    }
    __syncwarp();
    // Shared memory stays until nobody writes to it any more.
    cluster_meet();
}

/// A warp per row of a weight, whose scales are `bytes` long.
template <DType F>
__global__ void row_factors(const uint8_t* scales, int64_t rows, int64_t bytes, float* out) {
    const int64_t row = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    int largest = 0;
    for (int64_t i = threadIdx.x % 32; i < bytes; i += 32)
        largest = max(largest, scale_place(F, scales[row * bytes + i]));
    largest = __reduce_max_sync(kAllLanes, largest);
    const float power = __uint_as_float(static_cast<uint32_t>(factor_exponent(largest)) << 23);
    // Below twice the power, so that Form finds the exponent.
    constexpr float kUnfold = F == DType::kNVFP4 ? 1.5f : 1.0f;
    static_assert(kUnfold * fold_of(F) == 1.0f, "the factor gives back what the table takes");
    if (threadIdx.x % 32 == 0) out[row] = largest == 0 ? 1.0f : power * kUnfold;
}

/// Stages of a chunk of columns: as few chunks as keep what the tensor cores cut off under an
/// eighth of what rounding the operands costs, for MXFP4, whose weights are exact, under a tenth.
/// What is cut off grows with the root of the columns: 1.7e-3 of the result in 5120, 3.4e-3 in
/// 17408.
inline int32_t chunk_of(DType format, int64_t columns) {
    const int64_t steps = ceil_div(columns, kStageColumns);
    const int64_t most = (format == DType::kMXFP4 ? 12288 : 17408) / kStageColumns;
    return static_cast<int32_t>(ceil_div(steps, ceil_div(steps, most)));
}

inline Operands operands_of(const Device& device, const Product& product, DType format, int own) {
    Operands p{};
    static_cast<hopper::Operands&>(p) =
        hopper::operands_of(product, format, own, device.multiprocessors());
    p.row_factors = product.row_factors;
    p.x_factors = product.x_scales;
    p.chunk = chunk_of(format, product.k);
    return p;
}

template <int Max, bool kGated>
void launch(Device& device, const hopper::Maps& maps, const Operands& p) {
    const int clusters = std::min(p.items, hopper::clusters_of(device.multiprocessors()));
    device.launch_hopper(kGated ? "gemm_sm90_fp8_glu" : "gemm_sm90_fp8", kernel<Max, kGated>,
                         dim3(static_cast<unsigned>(clusters * kBlocks)), dim3(kThreads),
                         sizeof(Shared<Max>), maps, p);
}

}  // namespace sm90_fp8
}  // namespace tessera::cuda
