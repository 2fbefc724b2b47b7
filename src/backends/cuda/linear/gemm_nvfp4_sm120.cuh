#pragma once
// The product of NVFP4 and MXFP4 weights with NVFP4 rows on FP4 tensor cores (sm_120), which
// multiply 2048 pairs of numbers a clock and multiprocessor and apply the block scales themselves.
//
// A block of 384 threads keeps three stages or more of 128 columns in shared memory: four warps
// bring operands (the copy engine the codes, its threads the scales), eight multiply. Each of those
// has 32 rows of the weight (16 in the smaller tiles) and all tokens of the tile, because a word of
// a resident weight takes five instructions before it is an operand (whole_codes): so every word is
// seen by one warp alone, and a stage of 64 products takes 80 instructions for that and 23 loads.
// With 64 x 64 a warp it would be 160 and 19. Sums stay in place. Bound by tensor cores: a product
// is issued every 16 clocks a quarter of the multiprocessor.
//
// Gate and up in one launch: a tile has 128 rows of each, a warp 16 rows of gate and the same of
// up, so that a thread has both of a feature, and bf16 rows of act(gate) * up leave instead of
// twice the f32 ones. A pass rounds them further, as the scale of a row needs all of it.
//
// Grouped by experts: loader warps find the rows of a tile, which may lie anywhere, and gather them
// by asynchronous copies of their own; weights come as before. What the results need of the rows
// lies beside the last stage of the tile, which is kept until they are stored. So the warps that
// multiply follow the ring and look nothing up, and loader warps alone pass over what is empty.
//
// MXFP4: the instruction takes one kind of scale for both sides, and rows of x with powers of two
// for 32 columns would be coarser than they are (its form with ue8m0 was rejected for that). But
// powers of two are ue4m3 numbers, from 2^-9 to 2^8, so that loader warps make NVFP4 of the
// weights' scales and a power of two of each row (fp4_places.h).
//
// Template parameter Mma: the instruction, or what stands for it on other cards (ptx/fp4_mma.cuh).
// Rejected: a container of its own with operands in the order of fragments, which would double the
// memory of cards that also need the decoders' order; multicast, which these cards do not have.

#include <algorithm>
#include <cstdint>
#include <utility>

#include "backends/cuda/linear/fp4_places.h"
#include "backends/cuda/linear/gemm_nvfp4_sm120.h"
#include "backends/cuda/linear/gemm_nvfp4_sm120_load.cuh"
#include "backends/cuda/linear/gemm_nvfp4_sm120_store.cuh"
#include "backends/cuda/linear/hopper_tiles.cuh"
#include "backends/cuda/ptx/fp4_mma.cuh"
#include "backends/cuda/ptx/load_matrices.cuh"
#include "backends/cuda/ptx/named_barrier.cuh"

namespace tessera::cuda {
namespace sm120 {

/// Calls work.operator()<0>() to <N - 1>(): indices that instructions take as constants.
template <class Work, int... I>
__device__ __forceinline__ void each(std::integer_sequence<int, I...>, const Work& work) {
    (work.template operator()<I>(), ...);
}
template <int N, class Work>
__device__ __forceinline__ void each(const Work& work) {
    each(std::make_integer_sequence<int, N>{}, work);
}

/// What whole_codes() is made of.
struct DeviceBits {
    static __device__ __forceinline__ uint32_t pick_bytes(uint32_t low,
                                                          uint32_t high,
                                                          uint32_t selector) {
        return cuda::pick_bytes(low, high, selector);
    }
    static __device__ __forceinline__ uint32_t choose_bits(uint32_t mask, uint32_t a, uint32_t b) {
        return cuda::choose_bits(mask, a, b);
    }
};

/// Sums of one stage.
template <class Mma, class Tile>
__device__ __forceinline__ void multiply(const Shared<Tile>& shared,
                                         int stage,
                                         const Places<Tile::kFragments>& places,
                                         float (&sums)[Tile::kFragments][Tile::kTokens / 2]) {
    constexpr int kGroups = Tile::kTokens / kScaleGroup;
    const uint32_t weights = shared_address(shared.weights[stage]);
    const uint32_t tokens = shared_address(shared.x[stage]);
    uint32_t weight_scales[2];
    const uint32_t from = shared_address(shared.weight_scales[stage]) + places.weight_scales;
    if constexpr (Tile::kFragments == 2) {
        const uint2 two = load_shared_two(from);
        weight_scales[0] = two.x;
        weight_scales[1] = two.y;
    } else {
        weight_scales[0] = load_shared(from);
    }
    uint4 token_scales[kGroups];
#pragma unroll
    for (int i = 0; i < kGroups; ++i)
        token_scales[i] = load_shared_four(shared_address(shared.x_scales[stage]) +
                                           places.token_scales_of(static_cast<uint32_t>(i)));
    each<kHalves>([&]<int Half>() {
        uint32_t a[Tile::kFragments][4];
#pragma unroll
        for (int i = 0; i < Tile::kFragments; ++i) {
            load_matrices_at(a[i], weights + places.weights_of(static_cast<uint32_t>(i), Half));
#pragma unroll
            for (int j = 0; j < 4; ++j) a[i][j] = whole_codes(a[i][j], DeviceBits{});
        }
        each<Tile::kTokens / 8>([&]<int Fragment>() {
            // Tokens of two fragments come together.
            if constexpr (Fragment % 2 == 0) {
                uint32_t two[4];
                load_matrices_at(two, tokens + places.tokens_of(8 * Fragment, Half));
                each<2>([&]<int Other>() {
                    constexpr int kOf = Fragment + Other;
                    constexpr int kInGroup = kOf % (kScaleGroup / 8);
                    const uint32_t b[2] = {two[2 * Other], two[2 * Other + 1]};
                    const uint32_t scales =
                        word_of(token_scales[kOf / (kScaleGroup / 8)], token_scale_word(kInGroup));
#pragma unroll
                    for (int i = 0; i < Tile::kFragments; ++i)
                        Mma::template run<weight_selector(Half), token_selector(Half, kInGroup)>(
                            &sums[i][4 * kOf], a[i], b, weight_scales[i], scales);
                });
            }
        });
    });
}

/// Where this warp reads, as it stays: else that is worked out anew with every stage.
template <class Tile>
__device__ __forceinline__ Places<Tile::kFragments> own_places(int warp, int lane) {
    Places<Tile::kFragments> places(static_cast<uint32_t>(warp), static_cast<uint32_t>(lane));
    make_opaque(places.weights);
    make_opaque(places.tokens);
    make_opaque(places.weight_scales);
    make_opaque(places.token_scales);
    return places;
}

/// What the warps that multiply do.
template <Form kForm, class Mma, class Tile>
__device__ __forceinline__ void consume(const Operands& operands, Shared<Tile>& shared) {
    const hopper::Operands& p = operands.base;
    const int thread = static_cast<int>(threadIdx.x) - 32 * kLoaders;
    const int lane = thread % 32, warp = thread / 32;
    const auto places = own_places<Tile>(warp, lane);
    Ring<Tile::kStages> ring;
    for (int index = static_cast<int>(blockIdx.x); index < p.items;
         index += static_cast<int>(gridDim.x)) {
        const Item item = item_of<Tile, kForm>(p, index);
        // Nobody reads the scales of the tile before any more.
        named_sync(1, 32 * kProducers);
        for (int i = thread; i < Tile::kTokens; i += 32 * kProducers)
            shared.row_scales[i] =
                item.token + i < p.rows ? operands.row_scales[item.token + i] : 0.0f;
        named_sync(1, 32 * kProducers);
        float sums[Tile::kFragments][Tile::kTokens / 2] = {};
        for (int step = 0; step < p.steps; ++step) {
            barrier_wait(&shared.full[ring.slot], ring.parity);
            Mma::pause(static_cast<uint32_t>(step));
            multiply<Mma>(shared, ring.slot, places, sums);
            barrier_arrive_warp(&shared.empty[ring.slot]);
            ring.next();
        }
        const float* const tokens = shared.row_scales + lane % 4 * 2;
        if constexpr (is_gated(kForm))
            store_gated<Tile>(operands, item, warp, tokens, RowsThere{item.token, p.rows}, sums);
        else
            store_plain<Tile>(operands, item, warp, tokens, sums);
    }
}

/// The same of tiles that loader warps name.
template <Form kForm, class Mma, class Tile>
__device__ __forceinline__ void consume(const Operands& operands, GroupedShared<Tile>& shared) {
    const int steps = operands.base.steps;
    const int thread = static_cast<int>(threadIdx.x) - 32 * kLoaders;
    const int lane = thread % 32, warp = thread / 32;
    const auto places = own_places<Tile>(warp, lane);
    Ring<Tile::kStages> ring;
    while (true) {
        barrier_wait(&shared.full[ring.slot], ring.parity);
        if (shared.tiles[ring.slot].expert < 0) return;
        float sums[Tile::kFragments][Tile::kTokens / 2] = {};
        for (int step = 0; step < steps; ++step) {
            barrier_wait(&shared.full[ring.slot], ring.parity);
            Mma::pause(static_cast<uint32_t>(step));
            multiply<Mma>(shared, ring.slot, places, sums);
            if (step + 1 < steps) barrier_arrive_warp(&shared.empty[ring.slot]);
            ring.next();
        }
        const int last = ring.before();
        const TileRows<Tile::kTokens>& tile = shared.tiles[last];
        if constexpr (is_gated(kForm))
            store_gated<Tile>(operands, {0, tile.feature, tile.expert}, warp,
                              tile.scales + lane % 4 * 2, RowsOfGroup{tile.out}, sums);
        else
            store_grouped<Tile>(operands, tile, warp, sums);
        barrier_arrive_warp(&shared.empty[last]);
    }
}

template <class Mma, class Tile, Form kForm>
__global__ void __launch_bounds__(kThreads, 1)
    kernel(const __grid_constant__ hopper::Maps maps, const __grid_constant__ Operands p) {
    using Memory = SharedOf<Tile, kForm>;
    static_assert(sizeof(Memory) <= kSharedBytes);
    constexpr bool kGrouped = is_grouped(kForm);
    if constexpr (Mma::kAvailable) {
        extern __shared__ __align__(1024) unsigned char memory[];
        auto& shared = *reinterpret_cast<Memory*>(memory);
        if (threadIdx.x == 0) {
            // Threads that gather arrive with their copies, too.
            constexpr uint32_t kGathering = kGrouped ? 32 * kLoaders : 0;
            for (int i = 0; i < Tile::kStages; ++i) {
                barrier_init(&shared.full[i], 1 + kLoaders * kWarpArrivals + kGathering);
                barrier_init(&shared.empty[i], kProducers * kWarpArrivals);
                // A tile's first stage is asked whether it is one.
                if constexpr (kGrouped) shared.tiles[i].expert = 0;
            }
            barrier_init_fence();
        }
        __syncthreads();
        if (threadIdx.x < 32 * kLoaders) {
            fewer_registers<hopper::kLoaderRegisters>();
            if (p.base.format == DType::kNVFP4)
                produce<DType::kNVFP4, kForm, Mma>(maps, p, shared);
            else
                produce<DType::kMXFP4, kForm, Mma>(maps, p, shared);
        } else {
            more_registers<hopper::kProductRegisters>();
            consume<kForm, Mma>(p, shared);
        }
    }
}

/// Boxes of so many rows of a stage.
inline CUtensorMap codes_map(const uint8_t* codes, int64_t row_bytes, int64_t rows, int box) {
    return tensor_map({.type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
                       .swizzle = CU_TENSOR_MAP_SWIZZLE_64B,
                       .data = codes,
                       .axes = 2,
                       .shape = {static_cast<uint64_t>(row_bytes), static_cast<uint64_t>(rows)},
                       .stride_bytes = {static_cast<uint64_t>(row_bytes)},
                       .box = {kRowBytes, static_cast<uint32_t>(box)}});
}

/// `up`: codes of gated products, else null. `p` lacks how the product is cut.
template <class Mma, class Tile, Form kForm>
void launch(
    Device& device, const Product& product, const uint8_t* up, const Fp4Rows& x, Operands p) {
    constexpr bool kGated = is_gated(kForm), kGrouped = is_grouped(kForm);
    constexpr int kOwn = kOwnFeatures<Tile, kForm>;
    const int64_t row_bytes = product.units * kPieceBytes;
    const int64_t feature_tiles = ceil_div(product.n, int64_t{kOwn});
    // Grouped: as many as there may be.
    const int64_t token_tiles =
        kGrouped ? product.rows / Tile::kTokens + std::min<int64_t>(product.rows, product.experts)
                 : ceil_div(product.rows, int64_t{Tile::kTokens});
    p.base.steps = static_cast<int32_t>(ceil_div(product.k, kStageColumns));
    p.base.token_tiles = static_cast<int32_t>(token_tiles);
    p.base.items = static_cast<int32_t>(token_tiles * feature_tiles);
    hopper::Maps maps{};
    int64_t weight_rows = product.n;
    if constexpr (kGrouped) {
        weight_rows *= product.experts;
        p.feature_tiles = static_cast<int32_t>(feature_tiles);
    } else {
        maps.x = codes_map(x.codes, row_bytes, product.rows, Tile::kTokens);
    }
    maps.weights = codes_map(product.codes, row_bytes, weight_rows, kOwn);
    if constexpr (kGated) maps.up = codes_map(up, row_bytes, weight_rows, kOwn);
    const int blocks = std::min(p.base.items, device.multiprocessors());
    constexpr const char* kNames[] = {"gemm_nvfp4_sm120", "gemm_nvfp4_sm120_glu",
                                      "gemm_nvfp4_sm120_experts", "gemm_nvfp4_sm120_experts_glu"};
    device.launch(kNames[static_cast<int>(kForm)], kernel<Mma, Tile, kForm>,
                  dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                  sizeof(SharedOf<Tile, kForm>), maps, p);
}

/// What a tile takes by the count of its products, with what it has to hide besides.
struct TileChoice {
    int features, tokens, cost;
};
inline constexpr TileChoice kTiles[] = {{256, 128, 100}, {128, 128, 55}, {128, 64, 32}};

/// The fastest of kTiles: whole waves of blocks count.
inline TileChoice choose_tile(int64_t n, int64_t rows, int multiprocessors) {
    TileChoice best = kTiles[0];
    int64_t least = INT64_MAX;
    for (const TileChoice& tile : kTiles) {
        const int64_t tiles = ceil_div(n, tile.features) * ceil_div(rows, tile.tokens);
        const int64_t time = ceil_div(tiles, multiprocessors) * tile.cost;
        if (time >= least) continue;
        least = time;
        best = tile;
    }
    return best;
}

inline Operands operands_of(const Product& product, DType format, const Fp4Rows& x) {
    check(product.k % 64 == 0, "products of FP4: columns are multiples of 64");
    check(format == DType::kNVFP4 || (format == DType::kMXFP4 && product.row_factors != nullptr),
          "products of FP4: NVFP4, or MXFP4 with factors of its rows");
    Operands p{};
    static_cast<hopper::ProductOperands&>(p.base) = hopper::product_operands(product, format);
    p.x_scales = x.scales;
    p.row_scales = x.row_scales;
    p.row_factors = product.row_factors;
    return p;
}

/// The product in tiles of one size.
template <class Mma>
void run_tiles(
    Device& device, const Product& product, DType format, const Fp4Rows& x, TileChoice tile) {
    const Operands p = operands_of(product, format, x);
    if (tile.features == 256)
        return launch<Mma, Tile<256, 128>, Form::kPlain>(device, product, nullptr, x, p);
    if (tile.tokens == 128)
        return launch<Mma, Tile<128, 128>, Form::kPlain>(device, product, nullptr, x, p);
    launch<Mma, Tile<128, 64>, Form::kPlain>(device, product, nullptr, x, p);
}

/// The operands of a product of experts.
inline Operands grouped_operands_of(const Product& product, DType format, const Fp4Rows& x) {
    check(product.bias == nullptr && !product.add && product.first_pair == 0 &&
              product.first_row == 0,
          "products of FP4: prompt pairs of experts, without bias and sum");
    check(product.n * product.experts <= INT32_MAX && product.rows * product.units <= INT32_MAX,
          "products of FP4: more rows than 32 bits count");
    Operands p = operands_of(product, format, x);
    p.grouping = product;
    p.x = x.codes;
    return p;
}

/// Rows of smaller tiles are less often padding, larger ones read weights less often.
inline int group_tokens(const Product& product) {
    return rows_per_matrix(product) <= 96 ? 64 : 128;
}

/// The product of experts in tiles of 128 features by 128 or 64 tokens.
template <class Mma>
void run_groups(
    Device& device, const Product& product, DType format, const Fp4Rows& x, int tokens) {
    const Operands p = grouped_operands_of(product, format, x);
    if (tokens == 128)
        return launch<Mma, Tile<128, 128>, Form::kGrouped>(device, product, nullptr, x, p);
    launch<Mma, Tile<128, 64>, Form::kGrouped>(device, product, nullptr, x, p);
}

/// Gate and up in one: adds what is of up.
inline void add_up(Operands& p, const Product& gate, const GluProduct& with) {
    check(gate.n % 32 == 0, "gated products of FP4: features are multiples of 32");
    hopper::add_up(p.base, gate, with);
    p.up_row_factors = with.row_factors;
    p.gated = static_cast<__nv_bfloat16*>(with.out);
}

/// Gate and up of experts in tiles of 128 features of both by 128 or 64 tokens.
template <class Mma>
void run_gated_groups(Device& device,
                      const Product& gate,
                      const GluProduct& with,
                      DType format,
                      const Fp4Rows& x,
                      int tokens) {
    Operands p = grouped_operands_of(gate, format, x);
    add_up(p, gate, with);
    if (tokens == 128)
        return launch<Mma, Tile<256, 128>, Form::kGatedGroups>(device, gate, with.codes, x, p);
    launch<Mma, Tile<256, 64>, Form::kGatedGroups>(device, gate, with.codes, x, p);
}

}  // namespace sm120

template <class Mma>
void run_gemm_nvfp4_sm120(Device& device, const Product& product, DType format, const Fp4Rows& x) {
    if (product.rows == 0) return;
    if (product.pairs != nullptr)
        return sm120::run_groups<Mma>(device, product, format, x, sm120::group_tokens(product));
    sm120::run_tiles<Mma>(device, product, format, x,
                          sm120::choose_tile(product.n, product.rows, device.multiprocessors()));
}

template <class Mma>
void run_glu_nvfp4_sm120(
    Device& device, const Product& gate, const GluProduct& with, DType format, const Fp4Rows& x) {
    if (gate.rows == 0) return;
    if (gate.pairs != nullptr)
        return sm120::run_gated_groups<Mma>(device, gate, with, format, x,
                                            sm120::group_tokens(gate));
    sm120::Operands p = sm120::operands_of(gate, format, x);
    sm120::add_up(p, gate, with);
    // Of one size: what is gained by smaller ones, where tokens are few, weights are read in.
    sm120::launch<Mma, sm120::Tile<256, 128>, sm120::Form::kGated>(device, gate, with.codes, x, p);
}

}  // namespace tessera::cuda
