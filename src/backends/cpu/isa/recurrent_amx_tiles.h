#pragma once
// Products of f32 matrices on AMX-BF16 tiles. An operand is split into two bf16 numbers,
// x = high + low to 16 bits or more, of which high*high + high*low + low*high is summed in f32:
// about 1e-6 of the operands' norms is lost, at a third of the tiles' rate, which is still several
// times that of f32 arithmetic. Left operands are packed in whole tiles: rows that lie apart cost
// an eighth more. Only included by *_amx.cpp; internal linkage throughout, see isa/vector.h.

#include <immintrin.h>

#include <cstdint>

#include "backends/cpu/isa/recurrent_chunk.h"
#include "backends/cpu/isa/tiles_amx.h"

namespace tessera::cpu {
namespace {

constexpr int64_t kStripRows = Chunk<Wide512>::kStrip;
constexpr int64_t kStep = 32;  ///< terms of a sum that one tile instruction takes
constexpr int64_t kTileBytes = 1024;
constexpr int64_t kLane = 16;  ///< f32 numbers of a register

/// A matrix in two parts, each in tiles of 16 rows of 64 bytes. Left operands: [block of 16
/// rows][step]. Right operands: [step][2], whose rows are pairs of rows of 16 columns.
struct Split {
    std::byte* high;
    std::byte* low;
    Split at(int64_t bytes) const { return {high + bytes, low + bytes}; }
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

/// `count` rows of `cols` (a multiple of 32) numbers to a left operand; rows behind them, up to
/// `rows`, become zeros.
void split_rows(
    const float* x, int64_t stride, int64_t count, int64_t rows, int64_t cols, const Split& out) {
    const auto widened = [](__m256i bits) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
    };
    const int64_t steps = cols / kStep;
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t step = 0; step < steps; ++step) {
            __m512 first = _mm512_setzero_ps(), second = first;
            if (row < count) {
                first = _mm512_loadu_ps(x + row * stride + step * kStep);
                second = _mm512_loadu_ps(x + row * stride + step * kStep + kLane);
            }
            const __m512i high = rounded(first, second);
            const __m512i low =
                rounded(_mm512_sub_ps(first, widened(_mm512_castsi512_si256(high))),
                        _mm512_sub_ps(second, widened(_mm512_extracti64x4_epi64(high, 1))));
            const int64_t at = (row / 16 * steps + step) * kTileBytes + row % 16 * 64;
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
TESSERA_INLINE void split_strip(const float* x, int64_t rows, const Split& out) {
    for (int64_t pair = 0; 2 * pair < rows; ++pair) {
        const float* row = x + 2 * pair * kStripRows;
        const __m512 both[2][2] = {
            {_mm512_load_ps(row), _mm512_load_ps(row + kLane)},
            {_mm512_load_ps(row + 2 * kLane), _mm512_load_ps(row + 3 * kLane)}};
        split_pair(both, pair, out);
    }
}

/// The tile `out` from rows(r), r < 16, of 16 words of 32 bits each: out[c][r] = rows(r)[c].
template <class Rows>
TESSERA_INLINE void transpose_words(const Rows& rows, std::byte* out) {
    __m512i a[16], b[16];
    for (int64_t r = 0; r < 16; ++r) a[r] = rows(r);
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
            _mm512_store_si512(out + (4 * quarter + i) * 64, words);
        };
        put(0, _mm512_shuffle_i32x4(even_low, even_high, 0x88));
        put(2, _mm512_shuffle_i32x4(even_low, even_high, 0xdd));
        put(1, _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
        put(3, _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd));
    }
}

/// The rows of a left operand [kChunkTokens][key size] as columns of right operands, and
/// transposed as the left operand `columns`.
void turn_keys(const std::byte* keys, int64_t key_size, std::byte* right, std::byte* columns) {
    const int64_t steps = key_size / kStep;
    for (int64_t block = 0; block < kChunkTokens / 16; ++block)
        for (int64_t step = 0; step < steps; ++step) {
            const std::byte* tile = keys + (block * steps + step) * kTileBytes;
            transpose_words([&](int64_t r) { return _mm512_load_si512(tile + r * 64); },
                            right + ((block / 2 * steps + step) * 2 + block % 2) * kTileBytes);
        }
    alignas(64) static constexpr uint16_t kFirst[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                        37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                        11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    for (int64_t block = 0; block < key_size / 16; ++block)
        for (int64_t half = 0; half < 2; ++half) {
            // Numbers of 16 keys of two tokens in turn.
            const __m512i order = _mm512_add_epi16(
                _mm512_load_si512(kFirst), _mm512_set1_epi16(static_cast<int16_t>(block % 2 * 16)));
            const std::byte* tile = keys + (2 * half * steps + block / 2) * kTileBytes;
            transpose_words(
                [&](int64_t r) {
                    const std::byte* even = tile + r / 8 * steps * kTileBytes + r % 8 * 128;
                    return _mm512_permutex2var_epi16(_mm512_load_si512(even), order,
                                                     _mm512_load_si512(even + 64));
                },
                columns + (block * 2 + half) * kTileBytes);
        }
}

/// 2 `pairs` blocks of 16 rows, `pitch` bytes apart, of `steps` tiles each.
struct Left {
    Split tiles;
    int64_t pairs, steps, pitch;
};

/// out[row][32] = left right, or added to `out` where `onto`; step by step, so that other work can
/// stand between the steps: the tiles are busy for 200 cycles with each. Between the steps of a
/// pair of blocks no other product may run.
class Product {
  public:
    Product(const Left& left, const Split& right, float* out, int64_t stride, bool onto)
        : left_(left), right_(right), out_(out), stride_(stride), onto_(onto) {}
    int64_t steps() const { return left_.pairs * left_.steps; }
    TESSERA_INLINE void step() {
        settle_memory();
        float* below = out_ + 16 * stride_;
        if (step_ == 0 && onto_) {
            _tile_loadd(0, out_, stride_ * 4);
            _tile_loadd(1, out_ + 16, stride_ * 4);
            _tile_loadd(2, below, stride_ * 4);
            _tile_loadd(3, below + 16, stride_ * 4);
        } else if (step_ == 0) {
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
        }
        add(left_.tiles.at(step_ * kTileBytes), right_.at(step_ * 2 * kTileBytes));
        if (++step_ == left_.steps) {
            _tile_stored(0, out_, stride_ * 4);
            _tile_stored(1, out_ + 16, stride_ * 4);
            _tile_stored(2, below, stride_ * 4);
            _tile_stored(3, below + 16, stride_ * 4);
            step_ = 0;
            left_.tiles = left_.tiles.at(2 * left_.pitch);
            out_ += 32 * stride_;
        }
        settle_memory();
    }

  private:
    TESSERA_INLINE void add(const Split& rows, const Split& columns) const {
        _tile_loadd(4, rows.low, 64);
        _tile_loadd(6, columns.high, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, columns.high + kTileBytes, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, rows.low + left_.pitch, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        _tile_loadd(4, rows.high, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, rows.high + left_.pitch, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        _tile_loadd(6, columns.low, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(2, 5, 6);
        _tile_loadd(7, columns.low + kTileBytes, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
    }

    Left left_;
    Split right_;
    float* out_;
    int64_t stride_;
    bool onto_;
    int64_t step_ = 0;
};

/// All steps of a product, before each of which stands chore(step, steps).
template <class Chore>
TESSERA_INLINE void multiply(Product product, const Chore& chore) {
    const int64_t steps = product.steps();
    for (int64_t step = 0; step < steps; ++step) {
        chore(step, steps);
        product.step();
    }
}

}  // namespace
}  // namespace tessera::cpu
