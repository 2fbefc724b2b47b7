// The chunk form of the gated delta rule on AMX-BF16 tiles. Every product of matrices is one of
// operands split into two bf16 numbers, x = high + low to 16 bits or more, of which
// high*high + high*low + low*high is summed in f32: about 1e-6 of the operands' norms is lost, at a
// third of the tiles' rate, which is still several times that of f32 arithmetic. In f32 stays what
// decides the conditioning: the triangular solve within a block of kStep tokens; between the two
// blocks of a chunk it is a product again. The rows that come next lie pages apart, so they are
// fetched a few lines at a time all along.
#if defined(__x86_64__)

#    include <immintrin.h>

#    include "backends/cpu/isa/recurrent_chunk.h"
#    include "backends/cpu/isa/tiles_amx.h"

namespace tessera::cpu {
namespace {

using Base = Chunk<Wide512>;

constexpr int64_t kStripRows = Base::kStrip;
constexpr int64_t kStep = 32;  ///< terms of a sum that one tile instruction takes
constexpr int64_t kTileBytes = 1024;
constexpr int64_t kLane = 16;  ///< f32 numbers of a register
static_assert(kStripRows == 32, "a strip is two tiles wide");
static_assert(kChunkTokens == 2 * kStep, "a chunk is solved in two blocks");

/// A matrix in two parts. Left operands: rows of bf16 as they lie. Right operands: tiles
/// [step][2][16 pairs of rows][16 columns].
struct Split {
    std::byte* high;
    std::byte* low;
    Split at(int64_t bytes) const { return {high + bytes, low + bytes}; }
};

/// Where everything lies in ChunkKeys::tiles.
struct Areas {
    Split keys, queries;  ///< left: [kChunkTokens][key size]
    Split columns;        ///< left: [key size][kChunkTokens], keys transposed
    Split right_keys;     ///< right: two halves of tokens, [key size][kStripRows] each
    Split mix;            ///< left: ChunkGates::mix
    Split below;          ///< left: [kStep][kStep], ChunkGates::solve between the blocks
    Split strip, deltas;  ///< right
    Split pairs;          ///< [kStep][key size] pairs of keys' rows
    float* seen;          ///< [kChunkTokens][kStripRows]
    float* asked;         ///< [kChunkTokens][kStripRows]
    float* mixed;         ///< [kChunkTokens][kStripRows]
    float* gain;          ///< [key size][kStripRows]
    int64_t bytes = 0;

    Areas(float* tiles, int64_t key_size) {
        const auto take = [&](int64_t count) {
            std::byte* taken = reinterpret_cast<std::byte*>(tiles) + bytes;
            bytes += count;
            return taken;
        };
        const int64_t rows = kChunkTokens * key_size * 2;
        for (Split* part : {&keys, &queries, &columns, &right_keys, &pairs})
            *part = {take(rows), take(rows)};
        const int64_t square_bytes = kChunkTokens * kChunkTokens * 2;
        mix = {take(square_bytes), take(square_bytes)};
        below = {take(kStep * kStep * 2), take(kStep * kStep * 2)};
        const int64_t strip_bytes = key_size * kStripRows * 2;
        strip = {take(strip_bytes), take(strip_bytes)};
        const int64_t delta_bytes = kChunkTokens * kStripRows * 2;
        deltas = {take(delta_bytes), take(delta_bytes)};
        for (float** area : {&seen, &asked, &mixed})
            *area = reinterpret_cast<float*>(take(2 * delta_bytes));
        gain = reinterpret_cast<float*>(take(2 * strip_bytes));
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
    static constexpr int64_t kCalls = 64;
    static int64_t lines_of(const Upcoming& next) { return (next.floats + kLane - 1) / kLane; }
    const Upcoming* at_;
    const Upcoming* end_;
    int64_t row_ = 0, line_ = 0, portion_ = 0;
};

// ---- operands ----

/// bf16 bits of the rounded numbers, first 16 then 16 more.
inline __m512i rounded(__m512 first, __m512 second) {
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
}

/// The numbers whose bf16 bits are the upper halves of the lanes.
inline __m512 upper(__m512i bits) {
    return _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(-65536)));
}

/// `count` rows of `cols` (a multiple of 32) numbers to rows of a left operand; rows behind them,
/// up to `rows`, become zeros.
void split_rows(
    const float* x, int64_t stride, int64_t count, int64_t rows, int64_t cols, const Split& out) {
    const auto widened = [](__m256i bits) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
    };
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t col = 0; col < cols; col += 2 * kLane) {
            __m512 first = _mm512_setzero_ps(), second = first;
            if (row < count) {
                first = _mm512_loadu_ps(x + row * stride + col);
                second = _mm512_loadu_ps(x + row * stride + col + kLane);
            }
            const __m512i high = rounded(first, second);
            const __m512i low =
                rounded(_mm512_sub_ps(first, widened(_mm512_castsi512_si256(high))),
                        _mm512_sub_ps(second, widened(_mm512_extracti64x4_epi64(high, 1))));
            const int64_t at = (row * cols + col) * 2;
            _mm512_store_si512(out.high + at, high);
            _mm512_store_si512(out.low + at, low);
        }
}

/// Puts first[i] and second[i] side by side.
inline __m512i paired(__m512i halves) {
    alignas(64) static constexpr uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                        21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                        11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), halves);
}

/// Row 2 * pair and the one after it, kStripRows columns, as a row of a right operand.
inline void split_pair(const __m512 (&rows)[2][2], int64_t pair, const Split& out) {
    for (int64_t half = 0; half < 2; ++half) {
        const __m512i high = paired(rounded(rows[0][half], rows[1][half]));
        const __m512i low =
            paired(rounded(_mm512_sub_ps(rows[0][half], upper(_mm512_slli_epi32(high, 16))),
                           _mm512_sub_ps(rows[1][half], upper(high))));
        const int64_t at = (pair / 16 * 2 + half) * kTileBytes + pair % 16 * 64;
        _mm512_store_si512(out.high + at, high);
        _mm512_store_si512(out.low + at, low);
    }
}

/// Rows of kStripRows numbers to a right operand; `rows` is a multiple of kStep.
void split_strip(const float* x, int64_t rows, const Split& out, Ahead& ahead) {
    for (int64_t pair = 0; 2 * pair < rows; ++pair) {
        if (pair % 8 == 0) ahead.some();
        const float* row = x + 2 * pair * kStripRows;
        const __m512 both[2][2] = {
            {_mm512_load_ps(row), _mm512_load_ps(row + kLane)},
            {_mm512_load_ps(row + 2 * kLane), _mm512_load_ps(row + 3 * kLane)}};
        split_pair(both, pair, out);
    }
}

/// out[c][r] = x[r][c] for 16 x 16 words of 32 bits; strides in bytes.
void transpose_words(const std::byte* x, int64_t stride, std::byte* out, int64_t out_stride) {
    __m512i a[16], b[16];
    for (int64_t r = 0; r < 16; ++r) a[r] = _mm512_load_si512(x + r * stride);
    for (int64_t r = 0; r < 16; r += 2) {
        b[r] = _mm512_unpacklo_epi32(a[r], a[r + 1]);
        b[r + 1] = _mm512_unpackhi_epi32(a[r], a[r + 1]);
    }
    // a[4 g + i]: in every quarter q the words 4 q + i of the rows 4 g .. 4 g + 3.
    for (int64_t g = 0; g < 16; g += 4) {
        a[g] = _mm512_unpacklo_epi64(b[g], b[g + 2]);
        a[g + 1] = _mm512_unpackhi_epi64(b[g], b[g + 2]);
        a[g + 2] = _mm512_unpacklo_epi64(b[g + 1], b[g + 3]);
        a[g + 3] = _mm512_unpackhi_epi64(b[g + 1], b[g + 3]);
    }
    for (int64_t i = 0; i < 4; ++i) {
        const __m512i even_low = _mm512_shuffle_i32x4(a[i], a[4 + i], 0x88);
        const __m512i odd_low = _mm512_shuffle_i32x4(a[i], a[4 + i], 0xdd);
        const __m512i even_high = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0x88);
        const __m512i odd_high = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0xdd);
        const auto put = [&](int64_t quarter, __m512i words) {
            _mm512_store_si512(out + (4 * quarter + i) * out_stride, words);
        };
        put(0, _mm512_shuffle_i32x4(even_low, even_high, 0x88));
        put(2, _mm512_shuffle_i32x4(even_low, even_high, 0xdd));
        put(1, _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
        put(3, _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd));
    }
}

/// The rows of a left operand [kChunkTokens][key size] as columns of right operands, and
/// transposed as the left operand `columns`.
void turn_keys(const std::byte* keys,
               int64_t key_size,
               std::byte* pairs,
               std::byte* right,
               std::byte* columns) {
    const int64_t stride = key_size * 2;
    for (int64_t t = 0; t < kChunkTokens; t += 16)
        for (int64_t step = 0; step < key_size / kStep; ++step)
            transpose_words(keys + t * stride + step * 64, stride,
                            right + t / kStripRows * key_size * kStripRows * 2 +
                                (step * 2 + t % kStripRows / 16) * kTileBytes,
                            64);
    alignas(64) static constexpr uint16_t kFirst[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                        37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                        11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i first = _mm512_load_si512(kFirst);
    const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
    for (int64_t pair = 0; pair < kStep; ++pair)
        for (int64_t at = 0; at < stride; at += 64) {
            const __m512i even = _mm512_load_si512(keys + 2 * pair * stride + at);
            const __m512i odd = _mm512_load_si512(keys + (2 * pair + 1) * stride + at);
            std::byte* out = pairs + pair * 2 * stride + 2 * at;
            _mm512_store_si512(out, _mm512_permutex2var_epi16(even, first, odd));
            _mm512_store_si512(out + 64, _mm512_permutex2var_epi16(even, second, odd));
        }
    for (int64_t pair = 0; pair < kStep; pair += 16)
        for (int64_t i = 0; i < key_size; i += 16)
            transpose_words(pairs + pair * 2 * stride + i * 4, 2 * stride,
                            columns + i * kChunkTokens * 2 + pair * 4, kChunkTokens * 2);
}

// ---- products ----

/// What a product reads: `rows` (a multiple of 32) rows of `depth` terms, rows `stride` bytes
/// apart.
struct Left {
    Split rows;
    int64_t count, depth, stride;
};

/// out[row][32] = left right.
void multiply(
    const Left& left, const Split& right, float* out, int64_t out_stride, Ahead* ahead = nullptr) {
    const int64_t below = 16 * left.stride;
    for (int64_t row = 0; row < left.count; row += 32) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t step = 0; step < left.depth / kStep; ++step) {
            if (ahead != nullptr) ahead->some();
            const Split rows = left.rows.at(row * left.stride + step * 64);
            const Split columns = right.at(step * 2 * kTileBytes);
            _tile_loadd(4, rows.low, left.stride);
            _tile_loadd(5, rows.low + below, left.stride);
            _tile_loadd(6, columns.high, 64);
            _tile_loadd(7, columns.high + kTileBytes, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
            _tile_loadd(4, rows.high, left.stride);
            _tile_loadd(5, rows.high + below, left.stride);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
            _tile_loadd(6, columns.low, 64);
            _tile_loadd(7, columns.low + kTileBytes, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        float* target = out + row * out_stride;
        _tile_stored(0, target, out_stride * 4);
        _tile_stored(1, target + 16, out_stride * 4);
        _tile_stored(2, target + 16 * out_stride, out_stride * 4);
        _tile_stored(3, target + 16 * out_stride + 16, out_stride * 4);
    }
}

/// out[i][j] = rows_i . k_j for j <= i, in whole blocks.
void square(const Areas& areas, const Split& rows, int64_t key_size, float* out) {
    const int64_t stride = key_size * 2;
    const Left lower{rows.at(kStep * stride), kStep, key_size, stride};
    multiply({rows, kChunkTokens, key_size, stride}, areas.right_keys, out, kChunkTokens);
    multiply(lower, areas.right_keys.at(key_size * kStripRows * 2),
             out + kStep * kChunkTokens + kStep, kChunkTokens);
}

void open_chunk(const DeltaRun& run, const ChunkKeys& keys) {
    if (!fits(run)) return Base::open_chunk(run, keys);
    const Areas areas(keys.tiles, run.key_size);
    split_rows(run.k, run.k_stride, run.tokens, kChunkTokens, run.key_size, areas.keys);
    split_rows(run.q, run.q_stride, run.tokens, kChunkTokens, run.key_size, areas.queries);
    turn_keys(areas.keys.high, run.key_size, areas.pairs.high, areas.right_keys.high,
              areas.columns.high);
    turn_keys(areas.keys.low, run.key_size, areas.pairs.low, areas.right_keys.low,
              areas.columns.low);
    settle_memory();
    square(areas, areas.keys, run.key_size, keys.kk);
    square(areas, areas.queries, run.key_size, keys.qk);
    settle_memory();
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

/// D of the kStep tokens from `first` on, those before them being accounted for in `known` (null:
/// there are none). `seen`: K S^T. Dead tokens get zeros.
void solve_block(const DeltaRun& run,
                 const ChunkGates& gates,
                 int64_t first,
                 const float* seen,
                 const float* known,
                 float* deltas,
                 Ahead& ahead) {
    constexpr int64_t kRows = Base::kTile;
    for (int64_t row = first; row < first + kStep; row += kRows) {
        ahead.some();
        __m512 at[kRows][2];
        for (int64_t r = 0; r < kRows; ++r) {
            at[r][0] = at[r][1] = _mm512_setzero_ps();
            if (row + r >= run.tokens) continue;
            Base::load_live(run.v + (row + r) * run.v_stride, run.rows, at[r][0], at[r][1]);
            const __m512 since = _mm512_set1_ps(-gates.since[row + r]);
            const __m512 beta = _mm512_set1_ps(gates.beta[row + r]);
            for (int64_t half = 0; half < 2; ++half) {
                const int64_t place = (row + r) * kStripRows + half * kLane;
                at[r][half] = _mm512_mul_ps(
                    beta, _mm512_fmadd_ps(since, _mm512_load_ps(seen + place), at[r][half]));
                if (known != nullptr)
                    at[r][half] = _mm512_add_ps(at[r][half], _mm512_load_ps(known + place));
            }
        }
        const float* left = gates.solve + row * kChunkTokens;
        for (int64_t j = first; j < row; ++j) {
            const __m512 one = _mm512_load_ps(deltas + j * kStripRows);
            const __m512 two = _mm512_load_ps(deltas + j * kStripRows + kLane);
            for (int64_t r = 0; r < kRows; ++r) {
                const __m512 element = _mm512_set1_ps(left[r * kChunkTokens + j]);
                at[r][0] = _mm512_fmadd_ps(element, one, at[r][0]);
                at[r][1] = _mm512_fmadd_ps(element, two, at[r][1]);
            }
        }
        for (int64_t r = 0; r < kRows; ++r) {
            for (int64_t s = 0; s < r; ++s) {
                const __m512 element = _mm512_set1_ps(left[r * kChunkTokens + row + s]);
                at[r][0] = _mm512_fmadd_ps(element, at[s][0], at[r][0]);
                at[r][1] = _mm512_fmadd_ps(element, at[s][1], at[r][1]);
            }
            _mm512_store_ps(deltas + (row + r) * kStripRows, at[r][0]);
            _mm512_store_ps(deltas + (row + r) * kStripRows + kLane, at[r][1]);
        }
    }
}

bool finite(const float* x, int64_t count) {
    constexpr int kNanOrInfinite = 0x99;
    unsigned found = 0;
    for (int64_t i = 0; i < count; i += kLane)
        found |= _mm512_fpclass_ps_mask(_mm512_load_ps(x + i), kNanOrInfinite);
    return found == 0;
}

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

/// D of the chunk, and P D in `areas.mixed`.
void solve_and_mix(
    const DeltaRun& run, const ChunkGates& gates, const Areas& areas, float* deltas, Ahead& ahead) {
    constexpr int64_t kBlock = kStep * kStripRows;
    constexpr int64_t kSquareStride = kChunkTokens * 2;
    const bool both = run.tokens > kStep;
    solve_block(run, gates, 0, areas.seen, nullptr, deltas, ahead);
    split_strip(deltas, kStep, areas.deltas, ahead);
    if (both) {
        // `mixed` is free until the second block is known.
        settle_memory();
        multiply({areas.below, kStep, kStep, kStep * 2}, areas.deltas, areas.mixed + kBlock,
                 kStripRows, &ahead);
        settle_memory();
        solve_block(run, gates, kStep, areas.seen, areas.mixed, deltas, ahead);
        split_strip(deltas + kBlock, kStep, areas.deltas.at(2 * kTileBytes), ahead);
    }
    if (!finite(deltas, both ? 2 * kBlock : kBlock))
        return mix_by_rows(gates, run.tokens, deltas, areas.mixed);
    settle_memory();
    multiply({areas.mix, kStep, kStep, kSquareStride}, areas.deltas, areas.mixed, kStripRows,
             &ahead);
    if (both)
        multiply({areas.mix.at(kStep * kSquareStride), kStep, kChunkTokens, kSquareStride},
                 areas.deltas, areas.mixed + kBlock, kStripRows, &ahead);
    settle_memory();
}

void put_output(const DeltaRun& run, const ChunkGates& gates, const Areas& areas) {
    const __m512 scale = _mm512_set1_ps(1.0f / __builtin_sqrtf(static_cast<float>(run.key_size)));
    for (int64_t t = 0; t < run.tokens; ++t) {
        const __m512 since = _mm512_set1_ps(gates.since[t]);
        __m512 at[2];
        for (int64_t half = 0; half < 2; ++half) {
            const int64_t place = t * kStripRows + half * kLane;
            at[half] =
                _mm512_mul_ps(scale, _mm512_fmadd_ps(since, _mm512_load_ps(areas.asked + place),
                                                     _mm512_load_ps(areas.mixed + place)));
        }
        Base::store_live(at[0], at[1], run.rows, run.out + t * run.out_stride);
    }
}

/// D decayed to the end of the chunk, as a right operand of `tokens` (a multiple of kStep) rows.
void split_decayed(
    const float* deltas, const ChunkGates& gates, int64_t tokens, const Split& out, Ahead& ahead) {
    for (int64_t t = 0; t < tokens; t += 2) {
        if (t % 16 == 0) ahead.some();
        __m512 rows[2][2];
        for (int64_t r = 0; r < 2; ++r)
            for (int64_t half = 0; half < 2; ++half)
                rows[r][half] =
                    _mm512_mul_ps(_mm512_set1_ps(gates.until[t + r]),
                                  _mm512_load_ps(deltas + (t + r) * kStripRows + half * kLane));
        split_pair(rows, t / 2, out);
    }
}

void run_strip(const DeltaRun& run,
               const ChunkKeys& keys,
               const ChunkGates& gates,
               float* deltas,
               float* strip) {
    if (!fits(run)) return Base::run_strip(run, keys, gates, deltas, strip);
    const Areas areas(keys.tiles, run.key_size);
    const int64_t size = run.key_size, tokens = (run.tokens + kStep - 1) / kStep * kStep;
    Ahead ahead(run);
    split_strip(strip, size, areas.strip, ahead);
    settle_memory();
    multiply({areas.keys, tokens, size, size * 2}, areas.strip, areas.seen, kStripRows, &ahead);
    multiply({areas.queries, tokens, size, size * 2}, areas.strip, areas.asked, kStripRows, &ahead);
    settle_memory();
    solve_and_mix(run, gates, areas, deltas, ahead);
    put_output(run, gates, areas);
    split_decayed(deltas, gates, tokens, areas.deltas, ahead);
    settle_memory();
    multiply({areas.columns, size, tokens, kChunkTokens * 2}, areas.deltas, areas.gain, kStripRows,
             &ahead);
    settle_memory();
    const __m512 decay = _mm512_set1_ps(gates.since[run.tokens - 1]);
    for (int64_t i = 0; i < size * kStripRows; i += kLane)
        _mm512_store_ps(strip + i, _mm512_fmadd_ps(decay, _mm512_load_ps(strip + i),
                                                   _mm512_load_ps(areas.gain + i)));
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
