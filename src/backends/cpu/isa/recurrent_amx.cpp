// The chunk form of the gated delta rule on AMX-BF16 tiles: every product of matrices is one of
// operands split into two bf16 numbers (recurrent_amx_tiles.h). In f32 stays what decides the
// conditioning: the triangular solve within a block of kStep tokens; between the two blocks of a
// chunk it is a product again. Where sums cancel, a third number makes the products exact
// (recurrent_amx_open.h: kMostOfRow). While a strip is solved, the products of the next one with
// keys and queries are made step by step in between, and the rows that come next, which lie pages
// apart, are fetched a few at a time. What bounds it, measured with all of it in the second-level
// cache: of 29 us a chunk and head of 128 (27 since fewer passes are made), 13 were vector work,
// mostly lines going to and from that cache (three cycles each that is written, two that is read),
// 11 tile products, the rest stores of tiles. They add up nearly in full. At most 15 writes of
// tiles are in flight, so vector work behind a step hides only behind its last instructions; and
// dense tile work on numbers other than zero lowers the clock from 3.1 to 2.5 GHz, so that what is
// packed more tightly gains nothing. What helps is to pass over less memory.
#if defined(__x86_64__)

#    include <bit>

#    include "backends/cpu/isa/recurrent_amx_open.h"

namespace tessera::cpu {
namespace {

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
          seen_({areas.keys.main, tokens / kStep, steps_, steps_ * kTileBytes},
                areas.strip,
                areas.seen,
                kStripRows,
                Product::kPlain),
          asked_({areas.queries.main, tokens / kStep, steps_, steps_ * kTileBytes},
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
void mix_by_rows(const Split& mix, int64_t tokens, float* deltas) {
    const auto element = [&](int64_t i, int64_t j) {
        const int64_t at = word_of(i, j / kStep) + j % 16 * 4 + j / 16 % 2 * 2;
        float sum = 0.0f;
        for (const std::byte* part : {mix.high, mix.low}) {
            uint16_t bits = 0;
            std::memcpy(&bits, part + at, sizeof(bits));
            sum += std::bit_cast<float>(uint32_t{bits} << 16);
        }
        return sum;
    };
    for (int64_t i = tokens - 1; i >= 0; --i) {
        __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        for (int64_t j = 0; j <= i; ++j)
            for (int64_t half = 0; half < 2; ++half)
                sums[half] = _mm512_fmadd_ps(_mm512_set1_ps(element(i, j)),
                                             _mm512_load_ps(deltas + j * kStripRows + half * kLane),
                                             sums[half]);
        _mm512_store_ps(deltas + i * kStripRows, sums[0]);
        _mm512_store_ps(deltas + i * kStripRows + kLane, sums[1]);
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
          exact_(areas.marks->exact_from < run.tokens),
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
        split_deltas(0);
        if (tokens_ > kStep) {
            multiply({{areas_.below, 1, 1, kTileBytes},
                      areas_.deltas.main,
                      deltas_ + kBlock,
                      kStripRows,
                      Product::kPlain},
                     [](int64_t, int64_t) {});
            if (exact_)
                add_rest({areas_.late_below, 1, 1, kTileBytes}, areas_.deltas, deltas_ + kBlock,
                         kStripRows);
            solve_block(kStep);
            split_deltas(1);
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
    TESSERA_INLINE void split_deltas(int64_t block) {
        const Thirds out = areas_.deltas.at(block * 2 * kTileBytes);
        if (exact_)
            split_strip(deltas_ + block * kBlock, out);
        else
            split_strip(deltas_ + block * kBlock, out.main);
    }
    /// D decayed to the end of the chunk: tokens [begin, end) of those in the first halves of
    /// steps, and the ones 16 behind them.
    template <class Parts>
    TESSERA_INLINE void split_decayed(int64_t begin, int64_t end, const Parts& out) {
        for (int64_t t = begin; t < end; ++t) {
            const __m512 until = _mm512_set1_ps(gates_.until[t]);
            const __m512 later = _mm512_set1_ps(gates_.until[t + 16]);
            for (int64_t half = 0; half < 2; ++half) {
                const float* delta = deltas_ + t * kStripRows + half * kLane;
                split_words(_mm512_mul_ps(until, _mm512_load_ps(delta)),
                            _mm512_mul_ps(later, _mm512_load_ps(delta + 16 * kStripRows)),
                            (t / kStep * 2 + half) * kTileBytes + t % 16 * 64, out);
            }
        }
    }
    /// D decayed, and P D in place of D.
    void mix() {
        const Split& decayed = areas_.decayed.main;
        if (exact_)
            for (int64_t t = 0; t < tokens_; t += kStep) split_decayed(t, t + 16, areas_.decayed);
        else if (found_ != 0)
            for (int64_t t = 0; t < tokens_; t += kStep) split_decayed(t, t + 16, decayed);
        if (found_ != 0) return mix_by_rows(areas_.mix, run_.tokens, deltas_);
        const Split& deltas = areas_.deltas.main;
        multiply({{areas_.mix, 1, 1, kPitch}, deltas, deltas_, kStripRows, Product::kPlain},
                 [&](int64_t, int64_t) {
                     if (!exact_) split_decayed(0, 16, decayed);
                 });
        if (tokens_ > kStep)
            multiply({{areas_.mix.at(2 * kPitch), 1, 2, kPitch},
                      deltas,
                      deltas_ + kBlock,
                      kStripRows,
                      Product::kPlain},
                     [&](int64_t step, int64_t) {
                         ahead_.some();
                         const int64_t t = kStep + step * 8;
                         if (!exact_) split_decayed(t, t + 8, decayed);
                     });
        const int64_t blocks = tokens_ / kStep;
        if (exact_)
            add_rest({areas_.late_mix, blocks, blocks, kPitch}, areas_.deltas, deltas_, kStripRows);
    }
    /// The new state; meanwhile the output is written.
    void gain() {
        const __m512 scale =
            _mm512_set1_ps(1.0f / __builtin_sqrtf(static_cast<float>(run_.key_size)));
        const int64_t pairs = run_.key_size / kStep, steps = tokens_ / kStep;
        multiply({{areas_.columns.main, pairs, steps, kPitch},
                  areas_.decayed.main,
                  strip_,
                  kStripRows,
                  Product::kOnto},
                 [&](int64_t step, int64_t of) {
                     ahead_.some();
                     put_output(run_.tokens * step / of, run_.tokens * (step + 1) / of, scale);
                 });
        if (exact_)
            add_rest({areas_.columns, pairs, steps, kPitch}, areas_.decayed, strip_, kStripRows);
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
    const bool exact_;    ///< from Marks::exact_from on
    StripProducts next_;
    Ahead ahead_;
    unsigned found_ = 0;  ///< lanes of D that are not finite
};

/// Decays make ever smaller numbers: what is below the range of normal ones counts as 0, as it does
/// in tiles. An operation on such a number, or with such a result, would take 150 cycles.
constexpr unsigned kFlushDenormals = 0x8040;  ///< of MXCSR: results (bit 15) and operands (bit 6)

void enter() {
    enter_tiles();
    _mm_setcsr(_mm_getcsr() | kFlushDenormals);
}
void leave() {
    _mm_setcsr(_mm_getcsr() & ~kFlushDenormals);
    leave_tiles();
}

bool fits(const DeltaRun& run) {
    return run.key_size % kStep == 0;
}
void open_chunk(const DeltaRun& run, const ChunkKeys& keys) {
    if (!fits(run)) return Base::open_chunk(run, keys);
    open_split_chunk(run, keys);
}
void open_gates(const DeltaRun& run, const ChunkKeys& keys, const ChunkGates& gates) {
    if (!fits(run)) return Base::open_gates(run, keys, gates);
    open_split_gates(run, keys, gates);
}
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
        kernels.enter = enter;
        kernels.leave = leave;
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
