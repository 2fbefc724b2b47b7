#pragma once
// Products of f32 matrices on AMX-BF16 tiles. An operand is split into two bf16 numbers,
// x = high + low to 16 bits or more, of which high*high + high*low + low*high is summed in f32:
// about 1e-6 of the operands' norms is lost, at a third of the tiles' rate, which is still several
// times that of f32 arithmetic. A third number, the rest, makes the operands exact to f32: what it
// adds, low*low + high*rest + rest*high, is a product of its own (add_rest) for the few sums that
// need it. Left operands are packed in whole tiles: rows that lie apart cost an eighth more. Only
// included by *_amx.cpp; internal linkage throughout, see isa/vector.h.

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

/// The same with the third part: x = high + low + rest to 24 bits.
struct Thirds {
    Split main;
    std::byte* rest;
    Thirds at(int64_t bytes) const { return {main.at(bytes), rest + bytes}; }
};

// ---- operands ----

/// The upper halves of the lanes, which are bf16 numbers cut off, side by side.
inline __m512i paired(__m512i first, __m512i second) {
    constexpr int kFirstOrSecondMasked = 0xf8;
    return _mm512_ternarylogic_epi32(_mm512_srli_epi32(first, 16), second,
                                     _mm512_set1_epi32(-65536), kFirstOrSecondMasked);
}

/// The numbers whose bf16 bits are the upper halves of the lanes.
inline __m512 upper(__m512i bits) {
    return _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(-65536)));
}

/// Words of the last parts. A factor, two thirds of half a step on average, makes cutting off
/// almost rounding: its mean square error is an eighth larger, and it keeps every NaN, which an
/// addition to the bits does not.
inline __m512i last_words(__m512 first, __m512 second) {
    const __m512 near_half = _mm512_set1_ps(1.0f + 0x1p-8f * 2.0f / 3.0f);
    return paired(_mm512_castps_si512(_mm512_mul_ps(first, near_half)),
                  _mm512_castps_si512(_mm512_mul_ps(second, near_half)));
}

/// Word i of the row of an operand that begins at `at`: first[i] and second[i]. The conversions to
/// bf16 of the instruction set, which are several operations, take a third longer. A NaN of ones
/// that the first addition loses is in the low part.
TESSERA_INLINE void split_words(__m512 first, __m512 second, int64_t at, const Split& out) {
    const __m512i half = _mm512_set1_epi32(0x8000);
    const __m512i one = _mm512_add_epi32(_mm512_castps_si512(first), half);
    const __m512i two = _mm512_add_epi32(_mm512_castps_si512(second), half);
    _mm512_store_si512(out.high + at, paired(one, two));
    _mm512_store_si512(out.low + at, last_words(_mm512_sub_ps(first, upper(one)),
                                                _mm512_sub_ps(second, upper(two))));
}

/// split_words with the third part.
TESSERA_INLINE void split_words(__m512 first, __m512 second, int64_t at, const Thirds& out) {
    split_words(first, second, at, out.main);
    for (const std::byte* part : {out.main.high, out.main.low}) {
        const __m512i bits = _mm512_load_si512(part + at);
        first = _mm512_sub_ps(first, _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)));
        second = _mm512_sub_ps(second, upper(bits));
    }
    _mm512_store_si512(out.rest + at, last_words(first, second));
}

/// `count` rows of `cols` (a multiple of 32) numbers.
struct Rows {
    const float* x;
    int64_t stride, cols, count;
};

/// Rows [begin, end) to a left operand, a Split or Thirds; those from x.count on become zeros.
template <class Parts>
TESSERA_INLINE void split_rows(const Rows& x, int64_t begin, int64_t end, const Parts& out) {
    const int64_t steps = x.cols / kStep;
    for (int64_t row = begin; row < end; ++row)
        for (int64_t step = 0; step < steps; ++step) {
            __m512 words = _mm512_setzero_ps(), later = words;
            if (row < x.count) {
                words = _mm512_loadu_ps(x.x + row * x.stride + step * kStep);
                later = _mm512_loadu_ps(x.x + row * x.stride + step * kStep + kLane);
            }
            split_words(words, later, (row / 16 * steps + step) * kTileBytes + row % 16 * 64, out);
        }
}

/// kStep rows of kStripRows numbers to a right operand, a Split or Thirds.
template <class Parts>
TESSERA_INLINE void split_strip(const float* x, const Parts& out) {
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

/// 32 rows of a left operand [rows][key size] as columns of a right operand.
void turn_rows(const std::byte* rows, int64_t key_size, std::byte* right) {
    const int64_t steps = key_size / kStep;
    for (int64_t step = 0; step < steps; ++step)
        for (int64_t block = 0; block < 2; ++block) {
            const std::byte* tile = rows + (block * steps + step) * kTileBytes;
            std::byte* out = right + (step * 2 + block) * kTileBytes;
            transpose_words(
                [&](int64_t r) { return _mm512_load_si512(tile + r * 64); },
                [&](int64_t c, __m512i words) { _mm512_store_si512(out + c * 64, words); });
        }
}

/// A step of such a right operand as columns of a left operand, of two blocks of 16 rows `pitch`
/// bytes apart: a row of the former, words of the elements i and i + 16 of 16 tokens, has what rows
/// i and i + 16 of the latter need of them.
TESSERA_INLINE void turn_step(const std::byte* right, int64_t pitch, std::byte* columns) {
    constexpr __mmask32 kSecond = 0xaaaaaaaa;
    for (int64_t i = 0; i < 16; ++i) {
        const __m512i first = _mm512_load_si512(right + i * 64);
        const __m512i later = _mm512_load_si512(right + kTileBytes + i * 64);
        _mm512_store_si512(columns + i * 64,
                           _mm512_mask_blend_epi16(kSecond, first, _mm512_slli_epi32(later, 16)));
        _mm512_store_si512(columns + pitch + i * 64,
                           _mm512_mask_blend_epi16(kSecond, _mm512_srli_epi32(first, 16), later));
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

/// Like Left.
struct LeftThirds {
    Thirds tiles;
    int64_t pairs, steps, pitch;
};

/// One term of the sum that Product makes, of one part each.
TESSERA_INLINE void add_term(const std::byte* rows, int64_t pitch, const std::byte* columns) {
    _tile_loadd(4, rows, 64);
    _tile_loadd(5, rows + pitch, 64);
    _tile_loadd(6, columns, 64);
    _tile_loadd(7, columns + kTileBytes, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
}

/// Adds to out[32 pairs][32] what a Product of the same operands lacks.
void add_rest(const LeftThirds& left, const Thirds& right, float* out, int64_t stride) {
    settle_memory();
    for (int64_t pair = 0; pair < left.pairs; ++pair, out += 32 * stride) {
        float* below = out + 16 * stride;
        _tile_loadd(0, out, stride * 4);
        _tile_loadd(1, out + 16, stride * 4);
        _tile_loadd(2, below, stride * 4);
        _tile_loadd(3, below + 16, stride * 4);
        for (int64_t step = 0; step < left.steps; ++step) {
            const Thirds rows = left.tiles.at(2 * pair * left.pitch + step * kTileBytes);
            const Thirds columns = right.at(2 * step * kTileBytes);
            add_term(rows.main.low, left.pitch, columns.main.low);
            add_term(rows.main.high, left.pitch, columns.rest);
            add_term(rows.rest, left.pitch, columns.main.high);
        }
        _tile_stored(0, out, stride * 4);
        _tile_stored(1, out + 16, stride * 4);
        _tile_stored(2, below, stride * 4);
        _tile_stored(3, below + 16, stride * 4);
    }
    settle_memory();
}

}  // namespace
}  // namespace tessera::cpu
