// Prompt rows with AMX-BF16. A column tile is 32 weight rows, decoded to bf16 into a panel of B
// tiles [unit][2][16 pairs][16 rows][2] that stays in the second-level cache while all rows of
// activations of a pass go by, 32 at a time: 2 x 2 accumulator tiles, four tile loads for four tile
// products. Activations are read where prepare() put them: rows of an odd number of cache lines.
//
// Between the tile products of a block, the next panel is decoded and the sums of the block before
// go to their outputs. A sum runs over the columns in order, whatever the number of rows, so
// results do not depend on the batch. Rejected, each measured: carrying sums through memory every
// 256 to 512 columns so that a panel stays in the first-level cache (no faster), 3 x 2 accumulators
// (slower), software prefetch of activations or outputs (no gain to 45% slower), activations in
// tile order (no gain), integer arithmetic for the decoding (no gain: stores of the panel bound
// it).
//
// Bound: 16 cycles a tile product; the limits that show are the second-level cache, 4 KiB of tiles
// for four products, and the lines of panel and output that each cost it a read and a write.
// Measured shares: docs/cpu-kernels.md.
#include "backends/cpu/isa/linear_kernels.h"

#if defined(__AMX_BF16__)

#    include <algorithm>
#    include <source_location>

#    include "backends/cpu/isa/linear_formats.h"
#    include "backends/cpu/isa/tiles_amx.h"
#    include "backends/cpu/isa/vector_math.h"
#    include "core/error.h"

namespace tessera::cpu {
namespace {

constexpr int64_t kTileBytes = 1024;
constexpr int64_t kColumnRows = 32;  ///< tokens of a block, weight rows of a column tile

/// Bits of two f32 vectors to bf16 pairs (even columns in the low halves), round to nearest even.
/// Codes times scales that fit 8 bits (FP4) are exact: their upper halves are the result.
template <bool kExact>
TESSERA_INLINE __m512i pack_pairs(__m512 even, __m512 odd) {
    if constexpr (!kExact) {
        // Sixteen even columns, then sixteen odd ones; subnormal numbers become zero.
        alignas(64) static constexpr uint16_t kPairs[32] = {
            0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
            8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
        const auto halves = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
        return _mm512_permutexvar_epi16(_mm512_load_si512(kPairs), halves);
    }
    const __m512i low = _mm512_castps_si512(even);
    const __m512i high = _mm512_castps_si512(odd);
    // (low >> 16) | (high & 0xffff0000): ternary-logic table of a | (b & c).
    return _mm512_ternarylogic_epi32(_mm512_srli_epi32(low, 16), high,
                                     _mm512_set1_epi32(static_cast<int32_t>(0xffff0000u)), 0xf8);
}

/// Columns 8 eight .. 8 eight + 7 of a unit (16 rows) to their 256 bytes of the B tile.
template <DType kFormat, int kEight>
TESSERA_INLINE void fill_eight(const Codes<Wide512, kFormat>& reader,
                               const std::byte* unit,
                               __m512 scale,
                               __m512 minimum,
                               std::byte* tile) {
    using Reader = Scales<Wide512, kFormat>;
    reader.template pairs<8 * kEight, 8>(
        unit, 0, [&](int k, __m512 even, __m512 odd) __attribute__((always_inline)) {
            if constexpr (Reader::kMinimum) {
                even = _mm512_fmadd_ps(even, scale, minimum);
                odd = _mm512_fmadd_ps(odd, scale, minimum);
            } else if constexpr (Reader::kPresent) {
                even = _mm512_mul_ps(even, scale);
                odd = _mm512_mul_ps(odd, scale);
            }
            constexpr bool kExact = is_fp4(kFormat) || kFormat == DType::kBF16;
            _mm512_store_si512(tile + 32 * k, pack_pairs<kExact>(even, odd));
        });
}

/// One pass over some columns of one column tile for the activations of one token range.
struct Job {
    int64_t token;  ///< first row of the token range
    int64_t unit;   ///< first unit of the pass
    int64_t tile;   ///< column tile
};

/// The jobs of a task in order: token ranges, passes, column tiles.
class Jobs {
  public:
    explicit Jobs(const PanelTask& task) : task_(task), now_{0, 0, task.first} {}
    const Job& now() const { return now_; }
    bool done() const { return now_.token >= task_.tokens; }
    void advance() {
        if (++now_.tile < task_.last) return;
        now_.tile = task_.first;
        now_.unit += kPassUnits;
        if (now_.unit < task_.units) return;
        now_.unit = 0;
        now_.token += pass_tokens(task_.units);
    }

  private:
    const PanelTask& task_;
    Job now_;
};

/// Row block of one side of a column tile. The last tile of an odd number of row blocks decodes its
/// first half twice.
int64_t block_of(const PanelTask& task, int64_t tile, int side) {
    if (task.sink.gated) return tile;
    const int64_t block = 2 * tile + side;
    return block * kBlockRows < task.weights[0].rows ? block : block - 1;
}

/// Decodes the panel of one job in steps of 8 columns x 16 rows: small enough to disappear between
/// tile products.
template <DType kFormat>
class PanelFill {
  public:
    PanelFill(const PanelTask& task, const Job& job, std::byte* panel)
        : unit_(job.unit), end_(std::min(job.unit + kPassUnits, task.units)), tile_(panel) {
        const bool gated = task.sink.gated;
        for (int side = 0; side < 2; ++side) {
            const PackedView& weight = task.weights[gated ? side : 0];
            const int64_t block = block_of(task, job.tile, side);
            codes_[side] = weight.codes + block * weight.code_step;
            scales_[side] = weight.scales + block * weight.scale_step;
        }
    }
    bool done() const { return unit_ == end_; }

    TESSERA_INLINE void step() {
        using Reader = Scales<Wide512, kFormat>;
        constexpr int kUnitBytes = layout_of(kFormat).unit_bytes;
        const Codes<Wide512, kFormat> reader;
        const std::byte* unit = codes_[side_] + unit_ * kUnitBytes;
        // Far enough to hide memory; each step fetches its share of a later unit.
        __builtin_prefetch(unit + 8 * kUnitBytes + eight_ * (kUnitBytes / 4));
        __m512 scale = _mm512_setzero_ps(), minimum = _mm512_setzero_ps();
        if constexpr (Reader::kPresent) {
            const int group = group_cols(kFormat) == 16 ? eight_ / 2 : 0;
            scale = Reader::scale(scales_[side_], unit_, group, 0);
        }
        if constexpr (Reader::kMinimum) minimum = Reader::minimum(scales_[side_], unit_, 0);
        if constexpr (is_five_bit(kFormat) || kFormat == DType::kQ6_K) {
            // The upper bits of each eight have their own shifts.
            switch (eight_) {
                case 0:
                    fill_eight<kFormat, 0>(reader, unit, scale, minimum, tile_);
                    break;
                case 1:
                    fill_eight<kFormat, 1>(reader, unit, scale, minimum, tile_);
                    break;
                case 2:
                    fill_eight<kFormat, 2>(reader, unit, scale, minimum, tile_);
                    break;
                default:
                    fill_eight<kFormat, 3>(reader, unit, scale, minimum, tile_);
                    break;
            }
        } else {
            fill_eight<kFormat, 0>(reader, unit + eight_ * (kUnitBytes / 4), scale, minimum,
                                   tile_ + 256 * eight_);
        }
        if (++eight_ < 4) return;
        eight_ = 0;
        tile_ += kTileBytes;
        unit_ += side_;
        side_ ^= 1;
    }
    void finish() {
        while (!done()) step();
    }

  private:
    const std::byte* codes_[2];
    const std::byte* scales_[2];
    int side_ = 0;
    int eight_ = 0;
    int64_t unit_;
    int64_t end_;
    std::byte* tile_;
};

/// Tiles 0..3: sums of (tokens 0..15, 16..31) x (weight rows 0..15, 16..31); 4, 5: activations; 6,
/// 7: weights. `upper` may be 0: then only the tiles of the first 16 tokens are used.
void configure(int64_t lower, int64_t upper) {
    TileConfig config;
    const int64_t rows[8] = {lower, lower, upper, upper, lower, upper, 16, 16};
    for (int tile = 0; tile < 8; ++tile) {
        config.rows[tile] = static_cast<uint8_t>(std::max<int64_t>(rows[tile], 1));
    }
    // g++ tells the optimiser of only eight bytes read here and of none in tile loads.
    asm volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
}

struct Step {
    const uint16_t* x;
    int64_t x_stride;
    const std::byte* panel;
    int64_t units;
};

TESSERA_INLINE void multiply_two(const Step& at, int64_t u) {
    const uint16_t* x = at.x + u * kUnitCols;
    const std::byte* panel = at.panel + u * 2 * kTileBytes;
    const int64_t stride = at.x_stride * 2;
    _tile_loadd(4, x, stride);
    _tile_loadd(6, panel, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, panel + kTileBytes, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, x + 16 * at.x_stride, stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
}
TESSERA_INLINE void multiply_one(const Step& at, int64_t u) {
    const std::byte* panel = at.panel + u * 2 * kTileBytes;
    _tile_loadd(4, at.x + u * kUnitCols, at.x_stride * 2);
    _tile_loadd(6, panel, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, panel + kTileBytes, 64);
    _tile_dpbf16ps(1, 4, 7);
}

void load_sums(bool two, const float* sums) {
    _tile_loadd(0, sums, 128);
    _tile_loadd(1, sums + 16, 128);
    if (!two) return;
    _tile_loadd(2, sums + 512, 128);
    _tile_loadd(3, sums + 528, 128);
}
void zero_sums() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}
void store_sums(bool two, float* sums) {
    _tile_stored(0, sums, 128);
    _tile_stored(1, sums + 16, 128);
    if (!two) return;
    _tile_stored(2, sums + 512, 128);
    _tile_stored(3, sums + 528, 128);
}

__mmask16 lanes(int64_t count) {
    if (count >= 16) return 0xffff;
    return count <= 0 ? __mmask16{0} : static_cast<__mmask16>((1u << count) - 1u);
}

/// As bf16_from_f32.
__m256i round_bf16(__m512 value) {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    const __m512i rounded = _mm512_add_epi32(bits, up);
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
}

/// Takes the sums [rows][32] of a block to their outputs, row by row, while the next block runs.
class Finish {
  public:
    explicit Finish(const PanelTask& task) : task_(task), sink_(task.sink) {}
    bool done() const { return row_ == rows_; }
    void start(int64_t tile, int64_t token, int64_t rows, const float* sums) {
        tile_ = tile;
        token_ = token;
        row_ = 0;
        rows_ = rows;
        sums_ = sums;
    }
    TESSERA_INLINE void step() {
        if (sink_.gated)
            gated_row();
        else
            linear_row();
        ++row_;
    }
    void finish() {
        while (!done()) step();
    }

  private:
    TESSERA_INLINE __m512 scaled(int side) const {
        const float outer = task_.weights[sink_.gated ? side : 0].outer;
        __m512 value =
            _mm512_mul_ps(_mm512_loadu_ps(sums_ + 32 * row_ + 16 * side), _mm512_set1_ps(outer));
        if (sink_.row_scales != nullptr)
            value = _mm512_mul_ps(value, _mm512_set1_ps(sink_.row_scales[token_ + row_]));
        return value;
    }
    TESSERA_INLINE void linear_row() const {
        float* row = sink_.out + sink_.out_row(token_ + row_) * sink_.out_stride;
        for (int side = 0; side < 2; ++side) {
            const int64_t at = tile_ * kColumnRows + 16 * side;
            const __mmask16 mask = lanes(task_.weights[0].rows - at);
            __m512 value = scaled(side);
            if (sink_.bias != nullptr)
                value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, sink_.bias + at));
            if (sink_.add) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, row + at));
            _mm512_mask_storeu_ps(row + at, mask, value);
        }
    }
    void gated_row() const {
        const int64_t at = tile_ * kBlockRows;
        const __mmask16 mask = lanes(task_.weights[0].rows - at);
        __m512 gate = scaled(0);
        switch (sink_.kind) {
            case Glu::kSwiGlu:
                gate = silu_of<Wide512>(gate);
                break;
            case Glu::kGeGlu:
                gate = gelu_of<Wide512>(gate);
                break;
            case Glu::kReGlu:
                gate = relu_of<Wide512>(gate);
                break;
            case Glu::kSigmoid:
                gate = sigmoid_of<Wide512>(gate);
                break;
        }
        const __m512 value = _mm512_mul_ps(gate, scaled(1));
        const int64_t token = sink_.out_row(token_ + row_);
        if (sink_.out != nullptr)
            _mm512_mask_storeu_ps(sink_.out + token * sink_.out_stride + at, mask, value);
        if (sink_.out_bf16 != nullptr)
            _mm256_mask_storeu_epi16(sink_.out_bf16 + token * sink_.bf16_stride + at, mask,
                                     round_bf16(value));
    }

    const PanelTask& task_;
    const Sink& sink_;
    int64_t tile_ = 0;
    int64_t token_ = 0;
    int64_t row_ = 0;
    int64_t rows_ = 0;
    const float* sums_ = nullptr;
};

/// After the products of each unit: two rows of the block before, and `eights` steps of the next
/// panel.
template <bool kTwo, DType kFormat>
void multiply(const Step& at, int64_t eights, PanelFill<kFormat>& next, Finish& before) {
    for (int64_t u = 0; u < at.units; ++u) {
        if constexpr (kTwo)
            multiply_two(at, u);
        else
            multiply_one(at, u);
        if (!before.done()) before.step();
        if (!before.done()) before.step();
        for (int64_t i = 0; i < eights && !next.done(); ++i) next.step();
        settle_memory();
    }
    before.finish();
}

/// All token blocks of one job; the panel of the following job is decoded on the way. `sums`: two
/// blocks of sums that take turns, then those carried between passes.
template <DType kFormat>
void run_job(const PanelTask& task,
             const Job& job,
             const std::byte* panel,
             float* sums,
             PanelFill<kFormat>& next,
             Finish& before) {
    const int64_t pass = pass_tokens(task.units);
    const int64_t tokens = std::min(task.tokens - job.token, pass);
    const int64_t blocks = (tokens + kColumnRows - 1) / kColumnRows;
    const int64_t range_blocks = (std::min(task.tokens, pass) + kColumnRows - 1) / kColumnRows;
    const bool opens = job.unit == 0;
    const bool closes = job.unit + kPassUnits >= task.units;
    // Eight steps decode a unit of both sides; they spread over the products of all blocks.
    const int64_t eights = std::max<int64_t>(1, (8 + blocks - 1) / blocks);
    float* carried = sums + 2048 + (job.tile - task.first) * range_blocks * 1024;
    int64_t configured = kColumnRows;
    for (int64_t block = 0; block < blocks; ++block) {
        const int64_t token = job.token + block * kColumnRows;
        const int64_t rows = std::min(task.tokens - token, kColumnRows);
        const bool two = rows > 16;
        if (rows != configured) configure(std::min<int64_t>(rows, 16), rows - 16);
        configured = rows;
        float* own = opens && closes ? sums + (block + job.tile * blocks) % 2 * 1024
                                     : carried + block * 1024;
        const Step step{task.x + token * task.x_stride + job.unit * kUnitCols, task.x_stride, panel,
                        std::min(kPassUnits, task.units - job.unit)};
        if (opens)
            zero_sums();
        else
            load_sums(two, own);
        if (two)
            multiply<true>(step, eights, next, before);
        else
            multiply<false>(step, eights, next, before);
        store_sums(two, own);
        if (closes) before.start(job.tile, token, rows, own);
    }
    if (configured != kColumnRows) configure(16, 16);
}

/// Units that a narrow task decodes ahead of its tile products.
constexpr int64_t kAheadUnits = 2;
/// Units between the one that is decoded and the one that is fetched from memory.
constexpr int64_t kNarrowPrefetch = 12;
static_assert(2 * kAheadUnits <= 2 * kLeastPassUnits, "the ring takes the place of the panels");

/// A row block of a column tile.
struct Side {
    const std::byte* codes;
    const std::byte* scales;
};

/// A unit of a row block to its B tile.
template <DType kFormat>
TESSERA_INLINE void fill_unit(const Codes<Wide512, kFormat>& reader,
                              const Side& side,
                              int64_t u,
                              std::byte* tile) {
    using Reader = Scales<Wide512, kFormat>;
    constexpr int kUnitBytes = layout_of(kFormat).unit_bytes;
    const std::byte* unit = side.codes + u * kUnitBytes;
    for (int line = 0; line < kUnitBytes; line += 64)
        __builtin_prefetch(unit + kNarrowPrefetch * kUnitBytes + line);
    __m512 scale[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    __m512 minimum = _mm512_setzero_ps();
    if constexpr (Reader::kPresent) {
        scale[0] = Reader::scale(side.scales, u, 0, 0);
        scale[1] = group_cols(kFormat) == 16 ? Reader::scale(side.scales, u, 1, 0) : scale[0];
    }
    if constexpr (Reader::kMinimum) minimum = Reader::minimum(side.scales, u, 0);
    unroll<4>([&](auto eight) __attribute__((always_inline)) {
        constexpr int kEight = decltype(eight)::value;
        fill_eight<kFormat, kEight>(reader, unit, scale[kEight / 2], minimum, tile);
    });
}

/// All columns of one column tile for at most 32 tokens: the sums stay in tiles, and of the panel
/// there is only a ring of units in the first-level cache.
template <bool kTwo, DType kFormat>
void narrow_tile(const PanelTask& task, const Side sides[2], std::byte* ring, Finish& before) {
    const Codes<Wide512, kFormat> reader;
    zero_sums();
    for (int64_t u = 0; u < task.units + kAheadUnits; ++u) {
        if (u < task.units) {
            std::byte* tiles = ring + u % (2 * kAheadUnits) * 2 * kTileBytes;
            fill_unit<kFormat>(reader, sides[0], u, tiles);
            fill_unit<kFormat>(reader, sides[1], u, tiles + kTileBytes);
            settle_memory();
        }
        const int64_t ready = u - kAheadUnits;
        if (ready < 0) continue;
        const Step step{task.x + ready * kUnitCols, task.x_stride,
                        ring + ready % (2 * kAheadUnits) * 2 * kTileBytes, 1};
        if constexpr (kTwo)
            multiply_two(step, 0);
        else
            multiply_one(step, 0);
        if (!before.done()) before.step();
        settle_memory();
    }
    before.finish();
}

/// At most 32 tokens. Sums run over the columns in the same order as in wide tasks.
template <DType kFormat>
void narrow_panels(const PanelTask& task, std::byte* scratch) {
    float* sums = reinterpret_cast<float*>(scratch + 2 * kAheadUnits * 2 * kTileBytes);
    const bool two = task.tokens > 16;
    Finish before(task);
    configure(std::min<int64_t>(task.tokens, 16), task.tokens - 16);
    for (int64_t tile = task.first; tile < task.last; ++tile) {
        Side sides[2];
        for (int side = 0; side < 2; ++side) {
            const PackedView& weight = task.weights[task.sink.gated ? side : 0];
            const int64_t block = block_of(task, tile, side);
            sides[side] = {weight.codes + block * weight.code_step,
                           weight.scales + block * weight.scale_step};
        }
        if (two)
            narrow_tile<true, kFormat>(task, sides, scratch, before);
        else
            narrow_tile<false, kFormat>(task, sides, scratch, before);
        float* own = sums + tile % 2 * 1024;
        store_sums(two, own);
        settle_memory();
        before.start(tile, 0, task.tokens, own);
    }
    before.finish();
    _tile_release();
}

template <DType kFormat>
void panels_of(const PanelTask& task, std::byte* scratch) {
    if (task.tokens <= kColumnRows) return narrow_panels<kFormat>(task, scratch);
    const int64_t panel_bytes = std::min(task.units, kPassUnits) * 2 * kTileBytes;
    std::byte* panel[2] = {scratch, scratch + panel_bytes};
    float* sums = reinterpret_cast<float*>(scratch + 2 * panel_bytes);
    Jobs jobs(task);
    Finish before(task);
    PanelFill<kFormat>(task, jobs.now(), panel[0]).finish();
    configure(16, 16);
    for (int now = 0; !jobs.done(); now ^= 1) {
        const Job job = jobs.now();
        jobs.advance();
        // Behind the last job there is nothing to decode: an empty pass.
        Job following = jobs.now();
        if (jobs.done()) following = {job.token, task.units, job.tile};
        PanelFill<kFormat> next(task, following, panel[now ^ 1]);
        run_job(task, job, panel[now], sums, next, before);
        next.finish();
        settle_memory();
    }
    before.finish();
    _tile_release();
}

/// scratch: panel_scratch_bytes(), 64-byte aligned: two panels, then the sums.
void panels(const PanelTask& task, std::byte* scratch) {
    if (task.first >= task.last || task.tokens == 0) return;
    switch (task.weights[0].format) {
        case DType::kF16:
            return panels_of<DType::kF16>(task, scratch);
        case DType::kBF16:
            return panels_of<DType::kBF16>(task, scratch);
        case DType::kQ4_0:
            return panels_of<DType::kQ4_0>(task, scratch);
        case DType::kQ4_1:
            return panels_of<DType::kQ4_1>(task, scratch);
        case DType::kQ5_0:
            return panels_of<DType::kQ5_0>(task, scratch);
        case DType::kQ5_1:
            return panels_of<DType::kQ5_1>(task, scratch);
        case DType::kQ8_0:
            return panels_of<DType::kQ8_0>(task, scratch);
        case DType::kQ4_K:
            return panels_of<DType::kQ4_K>(task, scratch);
        case DType::kQ5_K:
            return panels_of<DType::kQ5_K>(task, scratch);
        case DType::kQ6_K:
            return panels_of<DType::kQ6_K>(task, scratch);
        case DType::kMXFP4:
            return panels_of<DType::kMXFP4>(task, scratch);
        case DType::kNVFP4:
            return panels_of<DType::kNVFP4>(task, scratch);
        default:
            fail_check("panels: no such format", std::source_location::current());
    }
}

}  // namespace

const LinearKernels& linear_kernels_amx() {
    static const LinearKernels kKernels = [] {
        LinearKernels kernels = linear_kernels_avx512();
        kernels.panels = panels;
        return kernels;
    }();
    return kKernels;
}

}  // namespace tessera::cpu

#endif
