#pragma once
// The convolution and the token recurrence, written once over a register type V of isa/vector.h.
// A token reads a row of the state twice while it is in the first cache and writes it once:
//   seen = S k;  d = beta (v - exp(g) seen);  S <- exp(g) S + d k^T;  out = S q / sqrt(key size).
// Internal linkage throughout: see isa/vector.h.

#include <cstring>

#include "backends/cpu/isa/recurrent_kernels.h"
#include "backends/cpu/isa/rows_vector.h"

namespace tessera::cpu {
namespace {

template <class V>
struct Recurrence {
    using F = typename V::Float;
    using L = Lane<V>;
    static constexpr int64_t kWidth = V::kLanes;
    static constexpr int64_t kRows = L::kTile;
    static_assert(kRows % 4 == 0, "rows are summed four at a time");

    static TESSERA_INLINE void copy(const float* x, int64_t count, float* out) {
        std::memcpy(out, x, static_cast<size_t>(count) * sizeof(float));
    }
    /// out[col * out_stride + row] = x[row * stride + col], in blocks of 4 x 4.
    static void transpose(const float* x, int64_t stride, const Extent& extent, float* out) {
        const int64_t rows = extent.rows, cols = extent.cols, step = extent.out_stride;
        int64_t row = 0;
        for (; row + 4 <= rows; row += 4) {
            int64_t col = 0;
            for (; col + 4 <= cols; col += 4)
                transpose_block(x + row * stride + col, stride, 4, out + col * step + row, step);
            // Reads a little behind the fourth row, where that is still part of x.
            if (col < cols && (row + 3) * stride + col + 4 <= (rows - 1) * stride + cols) {
                transpose_block(x + row * stride + col, stride, cols - col, out + col * step + row,
                                step);
                continue;
            }
            for (; col < cols; ++col)
                for (int64_t r = row; r < row + 4; ++r) out[col * step + r] = x[r * stride + col];
        }
        for (; row < rows; ++row)
            for (int64_t col = 0; col < cols; ++col) out[col * step + row] = x[row * stride + col];
    }
    /// Four rows; `cols` <= 4 of the four columns that are read.
    static TESSERA_INLINE void transpose_block(
        const float* x, int64_t stride, int64_t cols, float* out, int64_t out_stride) {
        using Four = Plain::Float;
        const Four a = Plain::load(x), b = Plain::load(x + stride);
        const Four c = Plain::load(x + 2 * stride), d = Plain::load(x + 3 * stride);
        const Four ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
        const Four ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
        const Four cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
        const Four cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
        Plain::store(out, __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5));
        if (cols == 1) return;
        Plain::store(out + out_stride, __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7));
        if (cols == 2) return;
        Plain::store(out + 2 * out_stride, __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5));
        if (cols == 3) return;
        Plain::store(out + 3 * out_stride, __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7));
    }

    static F convolved(
        const float* const* sources, const float* taps, int64_t width, int64_t count, int64_t c) {
        F sum = V::mul(V::load(taps + c), V::load(sources[0] + c));
        for (int64_t i = 1; i < width; ++i)
            sum = V::fmadd(V::load(taps + i * count + c), V::load(sources[i] + c), sum);
        return silu_of<V>(sum);
    }
    static void convolve(
        const float* const* sources, const float* taps, int64_t width, int64_t count, float* out) {
        int64_t c = 0;
        for (; c + kWidth <= count; c += kWidth)
            V::store(out + c, convolved(sources, taps, width, count, c));
        if (c == count) return;
        constexpr int64_t kMostTaps = 8;
        const size_t bytes = static_cast<size_t>(count - c) * sizeof(float);
        float inputs[kMostTaps][kWidth] = {}, weights[kMostTaps * kWidth] = {}, sums[kWidth];
        const float* rows[kMostTaps];
        for (int64_t i = 0; i < width; ++i) {
            std::memcpy(inputs[i], sources[i] + c, bytes);
            std::memcpy(weights + i * kWidth, taps + i * count + c, bytes);
            rows[i] = inputs[i];
        }
        V::store(sums, convolved(rows, weights, width, kWidth, 0));
        std::memcpy(out + c, sums, bytes);
    }

    /// exp of `count` numbers `stride` apart.
    static void exponentials(const float* x, int64_t stride, int64_t count, float* out) {
        for (int64_t i = 0; i < count; i += kWidth) {
            float buffer[kWidth] = {};
            const int64_t live = count - i < kWidth ? count - i : kWidth;
            for (int64_t j = 0; j < live; ++j) buffer[j] = x[(i + j) * stride];
            V::store(buffer, exp_of<V>(V::load(buffer)));
            std::memcpy(out + i, buffer, static_cast<size_t>(live) * sizeof(float));
        }
    }

    /// One token of kCount value rows; key sizes here are whole registers.
    struct Step {
        const float* q;
        const float* k;
        const float* v;
        float* out;
        float decay, beta, scale;
    };
    template <int64_t kCount>
    static TESSERA_INLINE void sum_rows(const F* sums, float* out) {
        if constexpr (kCount == 1) {
            out[0] = L::sum(sums[0]);
        } else {
            for (int64_t r = 0; r < kCount; r += 4)
                L::sum4(sums[r], sums[r + 1], sums[r + 2], sums[r + 3], out + r);
        }
    }
    template <int64_t kCount>
    static TESSERA_INLINE void step(const Step& now, int64_t key_size, float* state) {
        F sums[kCount];
        for (int64_t r = 0; r < kCount; ++r) sums[r] = V::zero();
        for (int64_t i = 0; i < key_size; i += kWidth) {
            const F k = V::load(now.k + i);
            for (int64_t r = 0; r < kCount; ++r)
                sums[r] = V::fmadd(V::load(state + r * key_size + i), k, sums[r]);
        }
        float seen[kCount];
        sum_rows<kCount>(sums, seen);
        F delta[kCount];
        for (int64_t r = 0; r < kCount; ++r)
            delta[r] = V::set(now.beta * (now.v[r] - now.decay * seen[r]));
        const F decay = V::set(now.decay);
        if (now.q == nullptr) {
            for (int64_t i = 0; i < key_size; i += kWidth) {
                const F k = V::load(now.k + i);
                for (int64_t r = 0; r < kCount; ++r) {
                    float* s = state + r * key_size + i;
                    V::store(s, V::fmadd(delta[r], k, V::mul(decay, V::load(s))));
                }
            }
            return;
        }
        for (int64_t r = 0; r < kCount; ++r) sums[r] = V::zero();
        for (int64_t i = 0; i < key_size; i += kWidth) {
            const F k = V::load(now.k + i), q = V::load(now.q + i);
            for (int64_t r = 0; r < kCount; ++r) {
                float* s = state + r * key_size + i;
                const F next = V::fmadd(delta[r], k, V::mul(decay, V::load(s)));
                V::store(s, next);
                sums[r] = V::fmadd(next, q, sums[r]);
            }
        }
        sum_rows<kCount>(sums, seen);
        for (int64_t r = 0; r < kCount; ++r) now.out[r] = seen[r] * now.scale;
    }

    static int64_t padded(int64_t key_size) { return (key_size + kWidth - 1) / kWidth * kWidth; }
    static int64_t advance_floats(int64_t key_size) { return (kRows + 2) * padded(key_size); }

    /// `count` rows, each padded with zeros.
    static void pad(const float* x, int64_t count, int64_t key_size, float* out) {
        const int64_t wide = padded(key_size);
        std::memset(out, 0, static_cast<size_t>(count * wide) * sizeof(float));
        for (int64_t row = 0; row < count; ++row)
            copy(x + row * key_size, key_size, out + row * wide);
    }

    /// Tokens of the run whose decays are known, through kCount rows from `row` on.
    template <int64_t kCount>
    static void advance_rows(
        const DeltaRun& run, const float* decays, int64_t row, float* scratch, float* state) {
        const int64_t wide = padded(run.key_size);
        const bool whole = wide == run.key_size;
        float* const own = state + row * run.key_size;
        float* const k = scratch + kRows * wide;
        float* const q = k + wide;
        if (!whole) pad(own, kCount, run.key_size, scratch);
        const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(run.key_size));
        for (int64_t t = 0; t < run.tokens; ++t) {
            Step now{.q = run.q == nullptr ? nullptr : run.q + t * run.q_stride,
                     .k = run.k + t * run.k_stride,
                     .v = run.v + t * run.v_stride + row,
                     .out = run.q == nullptr ? nullptr : run.out + t * run.out_stride + row,
                     .decay = decays[t],
                     .beta = run.beta[t * run.beta_stride],
                     .scale = scale};
            if (!whole) {
                pad(now.k, 1, run.key_size, k);
                now.k = k;
                if (now.q != nullptr) {
                    pad(now.q, 1, run.key_size, q);
                    now.q = q;
                }
            }
            step<kCount>(now, wide, whole ? own : scratch);
        }
        if (whole) return;
        for (int64_t r = 0; r < kCount; ++r)
            copy(scratch + r * wide, run.key_size, own + r * run.key_size);
    }

    static void advance(const DeltaRun& run, float* scratch, float* state) {
        constexpr int64_t kTokens = 64;
        for (int64_t first = 0; first < run.tokens; first += kTokens) {
            DeltaRun part = run;
            part.tokens -= first;
            if (part.tokens > kTokens) part.tokens = kTokens;
            part.k += first * run.k_stride;
            part.v += first * run.v_stride;
            part.beta += first * run.beta_stride;
            if (run.q != nullptr) {
                part.q += first * run.q_stride;
                part.out += first * run.out_stride;
            }
            float decays[kTokens];
            exponentials(run.log_decay + first * run.decay_stride, run.decay_stride, part.tokens,
                         decays);
            int64_t row = 0;
            for (; row + kRows <= run.rows; row += kRows)
                advance_rows<kRows>(part, decays, row, scratch, state);
            for (; row < run.rows; ++row) advance_rows<1>(part, decays, row, scratch, state);
        }
    }
};

}  // namespace
}  // namespace tessera::cpu
