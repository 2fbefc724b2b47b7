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
#include <cstdint>

#include "backends/cuda/linear/hopper_tiles.cuh"

namespace tessera::cuda {
namespace sm90 {

using hopper::kBlocks;
using hopper::kFeatures;
using hopper::kStageColumns;
using hopper::kStageUnits;
using hopper::kThreads;
using hopper::kWeightRowBytes;
using hopper::Operands;
using hopper::StageScales;

inline constexpr int kHalfColumns = 64;  ///< a row of 128 bytes of bf16

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

template <class Shared>
struct Form {
    static constexpr int kColumnBytes = 2;
    Shared& shared;
    __device__ __forceinline__ void row(int64_t) const {}
    template <DType F>
    __device__ __forceinline__ void put(const StageScales<F>& raw, int stage, int thread) const {
        shared.scales[stage][thread] = bf16_scales(raw);
    }
};

/// What the sums of a tile are multiplied by: the same for all.
struct OneFactor {
    float outer;
    __device__ __forceinline__ float2 of_tokens(int) const { return {1.0f, 1.0f}; }
    __device__ __forceinline__ float of(int, float) const { return outer; }
};

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

    barrier_wait(&shared.full[ring.slot], ring.parity);
    load_words(ring.slot, 0);
    load_scale_words(ring.slot);
    decode(0);
    for (int step = 0; step < p.steps; ++step) {
        const int stage = ring.slot, before = ring.before();
        const bool last = step + 1 == p.steps;
        const uint64_t x = wgmma_rows_from(wgmma_start(shared.x[stage]));
        ring.next();
#pragma unroll
        for (int unit = 0; unit < kStageUnits; ++unit) {
            wgmma_fence();
#pragma unroll
            for (int s = 0; s < 2; ++s) {
                constexpr int kHalfBytes = Tokens * kHalfColumns * 2;
                const int offset = unit / 2 * kHalfBytes + unit % 2 * 64 + s * 32;
                wgmma<false, false>(sums, a[unit % 2][s], x + static_cast<uint64_t>(offset >> 4),
                                    true);
            }
            wgmma_commit();
            if (unit + 1 < kStageUnits) {
                load_words(stage, unit + 1);
            } else if (!last) {
                barrier_wait(&shared.full[ring.slot], ring.parity);
                load_words(ring.slot, 0);
                load_scale_words(ring.slot);
            }
            wgmma_wait<1>();
            // All products of the stage before are done.
            if (unit == 0 && step > 0) hopper::release(&shared.empty[before]);
            if (unit + 1 < kStageUnits)
                decode(unit + 1);
            else if (!last)
                decode(0);
        }
    }
    wgmma_wait<0>();
    hopper::release(&shared.empty[ring.before()]);
    if (p.add)
        hopper::store_tile<Tokens, true>(p, token, feature, p.bias, OneFactor{outer}, sums);
    else
        hopper::store_tile<Tokens, false>(p, token, feature, p.bias, OneFactor{outer}, sums);
}

template <int Max>
__device__ __forceinline__ void consume(const Operands& p, Shared<Max>& shared) {
    Ring<Shared<Max>::kStages> ring;
    const float outer = p.outer[0];
    hopper::consume<Max>(p, [&]<int Tokens>(int64_t token, int64_t feature) {
        multiply_item<Tokens>(p, shared, ring, token, feature, outer);
    });
}

template <DType F, int Max>
__global__ void __launch_bounds__(kThreads, 1) __cluster_dims__(kBlocks, 1, 1)
    kernel(const __grid_constant__ CUtensorMap x_map,
           const __grid_constant__ CUtensorMap weight_map,
           const __grid_constant__ Operands p) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared<Max>*>(memory);
    hopper::init_barriers(shared.full, shared.empty);
    if (threadIdx.x == 0) shared.table = {kBf16High0, kBf16Low0};
    cluster_meet();
    if (threadIdx.x < 128) {
        fewer_registers<hopper::kLoaderRegisters>();
        hopper::produce<F>(&x_map, &weight_map, p, shared, Form<Shared<Max>>{shared});
    } else {
        more_registers<hopper::kProductRegisters>();
        consume<Max>(p, shared);
    }
    __syncwarp();
    // Shared memory stays until nobody writes to it any more.
    cluster_meet();
}

template <DType F, int Max>
void launch(Device& device, const Product& product, const Operands& p) {
    const int clusters = std::min(p.items, hopper::clusters_of(device.multiprocessors()));
    device.launch("gemm_sm90", kernel<F, Max>, dim3(static_cast<unsigned>(clusters * kBlocks)),
                  dim3(kThreads), sizeof(Shared<Max>), hopper::x_map<2>(product),
                  hopper::weight_map(product), p);
}

}  // namespace sm90

/// A plain product (no pairs) whose x is bf16 with transposed pairs, its rows
/// aligned to 16 bytes.
template <DType F>
void run_gemm_sm90(Device& device, Product& product) {
    const hopper::Operands p = hopper::operands_of<F>(product, device.multiprocessors());
    // All tiles give the same bits.
    if (p.tile == 256) return sm90::launch<F, 256>(device, product, p);
    return sm90::launch<F, 128>(device, product, p);
}

}  // namespace tessera::cuda
