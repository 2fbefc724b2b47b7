#pragma once
// Norm and rotation of the heads of q and k, and keys and values to their pages. A warp takes a
// head, which it reads once and keeps in registers; what the rotation mixes passes through shared
// memory. The sines and cosines of a token are tabulated once for all of its heads.
// Bound by bytes: 8 an element of q, 4 and those of the page an element of k and v.
// Bits are those of norm.cuh, rope.cuh and kv_store.cuh, whose functions these are.

#include "backends/cuda/attention/store_head.cuh"
#include "backends/cuda/rows/norm.cuh"
#include "backends/cuda/rows/rope_turn.cuh"

namespace tessera::cuda {

constexpr int32_t kQkvWarps = 8;
constexpr int32_t kQkvHeld = rows::kWarpHeld;  ///< fours that a lane keeps

struct QkvRopeArgs {
    float* q = nullptr;
    int64_t q_row_stride = 0, q_head_stride = 0;
    StoreSource sources[2];                      ///< k, v
    const float* gains[2] = {nullptr, nullptr};  ///< of q, k; null: no norm
    float eps = 0.0f;
    rows::RopeAngles angles;
    BatchView batch;
    int32_t heads = 0, kv_heads = 0;
    int32_t head_size = 0;
    bool vector = false;  ///< heads of q and k and gains start at multiples of 16 bytes
};

/// One head in the registers of a warp.
struct HeldHead {
    rows::Four fours[kQkvHeld];

    __device__ __forceinline__ static int32_t column(int32_t g, int32_t lane) {
        return 4 * (32 * g + lane);
    }
    __device__ __forceinline__ void load(const float* head,
                                         int32_t lane,
                                         int32_t head_size,
                                         bool vector) {
#pragma unroll
        for (int32_t g = 0; g < kQkvHeld; ++g)
            fours[g] = rows::load_four(head, column(g, lane), head_size, vector);
    }
    __device__ __forceinline__ void norm(const float* gain, int32_t lane, const QkvRopeArgs& args) {
        const auto for_each = [this](const auto& f) {
#pragma unroll
            for (int32_t g = 0; g < kQkvHeld; ++g)
#pragma unroll
                for (int32_t i = 0; i < 4; ++i) f(fours[g].value[i]);
        };
        rows::Sum sum{0.0f, 0.0f};
        for_each([&sum](float value) { sum.add_square(value); });
        const float factor =
            rows::norm_factor<rows::NormKind::kRms, true>(sum, for_each, args.head_size, args.eps);
#pragma unroll
        for (int32_t g = 0; g < kQkvHeld; ++g)
            rows::norm_scale(fours[g], factor, gain, column(g, lane), args.head_size, args.vector);
    }
    /// Columns below `end` to a row of shared memory, whole fours at a time.
    __device__ __forceinline__ void put(float* row, int32_t lane, int32_t end) const {
#pragma unroll
        for (int32_t g = 0; g < kQkvHeld; ++g)
            if (column(g, lane) < end)
                *reinterpret_cast<float4*>(row + column(g, lane)) = make_float4(
                    fours[g].value[0], fours[g].value[1], fours[g].value[2], fours[g].value[3]);
    }
    /// To `head`, columns below `end` from the row of shared memory.
    __device__ __forceinline__ void store(
        const float* row, int32_t end, int32_t lane, const QkvRopeArgs& args, float* head) const {
#pragma unroll
        for (int32_t g = 0; g < kQkvHeld; ++g) {
            const int32_t at = column(g, lane);
            rows::Four four = fours[g];
            if (at < end) four = rows::load_four(row, at, at + 4, /*vector=*/true);
            if (at < args.head_size) rows::store_four(four, at, args.head_size, args.vector, head);
        }
    }
};

/// Floats of a warp's row of shared memory.
__host__ __device__ constexpr int32_t qkv_row_floats(int32_t head_size) {
    return (head_size + 3) / 4 * 4;
}

/// Grid: rows, shares of the heads.
__global__ void __launch_bounds__(32 * kQkvWarps, 3)
    qkv_rope_kernel(const __grid_constant__ QkvRopeArgs args) {
    const auto warp = static_cast<int32_t>(threadIdx.x / 32);
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const auto row = static_cast<int32_t>(blockIdx.x);
    auto* turns = reinterpret_cast<float2*>(dynamic_shared());
    const int32_t half = args.angles.half;
    // Rows of shared memory start at multiples of 16 bytes.
    float* mine = reinterpret_cast<float*>(turns + (half + 1) / 2 * 2) +
                  warp * qkv_row_floats(args.head_size);

    const int32_t turned = args.heads + args.kv_heads, items = turned + args.kv_heads;
    const auto step = static_cast<int32_t>(gridDim.y) * kQkvWarps;
    const auto data = [&](int32_t item) -> const float* {
        if (item < args.heads) return args.q + row * args.q_row_stride + item * args.q_head_stride;
        return args.sources[0].head(row, item - args.heads);
    };
    int32_t item = static_cast<int32_t>(blockIdx.y) * kQkvWarps + warp;
    HeldHead next;
    // Under way while the table is made, and later while the head before is worked on.
    if (item < turned) next.load(data(item), lane, args.head_size, args.vector);
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < half; i += 32 * kQkvWarps)
        turns[i] = rows::rope_turn(args.angles, row, i);
    const int32_t sequence = find_sequence(args.batch, row);
    __syncthreads();  // the table is complete
    const int32_t position = args.batch.positions[row];
    const int64_t page = args.batch.table(sequence)[position / kPageTokens];
    const auto place = [&](const StoreSource& source, int32_t head) {
        return source.pages.head(page, head) + position % kPageTokens * source.pages.row_bytes;
    };

    for (; item < turned; item += step) {
        HeldHead held = next;
        if (item + step < turned) next.load(data(item + step), lane, args.head_size, args.vector);
        const bool is_key = item >= args.heads;
        const float* gain = args.gains[is_key ? 1 : 0];
        if (gain != nullptr) held.norm(gain, lane, args);
        const int32_t mixed = is_key ? args.head_size : 2 * half;
        held.put(mine, lane, mixed);
        __syncwarp();  // pairs lie in several lanes
        for (int32_t i = lane; i < half; i += 32) {
            const int2 pair = rows::rope_pair(args.angles, i);
            rows::rotate_pair(mine + pair.x, mine + pair.y, turns[i]);
        }
        __syncwarp();  // rotated
        if (is_key)
            store_head(args.sources[0], mine, lane, place(args.sources[0], item - args.heads));
        else
            held.store(mine, mixed, lane, args,
                       args.q + row * args.q_row_stride + item * args.q_head_stride);
        __syncwarp();  // read before the next head comes
    }
    for (; item < items; item += step) {
        const int32_t head = item - turned;
        store_head(args.sources[1], args.sources[1].head(row, head), lane,
                   place(args.sources[1], head));
    }
}

}  // namespace tessera::cuda
