#pragma once
// What the strips of a chunk have in common on AMX-BF16 tiles: keys and queries split into parts
// (recurrent_amx_tiles.h), their products, and the gates. What is made here is written in the form
// in which products take it and nowhere else: passes over memory are what it costs. Only included
// by recurrent_amx.cpp; internal linkage throughout, see isa/vector.h.

#include <algorithm>

#include "backends/cpu/isa/recurrent_amx_tiles.h"

namespace tessera::cpu {
namespace {

using Base = Chunk<Wide512>;

static_assert(kStripRows == 32, "a strip is two tiles wide");
static_assert(kChunkTokens == 2 * kStep, "a chunk is solved in two blocks");

/// A row of L (ops.h) with a larger sum of squares, and those behind it, get exact products. Where
/// keys resemble each other and little decays, each D undoes most of the one before; their sums in
/// the output and in the state are small against their terms, whose errors remain: 7e-5 of the norm
/// was seen. With unlike keys of 128 the sum is 63/128 at most, give or take 0.09; below the limit
/// 1e-5 holds but for values that make up for what their keys differ in (1.1e-5 in one of 400
/// made-up kinds of data). By rows, so that no row's bits depend on later ones.
constexpr float kMostOfRow = 0.75f;

/// What is known of a chunk.
struct Marks {
    int64_t exact_from;  ///< of the value head, the first row with exact products
    int64_t rests;       ///< of the key head: whether the third parts of keys and queries are there
};

constexpr int64_t kMarksBytes = 64;
static_assert(sizeof(Marks) <= kMarksBytes);

/// Where everything lies in ChunkKeys::tiles.
struct Areas {
    Thirds keys, queries;  ///< left: [kChunkTokens][key size]
    Thirds columns;        ///< left: [key size][kChunkTokens], keys transposed
    Thirds right_keys;     ///< right: two halves of tokens, [key size][kStripRows] each
    Split mix;             ///< left: ChunkGates::mix
    Split below;           ///< left: [kStep][kStep], ChunkGates::solve between the blocks
    Split strip;           ///< right: the strip whose products are being made
    Thirds deltas;         ///< right: D
    Thirds decayed;        ///< right: D decayed to the end of the chunk
    float* seen;  ///< [kChunkTokens][kStripRows] K S^T: the next strip's follows this one's
    /// [kChunkTokens][kStripRows] Q S^T of this strip and of the next one, in turn.
    float* asked[2];
    Marks* marks;
    Thirds late_mix, late_below;  ///< `mix` and `below` from Marks::exact_from on, zeros before
    float* rest_of_kk;            ///< like ChunkKeys::kk, what the third parts add to it
    float* rest_of_qk;            ///< the same of ChunkKeys::qk
    int64_t key_steps, bytes = 0;

    Areas(float* tiles, int64_t key_size) : key_steps(key_size / kStep) {
        const auto take = [&](int64_t count) {
            std::byte* taken = reinterpret_cast<std::byte*>(tiles) + bytes;
            bytes += count;
            return taken;
        };
        const auto split = [&](int64_t numbers) {
            return Split{take(2 * numbers), take(2 * numbers)};
        };
        for (Thirds* part : {&keys, &queries, &columns, &right_keys})
            part->main = split(kChunkTokens * key_size);
        mix = split(kChunkTokens * kChunkTokens);
        below = split(kStep * kStep);
        strip = split(key_size * kStripRows);
        deltas.main = split(kChunkTokens * kStripRows);
        decayed.main = split(kChunkTokens * kStripRows);
        for (float** area : {&seen, asked, asked + 1})
            *area = reinterpret_cast<float*>(take(4 * kChunkTokens * kStripRows));
        marks = reinterpret_cast<Marks*>(take(kMarksBytes));
        for (Thirds* part : {&keys, &queries, &columns, &right_keys})
            part->rest = take(2 * kChunkTokens * key_size);
        deltas.rest = take(2 * kChunkTokens * kStripRows);
        decayed.rest = take(2 * kChunkTokens * kStripRows);
        late_mix = {split(kChunkTokens * kChunkTokens), take(2 * kChunkTokens * kChunkTokens)};
        late_below = {split(kStep * kStep), take(2 * kStep * kStep)};
        for (float** area : {&rest_of_kk, &rest_of_qk})
            *area = reinterpret_cast<float*>(take(4 * kChunkTokens * kChunkTokens));
    }
};

int64_t tile_floats(int64_t key_size) {
    float base = 0.0f;
    return Areas(&base, key_size).bytes / 4;
}

// ---- keys and queries ----

/// out[i][j] = rows_i . k_j, j <= i, for half `half` of the tokens i; chore as multiply's.
template <class Chore>
TESSERA_INLINE void square(
    const Areas& areas, const Split& rows, int64_t half, float* out, const Chore& chore) {
    const int64_t steps = areas.key_steps, pitch = steps * kTileBytes;
    for (int64_t col = 0; col <= half; ++col)
        multiply({{rows.at(half * 2 * pitch), 1, steps, pitch},
                  areas.right_keys.main.at(col * 2 * pitch),
                  out + half * kStep * kChunkTokens + col * kStep,
                  kChunkTokens,
                  col == half ? Product::kLower : Product::kPlain},
                 [&](int64_t step, int64_t) { chore(col * steps + step, (half + 1) * steps); });
}

Rows rows_of(const float* x, int64_t stride, const DeltaRun& run, int64_t half) {
    return {x + half * kStep * stride, stride, run.key_size, run.tokens - half * kStep};
}

/// By halves: what one part makes is still in the first cache when the next one takes it. The tiles
/// are busy with products while vector instructions prepare what comes next.
void open_split_chunk(const DeltaRun& run, const ChunkKeys& keys) {
    const Areas areas(keys.tiles, run.key_size);
    const int64_t steps = areas.key_steps;
    for (int64_t half = 0; half * kStep < run.tokens; ++half) {
        const int64_t at = 2 * half * kStep * run.key_size;
        const Split k = areas.keys.main.at(at), q = areas.queries.main.at(at);
        const Split right = areas.right_keys.main.at(at);
        split_rows(rows_of(run.k, run.k_stride, run, half), 0, kStep, k);
        turn_rows(k.high, run.key_size, right.high);
        turn_rows(k.low, run.key_size, right.low);
        const Rows queries = rows_of(run.q, run.q_stride, run, half);
        square(
            areas, areas.keys.main, half,
            keys.kk, [&](int64_t step, int64_t of) __attribute__((always_inline)) {
                split_rows(queries, kStep * step / of, kStep * (step + 1) / of, q);
            });
        const Split columns = areas.columns.main.at(half * kTileBytes);
        square(
            areas, areas.queries.main, half,
            keys.qk, [&](int64_t step, int64_t of) __attribute__((always_inline)) {
                for (int64_t i = steps * step / of; i < steps * (step + 1) / of; ++i)
                    for (const auto part : {&Split::high, &Split::low})
                        turn_step(right.*part + i * 2 * kTileBytes, 2 * kTileBytes,
                                  columns.*part + i * 4 * kTileBytes);
            });
    }
    areas.marks->rests = 0;
}

/// The third parts of keys and queries, and what they add to ChunkKeys::kk and qk.
void open_rests(const DeltaRun& run, const Areas& areas) {
    const int64_t steps = areas.key_steps, pitch = steps * kTileBytes;
    for (float* area : {areas.rest_of_kk, areas.rest_of_qk})
        std::fill_n(area, kChunkTokens * kChunkTokens, 0.0f);
    for (int64_t half = 0; half * kStep < run.tokens; ++half) {
        const Thirds k = areas.keys.at(half * 2 * pitch), q = areas.queries.at(half * 2 * pitch);
        std::byte* right = areas.right_keys.rest + half * 2 * pitch;
        split_rows(rows_of(run.k, run.k_stride, run, half), 0, kStep, k);
        split_rows(rows_of(run.q, run.q_stride, run, half), 0, kStep, q);
        turn_rows(k.rest, run.key_size, right);
        for (int64_t step = 0; step < steps; ++step)
            turn_step(right + step * 2 * kTileBytes, 2 * kTileBytes,
                      areas.columns.rest + (4 * step + half) * kTileBytes);
        for (int64_t col = 0; col <= half; ++col) {
            const Thirds columns = areas.right_keys.at(col * 2 * pitch);
            const int64_t at = half * kStep * kChunkTokens + col * kStep;
            add_rest({k, 1, steps, pitch}, columns, areas.rest_of_kk + at, kChunkTokens);
            add_rest({q, 1, steps, pitch}, columns, areas.rest_of_qk + at, kChunkTokens);
        }
    }
    areas.marks->rests = 1;
}

// ---- gates ----

/// L and P (ops.h) by rows, in blocks of kLane columns.
class GateRows {
  public:
    GateRows(const DeltaRun& run, const ChunkKeys& keys, const ChunkGates& gates)
        : run_(run), keys_(keys), gates_(gates) {
        Base::open_tokens(run, gates, sums_);
        for (int64_t block = 0; block + 1 < kBlocks; ++block) {
            const __m512d last = _mm512_set1_pd(sums_[block * kLane + kLane - 1]);
            _mm512_store_ps(until_ + block * kLane, exp_between(last, sums_ + block * kLane));
            for (int64_t i = (block + 1) * kLane; i < kChunkTokens; i += kLane)
                _mm512_store_ps(since_[block] + i, exp_since(sums_ + i, last));
        }
    }
    /// Elements (i, j) of a block, -L and P; `exact`, unless null, has what the third parts add.
    /// Dead rows are zeros.
    TESSERA_INLINE void take(
        int64_t i, int64_t block, const Areas* exact, __m512& solve, __m512& mix) const {
        const int64_t at = i * kChunkTokens + block * kLane;
        const bool diagonal = block == i / kLane;
        const unsigned bit = i < run_.tokens ? 1u << i % kLane : 0;
        const unsigned all = i < run_.tokens ? 0xffff : 0;
        // exp(G_i - G_j) in two factors that meet at the end of the block: neither exceeds 1.
        const __m512 decay = diagonal ? exp_between(_mm512_set1_pd(sums_[i]), sums_ + block * kLane)
                                      : _mm512_mul_ps(_mm512_set1_ps(since_[block][i]),
                                                      _mm512_load_ps(until_ + block * kLane));
        const auto before = static_cast<__mmask16>(diagonal ? (bit - 1) & all : all);
        const auto upto = static_cast<__mmask16>(diagonal ? (2 * bit - 1) & all : all);
        __m512 known = _mm512_load_ps(keys_.kk + at), asked = _mm512_load_ps(keys_.qk + at);
        if (exact != nullptr) {
            known = _mm512_add_ps(known, _mm512_load_ps(exact->rest_of_kk + at));
            asked = _mm512_add_ps(asked, _mm512_load_ps(exact->rest_of_qk + at));
        }
        const __m512 beta = _mm512_set1_ps(-gates_.beta[i]);
        solve = _mm512_maskz_mul_ps(before, _mm512_mul_ps(beta, decay), known);
        mix = _mm512_maskz_mul_ps(upto, decay, asked);
    }

  private:
    static constexpr int64_t kBlocks = kChunkTokens / kLane;
    static TESSERA_INLINE __m512 exp_of_pair(__m512d low, __m512d high) {
        return exp_of<Wide512>(_mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(low)),
                                                  _mm512_cvtpd_ps(high), 1));
    }
    static TESSERA_INLINE __m512 exp_between(__m512d end, const double* sums) {
        return exp_of_pair(_mm512_sub_pd(end, _mm512_load_pd(sums)),
                           _mm512_sub_pd(end, _mm512_load_pd(sums + 8)));
    }
    static TESSERA_INLINE __m512 exp_since(const double* sums, __m512d begin) {
        return exp_of_pair(_mm512_sub_pd(_mm512_load_pd(sums), begin),
                           _mm512_sub_pd(_mm512_load_pd(sums + 8), begin));
    }

    const DeltaRun& run_;
    const ChunkKeys& keys_;
    const ChunkGates& gates_;
    alignas(64) double sums_[kChunkTokens];  ///< G
    alignas(64) float until_[kChunkTokens];  ///< exp(G_end - G_j), `end` of the block of j
    alignas(64) float since_[kBlocks - 1][kChunkTokens];  ///< [block] exp(G_i - G_end)
};

/// Where row i of a left operand [rows][kChunkTokens] has the words of step `step`.
constexpr int64_t word_of(int64_t i, int64_t step) {
    return (i / 16 * (kChunkTokens / kStep) + step) * kTileBytes + i % 16 * 64;
}
/// The same of ChunkGates::solve between the blocks.
constexpr int64_t word_below(int64_t i) {
    return (i - kStep) / 16 * kTileBytes + i % 16 * 64;
}

/// kLane rows from kBlock * kLane on: P split, L as ChunkGates::solve or split; squares: of L, the
/// sum of each row.
template <int64_t kBlock>
void open_rows(const GateRows& rows, const Areas& areas, const ChunkGates& gates, float* squares) {
    for (int64_t first = kBlock * kLane; first < (kBlock + 1) * kLane; first += 4) {
        __m512 sums[4];
        for (int64_t r = 0; r < 4; ++r) {
            const int64_t i = first + r;
            __m512 solve[4], mix[4];
            sums[r] = _mm512_setzero_ps();
            for (int64_t block = 0; block < 4; ++block) {
                solve[block] = mix[block] = _mm512_setzero_ps();
                if (block > kBlock) continue;
                rows.take(i, block, nullptr, solve[block], mix[block]);
                sums[r] = _mm512_fmadd_ps(solve[block], solve[block], sums[r]);
            }
            constexpr int64_t kFirst = kBlock / 2 * 2;
            for (int64_t block = kFirst; block <= kBlock; ++block)
                _mm512_store_ps(gates.solve + i * kChunkTokens + block * kLane, solve[block]);
            split_words(mix[0], mix[1], word_of(i, 0), areas.mix);
            if (kFirst == 0) continue;
            split_words(mix[2], mix[3], word_of(i, 1), areas.mix);
            split_words(solve[0], solve[1], word_below(i), areas.below);
        }
        Base::L::sum4(sums[0], sums[1], sums[2], sums[3], squares + first);
    }
}

/// Rows from Marks::exact_from on, of exact products of keys and queries, in all parts.
void open_late(const DeltaRun& run,
               const GateRows& rows,
               const Areas& areas,
               const ChunkGates& gates) {
    if (areas.marks->rests == 0) open_rests(run, areas);
    const Thirds& mix = areas.late_mix;
    for (std::byte* part : {mix.main.high, mix.main.low, mix.rest})
        std::fill_n(part, 2 * kChunkTokens * kChunkTokens, std::byte{});
    const Thirds& below = areas.late_below;
    for (std::byte* part : {below.main.high, below.main.low, below.rest})
        std::fill_n(part, 2 * kStep * kStep, std::byte{});
    for (int64_t i = areas.marks->exact_from; i < run.tokens; ++i) {
        __m512 solve[4], part[4];
        for (int64_t block = 0; block < 4; ++block) {
            solve[block] = part[block] = _mm512_setzero_ps();
            if (block <= i / kLane) rows.take(i, block, &areas, solve[block], part[block]);
        }
        for (int64_t step = 0; step <= i / kStep; ++step) {
            split_words(part[2 * step], part[2 * step + 1], word_of(i, step), mix);
            split_words(part[2 * step], part[2 * step + 1], word_of(i, step), areas.mix);
        }
        for (int64_t block = i / kStep * 2; block <= i / kLane; ++block)
            _mm512_store_ps(gates.solve + i * kChunkTokens + block * kLane, solve[block]);
        if (i < kStep) continue;
        split_words(solve[0], solve[1], word_below(i), below);
        split_words(solve[0], solve[1], word_below(i), areas.below);
    }
}

/// Gates of a value head. Only what products and solve_rows (recurrent_amx.cpp) read is written.
void open_split_gates(const DeltaRun& run, const ChunkKeys& keys, const ChunkGates& gates) {
    const Areas areas(keys.tiles, run.key_size);
    const GateRows rows(run, keys, gates);
    alignas(64) float squares[kChunkTokens] = {};
    open_rows<0>(rows, areas, gates, squares);
    open_rows<1>(rows, areas, gates, squares);
    if (run.tokens > kStep) {
        open_rows<2>(rows, areas, gates, squares);
        open_rows<3>(rows, areas, gates, squares);
    }
    const float* most =
        std::find_if(squares, squares + kChunkTokens, [](float sum) { return sum > kMostOfRow; });
    areas.marks->exact_from = most - squares;
    if (areas.marks->exact_from < run.tokens) open_late(run, rows, areas, gates);
}

}  // namespace
}  // namespace tessera::cpu
