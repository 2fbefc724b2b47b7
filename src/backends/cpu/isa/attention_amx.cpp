// Attention of prompt rows on AMX-BF16 tiles. Per page of 64 keys and 32 query columns:
//   S^T [keys x columns] = K Q^T     A = K rows as they lie, B = Q^T as pairs, once per block
//   P^T = exp2(c S - c max)          one lane per column, so the statistics need no shuffles
//   O^T [dims x columns] += V^T P^T  A = V^T from the packed page, B = P^T rounded to bf16 pairs
// The sums of P are taken of the rounded values, so that the weights of a row still add up to 1. A
// column's arithmetic reads only its own lane and the pages in order: neither its neighbours in the
// block nor the cut of the prompt into chunks can change it. A page of 32 columns at head size 64
// was measured at about 2400 cycles: 1100 of vector arithmetic and 1300 of tiles (576 of them
// products; how the rest splits into tile stores and loads of K and V was not measured). Issuing
// tile work between the exponentials was slower when tried; 512-bit arithmetic was seen at half its
// rate for some 500 cycles after a tile instruction.
#if defined(__x86_64__)

#    include <immintrin.h>

#    include "backends/cpu/isa/attention_amx_values.h"
#    include "backends/cpu/isa/attention_kernels.h"
#    include "backends/cpu/isa/rows_vector.h"
#    include "backends/cpu/isa/tiles_amx.h"
#    include "backends/cpu/isa/vector_math.h"

namespace tessera::cpu {
namespace {

constexpr int32_t kLanes = 16;
constexpr int32_t kHalves = 2;  // blocks are two tiles wide: each K and V tile serves both
constexpr int32_t kColumns = kLanes * kHalves;
constexpr int32_t kKeys = kPageTokens;
constexpr int32_t kTileBytes = 1024;
/// Pages, from an absolute multiple on, that share one maximum. Two and four give the tiles longer
/// runs but need as many times the memory for scores and probabilities: measured slower.
constexpr int32_t kBatch = 1;
/// The reference of a column's exponents follows its maximum only when that has risen by 2^8:
/// probabilities may reach 256, and the sums are seldom rescaled.
constexpr float kSlack = 8.0f;
// Finite, so that differences of maxima are never inf - inf; far below any score.
constexpr float kNothingSeen = -1e30f;
constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kLn2 = 0.69314718055994530942f;

/// Thread scratch: Q^T tiles [half][step][16 pairs][16], S^T [page][half][64][16], P^T
/// [half][page][32][16], and room for other V^T [page][head_size][64].
struct Scratch {
    std::byte* queries;
    float* scores;
    std::byte* weights;
    std::byte* values;
    int32_t steps;  // of 32 dims

    Scratch(std::byte* base, int32_t head_size)
        : queries(base), scores(nullptr), weights(nullptr), values(nullptr), steps(head_size / 32) {
        scores = reinterpret_cast<float*>(base + kHalves * steps * kTileBytes);
        weights = reinterpret_cast<std::byte*>(scores + kBatch * kHalves * kKeys * kLanes);
        values = weights + kBatch * kHalves * 2 * kTileBytes;
    }
    std::byte* values_of(int32_t slot) const {
        return values + int64_t{slot} * 32 * steps * kKeys * 2;
    }
    float* scores_of(int32_t slot, int32_t half) const {
        return scores + (slot * kHalves + half) * kKeys * kLanes;
    }
    std::byte* weights_of(int32_t slot, int32_t half) const {
        return weights + (half * kBatch + slot) * 2 * kTileBytes;
    }
};

/// State of one half, all rows of 16 lanes: O^T [head_size], then references, then totals.
struct State {
    float* sums;
    float* references;  // what the exponents are relative to
    float* totals;

    State(float* base, int32_t head_size, int32_t half)
        : sums(base + static_cast<int64_t>(half) * (head_size + 2) * kLanes),
          references(sums + static_cast<int64_t>(head_size) * kLanes),
          totals(references + kLanes) {}
};

int64_t packed_bytes(int32_t head_size) {
    return int64_t{2} * kKeys * head_size * 2;
}

int64_t state_floats(int32_t head_size) {
    return int64_t{kHalves} * (head_size + 2) * kLanes;
}

int64_t scratch_bytes(int32_t head_size) {
    const int64_t page = kKeys * kLanes * 4 + kKeys * kLanes * 2;
    return kHalves * (head_size / 32 * kTileBytes + kBatch * page) +
           kBatch * int64_t{head_size} * kKeys * 2;
}

void transpose_16x16(__m512i rows[16]) {
    __m512i t[16];
    for (int i = 0; i < 8; ++i) {
        t[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    for (int i = 0; i < 4; ++i) {
        rows[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        rows[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        rows[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        rows[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
        t[i] = _mm512_shuffle_i32x4(rows[i], rows[4 + i], 0x88);
        t[4 + i] = _mm512_shuffle_i32x4(rows[i], rows[4 + i], 0xdd);
        t[8 + i] = _mm512_shuffle_i32x4(rows[8 + i], rows[12 + i], 0x88);
        t[12 + i] = _mm512_shuffle_i32x4(rows[8 + i], rows[12 + i], 0xdd);
    }
    for (int i = 0; i < 4; ++i) {
        rows[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
        rows[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
        rows[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
        rows[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
    }
}

/// 16 elements of a cache row as f32.
inline __m512 load_elements(const std::byte* row, DType dtype, int32_t index) {
    switch (dtype) {
        case DType::kF32:
            return _mm512_loadu_ps(reinterpret_cast<const float*>(row) + index);
        case DType::kF16:
            return _mm512_cvtph_ps(
                _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 2 * index)));
        case DType::kBF16:
            return _mm512_castsi512_ps(_mm512_slli_epi32(
                _mm512_cvtepu16_epi32(
                    _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 2 * index))),
                16));
        case DType::kF8_E4M3:
            return Lane<Wide512>::load_e4m3(reinterpret_cast<const uint8_t*>(row) + index);
        default: {
            const std::byte* block = row + index / 32 * 34;
            uint16_t half_bits;
            __builtin_memcpy(&half_bits, block, 2);
            const __m512i codes = _mm512_cvtepi8_epi32(
                _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 2 + index % 32)));
            return _mm512_mul_ps(_mm512_set1_ps(_cvtsh_ss(half_bits)), _mm512_cvtepi32_ps(codes));
        }
    }
}

inline __m256i round_bf16(__m512 values) {
    return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values));
}

/// Lane-wise pairs: `low` rounded in the lower halves, `high` in the upper ones.
inline __m512i pair_bf16(__m512 low, __m512 high) {
    return _mm512_or_si512(_mm512_cvtepu16_epi32(round_bf16(low)),
                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(round_bf16(high)), 16));
}

/// Packed page: K [64 keys][head_size] bf16, then V^T [head_size][64 keys] bf16.
void pack_page(const PageRows& keys,
               const PageRows& values,
               int32_t head_size,
               int32_t live,
               std::byte* packed) {
    for (int32_t key = 0; key < kKeys; ++key) {
        const std::byte* row = keys.base + key * keys.row_bytes;
        for (int32_t dim = 0; dim < head_size; dim += kLanes) {
            const __m512 value =
                key < live ? load_elements(row, keys.dtype, dim) : _mm512_setzero_ps();
            _mm256_store_si256(
                reinterpret_cast<__m256i*>(packed + (int64_t{key} * head_size + dim) * 2),
                round_bf16(value));
        }
    }
    std::byte* transposed = packed + int64_t{kKeys} * head_size * 2;
    for (int32_t dim = 0; dim < head_size; dim += kLanes)
        for (int32_t step = 0; step < kKeys / 32; ++step) {
            __m512i pairs[16];
            for (int32_t pair = 0; pair < 16; ++pair) {
                const int32_t key = 32 * step + 2 * pair;
                const std::byte* row = values.base + key * values.row_bytes;
                const __m512 low =
                    key < live ? load_elements(row, values.dtype, dim) : _mm512_setzero_ps();
                const __m512 high = key + 1 < live
                                        ? load_elements(row + values.row_bytes, values.dtype, dim)
                                        : _mm512_setzero_ps();
                pairs[pair] = pair_bf16(low, high);
            }
            transpose_16x16(pairs);
            for (int32_t row = 0; row < 16; ++row)
                _mm512_store_si512(transposed + (dim + row) * kKeys * 2 + step * 64, pairs[row]);
        }
}

/// The columns of a block: where they read and write, and what they see.
struct Columns {
    alignas(64) int32_t positions[kColumns];
    int64_t query[kColumns], out[kColumns];  // offsets
    int32_t live;
    int32_t first = INT32_MAX, last = 0;  // smallest and largest position

    explicit Columns(const PromptBlock& block) : live(block.columns) {
        const int32_t group = block.shape.group;
        int32_t token = block.first_column / group, head = block.first_column % group;
        for (int32_t i = 0; i < kColumns; ++i) {
            // Lanes past the end repeat the last column's position: they never widen the view.
            if (i < live) {
                positions[i] = block.positions[token];
                first = positions[i] < first ? positions[i] : first;
                last = positions[i] > last ? positions[i] : last;
            } else {
                positions[i] = positions[live - 1];
            }
            query[i] = token * block.token_stride + head * block.head_stride;
            out[i] = token * block.out_stride + int64_t{head} * block.shape.head_size;
            if (++head == group) {
                head = 0;
                ++token;
            }
        }
    }
};

/// Q^T of one half as B tiles; columns past the end are zero.
void pack_queries(const PromptBlock& block,
                  const Columns& columns,
                  int32_t half,
                  const Scratch& scratch) {
    for (int32_t step = 0; step < scratch.steps; ++step) {
        __m512i rows[16];
        for (int32_t lane = 0; lane < kLanes; ++lane) {
            const int32_t index = half * kLanes + lane;
            rows[lane] = _mm512_setzero_si512();
            if (index >= columns.live) continue;
            const float* query = block.queries + columns.query[index] + 32 * step;
            rows[lane] = reinterpret_cast<__m512i>(
                _mm512_cvtne2ps_pbh(_mm512_loadu_ps(query + 16), _mm512_loadu_ps(query)));
        }
        transpose_16x16(rows);
        std::byte* tile = scratch.queries + (half * scratch.steps + step) * kTileBytes;
        for (int32_t pair = 0; pair < 16; ++pair) _mm512_store_si512(tile + 64 * pair, rows[pair]);
    }
}

/// S^T of both halves for the first `keys` (32 or 64) keys of a page.
void multiply_scores(const std::byte* page, int32_t keys, const Scratch& scratch, int32_t slot) {
    const int64_t stride = int64_t{scratch.steps} * 64;
    const std::byte* left = scratch.queries;
    const std::byte* right = scratch.queries + scratch.steps * kTileBytes;
    settle_memory();
    for (int32_t key = 0; key < keys; key += 32) {
        const std::byte* top = page + key * stride;
        const std::byte* bottom = top + 16 * stride;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int32_t step = 0; step < scratch.steps; ++step) {
            _tile_loadd(4, top + 64 * step, stride);
            _tile_loadd(6, left + step * kTileBytes, 64);
            _tile_loadd(7, right + step * kTileBytes, 64);
            _tile_loadd(5, bottom + 64 * step, stride);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        float* target = scratch.scores_of(slot, 0) + key * kLanes;
        float* target_right = scratch.scores_of(slot, 1) + key * kLanes;
        _tile_stored(0, target, 64);
        _tile_stored(1, target_right, 64);
        _tile_stored(2, target + 16 * kLanes, 64);
        _tile_stored(3, target_right + 16 * kLanes, 64);
    }
}

/// O^T += V^T P^T of both halves over the pages of a batch; `keys` of each are in sight.
struct ValuePage {
    const std::byte* values;
    int32_t keys, slot;
};
void multiply_values(const ValuePage* pages,
                     int32_t count,
                     int32_t head_size,
                     const Scratch& scratch,
                     const State states[kHalves]) {
    const State &left = states[0], &right = states[1];
    settle_memory();
    for (int32_t dim = 0; dim < head_size; dim += 32) {
        _tile_loadd(0, left.sums + dim * kLanes, 64);
        _tile_loadd(1, right.sums + dim * kLanes, 64);
        _tile_loadd(2, left.sums + (dim + 16) * kLanes, 64);
        _tile_loadd(3, right.sums + (dim + 16) * kLanes, 64);
        for (int32_t page = 0; page < count; ++page) {
            const std::byte* top = pages[page].values + int64_t{dim} * kKeys * 2;
            const std::byte* bottom = top + 16 * kKeys * 2;
            const std::byte* weights = scratch.weights_of(pages[page].slot, 0);
            const std::byte* weights_right = scratch.weights_of(pages[page].slot, 1);
            for (int32_t step = 0; step < pages[page].keys / 32; ++step) {
                _tile_loadd(4, top + 64 * step, kKeys * 2);
                _tile_loadd(6, weights + step * kTileBytes, 64);
                _tile_loadd(7, weights_right + step * kTileBytes, 64);
                _tile_loadd(5, bottom + 64 * step, kKeys * 2);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
        _tile_stored(0, left.sums + dim * kLanes, 64);
        _tile_stored(1, right.sums + dim * kLanes, 64);
        _tile_stored(2, left.sums + (dim + 16) * kLanes, 64);
        _tile_stored(3, right.sums + (dim + 16) * kLanes, 64);
    }
}

/// Fraction of t in [0, 1) by polynomial, the floor by scalef: 2^t with a relative error under
/// 4e-6 (P is rounded to 8 bits afterwards). Minimax coefficients of 2^x on [0, 1).
inline __m512 exp2_lanes(__m512 t) {
    const __m512 f = _mm512_reduce_ps(t, 0x01);
    __m512 p = _mm512_set1_ps(1.3697664475809267e-02f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.1690358205939469e-02f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4163844572498163e-01f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9296612266139567e-01f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.000003704465937f));
    return _mm512_scalef_ps(p, t);
}

/// Which lanes see which keys of the page, relative to its first key: key in (low, high].
struct Visible {
    __m512i low, high;
    __mmask16 at(int32_t key) const {
        const __m512i keys = _mm512_set1_epi32(key);
        return _mm512_cmple_epi32_mask(keys, high) & _mm512_cmpgt_epi32_mask(keys, low);
    }
};

/// Bits of two rows of probabilities, rounded half up to bf16 (they are never negative), as pairs.
inline __m512i pair_probabilities(__m512 even, __m512 odd) {
    const __m512i half_unit = _mm512_set1_epi32(0x8000);
    const __m512i low = _mm512_add_epi32(_mm512_castps_si512(even), half_unit);
    const __m512i high = _mm512_add_epi32(_mm512_castps_si512(odd), half_unit);
    return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(low, 16), high);
}

inline __m512 add_pairs(__m512 total, __m512i pairs) {
    const __m512i ones = _mm512_set1_epi32(0x3f803f80);
    return _mm512_dpbf16_ps(total, reinterpret_cast<__m512bh>(pairs),
                            reinterpret_cast<__m512bh>(ones));
}

/// Brings the sums and the total of a half to a new maximum.
inline void rescale(const State& state, __m512 factor, int32_t head_size) {
    for (int32_t dim = 0; dim < head_size; ++dim) {
        float* row = state.sums + dim * kLanes;
        _mm512_store_ps(row, _mm512_mul_ps(_mm512_load_ps(row), factor));
    }
    _mm512_store_ps(state.totals, _mm512_mul_ps(_mm512_load_ps(state.totals), factor));
}

/// One page of one half: `keys` of its 64 keys are in sight of some column of the block.
struct Page {
    const float* scores;
    std::byte* weights;
    Visible visible;
    int32_t keys;
    bool masked;  // some column does not see all of them
};

/// Largest scores by lane, not below `floor`.
template <bool kMasked>
__m512 largest_scores(const Page& page, __m512 floor) {
    __m512 maxima[4] = {floor, floor, floor, floor};
    for (int32_t key = 0; key < page.keys; key += 4)
        for (int32_t i = 0; i < 4; ++i) {
            const __m512 row = _mm512_load_ps(page.scores + (key + i) * kLanes);
            if constexpr (kMasked)
                maxima[i] = _mm512_mask_max_ps(maxima[i], page.visible.at(key + i), maxima[i], row);
            else
                maxima[i] = _mm512_max_ps(row, maxima[i]);
        }
    return _mm512_max_ps(_mm512_max_ps(maxima[0], maxima[1]), _mm512_max_ps(maxima[2], maxima[3]));
}

/// Moves the references of a half to its new maxima where these have risen by more than the slack,
/// and returns them times c.
__m512 raise_references(__m512 largest, float c, const State& state, int32_t head_size) {
    const __m512 before = _mm512_load_ps(state.references);
    const __m512 scale = _mm512_set1_ps(c);
    const __m512 rise = _mm512_mul_ps(_mm512_sub_ps(largest, before), scale);
    const __mmask16 moved = _mm512_cmp_ps_mask(rise, _mm512_set1_ps(kSlack), _CMP_GT_OQ);
    if (moved == 0) return _mm512_mul_ps(before, scale);
    const __m512 after = _mm512_mask_mov_ps(before, moved, largest);
    // exp_of(0) is exactly 1: a lane whose reference stays keeps its sums bit for bit.
    const __m512 drop = _mm512_mul_ps(_mm512_sub_ps(before, after), scale);
    rescale(state, exp_of<Wide512>(_mm512_mul_ps(drop, _mm512_set1_ps(kLn2))), head_size);
    _mm512_store_ps(state.references, after);
    return _mm512_mul_ps(after, scale);
}

/// Scores to probabilities for a page of one half.
template <bool kMasked>
void soften(const Page& page, float c, __m512 offset, const State& state) {
    const __m512 scale = _mm512_set1_ps(c);
    __m512 totals[2] = {_mm512_load_ps(state.totals), _mm512_setzero_ps()};
    for (int32_t key = 0; key < page.keys; key += 4)
        for (int32_t i = 0; i < 2; ++i) {
            const int32_t even_key = key + 2 * i;
            const float* row = page.scores + even_key * kLanes;
            __m512 even = exp2_lanes(_mm512_fmsub_ps(_mm512_load_ps(row), scale, offset));
            __m512 odd = exp2_lanes(_mm512_fmsub_ps(_mm512_load_ps(row + kLanes), scale, offset));
            if constexpr (kMasked) {
                even = _mm512_maskz_mov_ps(page.visible.at(even_key), even);
                odd = _mm512_maskz_mov_ps(page.visible.at(even_key + 1), odd);
            }
            const __m512i pairs = pair_probabilities(even, odd);
            _mm512_store_si512(page.weights + even_key / 2 * 64, pairs);
            totals[i] = add_pairs(totals[i], pairs);
        }
    _mm512_store_ps(state.totals, _mm512_add_ps(totals[0], totals[1]));
}

/// Raw products to scores, where the exponent is not a plain multiple of the product.
void apply_rule(const AttentionShape& shape, float* scores) {
    const __m512 scale = _mm512_set1_ps(shape.scale), cap = _mm512_set1_ps(shape.softcap);
    for (int32_t i = 0; i < kHalves * kKeys * kLanes; i += kLanes) {
        __m512 score = _mm512_mul_ps(_mm512_load_ps(scores + i), scale);
        if (shape.softcap > 0.0f)
            score = _mm512_mul_ps(cap, tanh_of<Wide512>(_mm512_div_ps(score, cap)));
        _mm512_store_ps(scores + i, score);
    }
}

/// Lets each column's sink take part: it may become what the exponents are relative to.
void add_sinks(const PromptBlock& block, int32_t half, float c, const State& state) {
    alignas(64) float sinks[kLanes];
    for (int32_t i = 0; i < kLanes; ++i)
        sinks[i] = block.sinks[(block.first_column + half * kLanes + i) % block.shape.group];
    const __m512 sink = _mm512_mul_ps(_mm512_load_ps(sinks), _mm512_set1_ps(kLog2E));
    const __m512 before = _mm512_mul_ps(_mm512_load_ps(state.references), _mm512_set1_ps(c));
    const __m512 after = _mm512_max_ps(sink, before);
    const auto exp2_below = [&](__m512 x) {
        return exp_of<Wide512>(_mm512_mul_ps(_mm512_sub_ps(x, after), _mm512_set1_ps(kLn2)));
    };
    rescale(state, exp2_below(before), block.shape.head_size);
    _mm512_store_ps(state.totals, _mm512_add_ps(_mm512_load_ps(state.totals), exp2_below(sink)));
}

/// O / l of one half, transposed back to rows.
void store_output(const PromptBlock& block,
                  const Columns& columns,
                  int32_t half,
                  const State& state) {
    const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_load_ps(state.totals));
    for (int32_t dim = 0; dim < block.shape.head_size; dim += kLanes) {
        __m512i rows[16];
        for (int32_t i = 0; i < kLanes; ++i)
            rows[i] = _mm512_castps_si512(
                _mm512_mul_ps(_mm512_load_ps(state.sums + (dim + i) * kLanes), inverse));
        transpose_16x16(rows);
        for (int32_t lane = 0; lane < kLanes && half * kLanes + lane < columns.live; ++lane)
            _mm512_storeu_si512(block.out + columns.out[half * kLanes + lane] + dim, rows[lane]);
    }
}

/// A block on its way through the pages.
struct Walk {
    const PromptBlock& block;
    const Scratch& scratch;
    const Columns& columns;
    const State* states;
    bool direct;
    float c;  // turns scores into exponents of 2

    const std::byte* packed(int32_t page) const {
        return block.packed + (page - block.first_page) * packed_bytes(block.shape.head_size);
    }
    Page page_of(int32_t page, int32_t half) const {
        const int32_t start = page * kKeys, window = block.shape.window;
        const int32_t slot = page % kBatch;
        const __m512i high = _mm512_sub_epi32(_mm512_load_si512(columns.positions + half * kLanes),
                                              _mm512_set1_epi32(start));
        const __m512i low =
            window > 0 ? _mm512_sub_epi32(high, _mm512_set1_epi32(window)) : _mm512_set1_epi32(-1);
        const bool all_visible =
            columns.first >= start + kKeys - 1 && (window <= 0 || columns.last - window < start);
        return {scratch.scores_of(slot, half),
                scratch.weights_of(slot, half),
                {low, high},
                columns.last + 1 - start > 32 ? kKeys : 32,
                !all_visible};
    }

    /// Pages [first, last), all in one batch and in sight of some column.
    void batch(int32_t first, int32_t last) const {
        const int32_t head_size = block.shape.head_size, count = last - first;
        Page pages[kHalves][kBatch];
        ValuePage values[kBatch];
        for (int32_t i = 0; i < count; ++i) {
            for (int32_t half = 0; half < kHalves; ++half)
                pages[half][i] = page_of(first + i, half);
            const int32_t keys = pages[0][i].keys, slot = (first + i) % kBatch;
            values[i] = {packed(first + i) + int64_t{kKeys} * head_size * 2, keys, slot};
            multiply_scores(packed(first + i), keys, scratch, slot);
        }
        if (!direct)
            for (int32_t i = 0; i < count; ++i)
                apply_rule(block.shape, scratch.scores_of(values[i].slot, 0));
        for (int32_t half = 0; half < kHalves; ++half) {
            __m512 largest = _mm512_set1_ps(kNothingSeen);
            for (int32_t i = 0; i < count; ++i) {
                const Page& page = pages[half][i];
                largest = page.masked ? largest_scores<true>(page, largest)
                                      : largest_scores<false>(page, largest);
            }
            const __m512 offset = raise_references(largest, c, states[half], head_size);
            for (int32_t i = 0; i < count; ++i) {
                const Page& page = pages[half][i];
                if (page.masked)
                    soften<true>(page, c, offset, states[half]);
                else
                    soften<false>(page, c, offset, states[half]);
            }
        }
        uint64_t bad[kBatch] = {};
        for (int32_t i = 0; i < count; ++i) {
            if (pages[0][i].masked) bad[i] = bad_keys(values[i].values, values[i].keys, head_size);
            if (bad[i] != 0)
                values[i].values =
                    copy_finite(values[i].values, head_size, scratch.values_of(values[i].slot));
        }
        multiply_values(values, count, head_size, scratch, states);
        for (int32_t i = 0; i < count; ++i)
            for (; bad[i] != 0; bad[i] &= bad[i] - 1) {
                const int32_t key = __builtin_ctzll(bad[i]);
                const std::byte* own = packed(first + i) + int64_t{kKeys} * head_size * 2;
                for (int32_t half = 0; half < kHalves; ++half)
                    add_bad_key(own, key, pages[half][i].weights, pages[half][i].visible.at(key),
                                head_size, states[half].sums);
            }
    }
};

void attend(const PromptBlock& block, std::byte* scratch_base) {
    const AttentionShape& shape = block.shape;
    const int32_t head_size = shape.head_size;
    const Scratch scratch(scratch_base, head_size);
    const State states[kHalves] = {State(block.state, head_size, 0),
                                   State(block.state, head_size, 1)};
    const Columns columns(block);
    for (int32_t half = 0; half < kHalves; ++half) {
        pack_queries(block, columns, half, scratch);
        if (!block.opens) continue;
        __builtin_memset(states[half].sums, 0, static_cast<size_t>(head_size) * kLanes * 4);
        _mm512_store_ps(states[half].references, _mm512_set1_ps(kNothingSeen));
        _mm512_store_ps(states[half].totals, _mm512_setzero_ps());
    }
    const bool direct = shape.softcap <= 0.0f && shape.scale > 0.0f;
    const Walk walk{block,  scratch, columns,
                    states, direct,  (direct ? shape.scale : 1.0f) * kLog2E};
    const int32_t end =
        columns.last / kKeys + 1 < block.last_page ? columns.last / kKeys + 1 : block.last_page;
    int32_t page = block.first_page;
    if (shape.window > 0 && columns.first - shape.window + 1 > page * kKeys)
        page = (columns.first - shape.window + 1) / kKeys;
    while (page < end) {
        const int32_t border = (page / kBatch + 1) * kBatch;
        const int32_t last = border < end ? border : end;
        walk.batch(page, last);
        page = last;
    }
    if (!block.closes) return;
    for (int32_t half = 0; half < kHalves; ++half) {
        if (block.sinks != nullptr) add_sinks(block, half, walk.c, states[half]);
        store_output(block, columns, half, states[half]);
    }
}

}  // namespace

const PromptKernels& prompt_kernels_amx(int32_t head_size) {
    static constexpr PromptKernels kKernels = {.block_columns = kColumns,
                                               .packed_bytes = packed_bytes,
                                               .state_floats = state_floats,
                                               .scratch_bytes = scratch_bytes,
                                               .pack_page = pack_page,
                                               .enter = enter_tiles,
                                               .leave = leave_tiles,
                                               .attend = attend};
    if (head_size % 32 != 0) return prompt_kernels_avx512(head_size);
    return kKernels;
}

}  // namespace tessera::cpu

#endif
