// The chunk form of the gated delta rule on AMX-BF16 tiles: every product of matrices is one of
// operands split into two bf16 numbers (recurrent_amx_tiles.h). In f32 stays what decides the
// conditioning: the triangular solve within a block of kStep tokens; between the two blocks of a
// chunk it is a product again. While a strip is solved, the products of the next one with keys and
// queries are made step by step in between, and the rows that come next, which lie pages apart, are
// fetched a few lines at a time. Measured with everything in the second-level cache: 100 to 105
// thousand cycles a chunk and head of 128, of which 25 are tile products (28 steps a strip, 24 of
// the squares, 184 cycles each), 50 vector work, and the rest loads and stores of tiles that are
// not in the first cache. The three add up almost in full: in isolation vector work hides behind
// tile products in pieces of a quarter of a step, here neither such pieces nor fewer stores helped.
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
    /// [kChunkTokens][kStripRows] K S^T and Q S^T of this strip and of the next one, in turn.
    float *seen[2], *asked[2];
    float* mixed;  ///< [kChunkTokens][kStripRows] P D
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
        for (float** area : {seen, seen + 1, asked, asked + 1, &mixed})
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

/// Fetches the upcoming rows of a run in about kCalls portions.
class Ahead {
  public:
    explicit Ahead(const DeltaRun& run)
        : at_(run.upcoming), end_(run.upcoming + run.upcoming_count) {
        int64_t lines = 0;
        for (const Upcoming* next = at_; next != end_; ++next)
            lines += next->rows * lines_of(*next);
        portion_ = (lines + kCalls - 1) / kCalls;
    }
    void some() {
        for (int64_t n = 0; n < portion_ && at_ != end_; ++n) {
            __builtin_prefetch(at_->x + row_ * at_->stride + line_ * kLane, 0, 2);
            if (++line_ < lines_of(*at_)) continue;
            line_ = 0;
            if (++row_ < at_->rows) continue;
            row_ = 0;
            ++at_;
        }
    }

  private:
    static constexpr int64_t kCalls = 24;
    static int64_t lines_of(const Upcoming& next) { return (next.floats + kLane - 1) / kLane; }
    const Upcoming* at_;
    const Upcoming* end_;
    int64_t row_ = 0, line_ = 0, portion_ = 0;
};

// ---- products ----

/// out[i][j] = rows_i . k_j for j <= i, in whole blocks.
void square(const Areas& areas, const Split& rows, int64_t key_size, float* out) {
    const int64_t steps = key_size / kStep, pitch = steps * kTileBytes;
    const auto idle = [](int64_t, int64_t) {};
    multiply({{rows, 2, steps, pitch}, areas.right_keys, out, kChunkTokens, false}, idle);
    multiply({{rows.at(2 * pitch), 1, steps, pitch},
              areas.right_keys.at(2 * pitch),
              out + kStep * kChunkTokens + kStep,
              kChunkTokens,
              false},
             idle);
}

void open_chunk(const DeltaRun& run, const ChunkKeys& keys) {
    if (!fits(run)) return Base::open_chunk(run, keys);
    const Areas areas(keys.tiles, run.key_size);
    split_rows(run.k, run.k_stride, run.tokens, kChunkTokens, run.key_size, areas.keys);
    split_rows(run.q, run.q_stride, run.tokens, kChunkTokens, run.key_size, areas.queries);
    turn_keys(areas.keys.high, run.key_size, areas.right_keys.high, areas.columns.high);
    turn_keys(areas.keys.low, run.key_size, areas.right_keys.low, areas.columns.low);
    square(areas, areas.keys, run.key_size, keys.kk);
    square(areas, areas.queries, run.key_size, keys.qk);
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
    split_rows(gates.mix, kChunkTokens, kChunkTokens, kChunkTokens, kChunkTokens, areas.mix);
    split_rows(gates.solve + kStep * kChunkTokens, kChunkTokens, kStep, kStep, kStep, areas.below);
}

// ---- a strip ----

/// K S^T and Q S^T of a strip S, made a few steps at a time.
class StripProducts {
  public:
    /// `strip` null: nothing to do.
    StripProducts(
        const Areas& areas, const float* strip, int64_t size, int64_t tokens, int64_t side)
        : strip_(strip),
          steps_(size / kStep),
          out_(areas.strip),
          seen_({areas.keys, tokens / kStep, steps_, steps_ * kTileBytes},
                areas.strip,
                areas.seen[side],
                kStripRows,
                false),
          asked_({areas.queries, tokens / kStep, steps_, steps_ * kTileBytes},
                 areas.strip,
                 areas.asked[side],
                 kStripRows,
                 false) {}
    /// The steps up to part / of. After a half and after all of them the tiles are free.
    TESSERA_INLINE void upto(int64_t part, int64_t of) {
        if (strip_ == nullptr) return;
        const int64_t until = 2 * seen_.steps() * part / of;
        for (; step_ < until; ++step_) {
            if (step_ < steps_)
                split_strip(strip_ + step_ * kStep * kStripRows, kStep,
                            out_.at(step_ * 2 * kTileBytes));
            if (step_ < seen_.steps())
                seen_.step();
            else
                asked_.step();
        }
    }

  private:
    const float* strip_;
    int64_t steps_;
    Split out_;
    Product seen_, asked_;
    int64_t step_ = 0;
};

/// The masked product row by row: on tiles the zeros of the mask would carry a NaN or an infinity
/// of a later token to an earlier one.
void mix_by_rows(const ChunkGates& gates, int64_t tokens, const float* deltas, float* out) {
    for (int64_t i = 0; i < tokens; ++i)
        for (int64_t half = 0; half < kStripRows; half += kLane) {
            __m512 sum = _mm512_setzero_ps();
            for (int64_t j = 0; j <= i; ++j)
                sum = _mm512_fmadd_ps(_mm512_set1_ps(gates.mix[i * kChunkTokens + j]),
                                      _mm512_load_ps(deltas + j * kStripRows + half), sum);
            _mm512_store_ps(out + i * kStripRows + half, sum);
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
          seen_(areas.seen[run.order % 2]),
          asked_(areas.asked[run.order % 2]),
          tokens_((run.tokens + kStep - 1) / kStep * kStep),
          next_(areas, run.next_strip, run.key_size, tokens_, (run.order + 1) % 2),
          ahead_(run) {}

    void run() {
        if (run_.order == 0) {
            StripProducts own(areas_, strip_, run_.key_size, tokens_, 0);
            own.upto(1, 1);
        }
        solve_block(0);
        split_strip(deltas_, kStep, areas_.deltas);
        if (tokens_ > kStep) {
            // `mixed` is free until the second block is known.
            multiply({{areas_.below, 1, 1, kTileBytes},
                      areas_.deltas,
                      areas_.mixed + kBlock,
                      kStripRows,
                      false},
                     [](int64_t, int64_t) {});
            solve_block(kStep);
            split_strip(deltas_ + kBlock, kStep, areas_.deltas.at(2 * kTileBytes));
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
                        at[half] = _mm512_add_ps(at[half], _mm512_load_ps(areas_.mixed + place));
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
            decay_strip(group, groups);
            ahead_.some();
            next_.upto(2 * group + 2, 2 * groups);
        }
    }
    TESSERA_INLINE void decay_strip(int64_t part, int64_t of) {
        const __m512 decay = _mm512_set1_ps(gates_.since[run_.tokens - 1]);
        const int64_t rows = run_.key_size / of;
        float* x = strip_ + part * rows * kStripRows;
        for (int64_t i = 0; i < rows * kStripRows; i += kLane)
            _mm512_store_ps(x + i, _mm512_mul_ps(decay, _mm512_load_ps(x + i)));
    }
    /// Tokens [begin, end) of D, decayed to the end of the chunk.
    TESSERA_INLINE void split_decayed(int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; t += 2) {
            __m512 rows[2][2];
            for (int64_t r = 0; r < 2; ++r)
                for (int64_t half = 0; half < 2; ++half)
                    rows[r][half] = _mm512_mul_ps(
                        _mm512_set1_ps(gates_.until[t + r]),
                        _mm512_load_ps(deltas_ + (t + r) * kStripRows + half * kLane));
            split_pair(rows, t / 2, areas_.decayed);
        }
    }
    /// P D, and D decayed.
    void mix() {
        if (found_ != 0) {
            split_decayed(0, tokens_);
            return mix_by_rows(gates_, run_.tokens, deltas_, areas_.mixed);
        }
        multiply({{areas_.mix, 1, 1, kPitch}, areas_.deltas, areas_.mixed, kStripRows, false},
                 [&](int64_t, int64_t) { split_decayed(0, kStep); });
        if (tokens_ == kStep) return;
        multiply({{areas_.mix.at(2 * kPitch), 1, 2, kPitch},
                  areas_.deltas,
                  areas_.mixed + kBlock,
                  kStripRows,
                  false},
                 [&](int64_t step, int64_t) {
                     ahead_.some();
                     split_decayed(kStep + step * 16, kStep + step * 16 + 16);
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
                  true},
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
                                                         _mm512_load_ps(areas_.mixed + place)));
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
        return kernels;
    }();
    return kKernels;
}

}  // namespace tessera::cpu

#endif
