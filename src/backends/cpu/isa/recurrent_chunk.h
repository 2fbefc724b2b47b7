#pragma once
// The chunk form of the gated delta rule (ops.h, gated_delta_rule), written once over a register
// type V. W-free: D is solved from V - exp(G) K S^T directly, so that no second C x C x value-size
// product is needed. Everything is an outer-product tile of L::kTile tokens (or key elements) by
// two registers of value rows; an element's sum runs over its terms in rising order whatever the
// tile, so neither the length of a chunk nor the place of a row shows in the bits. Nothing right
// of a diagonal is read: a NaN of a later token cannot reach an earlier one. The time goes to the
// three products of C x key size x value rows, which are bound by multiply-adds; splitting them
// over fewer lanes (sums along the key) took horizontal sums instead and was slower.
// Internal linkage throughout: see isa/vector.h.

#include "backends/cpu/isa/recurrent_generic.h"

namespace tessera::cpu {
namespace {

template <class V>
struct Chunk {
    using F = typename V::Float;
    using L = Lane<V>;
    static constexpr int64_t kWidth = V::kLanes;
    static constexpr int64_t kStrip = 2 * kWidth;
    static constexpr int64_t kTile = L::kTile;
    static constexpr int64_t kSquare = kChunkTokens;
    /// exp of it is 0 in every format: decays of -infinity would make differences NaN.
    static constexpr double kLowestDecay = -1e4;
    static_assert(kSquare % kStrip == 0, "squares are whole tiles");

    template <int64_t kRows>
    struct Tile {
        F at[kRows][2];

        TESSERA_INLINE void clear() {
            for (int64_t r = 0; r < kRows; ++r) at[r][0] = at[r][1] = V::zero();
        }
        /// at[r] += sum_i left[r * row_stride + i * step] * right[i * right_stride ..].
        TESSERA_INLINE void add_product(const float* left,
                                        int64_t row_stride,
                                        int64_t step,
                                        const float* right,
                                        int64_t right_stride,
                                        int64_t count) {
            for (int64_t i = 0; i < count; ++i) {
                const F first = V::load(right + i * right_stride);
                const F second = V::load(right + i * right_stride + kWidth);
                for (int64_t r = 0; r < kRows; ++r) {
                    const F element = V::set(left[r * row_stride + i * step]);
                    at[r][0] = V::fmadd(element, first, at[r][0]);
                    at[r][1] = V::fmadd(element, second, at[r][1]);
                }
            }
        }
        /// Row r times factors[r].
        TESSERA_INLINE void scale(const float* factors) {
            for (int64_t r = 0; r < kRows; ++r) {
                const F factor = V::set(factors[r]);
                at[r][0] = V::mul(at[r][0], factor);
                at[r][1] = V::mul(at[r][1], factor);
            }
        }
        TESSERA_INLINE void store(float* out, int64_t stride) const {
            for (int64_t r = 0; r < kRows; ++r) {
                V::store(out + r * stride, at[r][0]);
                V::store(out + r * stride + kWidth, at[r][1]);
            }
        }
    };

    template <int64_t kCount>
    struct Rows {
        static constexpr int64_t kRows = kCount;
    };
    /// body(row, Rows) over whole tiles, then single rows.
    template <class Body>
    static TESSERA_INLINE void over_rows(int64_t rows, const Body& body) {
        int64_t row = 0;
        for (; row + kTile <= rows; row += kTile) body(row, Rows<kTile>{});
        for (; row < rows; ++row) body(row, Rows<1>{});
    }

    /// out[i][j] = left_i . k_j for j <= i, in whole tiles of columns.
    static void square(const float* left, const ChunkKeys& keys, const DeltaRun& run, float* out) {
        over_rows(
            run.tokens, [&](int64_t row, auto rows) __attribute__((always_inline)) {
                for (int64_t col = 0; col < row + rows.kRows; col += kStrip) {
                    Tile<rows.kRows> tile;
                    tile.clear();
                    tile.add_product(left + row * run.key_size, run.key_size, 1,
                                     keys.transposed + col, kSquare, run.key_size);
                    tile.store(out + row * kSquare + col, kSquare);
                }
            });
    }

    static void open_chunk(const DeltaRun& run, const ChunkKeys& keys) {
        const int64_t size = run.key_size;
        for (int64_t t = 0; t < run.tokens; ++t) {
            Recurrence<V>::copy(run.q + t * run.q_stride, size, keys.q + t * size);
            Recurrence<V>::copy(run.k + t * run.k_stride, size, keys.k + t * size);
        }
        for (int64_t i = 0; i < size; ++i) {
            float* column = keys.transposed + i * kSquare;
            for (int64_t t = 0; t < run.tokens; ++t) column[t] = keys.k[t * size + i];
            for (int64_t t = run.tokens; t < kSquare; ++t) column[t] = 0.0f;
        }
        square(keys.k, keys, run, keys.kk);
        square(keys.q, keys, run, keys.qk);
    }

    static void open_gates(const DeltaRun& run, const ChunkKeys& keys, const ChunkGates& gates) {
        // In f64: a strong decay must not cost the weak ones around it their digits.
        double sums[kSquare] = {};
        double sum = 0.0;
        for (int64_t i = 0; i < run.tokens; ++i) {
            const double decay = run.log_decay[i * run.decay_stride];
            sum += decay < kLowestDecay ? kLowestDecay : decay;
            sums[i] = sum;
            gates.beta[i] = run.beta[i * run.beta_stride];
        }
        float differences[kSquare] = {};
        for (int64_t i = 0; i < run.tokens; ++i) {
            const int64_t count = (i + kWidth) / kWidth * kWidth;
            for (int64_t j = 0; j < count; ++j)
                differences[j] = static_cast<float>(sums[i] - sums[j]);
            const F beta = V::set(-gates.beta[i]);
            for (int64_t j = 0; j < count; j += kWidth) {
                const int64_t at = i * kSquare + j;
                const F decay = exp_of<V>(V::load(differences + j));
                V::store(gates.mix + at, V::mul(decay, V::load(keys.qk + at)));
                V::store(gates.solve + at, V::mul(V::mul(beta, decay), V::load(keys.kk + at)));
            }
        }
        for (int64_t j = 0; j < run.tokens; ++j) differences[j] = static_cast<float>(sums[j]);
        for (int64_t j = 0; j < kSquare; j += kWidth)
            V::store(gates.since + j, exp_of<V>(V::load(differences + j)));
        for (int64_t j = 0; j < run.tokens; ++j) differences[j] = static_cast<float>(sum - sums[j]);
        for (int64_t j = 0; j < kSquare; j += kWidth)
            V::store(gates.until + j, exp_of<V>(V::load(differences + j)));
    }

    /// The live part of a row of value rows in two registers.
    static TESSERA_INLINE void load_live(const float* x, int64_t rows, F& first, F& second) {
        if (rows == kStrip) {
            first = V::load(x);
            second = V::load(x + kWidth);
            return;
        }
        float buffer[kStrip] = {};
        std::memcpy(buffer, x, static_cast<size_t>(rows) * sizeof(float));
        first = V::load(buffer);
        second = V::load(buffer + kWidth);
    }

    /// D of the tokens [row, row + kRows), those before them being known.
    template <int64_t kRows>
    static TESSERA_INLINE void solve_tile(const DeltaRun& run,
                                          const ChunkKeys& keys,
                                          const ChunkGates& gates,
                                          const float* strip,
                                          int64_t row,
                                          float* deltas) {
        Tile<kRows> tile;
        tile.clear();
        tile.add_product(keys.k + row * run.key_size, run.key_size, 1, strip, kStrip, run.key_size);
        for (int64_t r = 0; r < kRows; ++r) {
            F first, second;
            load_live(run.v + (row + r) * run.v_stride, run.rows, first, second);
            const F since = V::set(-gates.since[row + r]);
            const F beta = V::set(gates.beta[row + r]);
            tile.at[r][0] = V::mul(beta, V::fmadd(since, tile.at[r][0], first));
            tile.at[r][1] = V::mul(beta, V::fmadd(since, tile.at[r][1], second));
        }
        const float* left = gates.solve + row * kSquare;
        tile.add_product(left, kSquare, 1, deltas, kStrip, row);
        for (int64_t r = 1; r < kRows; ++r)
            for (int64_t s = 0; s < r; ++s) {
                const F element = V::set(left[r * kSquare + row + s]);
                tile.at[r][0] = V::fmadd(element, tile.at[s][0], tile.at[r][0]);
                tile.at[r][1] = V::fmadd(element, tile.at[s][1], tile.at[r][1]);
            }
        tile.store(deltas + row * kStrip, kStrip);
    }

    template <int64_t kRows>
    static TESSERA_INLINE void output_tile(const DeltaRun& run,
                                           const ChunkKeys& keys,
                                           const ChunkGates& gates,
                                           const float* strip,
                                           int64_t row,
                                           const float* deltas) {
        Tile<kRows> tile;
        tile.clear();
        tile.add_product(keys.q + row * run.key_size, run.key_size, 1, strip, kStrip, run.key_size);
        tile.scale(gates.since + row);
        const float* left = gates.mix + row * kSquare;
        tile.add_product(left, kSquare, 1, deltas, kStrip, row);
        for (int64_t s = 0; s < kRows; ++s) {
            const F first = V::load(deltas + (row + s) * kStrip);
            const F second = V::load(deltas + (row + s) * kStrip + kWidth);
            for (int64_t r = s; r < kRows; ++r) {
                const F element = V::set(left[r * kSquare + row + s]);
                tile.at[r][0] = V::fmadd(element, first, tile.at[r][0]);
                tile.at[r][1] = V::fmadd(element, second, tile.at[r][1]);
            }
        }
        const F scale = V::set(1.0f / __builtin_sqrtf(static_cast<float>(run.key_size)));
        for (int64_t r = 0; r < kRows; ++r) {
            float* out = run.out + (row + r) * run.out_stride;
            const F first = V::mul(scale, tile.at[r][0]);
            const F second = V::mul(scale, tile.at[r][1]);
            if (run.rows == kStrip) {
                V::store(out, first);
                V::store(out + kWidth, second);
            } else {
                float buffer[kStrip];
                V::store(buffer, first);
                V::store(buffer + kWidth, second);
                std::memcpy(out, buffer, static_cast<size_t>(run.rows) * sizeof(float));
            }
        }
    }

    static void run_strip(const DeltaRun& run,
                          const ChunkKeys& keys,
                          const ChunkGates& gates,
                          float* deltas,
                          float* strip) {
        over_rows(
            run.tokens, [&](int64_t row, auto rows) __attribute__((always_inline)) {
                solve_tile<rows.kRows>(run, keys, gates, strip, row, deltas);
            });
        over_rows(
            run.tokens, [&](int64_t row, auto rows) __attribute__((always_inline)) {
                output_tile<rows.kRows>(run, keys, gates, strip, row, deltas);
            });
        for (int64_t t = 0; t < run.tokens; ++t) {
            const F factor = V::set(gates.until[t]);
            for (int64_t i = 0; i < kStrip; i += kWidth) {
                float* delta = deltas + t * kStrip + i;
                V::store(delta, V::mul(factor, V::load(delta)));
            }
        }
        const F decay = V::set(gates.since[run.tokens - 1]);
        over_rows(
            run.key_size, [&](int64_t row, auto rows) __attribute__((always_inline)) {
                Tile<rows.kRows> tile;
                float* state = strip + row * kStrip;
                for (int64_t r = 0; r < rows.kRows; ++r) {
                    tile.at[r][0] = V::mul(decay, V::load(state + r * kStrip));
                    tile.at[r][1] = V::mul(decay, V::load(state + r * kStrip + kWidth));
                }
                tile.add_product(keys.k + row, 1, run.key_size, deltas, kStrip, run.tokens);
                tile.store(state, kStrip);
            });
    }

    static void load_strip(const float* state, int64_t rows, int64_t key_size, float* strip) {
        for (int64_t i = 0; i < key_size; ++i) {
            for (int64_t row = 0; row < rows; ++row)
                strip[i * kStrip + row] = state[row * key_size + i];
            for (int64_t row = rows; row < kStrip; ++row) strip[i * kStrip + row] = 0.0f;
        }
    }
    static void store_strip(const float* strip, int64_t rows, int64_t key_size, float* state) {
        for (int64_t row = 0; row < rows; ++row)
            for (int64_t i = 0; i < key_size; ++i)
                state[row * key_size + i] = strip[i * kStrip + row];
    }
};

template <class V>
constexpr RecurrentKernels make_recurrent_kernels() {
    using R = Recurrence<V>;
    using C = Chunk<V>;
    return {.strip_rows = C::kStrip,
            .block_rows = R::kRows,
            .transpose = R::transpose,
            .convolve = R::convolve,
            .advance_floats = R::advance_floats,
            .advance = R::advance,
            .open_chunk = C::open_chunk,
            .open_gates = C::open_gates,
            .run_strip = C::run_strip,
            .load_strip = C::load_strip,
            .store_strip = C::store_strip};
}

}  // namespace
}  // namespace tessera::cpu
