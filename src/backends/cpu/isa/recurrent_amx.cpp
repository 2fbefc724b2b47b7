// The chunk form of the gated delta rule with its three large products on AMX-BF16 tiles: K S^T,
// Q S^T and D^T K. Every operand is split into two bf16 numbers, x = high + low to 16 bits or more,
// and high*high + high*low + low*high is summed in f32: about 1e-6 of the operands' norms is lost,
// at a third of the tiles' rate, which is still several times that of f32 arithmetic. What decides
// the conditioning (K K^T, the triangular solve, the masked products of D) stays in f32.
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
static_assert(kStripRows == 32, "a strip is two tiles wide");

/// A matrix in two parts. Left operands: rows of bf16 as they lie. Right operands: tiles
/// [step][2][16 pairs of rows][16 columns].
struct Split {
    std::byte* high;
    std::byte* low;
};

/// Where everything lies in ChunkKeys::tiles.
struct Areas {
    Split keys, queries;              ///< left: [kChunkTokens][key size]
    Split columns;                    ///< left: [key size][kChunkTokens], keys transposed
    Split right_keys, right_queries;  ///< right: two halves of tokens, [key size][kStripRows] each
    Split strip, deltas;              ///< right
    float* seen;                      ///< [kChunkTokens][kStripRows]
    float* asked;                     ///< [kChunkTokens][kStripRows]
    float* gain;                      ///< [key size][kStripRows]
    int64_t bytes = 0;

    Areas(float* tiles, int64_t key_size) {
        const auto take = [&](int64_t count) {
            std::byte* taken = reinterpret_cast<std::byte*>(tiles) + bytes;
            bytes += count;
            return taken;
        };
        const int64_t rows = kChunkTokens * key_size * 2;
        for (Split* part : {&keys, &queries, &columns, &right_keys, &right_queries})
            *part = {take(rows), take(rows)};
        const int64_t strip_bytes = key_size * kStripRows * 2;
        strip = {take(strip_bytes), take(strip_bytes)};
        const int64_t delta_bytes = kChunkTokens * kStripRows * 2;
        deltas = {take(delta_bytes), take(delta_bytes)};
        seen = reinterpret_cast<float*>(take(2 * delta_bytes));
        asked = reinterpret_cast<float*>(take(2 * delta_bytes));
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
        for (int64_t col = 0; col < cols; col += 32) {
            __m512 first = _mm512_setzero_ps(), second = first;
            if (row < count) {
                first = _mm512_loadu_ps(x + row * stride + col);
                second = _mm512_loadu_ps(x + row * stride + col + 16);
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

/// 32 columns of `rows` rows to a right operand; rows is a multiple of kStep.
void split_pairs(const float* x, int64_t stride, int64_t rows, const Split& out) {
    for (int64_t pair = 0; 2 * pair < rows; ++pair)
        for (int64_t half = 0; half < 2; ++half) {
            const float* source = x + 2 * pair * stride + 16 * half;
            const __m512 first = _mm512_load_ps(source);
            const __m512 second = _mm512_load_ps(source + stride);
            const __m512i high = paired(rounded(first, second));
            const __m512i low =
                paired(rounded(_mm512_sub_ps(first, upper(_mm512_slli_epi32(high, 16))),
                               _mm512_sub_ps(second, upper(high))));
            const int64_t at = (pair / 16 * 2 + half) * kTileBytes + pair % 16 * 64;
            _mm512_store_si512(out.high + at, high);
            _mm512_store_si512(out.low + at, low);
        }
}

/// out[row][32] = left right for `rows` (a multiple of 32) rows of `depth` terms.
void multiply(const Split& left,
              int64_t rows,
              int64_t depth,
              const Split& right,
              float* out,
              int64_t out_stride) {
    const int64_t stride = depth * 2, below = 16 * stride;
    for (int64_t row = 0; row < rows; row += 32) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t step = 0; step < depth / kStep; ++step) {
            const int64_t at = row * stride + step * 64;
            const std::byte* high = right.high + step * 2 * kTileBytes;
            const std::byte* low = right.low + step * 2 * kTileBytes;
            _tile_loadd(4, left.low + at, stride);
            _tile_loadd(5, left.low + at + below, stride);
            _tile_loadd(6, high, 64);
            _tile_loadd(7, high + kTileBytes, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
            _tile_loadd(4, left.high + at, stride);
            _tile_loadd(5, left.high + at + below, stride);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
            _tile_loadd(6, low, 64);
            _tile_loadd(7, low + kTileBytes, 64);
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

/// [tokens][key size] to [key size][kChunkTokens], zeros behind the tokens.
void transpose(const float* x, int64_t stride, const DeltaRun& run, float* out) {
    Recurrence<Wide512>::transpose(x, stride, {run.tokens, run.key_size, kChunkTokens}, out);
    for (int64_t i = 0; run.tokens < kChunkTokens && i < run.key_size; ++i)
        for (int64_t t = run.tokens; t < kChunkTokens; ++t) out[i * kChunkTokens + t] = 0.0f;
}

/// out[j][i] = right_i . k_j for i >= j.
void square(const Areas& areas, const Split& right, int64_t key_size, float* out) {
    const int64_t half = key_size * kStripRows * 2;
    multiply(areas.keys, 32, key_size, right, out, kChunkTokens);
    multiply(areas.keys, kChunkTokens, key_size, {right.high + half, right.low + half}, out + 32,
             kChunkTokens);
}

void open_chunk(const DeltaRun& run, const ChunkKeys& keys) {
    if (!fits(run)) return Base::open_chunk(run, keys);
    const Areas areas(keys.tiles, run.key_size);
    const int64_t size = run.key_size, half = size * kStripRows * 2;
    transpose(run.k, run.k_stride, run, keys.k_transposed);
    transpose(run.q, run.q_stride, run, keys.q_transposed);
    split_rows(run.k, run.k_stride, run.tokens, kChunkTokens, size, areas.keys);
    split_rows(run.q, run.q_stride, run.tokens, kChunkTokens, size, areas.queries);
    split_rows(keys.k_transposed, kChunkTokens, size, size, kChunkTokens, areas.columns);
    for (int64_t part = 0; part < 2; ++part) {
        const int64_t at = part * half;
        split_pairs(keys.k_transposed + 32 * part, kChunkTokens, size,
                    {areas.right_keys.high + at, areas.right_keys.low + at});
        split_pairs(keys.q_transposed + 32 * part, kChunkTokens, size,
                    {areas.right_queries.high + at, areas.right_queries.low + at});
    }
    settle_memory();
    square(areas, areas.right_keys, size, keys.kk);
    square(areas, areas.right_queries, size, keys.qk);
    settle_memory();
}

void run_strip(const DeltaRun& run,
               const ChunkKeys& keys,
               const ChunkGates& gates,
               float* deltas,
               float* strip) {
    if (!fits(run)) return Base::run_strip(run, keys, gates, deltas, strip);
    const Areas areas(keys.tiles, run.key_size);
    const int64_t tokens = (run.tokens + kStep - 1) / kStep * kStep;
    split_pairs(strip, kStripRows, run.key_size, areas.strip);
    settle_memory();
    multiply(areas.keys, tokens, run.key_size, areas.strip, areas.seen, kStripRows);
    multiply(areas.queries, tokens, run.key_size, areas.strip, areas.asked, kStripRows);
    settle_memory();
    Base::solve_and_output(run, gates, Base::ReadyProduct{areas.seen},
                           Base::ReadyProduct{areas.asked}, deltas);
    for (int64_t i = run.tokens * kStripRows; i < kChunkTokens * kStripRows; i += 16)
        _mm512_store_ps(deltas + i, _mm512_setzero_ps());
    split_pairs(deltas, kStripRows, kChunkTokens, areas.deltas);
    settle_memory();
    multiply(areas.columns, run.key_size, kChunkTokens, areas.deltas, areas.gain, kStripRows);
    settle_memory();
    const __m512 decay = _mm512_set1_ps(gates.since[run.tokens - 1]);
    for (int64_t i = 0; i < run.key_size * kStripRows; i += 16)
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
        kernels.run_strip = run_strip;
        return kernels;
    }();
    return kKernels;
}

}  // namespace tessera::cpu

#endif
