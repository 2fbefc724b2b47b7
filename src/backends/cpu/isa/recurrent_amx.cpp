// The chunk form of the gated delta rule on AMX-BF16 tiles: every product of matrices is one of
// operands split into two bf16 numbers (recurrent_amx_tiles.h). In f32 stays what decides the
// conditioning: the triangular solve within a block of kStep tokens; between the two blocks of a
// chunk it is a product again. While a strip is solved, the products of the next one with keys and
// queries are made step by step in between, and the rows that come next, which lie pages apart, are
// fetched a few at a time. What bounds it, measured with all of it in the second-level cache: of 29
// us a chunk and head of 128, 13 are vector work, mostly lines going to and from that cache (three
// cycles each that is written, two that is read), 11 tile products, the rest stores of tiles. They
// add up nearly in full. At most 15 writes of tiles are in flight, so vector work behind a step
// hides only behind its last instructions; and dense tile work on numbers other than zero lowers
// the clock from 3.1 to 2.5 GHz, so that what is packed more tightly gains nothing. What helps is
// to pass over less memory.
#if defined(__x86_64__)

#    include "backends/cpu/isa/recurrent_amx_tiles.h"

namespace tessera::cpu {
namespace {

using Base = Chunk<Wide512>;

static_assert(kStripRows == 32, "a strip is two tiles wide");
static_assert(kChunkTokens == 2 * kStep, "a chunk is solved in two blocks");

/// Where everything lies in ChunkKeys::tiles.
struct Areas {
    Split keys, queries;  ///< left: [kChunkTokens][key size]
    Split columns;        ///< left: [key size][kChunkTokens], keys transposed
    Split right_keys;     ///< right: two halves of tokens, [key size][kStripRows] each
    Split mix;            ///< left: ChunkGates::mix
    Split below;          ///< left: [kStep][kStep], ChunkGates::solve between the blocks
    Split strip;          ///< right: the strip whose products are being made
    Split deltas;         ///< right: D
    Split decayed;        ///< right: D decayed to the end of the chunk
    float* seen;          ///< [kChunkTokens][kStripRows] K S^T: the next strip's follows this one's
    /// [kChunkTokens][kStripRows] Q S^T of this strip and of the next one, in turn.
    float* asked[2];
    int64_t bytes = 0;

    Areas(float* tiles, int64_t key_size) {
        const auto take = [&](int64_t count) {
            std::byte* taken = reinterpret_cast<std::byte*>(tiles) + bytes;
            bytes += count;
            return taken;
        };
        const auto split = [&](int64_t numbers) {
            return Split{take(2 * numbers), take(2 * numbers)};
        };
        for (Split* part : {&keys, &queries, &columns, &right_keys})
            *part = split(kChunkTokens * key_size);
        mix = split(kChunkTokens * kChunkTokens);
        below = split(kStep * kStep);
        strip = split(key_size * kStripRows);
        deltas = split(kChunkTokens * kStripRows);
        decayed = split(kChunkTokens * kStripRows);
        for (float** area : {&seen, asked, asked + 1})
            *area = reinterpret_cast<float*>(take(4 * kChunkTokens * kStripRows));
    }
};

int64_t tile_floats(int64_t key_size) {
    float base = 0.0f;
    return Areas(&base, key_size).bytes / 4;
}

bool fits(const DeltaRun& run) {
    return run.key_size % kStep == 0;
}

/// Fetches the upcoming rows of a run in about kCalls portions of whole rows.
class Ahead {
  public:
    explicit Ahead(const DeltaRun& run)
        : at_(run.upcoming), end_(run.upcoming + run.upcoming_count) {
        int64_t lines = 0;
        for (const Upcoming* next = at_; next != end_; ++next)
            lines += next->rows * lines_of(*next);
        portion_ = (lines + kCalls - 1) / kCalls;
    }
    TESSERA_INLINE void some() {
        for (int64_t lines = 0; lines < portion_ && at_ != end_;) {
            if (row_ == at_->rows) {
                row_ = 0;
                ++at_;
                continue;
            }
            const float* x = at_->x + row_++ * at_->stride;
            const int64_t floats = at_->floats;
            for (int64_t i = 0; i < floats; i += kLane) __builtin_prefetch(x + i, 0, 2);
            lines += lines_of(*at_);
        }
    }

  private:
    static constexpr int64_t kCalls = 24;
    static int64_t lines_of(const Upcoming& next) { return (next.floats + kLane - 1) / kLane; }
    const Upcoming* at_;
    const Upcoming* end_;
    int64_t row_ = 0, portion_ = 0;
};

// ---- products ----

/// out[i][j] = rows_i . k_j, j <= i, for half `half` of the tokens i.
void square(const Areas& areas, const Split& rows, int64_t key_size, int64_t half, float* out) {
    const int64_t steps = key_size / kStep, pitch = steps * kTileBytes;
    for (int64_t col = 0; col <= half; ++col)
        multiply({{rows.at(half * 2 * pitch), 1, steps, pitch},
                  areas.right_keys.at(col * 2 * pitch),
                  out + half * kStep * kChunkTokens + col * kStep,
                  kChunkTokens,
                  col == half ? Product::kLower : Product::kPlain},
                 [](int64_t, int64_t) {});
}

/// By halves: what one part makes is still in the first cache when the next one takes it.
void open_chunk(const DeltaRun& run, const ChunkKeys& keys) {
    if (!fits(run)) return Base::open_chunk(run, keys);
    const Areas areas(keys.tiles, run.key_size);
    for (int64_t half = 0; half * kStep < run.tokens; ++half) {
        const int64_t token = half * kStep, at = 2 * token * run.key_size;
        const Split k = areas.keys.at(at), q = areas.queries.at(at);
        const Split right = areas.right_keys.at(at);
        const int64_t live = run.tokens - token;
        split_rows(run.k + token * run.k_stride, run.k_stride, live, run.key_size, k);
        turn_keys(k.high, run.key_size, half, right.high, areas.columns.high);
        turn_keys(k.low, run.key_size, half, right.low, areas.columns.low);
        square(areas, areas.keys, run.key_size, half, keys.kk);
        split_rows(run.q + token * run.q_stride, run.q_stride, live, run.key_size, q);
        square(areas, areas.queries, run.key_size, half, keys.qk);
    }
}

/// Like the gates of other instruction sets, but with squares by rows, [i][j], and zeros right of
/// the diagonal.
void open_gates(const DeltaRun& run, const ChunkKeys& keys, const ChunkGates& gates) {
    if (!fits(run)) return Base::open_gates(run, keys, gates);
    alignas(64) double sums[kChunkTokens];
    Base::open_tokens(run, gates, sums);
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    for (int64_t i = 0; i < kChunkTokens; ++i) {
        const __m512d sum = _mm512_set1_pd(sums[i]);
        const __m512 beta = _mm512_set1_ps(-gates.beta[i]);
        for (int64_t j = 0; j < kChunkTokens; j += kLane) {
            const int64_t at = i * kChunkTokens + j;
            if (j > i || i >= run.tokens) {
                _mm512_store_ps(gates.mix + at, _mm512_setzero_ps());
                _mm512_store_ps(gates.solve + at, _mm512_setzero_ps());
                continue;
            }
            const __m256 low = _mm512_cvtpd_ps(_mm512_sub_pd(sum, _mm512_load_pd(sums + j)));
            const __m256 high = _mm512_cvtpd_ps(_mm512_sub_pd(sum, _mm512_load_pd(sums + j + 8)));
            const __m512 decay =
                exp_of<Wide512>(_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1));
            const __m512i diagonal = _mm512_set1_epi32(static_cast<int32_t>(i - j));
            const __mmask16 upto = _mm512_cmple_epi32_mask(lanes, diagonal);
            const __mmask16 before = _mm512_cmplt_epi32_mask(lanes, diagonal);
            _mm512_store_ps(gates.mix + at,
                            _mm512_maskz_mul_ps(upto, decay, _mm512_load_ps(keys.qk + at)));
            _mm512_store_ps(gates.solve + at,
                            _mm512_maskz_mul_ps(before, _mm512_mul_ps(beta, decay),
                                                _mm512_load_ps(keys.kk + at)));
        }
    }
    const Areas areas(keys.tiles, run.key_size);
    const float* lower = gates.mix + kStep * kChunkTokens;
    split_rows(gates.mix, kChunkTokens, kStep, kChunkTokens, areas.mix);
    split_rows(lower, kChunkTokens, kStep, kChunkTokens, areas.mix.at(4 * kTileBytes));
    split_rows(gates.solve + kStep * kChunkTokens, kChunkTokens, kStep, kStep, areas.below);
}

// ---- a strip ----

/// K S^T and Q S^T of a strip S, made a few steps at a time. Behind them S is decayed: it is in the
/// first cache then.
class StripProducts {
  public:
    /// `strip` null: nothing to do.
    StripProducts(
        const Areas& areas, float* strip, float decay, int64_t size, int64_t tokens, int64_t side)
        : strip_(strip),
          decay_(decay),
          steps_(size / kStep),
          out_(areas.strip),
          seen_({areas.keys, tokens / kStep, steps_, steps_ * kTileBytes},
                areas.strip,
                areas.seen,
                kStripRows,
                Product::kPlain),
          asked_({areas.queries, tokens / kStep, steps_, steps_ * kTileBytes},
                 areas.strip,
                 areas.asked[side],
                 kStripRows,
                 Product::kPlain) {}
    /// The steps up to part / of. After a half and after all of them the tiles are free.
    TESSERA_INLINE void upto(int64_t part, int64_t of) {
        if (strip_ == nullptr) return;
        const int64_t until = 2 * seen_.steps() * part / of;
        for (; step_ < until; ++step_) {
            if (step_ < steps_) take(step_);
            if (step_ < asked_.steps())
                asked_.step();
            else
                seen_.step();
        }
    }

  private:
    TESSERA_INLINE void take(int64_t step) const {
        float* rows = strip_ + step * kStep * kStripRows;
        split_strip(rows, out_.at(step * 2 * kTileBytes));
        if (decay_ == 1.0f) return;
        const __m512 decay = _mm512_set1_ps(decay_);
        for (int64_t i = 0; i < kStep * kStripRows; i += kLane)
            _mm512_store_ps(rows + i, _mm512_mul_ps(decay, _mm512_load_ps(rows + i)));
    }

    float* strip_;
    float decay_;
    int64_t steps_;
    Split out_;
    Product seen_, asked_;
    int64_t step_ = 0;
};

/// The masked product row by row: on tiles the zeros of the mask would carry a NaN or an infinity
/// of a later token to an earlier one. In place, so from the last row on.
void mix_by_rows(const ChunkGates& gates, int64_t tokens, float* deltas) {
    for (int64_t i = tokens - 1; i >= 0; --i)
        for (int64_t half = 0; half < kStripRows; half += kLane) {
            __m512 sum = _mm512_setzero_ps();
            for (int64_t j = 0; j <= i; ++j)
                sum = _mm512_fmadd_ps(_mm512_set1_ps(gates.mix[i * kChunkTokens + j]),
                                      _mm512_load_ps(deltas + j * kStripRows + half), sum);
            _mm512_store_ps(deltas + i * kStripRows + half, sum);
        }
}

/// One chunk through one strip.
class StripRun {
  public:
    StripRun(const DeltaRun& run,
             const Areas& areas,
             const ChunkGates& gates,
             float* deltas,
             float* strip)
        : run_(run),
          areas_(areas),
          gates_(gates),
          deltas_(deltas),
          strip_(strip),
          seen_(areas.seen),
          asked_(areas.asked[run.order % 2]),
          tokens_((run.tokens + kStep - 1) / kStep * kStep),
          decay_(gates.since[run.tokens - 1]),
          decayed_(run.order == 0 || run.of_same_head),
          next_(areas,
                run.next_strip,
                run.next_of_head ? decay_ : 1.0f,
                run.key_size,
                tokens_,
                (run.order + 1) % 2),
          ahead_(run) {}

    void run() {
        if (run_.order == 0) {
            StripProducts own(areas_, strip_, decay_, run_.key_size, tokens_, 0);
            own.upto(1, 1);
        }
        solve_block(0);
        split_strip(deltas_, areas_.deltas);
        if (tokens_ > kStep) {
            multiply({{areas_.below, 1, 1, kTileBytes},
                      areas_.deltas,
                      deltas_ + kBlock,
                      kStripRows,
                      Product::kPlain},
                     [](int64_t, int64_t) {});
            solve_block(kStep);
            split_strip(deltas_ + kBlock, areas_.deltas.at(2 * kTileBytes));
        }
        mix();
        gain();
    }

  private:
    static constexpr int64_t kBlock = kStep * kStripRows;
    static constexpr int64_t kRows = Base::kTile;
    static constexpr int64_t kPitch = kChunkTokens / kStep * kTileBytes;

    /// V - exp(G) K S^T times beta of kRows tokens, plus what the block before adds. Dead tokens
    /// get zeros.
    TESSERA_INLINE void start_rows(int64_t row) {
        for (int64_t t = row; t < row + kRows; ++t) {
            __m512 at[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
            if (t < run_.tokens) {
                Base::load_live(run_.v + t * run_.v_stride, run_.rows, at[0], at[1]);
                const __m512 since = _mm512_set1_ps(-gates_.since[t]);
                const __m512 beta = _mm512_set1_ps(gates_.beta[t]);
                for (int64_t half = 0; half < 2; ++half) {
                    const int64_t place = t * kStripRows + half * kLane;
                    at[half] = _mm512_mul_ps(
                        beta, _mm512_fmadd_ps(since, _mm512_load_ps(seen_ + place), at[half]));
                    if (row >= kStep)
                        at[half] = _mm512_add_ps(at[half], _mm512_load_ps(deltas_ + place));
                }
            }
            _mm512_store_ps(deltas_ + t * kStripRows, at[0]);
            _mm512_store_ps(deltas_ + t * kStripRows + kLane, at[1]);
        }
    }
    /// D of kRows tokens, those from `first` on being known.
    TESSERA_INLINE void solve_rows(int64_t first, int64_t row) {
        __m512 at[kRows][2];
        float* out = deltas_ + row * kStripRows;
#    pragma GCC unroll 8
        for (int64_t r = 0; r < kRows; ++r) {
            at[r][0] = _mm512_load_ps(out + r * kStripRows);
            at[r][1] = _mm512_load_ps(out + r * kStripRows + kLane);
        }
        const float* left = gates_.solve + row * kChunkTokens;
        for (int64_t j = first; j < row; ++j) {
            const __m512 one = _mm512_load_ps(deltas_ + j * kStripRows);
            const __m512 two = _mm512_load_ps(deltas_ + j * kStripRows + kLane);
#    pragma GCC unroll 8
            for (int64_t r = 0; r < kRows; ++r) {
                const __m512 element = _mm512_set1_ps(left[r * kChunkTokens + j]);
                at[r][0] = _mm512_fmadd_ps(element, one, at[r][0]);
                at[r][1] = _mm512_fmadd_ps(element, two, at[r][1]);
            }
        }
#    pragma GCC unroll 8
        for (int64_t s = 0; s < kRows; ++s) {
            found_ |= _mm512_fpclass_ps_mask(at[s][0], kNanOrInfinite) |
                      _mm512_fpclass_ps_mask(at[s][1], kNanOrInfinite);
            _mm512_store_ps(out + s * kStripRows, at[s][0]);
            _mm512_store_ps(out + s * kStripRows + kLane, at[s][1]);
#    pragma GCC unroll 8
            for (int64_t r = s + 1; r < kRows; ++r) {
                const __m512 element = _mm512_set1_ps(left[r * kChunkTokens + row + s]);
                at[r][0] = _mm512_fmadd_ps(element, at[s][0], at[r][0]);
                at[r][1] = _mm512_fmadd_ps(element, at[s][1], at[r][1]);
            }
        }
    }
    void solve_block(int64_t first) {
        const int64_t groups = tokens_ / kRows;
        for (int64_t row = first; row < first + kStep; row += kRows) {
            const int64_t group = row / kRows;
            start_rows(row);
            ahead_.some();
            next_.upto(2 * group + 1, 2 * groups);
            solve_rows(first, row);
            if (!decayed_) decay_strip(group, groups);
            ahead_.some();
            next_.upto(2 * group + 2, 2 * groups);
        }
    }
    TESSERA_INLINE void decay_strip(int64_t part, int64_t of) {
        const __m512 decay = _mm512_set1_ps(decay_);
        const int64_t rows = run_.key_size / of;
        float* x = strip_ + part * rows * kStripRows;
        for (int64_t i = 0; i < rows * kStripRows; i += kLane)
            _mm512_store_ps(x + i, _mm512_mul_ps(decay, _mm512_load_ps(x + i)));
    }
    /// D decayed to the end of the chunk: tokens [begin, end) of those in the first halves of
    /// steps, and the ones 16 behind them.
    TESSERA_INLINE void split_decayed(int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            const __m512 until = _mm512_set1_ps(gates_.until[t]);
            const __m512 later = _mm512_set1_ps(gates_.until[t + 16]);
            for (int64_t half = 0; half < 2; ++half) {
                const float* delta = deltas_ + t * kStripRows + half * kLane;
                split_words(_mm512_mul_ps(until, _mm512_load_ps(delta)),
                            _mm512_mul_ps(later, _mm512_load_ps(delta + 16 * kStripRows)),
                            (t / kStep * 2 + half) * kTileBytes + t % 16 * 64, areas_.decayed);
            }
        }
    }
    /// D decayed, and P D in place of D.
    void mix() {
        if (found_ != 0) {
            for (int64_t t = 0; t < tokens_; t += kStep) split_decayed(t, t + 16);
            return mix_by_rows(gates_, run_.tokens, deltas_);
        }
        multiply({{areas_.mix, 1, 1, kPitch}, areas_.deltas, deltas_, kStripRows, Product::kPlain},
                 [&](int64_t, int64_t) { split_decayed(0, 16); });
        if (tokens_ == kStep) return;
        multiply({{areas_.mix.at(2 * kPitch), 1, 2, kPitch},
                  areas_.deltas,
                  deltas_ + kBlock,
                  kStripRows,
                  Product::kPlain},
                 [&](int64_t step, int64_t) {
                     ahead_.some();
                     split_decayed(kStep + step * 8, kStep + step * 8 + 8);
                 });
    }
    /// The new state; meanwhile the output is written.
    void gain() {
        const __m512 scale =
            _mm512_set1_ps(1.0f / __builtin_sqrtf(static_cast<float>(run_.key_size)));
        multiply({{areas_.columns, run_.key_size / kStep, tokens_ / kStep, kPitch},
                  areas_.decayed,
                  strip_,
                  kStripRows,
                  Product::kOnto},
                 [&](int64_t step, int64_t steps) {
                     ahead_.some();
                     put_output(run_.tokens * step / steps, run_.tokens * (step + 1) / steps,
                                scale);
                 });
    }
    TESSERA_INLINE void put_output(int64_t begin, int64_t end, __m512 scale) {
        for (int64_t t = begin; t < end; ++t) {
            const __m512 since = _mm512_set1_ps(gates_.since[t]);
            __m512 at[2];
            for (int64_t half = 0; half < 2; ++half) {
                const int64_t place = t * kStripRows + half * kLane;
                at[half] =
                    _mm512_mul_ps(scale, _mm512_fmadd_ps(since, _mm512_load_ps(asked_ + place),
                                                         _mm512_load_ps(deltas_ + place)));
            }
            Base::store_live(at[0], at[1], run_.rows, run_.out + t * run_.out_stride);
        }
    }

    static constexpr int kNanOrInfinite = 0x99;
    const DeltaRun& run_;
    const Areas& areas_;
    const ChunkGates& gates_;
    float* deltas_;
    float* strip_;
    const float* seen_;
    const float* asked_;
    const int64_t tokens_;
    const float decay_;
    const bool decayed_;  ///< by the products of the strip
    StripProducts next_;
    Ahead ahead_;
    unsigned found_ = 0;  ///< lanes of D that are not finite
};

void run_strip(const DeltaRun& run,
               const ChunkKeys& keys,
               const ChunkGates& gates,
               float* deltas,
               float* strip) {
    if (!fits(run)) return Base::run_strip(run, keys, gates, deltas, strip);
    const Areas areas(keys.tiles, run.key_size);
    StripRun(run, areas, gates, deltas, strip).run();
}

bool whole(int64_t rows, int64_t key_size) {
    return rows == kStripRows && key_size % 16 == 0;
}
void load_strip(const float* state, int64_t rows, int64_t key_size, float* strip) {
    if (!whole(rows, key_size)) return Base::load_strip(state, rows, key_size, strip);
    transpose_floats(state, key_size, rows, key_size, strip, kStripRows);
}
void store_strip(const float* strip, int64_t rows, int64_t key_size, float* state) {
    if (!whole(rows, key_size)) return Base::store_strip(strip, rows, key_size, state);
    transpose_floats(strip, kStripRows, key_size, rows, state, key_size);
}

}  // namespace

const RecurrentKernels& recurrent_kernels_amx() {
    static const RecurrentKernels kKernels = [] {
        RecurrentKernels kernels = make_recurrent_kernels<Wide512>();
        kernels.tile_floats = tile_floats;
        kernels.enter = enter_tiles;
        kernels.leave = leave_tiles;
        kernels.open_chunk = open_chunk;
        kernels.open_gates = open_gates;
        kernels.run_strip = run_strip;
        kernels.load_strip = load_strip;
        kernels.store_strip = store_strip;
        return kernels;
    }();
    return kKernels;
}

}  // namespace tessera::cpu

#endif
