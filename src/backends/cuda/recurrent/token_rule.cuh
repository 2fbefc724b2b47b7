#pragma once
// The token recurrence of the gated delta rule:
//   seen = S k;  d = beta (v - exp(g) seen);  S <- exp(g) S + d k^T;  out = S q / sqrt(key size).
// A warp holds kTokenRows rows of the state in registers, lane l the columns l, l + 32, ...; sums
// over columns go through fixed shuffles, and every product and sum is spelled out, so that the
// tentative rows of a batch, the same rows one by one and their replay give the same bits.
// Bound: the state is read and written once a call, 8 bytes an element.

#include "backends/cuda/recurrent/delta_args.cuh"

namespace tessera::cuda {

constexpr int32_t kTokenWarps = 4;
constexpr int32_t kTokenRows = 4;
constexpr int32_t kTokenBlockRows = kTokenWarps * kTokenRows;
constexpr int32_t kMostKeySize = 256;

/// kTokenRows rows of a state; `kPart` columns a lane.
template <int kPart>
using StateRows = float[kTokenRows][kPart];

/// Sums over the lanes of a warp, in the order of a butterfly over 16, 8, 4, 2, 1; the sum of row r
/// is in the eight lanes from 8 r on.
static_assert(kTokenRows == 4, "the exchange below is made for four rows");
__device__ __forceinline__ float sum_rows(const float (&x)[kTokenRows], int32_t lane) {
    constexpr unsigned kAll = 0xffffffffu;
    const bool upper = (lane & 16) != 0, odd = (lane & 8) != 0;
    float a = upper ? x[2] : x[0], b = upper ? x[3] : x[1];
    a = __fadd_rn(a, __shfl_xor_sync(kAll, upper ? x[0] : x[2], 16));
    b = __fadd_rn(b, __shfl_xor_sync(kAll, upper ? x[1] : x[3], 16));
    float sum = __fadd_rn(odd ? b : a, __shfl_xor_sync(kAll, odd ? a : b, 8));
    sum = __fadd_rn(sum, __shfl_xor_sync(kAll, sum, 4));
    sum = __fadd_rn(sum, __shfl_xor_sync(kAll, sum, 2));
    return __fadd_rn(sum, __shfl_xor_sync(kAll, sum, 1));
}

/// This lane's columns of a vector, 0 behind its end.
template <int kPart>
__device__ __forceinline__ void load_part(const float* x, int32_t size, float (&part)[kPart]) {
    const int32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int32_t i = 0; i < kPart; ++i) part[i] = lane + 32 * i < size ? x[lane + 32 * i] : 0.0f;
}

/// Rows that a warp works on: `rows` (at most kTokenRows) of them exist.
template <int kPart>
__device__ __forceinline__ void load_state(const float* state,
                                           int32_t rows,
                                           int32_t key_size,
                                           StateRows<kPart>& s) {
#pragma unroll
    for (int32_t r = 0; r < kTokenRows; ++r)
        load_part(state + static_cast<int64_t>(r) * key_size, r < rows ? key_size : 0, s[r]);
}

template <int kPart>
__device__ __forceinline__ void store_state(const StateRows<kPart>& s,
                                            int32_t rows,
                                            int32_t key_size,
                                            float* state) {
    const int32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int32_t r = 0; r < kTokenRows; ++r)
#pragma unroll
        for (int32_t i = 0; i < kPart; ++i)
            if (r < rows && lane + 32 * i < key_size)
                state[static_cast<int64_t>(r) * key_size + lane + 32 * i] = s[r][i];
}

/// What a token brings for the rows of a warp.
template <int kPart>
struct TokenInput {
    float k[kPart];
    float v[kTokenRows];
    float log_decay;
    float beta;

    __device__ void load(const float* keys, int32_t key_size, const float* values, int32_t rows) {
        load_part(keys, key_size, k);
#pragma unroll
        for (int32_t r = 0; r < kTokenRows; ++r) v[r] = r < rows ? values[r] : 0.0f;
    }
};

/// The state moves on by one token.
template <int kPart>
__device__ __forceinline__ void advance(const TokenInput<kPart>& token, StateRows<kPart>& s) {
    const int32_t lane = threadIdx.x % 32;
    const float decay = expf(token.log_decay);
    float seen[kTokenRows];
#pragma unroll
    for (int32_t r = 0; r < kTokenRows; ++r) {
        seen[r] = 0.0f;
#pragma unroll
        for (int32_t i = 0; i < kPart; ++i) seen[r] = fmaf(s[r][i], token.k[i], seen[r]);
    }
    const float sum = sum_rows(seen, lane);
#pragma unroll
    for (int32_t r = 0; r < kTokenRows; ++r) {
        const float row_sum = __shfl_sync(0xffffffffu, sum, 8 * r);
        const float delta = __fmul_rn(token.beta, fmaf(-decay, row_sum, token.v[r]));
#pragma unroll
        for (int32_t i = 0; i < kPart; ++i)
            s[r][i] = fmaf(delta, token.k[i], __fmul_rn(decay, s[r][i]));
    }
}

template <int kPart>
__device__ __forceinline__ void load_token(
    const DeltaArgs& args, int64_t t, int32_t head, int32_t row, TokenInput<kPart>& token) {
    const int32_t rows = min(args.size - row, kTokenRows);
    token.load(args.k.at(t, head % args.key_heads), args.key_size, args.v.at(t, head) + row, rows);
    token.log_decay = *args.log_decay.at(t, head);
    token.beta = *args.beta.at(t, head);
}

/// Blocks of (sequence, value head, kTokenBlockRows value rows).
template <int kPart>
__global__ void __launch_bounds__(32 * kTokenWarps)
    token_rule(const __grid_constant__ DeltaArgs args) {
    const auto block = static_cast<int32_t>(blockIdx.x);
    const int32_t lane = threadIdx.x % 32;
    const int32_t row = block % args.row_blocks * kTokenBlockRows +
                        static_cast<int32_t>(threadIdx.x) / 32 * kTokenRows;
    const int32_t head = block / args.row_blocks % args.heads;
    const Place place = place_of(args.batch, block / args.row_blocks / args.heads);
    if (place.rows == 0 || row >= args.size) return;
    if (place.begin < args.batch.prompt_rows && !args.prompts_too) return;
    const int32_t rows = min(args.size - row, kTokenRows);
    const int64_t in_slot = (static_cast<int64_t>(head) * args.size + row) * args.key_size;
    float* state = args.state + place.slot * args.state_stride + in_slot;
    const bool fresh = place.position == 0;
    StateRows<kPart> s;
    load_state(state, fresh ? 0 : rows, args.key_size, s);
    // Also for a tentative batch, whose accepted rows come on top of it.
    if (fresh && args.tentative) store_state(s, rows, args.key_size, state);
    TokenInput<kPart> next;
    float next_q[kPart];
    load_token(args, place.begin, head, row, next);
    load_part(args.q.at(place.begin, head % args.key_heads), args.key_size, next_q);
    for (int32_t i = 0; i < place.rows; ++i) {
        const int64_t t = static_cast<int64_t>(place.begin) + i;
        const TokenInput<kPart> token = next;
        float q[kPart], sums[kTokenRows];
#pragma unroll
        for (int32_t j = 0; j < kPart; ++j) q[j] = next_q[j];
        if (i + 1 < place.rows) {
            load_token(args, t + 1, head, row, next);
            load_part(args.q.at(t + 1, head % args.key_heads), args.key_size, next_q);
        }
        advance(token, s);
#pragma unroll
        for (int32_t r = 0; r < kTokenRows; ++r) {
            sums[r] = 0.0f;
#pragma unroll
            for (int32_t j = 0; j < kPart; ++j) sums[r] = fmaf(s[r][j], q[j], sums[r]);
        }
        const float sum = sum_rows(sums, lane);
        if (lane % 8 == 0 && lane / 8 < rows)
            args.out.at(t, head)[row + lane / 8] = __fmul_rn(sum, args.scale);
        if (place.save_slot >= 0 && i + 1 == place.save_after)
            store_state(s, rows, args.key_size,
                        args.state + place.save_slot * args.state_stride + in_slot);
    }
    if (!args.tentative) store_state(s, rows, args.key_size, state);
}

constexpr int32_t kLogThreads = 256;

/// Blocks of (sequence, row of its log): k, v, log decay, beta of a tentative row.
__global__ void __launch_bounds__(kLogThreads) log_tokens(const __grid_constant__ DeltaArgs args) {
    const auto block = static_cast<int32_t>(blockIdx.x);
    const Place place = place_of(args.batch, block / args.log_rows);
    const int32_t index = block % args.log_rows;
    if (index >= place.rows) return;
    const int64_t t = static_cast<int64_t>(place.begin) + index;
    float* log =
        args.log + (static_cast<int64_t>(place.slot) * args.log_rows + index) * args.log_floats;
    const int32_t keys = args.key_heads * args.key_size, values = args.heads * args.size;
    for (auto i = static_cast<int32_t>(threadIdx.x); i < args.log_floats; i += kLogThreads) {
        const int32_t after_keys = i - keys, gate = after_keys - values;
        if (after_keys < 0)
            log[i] = args.k.at(t, i / args.key_size)[i % args.key_size];
        else if (gate < 0)
            log[i] = args.v.at(t, after_keys / args.size)[after_keys % args.size];
        else
            log[i] = gate < args.heads ? *args.log_decay.at(t, gate)
                                       : *args.beta.at(t, gate - args.heads);
    }
}

}  // namespace tessera::cuda
