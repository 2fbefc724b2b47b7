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
/// rows][step]. Right operands: [step][2], each for 16 columns. A word of 32 bits holds the terms
/// i and i + 16 of a step: neighbours would have to be brought together from two registers.
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

/// Puts first[i] and second[i] side by side.
inline __m512i paired(__m512i halves) {
    alignas(64) static constexpr uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                        21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                        11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), halves);
}

/// Word i of the row of an operand that begins at `at`: first[i] and second[i].
TESSERA_INLINE void split_words(__m512 first, __m512 second, int64_t at, const Split& out) {
    const __m512i high = paired(rounded(first, second));
    const __m512i low =
        paired(rounded(_mm512_sub_ps(first, _mm512_castsi512_ps(_mm512_slli_epi32(high, 16))),
                       _mm512_sub_ps(second, upper(high))));
    _mm512_store_si512(out.high + at, high);
    _mm512_store_si512(out.low + at, low);
}

/// kStep rows of `cols` (a multiple of 32) numbers to a left operand; those from `count` on become
/// zeros.
void split_rows(const float* x, int64_t stride, int64_t count, int64_t cols, const Split& out) {
    const int64_t steps = cols / kStep;
    for (int64_t row = 0; row < kStep; ++row)
        for (int64_t step = 0; step < steps; ++step) {
            __m512 first = _mm512_setzero_ps(), second = first;
            if (row < count) {
                first = _mm512_loadu_ps(x + row * stride + step * kStep);
                second = _mm512_loadu_ps(x + row * stride + step * kStep + kLane);
            }
            split_words(first, second, (row / 16 * steps + step) * kTileBytes + row % 16 * 64, out);
        }
}

/// kStep rows of kStripRows numbers to a right operand.
TESSERA_INLINE void split_strip(const float* x, const Split& out) {
    for (int64_t row = 0; row < 16; ++row)
        for (int64_t half = 0; half < 2; ++half) {
            const float* first = x + row * kStripRows + half * kLane;
            split_words(_mm512_load_ps(first), _mm512_load_ps(first + 16 * kStripRows),
                        half * kTileBytes + row * 64, out);
        }
}

/// put(c, words) gets the columns of rows(r), r < 16, of 16 words of 32 bits each.
template <class Rows, class Put>
TESSERA_INLINE void transpose_words(const Rows& rows, const Put& put) {
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
        put(i, _mm512_shuffle_i32x4(even_low, even_high, 0x88));
        put(8 + i, _mm512_shuffle_i32x4(even_low, even_high, 0xdd));
        put(4 + i, _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
        put(12 + i, _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd));
    }
}

/// out[c][r] = x[r][c] for whole blocks of 16; strides are floats.
TESSERA_INLINE void transpose_floats(
    const float* x, int64_t stride, int64_t rows, int64_t cols, float* out, int64_t out_stride) {
    for (int64_t row = 0; row < rows; row += 16)
        for (int64_t col = 0; col < cols; col += 16)
            transpose_words(
                [&](int64_t r) { return _mm512_loadu_si512(x + (row + r) * stride + col); },
                [&](int64_t c, __m512i words) {
                    _mm512_storeu_si512(out + (col + c) * out_stride + row, words);
                });
}

/// Half `half` of the rows of a left operand [kChunkTokens][key size] as columns of a right operand
/// of 32 columns, and as columns of the left operand `columns` [key size][kChunkTokens].
void turn_keys(
    const std::byte* keys, int64_t key_size, int64_t half, std::byte* right, std::byte* columns) {
    const int64_t steps = key_size / kStep;
    const auto turn = [](const auto& rows, std::byte* out) __attribute__((always_inline)) {
        transpose_words(rows,
                        [&](int64_t c, __m512i words) { _mm512_store_si512(out + c * 64, words); });
    };
    for (int64_t block = 0; block < 2; ++block)
        for (int64_t step = 0; step < steps; ++step) {
            const std::byte* tile = keys + (block * steps + step) * kTileBytes;
            turn([&](int64_t r) { return _mm512_load_si512(tile + r * 64); },
                 right + (step * 2 + block) * kTileBytes);
        }
    constexpr __mmask32 kSecond = 0xaaaaaaaa;
    for (int64_t step = 0; step < steps; ++step) {
        const auto token = [&](int64_t r) {
            return _mm512_load_si512(keys + (r / 16 * steps + step) * kTileBytes + r % 16 * 64);
        };
        std::byte* out = columns + (4 * step + half) * kTileBytes;
        turn(
            [&](int64_t r) {
                return _mm512_mask_blend_epi16(kSecond, token(r),
                                               _mm512_slli_epi32(token(r + 16), 16));
            },
            out);
        turn(
            [&](int64_t r) {
                return _mm512_mask_blend_epi16(kSecond, _mm512_srli_epi32(token(r), 16),
                                               token(r + 16));
            },
            out + 2 * kTileBytes);
    }
}

/// 2 `pairs` blocks of 16 rows, `pitch` bytes apart, of `steps` tiles each.
struct Left {
    Split tiles;
    int64_t pairs, steps, pitch;
};

/// out[row][32] = left right, added to `out` for kOnto, without the upper right block for kLower;
/// step by step, so that other work can stand between the steps: the tiles are busy for 200 cycles
/// with each. Between the steps of a pair of blocks no other product may run.
class Product {
  public:
    enum Kind { kPlain, kOnto, kLower };
    Product(const Left& left, const Split& right, float* out, int64_t stride, Kind kind)
        : left_(left), right_(right), out_(out), stride_(stride), kind_(kind) {}
    int64_t steps() const { return left_.pairs * left_.steps; }
    TESSERA_INLINE void step() {
        settle_memory();
        float* below = out_ + 16 * stride_;
        if (step_ == 0 && kind_ == kOnto) {
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
            if (kind_ != kLower) _tile_stored(1, out_ + 16, stride_ * 4);
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
        if (kind_ != kLower) _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, rows.low + left_.pitch, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        _tile_loadd(4, rows.high, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (kind_ != kLower) _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, rows.high + left_.pitch, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        _tile_loadd(6, columns.low, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(2, 5, 6);
        _tile_loadd(7, columns.low + kTileBytes, 64);
        if (kind_ != kLower) _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
    }

    Left left_;
    Split right_;
    float* out_;
    int64_t stride_;
    Kind kind_;
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
