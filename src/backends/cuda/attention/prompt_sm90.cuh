#pragma once
// Attention of prompt rows on Hopper, after FlashAttention-3 (arXiv 2407.08608). A block takes one
// kv head and 128 query columns of one sequence, column c being head c % group of token c / group.
// A warpgroup of copiers brings keys and values in steps of kStepKeys keys through tensor maps over
// the page pool; two warpgroups take 64 columns each: scores of step j + 1 and sums of step j are
// on the tensor cores while the exponentials of step j + 1 are taken. Sums and probabilities stay
// in registers, queries in shared memory. Blocks stay and take tile after tile, those with most
// keys first, so that the next tile's keys arrive while the last one is written. Bound: 4 * d
// products a visible (query, key) pair on tensor cores; for d 256 also reads of shared memory (96
// of 128 bytes a clock) and of the second-level cache (1 byte a 128 operations).
//
// As in prompt.cuh a column's result depends on nothing but the column: steps lie at absolute
// positions, and a step that the column does not see leaves maximum, total and sums as they were.
// For that, values that no column of the block sees are made zeros, and numbers that are not finite
// in pages that only some columns see are taken out of the product (0 * inf would be NaN) and added
// for the columns that see them alone.

#include "backends/cuda/attention/prompt_sm90_copy.cuh"
#include "backends/cuda/ptx/exp2.cuh"
#include "backends/cuda/ptx/opaque.cuh"

namespace tessera::cuda {

/// What a thread keeps of its columns `row` and `row + 8` of its warpgroup's 64.
struct WideState {
    int32_t position[2];
    float factor[2];   ///< product to score in powers of 2
    float largest[2];  ///< score in powers of 2
    float total[2];    ///< of this thread's keys
};

/// The warp's 16 columns, from the queries to shared memory. All loads of a turn are under way
/// before the first is used.
template <class Form>
__device__ __forceinline__ void load_wide_queries(const PromptArgs& args,
                                                  const WideTile& tile,
                                                  int32_t group,
                                                  int32_t warp,
                                                  WideShared<Form>& shared) {
    constexpr int32_t kLanes = Form::kHeadSize < 128 ? Form::kHeadSize / 4 : 32;  // of a row
    constexpr int32_t kQuads = Form::kHeadSize / 4 / kLanes;  // of a row, in a lane
    constexpr int32_t kRounds = 16 * kLanes / 32, kAtOnce = kQuads > 1 ? 8 : kRounds;
    auto lane = static_cast<int32_t>(threadIdx.x % 32);
    make_opaque(lane);  // addresses are not kept in registers from tile to tile
    // Lane l knows where row l % 16 is.
    const int32_t own = tile.columns.first_column + group * 64 + warp * 16 + lane % 16;
    const int32_t column = min(own, tile.columns.columns - 1);
    const int64_t token = tile.columns.first_row + column / args.group;
    const int64_t head = int64_t{tile.kv_head} * args.group + column % args.group;
    const int64_t own_place = token * args.q_row_stride + head * args.q_head_stride;
#pragma unroll 1
    for (int32_t round = 0; round < kRounds; round += kAtOnce) {
        float4 raw[kAtOnce][kQuads];
#pragma unroll
        for (int32_t i = 0; i < kAtOnce; ++i) {
            const int32_t row = (round + i) * (32 / kLanes) + lane / kLanes;
            const float* query = args.q + __shfl_sync(0xffffffffu, own_place, row);
#pragma unroll
            for (int32_t j = 0; j < kQuads; ++j) {
                const int32_t element = (lane % kLanes + 32 * j) * 4;
                raw[i][j] = {};
                if (element < args.head_size)
                    raw[i][j] = *reinterpret_cast<const float4*>(query + element);
            }
        }
#pragma unroll
        for (int32_t i = 0; i < kAtOnce; ++i) {
            const int32_t row = warp * 16 + (round + i) * (32 / kLanes) + lane / kLanes;
            float down = 1.0f;
            if constexpr (Form::kHalf) {
                float largest = 0.0f;
#pragma unroll
                for (int32_t j = 0; j < kQuads; ++j)
                    largest = fmaxf(fmaxf(largest, fmaxf(fabsf(raw[i][j].x), fabsf(raw[i][j].y))),
                                    fmaxf(fabsf(raw[i][j].z), fabsf(raw[i][j].w)));
#pragma unroll
                for (int32_t offset = kLanes / 2; offset > 0; offset /= 2)
                    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
                // The exponent of the largest, kept where it and its negative are normal numbers.
                const uint32_t exponent = min(max(__float_as_uint(largest) >> 23, 1u), 253u);
                down = __uint_as_float((254u - exponent) << 23);
                if (lane % kLanes == 0)
                    shared.factors[group * 64 + row] = args.scale * __uint_as_float(exponent << 23);
            }
#pragma unroll
            for (int32_t j = 0; j < kQuads; ++j) {
                const int32_t quad = lane % kLanes + 32 * j;
                const float4 x = raw[i][j];
                *reinterpret_cast<uint2*>(shared.queries[group][quad / 16] + row * 64 +
                                          (quad / 2 % 8 ^ row % 8) * 8 + quad % 2 * 4) = {
                    pack_pair<Form::kHalf>(x.x * down, x.y * down),
                    pack_pair<Form::kHalf>(x.z * down, x.w * down)};
            }
        }
    }
    fence_async_proxy();
    named_sync(2 + group, kWarpgroup);
}

template <class Form>
__device__ __forceinline__ void start_state(const PromptArgs& args,
                                            const WideTile& tile,
                                            int32_t group,
                                            int32_t warp,
                                            const WideShared<Form>& shared,
                                            WideState& state) {
    constexpr float kLog2E = 1.44269504f;
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
        const int32_t row =
            group * 64 + warp * 16 + static_cast<int32_t>(threadIdx.x % 32 / 4) + 8 * half;
        const int32_t column = tile.columns.first_column + row;
        state.position[half] =
            column < tile.columns.columns
                ? args.batch.positions[tile.columns.first_row + column / args.group]
                : -1;
        float factor = Form::kHalf ? shared.factors[row] : args.scale;
        if constexpr (Form::kCoded) factor *= kCodeUnit;
        state.factor[half] = args.softcap > 0.0f ? factor : __fmul_rn(factor, kLog2E);
        state.largest[half] = -INFINITY;
        state.total[half] = 0.0f;
    }
}

/// scores = queries keys^T of a step, under way when this returns.
template <class Form>
__device__ __forceinline__ void start_scores(const WideShared<Form>& shared,
                                             int32_t group,
                                             int32_t step,
                                             int32_t slot,
                                             float (&scores)[Form::kStepKeys / 2]) {
    uint32_t a = wgmma_start(shared.queries[group]);
    const uint32_t b = wgmma_start(shared.keys[slot]);
    // No step is negative, but the compiler does not know: it would keep sixteen descriptors in
    // registers from step to step.
    if constexpr (Form::kSlices > 2) a += static_cast<uint32_t>(step) >> 31;
#pragma unroll
    for (int32_t s = 0; s < Form::kSlices; ++s)
#pragma unroll
        for (int32_t k = 0; k < 4; ++k)
            wgmma_rows<Form::kHalf>(scores, wgmma_rows_from(a + (64 * 128 * s + 32 * k) / 16),
                                    wgmma_rows_from(b + (Form::kStepKeys * 128 * s + 32 * k) / 16),
                                    s + k > 0);
}

/// sums += probabilities values of a page, under way when this returns.
template <class Form>
__device__ __forceinline__ void start_sums(const WideShared<Form>& shared,
                                           int32_t slot,
                                           const uint32_t (&parts)[Form::kStepKeys / 16][4],
                                           int32_t first_part,
                                           float (&sums)[Form::kHeadSize / 2]) {
    const uint32_t b = wgmma_start(shared.values[slot]);
#pragma unroll
    for (int32_t k = 0; k < 4; ++k)
        wgmma<Form::kHalf, true>(sums, parts[first_part + k],
                                 wgmma_columns_from(b + 128 * k, kPageTokens * 128), true);
}

/// Whether a column at `position` sees `key`.
__device__ __forceinline__ bool sees(int32_t position, int32_t key, int32_t window) {
    const int32_t age = position - key;
    return age >= 0 && (window <= 0 || age < window);
}

/// Products to what the softmax takes: capped where asked for, -inf for keys not seen.
template <int32_t kCount>
__device__ __forceinline__ void finish_wide_scores(const PromptArgs& args,
                                                   const WideState& state,
                                                   int32_t first_key,
                                                   bool masked,
                                                   float (&scores)[kCount]) {
    if (args.softcap > 0.0f) {
        constexpr float kLog2E = 1.44269504f;
        // cap tanh(x / cap) as cap - 2 cap / (1 + exp(2 x / cap)), in powers of 2.
        const float cap = args.softcap * kLog2E, inner = 2.0f * kLog2E / args.softcap;
#pragma unroll
        for (int32_t i = 0; i < kCount; ++i) {
            const float power =
                fast_exp2(__fmul_rn(__fmul_rn(scores[i], state.factor[i / 2 % 2]), inner));
            scores[i] = __fmaf_rn(-2.0f * cap, fast_reciprocal(1.0f + power), cap);
        }
    }
    if (!masked) return;
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) {
        const int32_t key = first_key + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (!sees(state.position[i / 2 % 2], key, args.window)) scores[i] = -INFINITY;
    }
}

/// Scores to exp2(score - new maximum); total to match. Returns what the sums must be multiplied
/// by; exactly 1 where the maximum stays.
template <int32_t kCount>
__device__ __forceinline__ float2 advance_wide_softmax(WideState& state,
                                                       bool capped,
                                                       float (&scores)[kCount]) {
    float factors[2];
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
        float tops[4];
#pragma unroll
        for (int32_t i = 0; i < 4; ++i)
            tops[i] = fmaxf(scores[8 * (i / 2) + 2 * half + i % 2],
                            scores[8 * (i / 2) + 4 + 2 * half + i % 2]);
#pragma unroll
        for (int32_t n = 4; n < kCount / 4; ++n)
#pragma unroll
            for (int32_t i = 0; i < 2; ++i)
                tops[n % 2 * 2 + i] = fmaxf(tops[n % 2 * 2 + i], scores[4 * n + 2 * half + i]);
        float top = fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        const float factor = capped ? 1.0f : state.factor[half];
        const float largest = fmaxf(state.largest[half], __fmul_rn(top, factor));
        // Nothing seen yet: any finite number keeps -inf - -inf away.
        const float level = largest == -INFINITY ? 0.0f : largest;
        factors[half] = fast_exp2(state.largest[half] - level);
        state.largest[half] = largest;
        float totals[2] = {0.0f, 0.0f};
#pragma unroll
        for (int32_t n = 0; n < kCount / 4; ++n)
#pragma unroll
            for (int32_t i = 0; i < 2; ++i) {
                float& score = scores[4 * n + 2 * half + i];
                score = fast_exp2(__fmaf_rn(score, factor, -level));
                totals[i] += score;
            }
        state.total[half] = __fmaf_rn(state.total[half], factors[half], totals[0] + totals[1]);
    }
    return {factors[0], factors[1]};
}

template <bool kHalf, int32_t kCount>
__device__ __forceinline__ void pack_parts(const float (&scores)[kCount],
                                           uint32_t (&parts)[kCount / 8][4]) {
#pragma unroll
    for (int32_t k = 0; k < kCount / 8; ++k)
#pragma unroll
        for (int32_t i = 0; i < 4; ++i)
            parts[k][i] = pack_pair<kHalf>(scores[8 * k + 2 * i], scores[8 * k + 2 * i + 1]);
}

template <int32_t kCount>
__device__ __forceinline__ void scale_wide_sums(float2 factors, float (&sums)[kCount]) {
    if (!__any_sync(0xffffffffu, factors.x != 1.0f || factors.y != 1.0f)) return;
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) sums[i] *= i / 2 % 2 == 0 ? factors.x : factors.y;
}

/// Element `index` of eight, in registers.
__device__ __forceinline__ uint32_t pick(int32_t index, uint4 low, uint4 high) {
    const bool odd = index % 2 != 0, upper = index / 2 % 2 != 0;
    const uint32_t a = upper ? (odd ? low.w : low.z) : (odd ? low.y : low.x);
    const uint32_t b = upper ? (odd ? high.w : high.z) : (odd ? high.y : high.x);
    return index < 4 ? a : b;
}

template <bool kHalf>
__device__ __forceinline__ float f32_of_pair(uint32_t pair, int32_t upper) {
    const uint32_t bits = upper == 0 ? pair & 0xffffu : pair >> 16;
    return kHalf ? f32_of_f16(bits) : __uint_as_float(bits << 16);
}

/// Elements `element` and the next of a row in memory, as they are multiplied.
template <class Form>
__device__ __forceinline__ uint32_t load_value_pair(const uint8_t* row, int32_t element) {
    if constexpr (Form::kCoded)
        return f16_pair_of_e4m3(*reinterpret_cast<const uint16_t*>(row + element));
    else
        return *reinterpret_cast<const uint32_t*>(row + element * 2);
}

/// What warpgroup 0 took out of a page, whose first probabilities are parts[kFirst]: probability
/// * value for the columns that see the key.
template <class Form, int32_t kFirst>
__device__ __forceinline__ void add_not_finite(const PromptArgs& args,
                                               const WideTile& tile,
                                               const WideState& state,
                                               int32_t page,
                                               uint2 keys,
                                               const uint32_t (&parts)[Form::kStepKeys / 16][4],
                                               float (&sums)[Form::kHeadSize / 2]) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int64_t place = args.batch.table(tile.columns.sequence)[page];
#pragma unroll 1
    for (int32_t offset = 0; offset < kPageTokens; ++offset) {
        if (((offset < 32 ? keys.x : keys.y) >> offset % 32 & 1u) == 0) continue;
        float weights[2];
        bool seen[2];
#pragma unroll
        for (int32_t half = 0; half < 2; ++half) {
            const uint4 low = {parts[kFirst][half], parts[kFirst][2 + half],
                               parts[kFirst + 1][half], parts[kFirst + 1][2 + half]};
            const uint4 high = {parts[kFirst + 2][half], parts[kFirst + 2][2 + half],
                                parts[kFirst + 3][half], parts[kFirst + 3][2 + half]};
            const uint32_t pair = __shfl_sync(0xffffffffu, pick(offset / 8, low, high),
                                              lane / 4 * 4 + offset % 8 / 2);
            weights[half] = f32_of_pair<Form::kHalf>(pair, offset % 2);
            seen[half] = sees(state.position[half], page * kPageTokens + offset, args.window);
        }
        const uint8_t* row = args.values.head(place, tile.kv_head) + offset * args.values.row_bytes;
        // Unrolled: sums stay in registers. The branch keeps the loads apart.
#pragma unroll
        for (int32_t n = 0; n < Form::kHeadSize / 8; ++n) {
            const uint32_t pair = load_value_pair<Form>(row, 8 * n + lane % 4 * 2);
            const uint32_t bad = not_finite_pair<Form::kHalf>(pair);
            if (bad == 0) continue;
#pragma unroll
            for (int32_t i = 0; i < 4; ++i)
                if (seen[i / 2] && (bad >> i % 2 * 16 & 1u) != 0)
                    sums[4 * n + i] = __fmaf_rn(
                        weights[i / 2], f32_of_pair<Form::kHalf>(pair, i % 2), sums[4 * n + i]);
        }
    }
}

/// Column first_column + lane / 4 of the tile, whose sums are those of rows 8 * kUpper and on.
template <class Form, int32_t kUpper>
__device__ __forceinline__ void write_columns(const PromptArgs& args,
                                              const WideTile& tile,
                                              int32_t first_column,
                                              const WideState& state,
                                              const float (&sums)[Form::kHeadSize / 2]) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    float total = state.total[kUpper];
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    const int32_t own = tile.columns.first_column + first_column + lane / 4;
    const bool live = own < tile.columns.columns;
    const int32_t column = min(own, tile.columns.columns - 1);
    const int64_t token = tile.columns.first_row + column / args.group;
    const int64_t head = int64_t{tile.kv_head} * args.group + column % args.group;
    float* out = args.out + token * args.out_stride + head * args.head_size;
    float inverse = inverse_total(args, head, total, state.largest[kUpper]);
    if constexpr (Form::kCoded) inverse *= kCodeUnit;
    // Neighbouring lanes exchange pairs of two groups of eight columns: each has four in a row
    // then.
    const bool odd = lane % 2 != 0;
#pragma unroll
    for (int32_t n = 0; n < Form::kHeadSize / 8; n += 2) {
        const int32_t low = 4 * n + 2 * kUpper, high = low + 4;
        const float2 kept = {odd ? sums[high] : sums[low], odd ? sums[high + 1] : sums[low + 1]};
        float2 other = {odd ? sums[low] : sums[high], odd ? sums[low + 1] : sums[high + 1]};
        other.x = __shfl_xor_sync(0xffffffffu, other.x, 1);
        other.y = __shfl_xor_sync(0xffffffffu, other.y, 1);
        const float2 first = odd ? other : kept, second = odd ? kept : other;
        const int32_t element = 8 * (n + lane % 2) + lane % 4 / 2 * 4;
        if (live && element < args.head_size)
            *reinterpret_cast<float4*>(out + element) = {first.x * inverse, first.y * inverse,
                                                         second.x * inverse, second.y * inverse};
    }
}

/// Takes a page's sums as they come from the tensor cores, and gives the page back.
template <class Form, int32_t kFirst>
__device__ __forceinline__ void finish_sums(const PromptArgs& args,
                                            const WideTile& tile,
                                            const WideSpan& span,
                                            int32_t page,
                                            Ring<Form::kValueStages>& values,
                                            WideShared<Form>& shared,
                                            const WideState& state,
                                            const uint32_t (&parts)[Form::kStepKeys / 16][4],
                                            float (&sums)[Form::kHeadSize / 2]) {
    if (span.masks(page * kPageTokens, kPageTokens, args.window)) {
        const uint2 keys = {shared.not_finite[values.slot][0], shared.not_finite[values.slot][1]};
        if ((keys.x | keys.y) != 0)
            add_not_finite<Form, kFirst>(args, tile, state, page, keys, parts, sums);
        __syncwarp();  // all lanes have read the marks
    }
    barrier_arrive_warp(&shared.values_empty[values.slot]);
    values.next();
}

template <class Form>
__device__ __forceinline__ void attend_columns(const PromptArgs& args,
                                               int32_t group,
                                               int32_t warp,
                                               WideShared<Form>& shared) {
    constexpr int32_t kPages = Form::kPages;
    const bool capped = args.softcap > 0.0f;
    Ring<Form::kKeyStages> keys;
    Ring<Form::kValueStages> values;
    Ring<2> tiles;
    // The first turn is warpgroup 1's.
    if (Form::kTurns && group == 1) named_arrive(4, 2 * kWarpgroup);
    for (WideSpan span; next_tile(shared, tiles, span); end_tile(shared, tiles)) {
        const WideTile& tile = shared.tiles[tiles.slot];
        load_wide_queries<Form>(args, tile, group, warp, shared);
        WideState state;
        float sums[Form::kHeadSize / 2], scores[Form::kStepKeys / 2];
        uint32_t parts[Form::kStepKeys / 16][4];
        start_state<Form>(args, tile, group, warp, shared, state);
#pragma unroll
        for (int32_t i = 0; i < Form::kHeadSize / 2; ++i) sums[i] = 0.0f;

        const auto softmax = [&](int32_t step) {
            const int32_t first_key = step * Form::kStepKeys;
            finish_wide_scores(args, state, first_key,
                               span.masks(first_key, Form::kStepKeys, args.window), scores);
            return advance_wide_softmax(state, capped, scores);
        };
        const auto wait_values = [&] {
            auto turn = values;
#pragma unroll
            for (int32_t p = 0; p < kPages; ++p) {
                barrier_wait(&shared.values_full[turn.slot], turn.parity);
                turn.next();
            }
        };
        const auto start_values = [&] {
            auto turn = values;
#pragma unroll
            for (int32_t p = 0; p < kPages; ++p) {
                start_sums<Form>(shared, turn.slot, parts, 4 * p, sums);
                turn.next();
            }
            wgmma_commit();
        };
        const auto end_values = [&](int32_t step) {
            const int32_t page = step * kPages;
            finish_sums<Form, 0>(args, tile, span, page, values, shared, state, parts, sums);
            if constexpr (kPages == 2)
                finish_sums<Form, 4>(args, tile, span, page + 1, values, shared, state, parts,
                                     sums);
        };
        const auto end_keys = [&] {
            barrier_arrive_warp(&shared.keys_empty[keys.slot]);
            keys.next();
        };

        barrier_wait(&shared.keys_full[keys.slot], keys.parity);
        pin_registers(scores);
        wgmma_fence();
        start_scores<Form>(shared, group, span.first_step, keys.slot, scores);
        wgmma_commit();
        wgmma_wait<0>();
        pin_registers(scores);
        end_keys();
        softmax(span.first_step);
        pack_parts<Form::kHalf>(scores, parts);
        for (int32_t step = span.first_step + 1; step < span.end_step; ++step) {
            barrier_wait(&shared.keys_full[keys.slot], keys.parity);
            wait_values();
            if constexpr (Form::kTurns) named_sync(4 + group, 2 * kWarpgroup);
            pin_registers(scores);
            pin_registers(sums);
            wgmma_fence();
            start_scores<Form>(shared, group, step, keys.slot, scores);
            wgmma_commit();
            start_values();
            if constexpr (Form::kTurns) named_arrive(5 - group, 2 * kWarpgroup);
            wgmma_wait<1>();
            pin_registers(scores);
            end_keys();
            const float2 factors = softmax(step);
            stay_before(state.total[0], state.total[1]);
            wgmma_wait<0>();
            pin_registers(sums);
            end_values(step - 1);
            scale_wide_sums(factors, sums);
            pack_parts<Form::kHalf>(scores, parts);
        }
        wait_values();
        pin_registers(sums);
        wgmma_fence();
        start_values();
        wgmma_wait<0>();
        pin_registers(sums);
        end_values(span.end_step - 1);
        const int32_t first_column = group * 64 + warp * 16;
        write_columns<Form, 0>(args, tile, first_column, state, sums);
        write_columns<Form, 1>(args, tile, first_column + 8, state, sums);
    }
}

template <class Form>
__device__ __forceinline__ void init_wide_barriers(WideShared<Form>& shared) {
    constexpr uint32_t kReaders = 8 * kWarpArrivals;           // warps that compute
    constexpr uint32_t kOthers = 3 * kWarpArrivals;            // warps that convert or clean
    constexpr uint32_t kWriters = Form::kCoded ? kOthers : 1;  // or the copy engine
    for (int32_t i = 0; i < Form::kKeyStages; ++i) {
        barrier_init(&shared.keys_full[i], kWriters);
        barrier_init(&shared.keys_empty[i], kReaders);
    }
    for (int32_t i = 0; i < 2; ++i) {
        barrier_init(&shared.tiles_full[i], 1);
        barrier_init(&shared.tiles_empty[i], kReaders + kOthers);
    }
    for (int32_t i = 0; i < Form::kValueStages; ++i) {
        barrier_init(&shared.values_full[i], kWriters);
        barrier_init(&shared.values_empty[i], kReaders);
        barrier_init(&shared.values_raw[i], 1);
    }
    for (int32_t i = 0; i < Form::kCodeStages; ++i) {
        barrier_init(&shared.codes_full[i], 1);
        barrier_init(&shared.codes_empty[i], kWriters);
    }
    barrier_init_fence();
}

/// Registers of a thread of warpgroup 0 and of the others. The block owns what it was launched
/// with, an equal share a thread in units of eight; asking for more than the others gave back waits
/// for ever.
constexpr int32_t kCopyRegisters = 40, kProductRegisters = 232;
constexpr int32_t kLaunchRegisters = 65536 / kWideThreads / 8 * 8;
static_assert(kCopyRegisters + 2 * kProductRegisters <= 3 * kLaunchRegisters &&
              kWideThreads == 3 * kWarpgroup);

/// Grid: at most one block a multiprocessor.
template <class Form>
__global__ void __launch_bounds__(kWideThreads, 1)
    attend_wide_tiles(const __grid_constant__ PromptArgs args,
                      const __grid_constant__ CUtensorMap key_map,
                      const __grid_constant__ CUtensorMap value_map) {
    // Aligned by an offset: the compiler still knows the address as one of shared memory.
    uint8_t* memory = dynamic_shared();
    auto& shared = *reinterpret_cast<WideShared<Form>*>(
        __builtin_assume_aligned(memory + (0u - shared_address(memory)) % 1024u, 1024));
    if (threadIdx.x == 0) {
        prefetch_map(&key_map);
        prefetch_map(&value_map);
        init_wide_barriers<Form>(shared);
    }
    __syncthreads();
    const int32_t warp = __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x / 32), 0);
    if (warp < 4) {
        fewer_registers<kCopyRegisters>();
        if (warp == 0)
            copy_pages<Form>(args, &key_map, &value_map, shared);
        else if constexpr (Form::kCoded)
            convert_pages<Form>(args, shared);
        else
            clean_values<Form>(args, shared);
    } else {
        more_registers<kProductRegisters>();
        attend_columns<Form>(args, warp / 4 - 1, warp % 4, shared);
    }
}

}  // namespace tessera::cuda
