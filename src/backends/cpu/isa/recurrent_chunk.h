#pragma once
// The chunk form of the gated delta rule (ops.h, gated_delta_rule), written once over a register
// type V. W-free: D is solved from V - exp(G) K S^T directly, so that no second C x C x value-size
// product is needed. Everything is an outer-product tile of kTile tokens (or key elements) by two
// registers of value rows, bound by multiply-adds; an element's sum runs over its terms in rising
// order whatever the tile, so neither the length of a chunk nor the place of a row shows in the
// bits. Nothing right of a diagonal is read: a NaN of a later token cannot reach an earlier one.
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
    static_assert(kSquare % kStrip == 0 && kWidth % kTile == 0, "squares are whole tiles");

    template <int64_t kRows>
    struct Tile {
        F at[kRows][2];

        TESSERA_INLINE void clear() {
            for (int64_t r = 0; r < kRows; ++r) at[r][0] = at[r][1] = V::zero();
        }
        /// at[r] += sum_i left[i * kTile + r] * right[i * stride ..].
        TESSERA_INLINE void add_product(const float* left,
                                        const float* right,
                                        int64_t stride,
                                        int64_t count) {
            for (int64_t i = 0; i < count; ++i) {
                const F first = V::load(right + i * stride);
                const F second = V::load(right + i * stride + kWidth);
                for (int64_t r = 0; r < kRows; ++r) {
                    const F element = V::set(left[i * kTile + r]);
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

    /// Where element `i` of rows kept in tiles stands: tile after tile, `depth` entries each.
    static int64_t in_tile(int64_t i, int64_t depth) {
        return i / kTile * kTile * depth + i % kTile;
    }

    /// out[j][i] = right_i . k_j for i >= j, in whole tiles of columns.
    static void square(const DeltaRun& run, const float* k_rows, const float* right, float* out) {
        over_rows(
            run.tokens, [&](int64_t row, auto rows) __attribute__((always_inline)) {
                for (int64_t col = row / kStrip * kStrip; col < run.tokens; col += kStrip) {
                    Tile<rows.kRows> tile;
                    tile.clear();
                    tile.add_product(k_rows + in_tile(row, run.key_size), right + col, kSquare,
                                     run.key_size);
                    tile.store(out + row * kSquare + col, kSquare);
                }
            });
    }

    /// [tokens][key size] to [key size][kChunkTokens], zeros behind the tokens, and to tiles.
    static void pack_rows(
        const float* x, int64_t stride, const DeltaRun& run, float* transposed, float* tiles) {
        const int64_t size = run.key_size;
        Recurrence<V>::transpose(x, stride, {run.tokens, size, kSquare}, transposed);
        for (int64_t i = 0; run.tokens < kSquare && i < size; ++i)
            for (int64_t t = run.tokens; t < kSquare; ++t) transposed[i * kSquare + t] = 0.0f;
        for (int64_t t = 0; t < run.tokens; t += kTile)
            for (int64_t i = 0; i < size; ++i)
                std::memcpy(tiles + t * size + i * kTile, transposed + i * kSquare + t,
                            kTile * sizeof(float));
    }

    static void open_chunk(const DeltaRun& run, const ChunkKeys& keys) {
        pack_rows(run.q, run.q_stride, run, keys.q_transposed, keys.q_rows);
        pack_rows(run.k, run.k_stride, run, keys.k_transposed, keys.k_rows);
        for (int64_t i = 0; i < run.key_size; i += kTile) {
            const int64_t live = run.key_size - i < kTile ? run.key_size - i : kTile;
            for (int64_t t = 0; t < run.tokens; ++t)
                std::memcpy(keys.k_cols + i * kSquare + t * kTile, run.k + t * run.k_stride + i,
                            static_cast<size_t>(live) * sizeof(float));
        }
        square(run, keys.k_rows, keys.k_transposed, keys.kk);
        square(run, keys.k_rows, keys.q_transposed, keys.qk);
    }

    static TESSERA_INLINE void store_tiles(F value, int64_t i, int64_t j, float* square) {
        float buffer[kWidth];
        V::store(buffer, value);
        for (int64_t part = 0; part < kWidth; part += kTile)
            std::memcpy(square + (i + part) * kSquare + j * kTile, buffer + part,
                        kTile * sizeof(float));
    }

    static void exponentials(const double* x, double from, float* out) {
        for (int64_t i = 0; i < kSquare; ++i) out[i] = static_cast<float>(from + x[i]);
        for (int64_t i = 0; i < kSquare; i += kWidth)
            V::store(out + i, exp_of<V>(V::load(out + i)));
    }

    /// since, until and beta; `sums`: of the decays up to each token, the last one's behind it.
    static void open_tokens(const DeltaRun& run, const ChunkGates& gates, double* sums) {
        // In f64: a strong decay must not cost the weak ones around it their digits.
        double sum = 0.0, negative[kSquare];
        for (int64_t i = 0; i < kSquare; ++i) {
            gates.beta[i] = 0.0f;
            if (i < run.tokens) {
                const double decay = run.log_decay[i * run.decay_stride];
                sum += decay < kLowestDecay ? kLowestDecay : decay;
                gates.beta[i] = run.beta[i * run.beta_stride];
            }
            sums[i] = sum;
            negative[i] = -sum;
        }
        exponentials(sums, 0.0, gates.since);
        exponentials(negative, sum, gates.until);
    }

    static void open_gates(const DeltaRun& run, const ChunkKeys& keys, const ChunkGates& gates) {
        double sums[kSquare];
        open_tokens(run, gates, sums);
        float differences[kSquare];
        for (int64_t j = 0; j < run.tokens; ++j) {
            const int64_t begin = j / kWidth * kWidth;
            for (int64_t i = begin; i < kSquare; ++i)
                differences[i] = static_cast<float>(sums[i] - sums[j]);
            for (int64_t i = begin; i < run.tokens; i += kWidth) {
                const F decay = exp_of<V>(V::load(differences + i));
                const F beta = V::sub(V::zero(), V::load(gates.beta + i));
                const int64_t at = j * kSquare + i;
                store_tiles(V::mul(decay, V::load(keys.qk + at)), i, j, gates.mix);
                store_tiles(V::mul(V::mul(beta, decay), V::load(keys.kk + at)), i, j, gates.solve);
            }
        }
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

    static TESSERA_INLINE void store_live(F first, F second, int64_t rows, float* out) {
        if (rows == kStrip) {
            V::store(out, first);
            V::store(out + kWidth, second);
            return;
        }
        float buffer[kStrip];
        V::store(buffer, first);
        V::store(buffer + kWidth, second);
        std::memcpy(out, buffer, static_cast<size_t>(rows) * sizeof(float));
    }

    static void fetch(const DeltaRun& run, int64_t row, int64_t rows) {
        constexpr int64_t kLine = 16;
        for (int64_t k = 0; k < run.upcoming_count; ++k) {
            const Upcoming& next = run.upcoming[k];
            for (int64_t r = row; r < row + rows && r < next.rows; ++r)
                for (int64_t i = 0; i < next.floats; i += kLine)
                    __builtin_prefetch(next.x + r * next.stride + i, 0, 2);
        }
    }

    /// Products of tokens with a strip, [tokens][kStrip]: made tile by tile as they are needed.
    struct StripProduct {
        const float* tokens;  ///< in tiles
        const float* strip;
        template <int64_t kRows>
        TESSERA_INLINE void load(int64_t row, int64_t key_size, Tile<kRows>& tile) const {
            tile.clear();
            tile.add_product(tokens + in_tile(row, key_size), strip, kStrip, key_size);
        }
    };
    /// D of the tokens [row, row + kRows), those before them being known. `seen`: K S^T.
    template <int64_t kRows, class Product>
    static TESSERA_INLINE void solve_tile(const DeltaRun& run,
                                          const ChunkGates& gates,
                                          const Product& seen,
                                          int64_t row,
                                          float* deltas) {
        fetch(run, row, kRows);
        Tile<kRows> tile;
        seen.load(row, run.key_size, tile);
        for (int64_t r = 0; r < kRows; ++r) {
            F first, second;
            load_live(run.v + (row + r) * run.v_stride, run.rows, first, second);
            const F since = V::set(-gates.since[row + r]);
            const F beta = V::set(gates.beta[row + r]);
            tile.at[r][0] = V::mul(beta, V::fmadd(since, tile.at[r][0], first));
            tile.at[r][1] = V::mul(beta, V::fmadd(since, tile.at[r][1], second));
        }
        const float* left = gates.solve + in_tile(row, kSquare);
        tile.add_product(left, deltas, kStrip, row);
        for (int64_t r = 1; r < kRows; ++r)
            for (int64_t s = 0; s < r; ++s) {
                const F element = V::set(left[(row + s) * kTile + r]);
                tile.at[r][0] = V::fmadd(element, tile.at[s][0], tile.at[r][0]);
                tile.at[r][1] = V::fmadd(element, tile.at[s][1], tile.at[r][1]);
            }
        tile.store(deltas + row * kStrip, kStrip);
    }

    /// `asked`: Q S^T.
    template <int64_t kRows, class Product>
    static TESSERA_INLINE void output_tile(const DeltaRun& run,
                                           const ChunkGates& gates,
                                           const Product& asked,
                                           int64_t row,
                                           const float* deltas) {
        Tile<kRows> tile;
        asked.load(row, run.key_size, tile);
        tile.scale(gates.since + row);
        const float* left = gates.mix + in_tile(row, kSquare);
        tile.add_product(left, deltas, kStrip, row);
        for (int64_t s = 0; s < kRows; ++s) {
            const F first = V::load(deltas + (row + s) * kStrip);
            const F second = V::load(deltas + (row + s) * kStrip + kWidth);
            for (int64_t r = s; r < kRows; ++r) {
                const F element = V::set(left[(row + s) * kTile + r]);
                tile.at[r][0] = V::fmadd(element, first, tile.at[r][0]);
                tile.at[r][1] = V::fmadd(element, second, tile.at[r][1]);
            }
        }
        const F scale = V::set(1.0f / __builtin_sqrtf(static_cast<float>(run.key_size)));
        for (int64_t r = 0; r < kRows; ++r) {
            store_live(V::mul(scale, tile.at[r][0]), V::mul(scale, tile.at[r][1]), run.rows,
                       run.out + (row + r) * run.out_stride);
        }
    }

    /// D and the output of a chunk; D of every token is left decayed to the end of the chunk.
    template <class Product>
    static TESSERA_INLINE void solve_and_output(const DeltaRun& run,
                                                const ChunkGates& gates,
                                                const Product& seen,
                                                const Product& asked,
                                                float* deltas) {
        over_rows(
            run.tokens, [&](int64_t row, auto rows) __attribute__((always_inline)) {
                solve_tile<rows.kRows>(run, gates, seen, row, deltas);
            });
        over_rows(
            run.tokens, [&](int64_t row, auto rows) __attribute__((always_inline)) {
                output_tile<rows.kRows>(run, gates, asked, row, deltas);
            });
        for (int64_t t = 0; t < run.tokens; ++t) {
            const F factor = V::set(gates.until[t]);
            for (int64_t i = 0; i < kStrip; i += kWidth) {
                float* delta = deltas + t * kStrip + i;
                V::store(delta, V::mul(factor, V::load(delta)));
            }
        }
    }

    static void run_strip(const DeltaRun& run,
                          const ChunkKeys& keys,
                          const ChunkGates& gates,
                          float* deltas,
                          float* strip) {
        solve_and_output(run, gates, StripProduct{keys.k_rows, strip},
                         StripProduct{keys.q_rows, strip}, deltas);
        const F decay = V::set(gates.since[run.tokens - 1]);
        over_rows(
            run.key_size, [&](int64_t row, auto rows) __attribute__((always_inline)) {
                Tile<rows.kRows> tile;
                float* state = strip + row * kStrip;
                for (int64_t r = 0; r < rows.kRows; ++r) {
                    tile.at[r][0] = V::mul(decay, V::load(state + r * kStrip));
                    tile.at[r][1] = V::mul(decay, V::load(state + r * kStrip + kWidth));
                }
                tile.add_product(keys.k_cols + in_tile(row, kSquare), deltas, kStrip, run.tokens);
                tile.store(state, kStrip);
            });
    }

    static void load_strip(const float* state, int64_t rows, int64_t key_size, float* strip) {
        Recurrence<V>::transpose(state, key_size, {rows, key_size, kStrip}, strip);
        for (int64_t i = 0; rows < kStrip && i < key_size; ++i)
            for (int64_t row = rows; row < kStrip; ++row) strip[i * kStrip + row] = 0.0f;
    }
    static void store_strip(const float* strip, int64_t rows, int64_t key_size, float* state) {
        Recurrence<V>::transpose(strip, kStrip, {key_size, rows, key_size}, state);
    }
};

template <class V>
constexpr RecurrentKernels make_recurrent_kernels() {
    using R = Recurrence<V>;
    using C = Chunk<V>;
    return {.strip_rows = C::kStrip,
            .tile_rows = R::kRows,
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
