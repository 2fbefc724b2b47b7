#pragma once
// Many rows of x against four-bit floats on Hopper (wgmma multiplies 2048 pairs of bf16 a clock and
// multiprocessor; 95 % of that in the main loop, 128 columns of a tile in 2140 clocks).
//
// A block computes 128 features x 256 tokens (fewer where tiles would leave multiprocessors idle)
// in stages of 128 columns. The weights are the left operand: each of two warpgroups keeps 64
// features, reads their codes from shared memory as they lie on the device, and decodes them in
// registers while the products of the 32 columns before run. Within 32 columns x is stored
// permuted (ActView::transposed_pairs), so that a lane needs exactly one word of a unit for its
// part of two products: one load of four bytes a row. A third warpgroup starts the copies and turns
// the block scales of a stage to bf16 once for all lanes that need them. Two blocks of a cluster
// work on the same tokens: they bring them by turns, 32 at a time, to both, as the second-level
// cache could not feed all.
//
// Gate and up are one product: a warp's rows are eight features of both, so that a lane has gate
// and up of the same feature and token, and the result leaves as the next product's input.
//
// Instructions are what is scarce next to the products, which also take the ports of the register
// file: 50 for 32 columns, 13 of them to look up eight values.
//
// The order of a sum is that of the columns, whatever the tile: the bits of a row do not depend on
// the rows beside it. Tensor cores cut off what they add, so that long sums are cut into chunks of
// columns (chunks_of): 7e-6 of the result. Where there are few tiles, chunks go to several
// clusters and a second kernel joins them; elsewhere a cluster adds chunk after chunk to the result
// (the second-level cache does it, and nobody waits). Both add in the same order. A gated product
// needs finished sums: its clusters put those of the chunks before aside.

#include <cstdint>

#include "backends/cuda/linear/gemm_sm90_operands.cuh"
#include "backends/cuda/linear/gemm_sm90_store.cuh"
#include "backends/cuda/ptx/wgmma_sizes.cuh"

namespace tessera::cuda {
namespace sm90 {

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
        const uint32_t clean = hopper::clean_scales(raw.words[i]);
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

template <DType F, bool kGated>
__device__ __forceinline__ void produce(const Maps& maps, const Operands& p, const Memory& memory) {
    constexpr int kOwn = kOwnFeatures<kGated>;
    Place ring;
    const int block = static_cast<int>(block_in_cluster());
    const int thread = static_cast<int>(threadIdx.x);
    for (int index = static_cast<int>(blockIdx.x) / kBlocks; index < p.cut.items;
         index += static_cast<int>(gridDim.x) / kBlocks) {
        const Item item = item_of(p, index);
        if (item.token >= p.rows) continue;
        const int feature = (item.feature * kBlocks + block) * kOwn;
        const auto bytes = static_cast<uint32_t>(item.count * kStageColumns * 2 + kWeightBytes);
        const int64_t row = feature + thread % kOwn;
        const uint8_t* scales = (kGated && thread >= kOwn ? p.up_scales : p.scales) +
                                (row < p.n ? row : p.n - 1) * p.units * StageScales<F>::kUnitBytes;
        const int first = item.first_chunk * p.cut.chunks.each;
        const int end = first + (item.end_chunk - 1 - item.first_chunk) * p.cut.chunks.each +
                        stages_of(p, item, item.end_chunk - 1);
        for (int step = first; step < end; ++step) {
            const auto raw = StageScales<F>::load(scales, int64_t{step} * kStageUnits, p.units,
                                                  p.scales_aligned);
            Fixed& fixed = memory.fixed();
            barrier_wait(&fixed.empty[ring.slot], ring.parity ^ 1);
            Barrier* full = &fixed.full[ring.slot];
            if (thread == 0) {
                barrier_arrive_expect(full, bytes);
                unsigned char* weights = memory.weights(ring.slot);
                copy_box_once(weights, &maps.weights, step * kWeightRowBytes, feature, full);
                if constexpr (kGated)
                    copy_box_once(weights + kOwn * kWeightRowBytes, &maps.up,
                                  step * kWeightRowBytes, feature, full);
                for (int half = 0; half < 2; ++half) {
                    const int column = step * kStageColumns + half * kHalfColumns;
                    unsigned char* target =
                        memory.x(ring.slot) + half * item.count * kHalfColumns * 2;
                    // The blocks of a cluster share their tokens: each brings its part to all.
                    for (int at = block * kBoxRows; at < item.count; at += kBlocks * kBoxRows) {
                        unsigned char* to = target + at * kHalfColumns * 2;
                        copy_box_multicast(to, &maps.x, column, item.token + at, full,
                                           uint16_t{(1 << kBlocks) - 1});
                    }
                }
            }
            __syncwarp();
            reinterpret_cast<uint4*>(memory.scales(ring.slot))[thread] = bf16_scales(raw);
            barrier_arrive_warp(full);
            ring.next(memory.stages);
        }
    }
}

/// What a thread needs in all products of a chunk.
struct Multiplier {
    Decoder decoder;
    uint32_t places[kStageUnits];  ///< of a unit's word of the first row in the weights
    uint32_t scale_place;

    /// A warp's rows of weights in a stage: 16, or 8 of gate and 8 of up.
    template <bool kGated>
    static __device__ __forceinline__ Multiplier make(const Memory& memory) {
        int thread = static_cast<int>(threadIdx.x) - 128;
        // Made anew for each chunk: the ends of items need the registers.
        make_opaque(thread);
        const int lane = thread % 32, warp = thread / 32;
        const int group = lane / 4, t = lane % 4;
        Multiplier made{Decoder(memory.fixed().table), {}, 0};
        const auto row = static_cast<uint32_t>(warp * (kGated ? 8 : 16) + group);
#pragma unroll
        for (int unit = 0; unit < kStageUnits; ++unit) {
            made.places[unit] =
                row * kWeightRowBytes + static_cast<uint32_t>(t * 4) +
                ((static_cast<uint32_t>(group >> 1) ^ static_cast<uint32_t>(unit)) * 16);
            if (!kGated || unit == 0) make_opaque(made.places[unit]);
        }
        made.scale_place = kWeightBytes + row * 16 + static_cast<uint32_t>(t / 2 * 8);
        return made;
    }
};

/// Sums of `stages` stages for Tokens tokens.
template <int Tokens, bool kGated>
__device__ __forceinline__ void multiply(const Memory& memory,
                                         Place& ring,
                                         int stages,
                                         float (&all)[kSums]) {
    constexpr uint32_t kSecond = kGated ? kFeatures / 2 : 8;  ///< rows to the other one
    const auto with = Multiplier::make<kGated>(memory);
    Fixed& fixed = memory.fixed();
    float sums[Tokens / 2] = {};
    uint32_t a[2][2][4];
    uint32_t words[2];
    uint2 scales[2];
    const auto load_scale_words = [&](uint32_t weights) {
        scales[0] = load_shared_two(weights + with.scale_place);
        scales[1] = load_shared_two(weights + with.scale_place + kSecond * 16);
    };
    const auto load_words = [&](uint32_t weights, int unit) {
        uint32_t place = with.places[unit];
        if constexpr (kGated) {
            // One place is kept and the others follow from it each time: its ends need registers.
            place = with.places[0];
            if (unit > 0) make_opaque(place);
            place ^= static_cast<uint32_t>(unit) * 16;
        }
        words[0] = load_shared(weights + place);
        words[1] = load_shared(weights + place + kSecond * kWeightRowBytes);
    };
    const auto decode = [&](int unit) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            uint32_t pairs[4];
            with.decoder.pairs(words[i], pairs);
            const uint32_t two = unit < 2 ? scales[i].x : scales[i].y;
#pragma unroll
            for (int c = 0; c < 4; ++c)
                a[unit % 2][c / 2][c % 2 * 2 + i] = scale_pair(pairs[c], two, unit % 2 == 1);
        }
    };

    barrier_wait(&fixed.full[ring.slot], ring.parity);
    uint32_t weights = shared_address(memory.weights(ring.slot));
    load_words(weights, 0);
    load_scale_words(weights);
    decode(0);
    for (int step = 0; step < stages; ++step) {
        const int before = ring.before(memory.stages);
        const bool last = step + 1 == stages;
        const uint64_t x = wgmma_rows_from(wgmma_start(memory.x(ring.slot)));
        ring.next(memory.stages);
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
                load_words(weights, unit + 1);
            } else if (!last) {
                barrier_wait(&fixed.full[ring.slot], ring.parity);
                weights = shared_address(memory.weights(ring.slot));
                load_words(weights, 0);
                load_scale_words(weights);
            }
            wgmma_wait<1>();
            // All products of the stage before are done.
            if (unit == 0 && step > 0) hopper::release(&fixed.empty[before]);
            if (unit + 1 < kStageUnits)
                decode(unit + 1);
            else if (!last)
                decode(0);
        }
    }
    wgmma_wait<0>();
    hopper::release(&fixed.empty[ring.before(memory.stages)]);
#pragma unroll
    for (int i = 0; i < Tokens / 2; ++i) all[i] = sums[i];
}

template <bool kGated>
__device__ __forceinline__ void multiply_chunk(
    int tokens, const Memory& memory, Place& ring, int stages, float (&sums)[kSums]) {
    switch (tokens) {
        case 64:
            return multiply<64, kGated>(memory, ring, stages, sums);
        case 96:
            return multiply<96, kGated>(memory, ring, stages, sums);
        case 128:
            return multiply<128, kGated>(memory, ring, stages, sums);
        case 160:
            return multiply<160, kGated>(memory, ring, stages, sums);
        case 192:
            return multiply<192, kGated>(memory, ring, stages, sums);
        case 224:
            return multiply<224, kGated>(memory, ring, stages, sums);
        default:
            return multiply<256, kGated>(memory, ring, stages, sums);
    }
}

/// The first feature of a block; which of the warps that multiply this is.
template <bool kGated>
__device__ __forceinline__ int64_t first_feature(const Item& item) {
    const int block = static_cast<int>(blockIdx.x) % kBlocks;
    return (static_cast<int64_t>(item.feature) * kBlocks + block) * kOwnFeatures<kGated>;
}
__device__ __forceinline__ int own_warp() {
    int warp = static_cast<int>(threadIdx.x) / 32 - 4;
    make_opaque(warp);
    return warp;
}

/// What becomes of the sums of a chunk of a product that is not gated.
__device__ __forceinline__ void finish_chunk(const Operands& p,
                                             const Item& item,
                                             int chunk,
                                             const float (&sums)[kSums]) {
    const int64_t feature = first_feature<false>(item) + own_warp() * 16;
    if (item.place >= 0)
        put_aside(shared_sums(p, item, chunk), item.count, sums);
    else if (p.add || chunk > 0)
        store_tile<true>(p, item, feature, chunk, sums);
    else
        store_tile<false>(p, item, feature, chunk, sums);
}

__device__ __forceinline__ volatile int32_t& kept_item(const Memory& memory) {
    return memory.fixed().item[own_warp()];
}

__device__ __forceinline__ void consume(const Operands& p, const Memory& memory) {
    Place ring;
    for (int index = static_cast<int>(blockIdx.x) / kBlocks; index < p.cut.items;
         index += static_cast<int>(gridDim.x) / kBlocks) {
        const Item work = item_of(p, index);
        if (work.token >= p.rows) continue;
        for (int chunk = work.first_chunk; chunk < work.end_chunk; ++chunk) {
            float sums[kSums];
            multiply_chunk<false>(work.count, memory, ring, stages_of(p, work, chunk), sums);
            int again = index;
            make_opaque(again);  // the item is found again, not kept
            finish_chunk(p, item_of(p, again), chunk, sums);
        }
    }
}

/// Gated products need finished sums: those of the chunks before are put aside.
__device__ __forceinline__ void consume_gated(const Maps& maps,
                                              const Operands& p,
                                              const Memory& memory) {
    Place ring;
    float4* running =
        p.sums + int64_t{blockIdx.x} * static_cast<int64_t>(sum_bytes(p.cut.tile) / sizeof(float4));
    int index = static_cast<int>(blockIdx.x) / kBlocks;
    while (index < p.cut.items) {
        // Products take almost all registers and gates the others: the item's number waits in
        // shared memory. All lanes have read the one before.
        __syncwarp();
        if (threadIdx.x % 32 == 0) kept_item(memory) = index;
        __syncwarp();
        const Item work = item_of(p, index);
        if (work.token < p.rows) {
            float sums[kSums];
            for (int chunk = work.first_chunk; chunk < work.end_chunk; ++chunk) {
                multiply_chunk<true>(work.count, memory, ring, stages_of(p, work, chunk), sums);
                if (chunk > work.first_chunk) add_running(running, work.count, sums);
                if (chunk + 1 < work.end_chunk) put_aside(running, work.count, sums);
            }
            const Item item = item_of(p, kept_item(memory));
            const int warpgroup = own_warp() / 4;
            store_gated(p, item, &maps.out, memory.out(warpgroup),
                        static_cast<int32_t>(first_feature<true>(item)) + warpgroup * 32, sums);
        }
        index = kept_item(memory) + static_cast<int>(gridDim.x) / kBlocks;
    }
    if (threadIdx.x % 128 == 0) store_wait();
}

template <bool kGated>
__global__ void __launch_bounds__(kThreads, 1) __cluster_dims__(kBlocks, 1, 1)
    kernel(const __grid_constant__ Maps maps, const __grid_constant__ Operands p) {
    extern __shared__ __align__(1024) unsigned char memory_start[];
    const Memory memory{memory_start, p.stages, p.stage_bytes};
    if (threadIdx.x == 0) {
        Fixed& fixed = memory.fixed();
        for (int i = 0; i < p.stages; ++i) {
            barrier_init(&fixed.full[i], 1 + kLoaders * kWarpArrivals);
            barrier_init(&fixed.empty[i], kWarpgroups * 4 * kBlocks * kWarpArrivals);
        }
        barrier_init_fence();
        fixed.table = {kBf16High0, kBf16Low0};
    }
    cluster_meet();
    if (threadIdx.x < 128) {
        fewer_registers<hopper::kLoaderRegisters>();
        if (p.format == DType::kNVFP4)
            produce<DType::kNVFP4, kGated>(maps, p, memory);
        else
            produce<DType::kMXFP4, kGated>(maps, p, memory);
    } else {
        more_registers<hopper::kProductRegisters>();
        if constexpr (kGated)
            consume_gated(maps, p, memory);
        else
            consume(p, memory);
    }
    __syncwarp();
    // Shared memory stays until nobody writes to it any more.
    cluster_meet();
}

/// Joins the chunks of the items that share their features and tokens: two blocks a group of such
/// items, as the cluster has them, each for 32 tokens. Threads are numbered as those that multiply.
__global__ void __launch_bounds__(kThreads) join(const __grid_constant__ Operands p) {
    const int group = static_cast<int>(blockIdx.x) / kBlocks;
    const Item item = item_of(p, p.cut.whole + group * p.cut.chunks.count);
    const auto batch = static_cast<int>(blockIdx.y);
    if (threadIdx.x < 128 || item.token >= p.rows || batch * kTileStep >= item.count) return;
    join_chunks(p, item, first_feature<false>(item) + own_warp() * 16, batch);
}

template <bool kGated>
Operands operands_of(const Product& product, DType format, const Device& device) {
    Operands p{};
    static_cast<hopper::ProductOperands&>(p) = hopper::product_operands(product, format);
    const int clusters = hopper::clusters_of(device.multiprocessors());
    p.cut = cut_tiles(product.rows, ceil_div(product.n, int64_t{kOwnFeatures<kGated>} * kBlocks),
                      product.k, clusters, /*shares=*/!kGated);
    p.stages = stage_count(p.cut.tile);
    p.stage_bytes = stage_bytes(p.cut.tile);
    p.sums = reinterpret_cast<float4*>(product.sums);
    return p;
}

template <bool kGated>
void launch(Device& device, const Maps& maps, const Operands& p) {
    const int clusters = std::min(p.cut.items, hopper::clusters_of(device.multiprocessors()));
    device.launch_hopper(kGated ? "gemm_sm90_glu" : "gemm_sm90", kernel<kGated>,
                         dim3(static_cast<unsigned>(clusters * kBlocks)), dim3(kThreads),
                         shared_bytes(p.cut.tile), maps, p);
    const int groups = (p.cut.items - p.cut.whole) / p.cut.chunks.count;
    if (kGated || p.cut.chunks.count == 1 || groups == 0) return;
    device.launch_hopper("gemm_sm90_join", join,
                         dim3(static_cast<unsigned>(groups * kBlocks),
                              static_cast<unsigned>(p.cut.tile / kTileStep)),
                         dim3(kThreads), 0, p);
}

}  // namespace sm90
}  // namespace tessera::cuda
