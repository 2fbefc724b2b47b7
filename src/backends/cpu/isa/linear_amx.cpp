// Prompt rows with AMX-BF16. A column tile is 32 weight rows, decoded to bf16 into a panel of B
// tiles [unit][2][16 pairs][16 rows][2] that stays in the second-level cache while all rows of
// activations of a pass go by, 32 at a time: 2 x 2 accumulator tiles, four tile loads for four tile
// products. Activations are read where prepare() put them: rows of an odd number of cache lines.
//
// The next panel is decoded between the tile products of this one: tile products leave the vector
// ports idle, and the decoder needs only them. A sum runs over the columns in order, whatever the
// number of rows, so results do not depend on the batch. Rejected: carrying sums through memory
// every 512 columns so that a panel stays in the first-level cache (no faster here), software
// prefetch of activations (up to 45% slower).
//
// Bound: 512 multiply-adds a cycle. Loads from the second-level cache, 4 KiB for four products of
// 16 cycles, hold it at about 70% of that; see docs/cpu-kernels.md.
#include "backends/cpu/isa/linear_kernels.h"

#if defined(__AMX_BF16__)

#    include <algorithm>

#    include "backends/cpu/isa/linear_formats.h"
#    include "backends/cpu/isa/vector_math.h"

namespace tessera::cpu {
namespace {

constexpr int64_t kTileBytes = 1024;
constexpr int64_t kColumnRows = 32;  ///< tokens of a block, weight rows of a column tile

/// Bits of two f32 vectors to bf16 pairs (even columns in the low halves), round to nearest even.
/// Codes times scales that fit 8 bits (FP4) are exact, and rounding finds nothing to do.
template <bool kExact>
TESSERA_INLINE __m512i pack_pairs(__m512 even, __m512 odd) {
    __m512i low = _mm512_castps_si512(even);
    __m512i high = _mm512_castps_si512(odd);
    if constexpr (!kExact) {
        const __m512i half = _mm512_set1_epi32(0x7fff);
        const __m512i one = _mm512_set1_epi32(1);
        low = _mm512_add_epi32(
            low, _mm512_add_epi32(half, _mm512_and_si512(_mm512_srli_epi32(low, 16), one)));
        high = _mm512_add_epi32(
            high, _mm512_add_epi32(half, _mm512_and_si512(_mm512_srli_epi32(high, 16), one)));
    }
    // (low >> 16) | (high & 0xffff0000): ternary-logic table of a | (b & c).
    return _mm512_ternarylogic_epi32(_mm512_srli_epi32(low, 16), high,
                                     _mm512_set1_epi32(static_cast<int32_t>(0xffff0000u)), 0xf8);
}

template <DType kFormat>
void fill_tile(const std::byte* codes, const std::byte* scales, int64_t u, std::byte* tile) {
    using Reader = Scales<Wide512, kFormat>;
    constexpr int kGroup = group_cols(kFormat);
    const Codes<Wide512, kFormat> reader;
    const std::byte* unit = codes + u * Codes<Wide512, kFormat>::kUnitBytes;
    __builtin_prefetch(unit + 4096);
    __builtin_prefetch(unit + 4096 + 64);
    __builtin_prefetch(unit + 4096 + 128);
    __builtin_prefetch(unit + 4096 + 192);
    __m512 minimum = _mm512_setzero_ps();
    if constexpr (Reader::kMinimum) minimum = Reader::minimum(scales, u, 0);
    unroll<32 / kGroup>([&](auto group) __attribute__((always_inline)) {
        constexpr int kIndex = decltype(group)::value;
        __m512 scale = _mm512_setzero_ps();
        if constexpr (Reader::kPresent) scale = Reader::scale(scales, u, kIndex, 0);
        reader.template pairs<kIndex * kGroup, kGroup>(
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
    });
}

using FillTile = void (*)(const std::byte* codes,
                          const std::byte* scales,
                          int64_t u,
                          std::byte* tile);

FillTile fill_of(DType format) {
    switch (format) {
        case DType::kF16:
            return fill_tile<DType::kF16>;
        case DType::kBF16:
            return fill_tile<DType::kBF16>;
        case DType::kQ4_0:
            return fill_tile<DType::kQ4_0>;
        case DType::kQ4_1:
            return fill_tile<DType::kQ4_1>;
        case DType::kQ5_0:
            return fill_tile<DType::kQ5_0>;
        case DType::kQ5_1:
            return fill_tile<DType::kQ5_1>;
        case DType::kQ8_0:
            return fill_tile<DType::kQ8_0>;
        case DType::kQ4_K:
            return fill_tile<DType::kQ4_K>;
        case DType::kQ5_K:
            return fill_tile<DType::kQ5_K>;
        case DType::kQ6_K:
            return fill_tile<DType::kQ6_K>;
        case DType::kMXFP4:
            return fill_tile<DType::kMXFP4>;
        case DType::kNVFP4:
            return fill_tile<DType::kNVFP4>;
        default:
            return nullptr;
    }
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
        now_.token += kPassTokens;
    }

  private:
    const PanelTask& task_;
    Job now_;
};

/// Decodes the panel of one job, tile by tile.
class PanelFill {
  public:
    PanelFill(const PanelTask& task, const Job& job, std::byte* panel)
        : unit_(job.unit), end_(std::min(job.unit + kPassUnits, task.units)), panel_(panel) {
        const bool gated = task.sink.gated;
        for (int side = 0; side < 2; ++side) {
            const PackedView& weight = task.weights[gated ? side : 0];
            int64_t block = gated ? job.tile : 2 * job.tile + side;
            // The last column tile of an odd number of row blocks: decode the first half twice.
            if (block * kBlockRows >= weight.rows) block -= 1;
            codes_[side] = weight.codes + block * weight.code_step;
            scales_[side] = weight.scales + block * weight.scale_step;
            fill_[side] = fill_of(weight.format);
        }
    }
    bool done() const { return unit_ == end_; }
    void step() {
        fill_[side_](codes_[side_], scales_[side_], unit_, panel_);
        panel_ += kTileBytes;
        unit_ += side_;
        side_ ^= 1;
    }

  private:
    FillTile fill_[2];
    const std::byte* codes_[2];
    const std::byte* scales_[2];
    int side_ = 0;
    int64_t unit_;
    int64_t end_;
    std::byte* panel_;
};

struct alignas(64) TileConfig {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

/// Tiles 0..3: sums of (tokens 0..15, 16..31) x (weight rows 0..15, 16..31); 4, 5: activations; 6,
/// 7: weights. `upper` may be 0: then only the tiles of the first 16 tokens are used.
void configure(int64_t lower, int64_t upper) {
    TileConfig config;
    const int64_t rows[8] = {lower, lower, upper, upper, lower, upper, 16, 16};
    for (int tile = 0; tile < 8; ++tile) {
        config.row_bytes[tile] = 64;
        config.rows[tile] = static_cast<uint8_t>(std::max<int64_t>(rows[tile], 1));
    }
    // g++ tells the optimiser of only eight bytes read here and of none in tile loads.
    asm volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
}

/// Stores before it are in memory for the tile loads behind it, which the optimiser does not see as
/// reads.
TESSERA_INLINE void order_memory() {
    asm volatile("" : : : "memory");
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

/// `interval` units of products, then one tile of the next panel, and so on.
template <bool kTwo>
void multiply(const Step& at, int64_t interval, PanelFill& next) {
    int64_t u = 0;
    while (u < at.units) {
        const int64_t end = std::min(u + interval, at.units);
        for (; u < end; ++u) {
            if constexpr (kTwo)
                multiply_two(at, u);
            else
                multiply_one(at, u);
        }
        if (!next.done()) next.step();
        order_memory();
    }
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

/// Sums [rows][32] of one block to the outputs of the weight rows of `tile`.
void finish_linear(const PanelTask& task, int64_t tile, int64_t token, int64_t rows, float* sums) {
    const Sink& sink = task.sink;
    const PackedView& weight = task.weights[0];
    const int64_t column = tile * kColumnRows;
    const __m512 outer = _mm512_set1_ps(weight.outer);
    for (int part = 0; part < 2; ++part) {
        const int64_t at = column + 16 * part;
        const __mmask16 mask = lanes(weight.rows - at);
        if (mask == 0) return;
        const __m512 bias = sink.bias == nullptr ? _mm512_setzero_ps()
                                                 : _mm512_maskz_loadu_ps(mask, sink.bias + at);
        for (int64_t t = 0; t < rows; ++t) {
            __m512 value = _mm512_mul_ps(_mm512_loadu_ps(sums + 32 * t + 16 * part), outer);
            if (sink.row_scales != nullptr)
                value = _mm512_mul_ps(value, _mm512_set1_ps(sink.row_scales[token + t]));
            if (sink.bias != nullptr) value = _mm512_add_ps(value, bias);
            float* out = sink.out + (token + t) * sink.out_stride + at;
            if (sink.add) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, out));
            _mm512_mask_storeu_ps(out, mask, value);
        }
    }
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

template <Glu kKind>
void finish_glu(const PanelTask& task, int64_t tile, int64_t token, int64_t rows, float* sums) {
    const Sink& sink = task.sink;
    const int64_t column = tile * kBlockRows;
    const __mmask16 mask = lanes(task.weights[0].rows - column);
    for (int64_t t = 0; t < rows; ++t) {
        __m512 gate =
            _mm512_mul_ps(_mm512_loadu_ps(sums + 32 * t), _mm512_set1_ps(task.weights[0].outer));
        __m512 up = _mm512_mul_ps(_mm512_loadu_ps(sums + 32 * t + 16),
                                  _mm512_set1_ps(task.weights[1].outer));
        if (sink.row_scales != nullptr) {
            const __m512 scale = _mm512_set1_ps(sink.row_scales[token + t]);
            gate = _mm512_mul_ps(gate, scale);
            up = _mm512_mul_ps(up, scale);
        }
        if constexpr (kKind == Glu::kSwiGlu) gate = silu_of<Wide512>(gate);
        if constexpr (kKind == Glu::kGeGlu) gate = gelu_of<Wide512>(gate);
        if constexpr (kKind == Glu::kReGlu) gate = relu_of<Wide512>(gate);
        const __m512 value = _mm512_mul_ps(gate, up);
        if (sink.out != nullptr)
            _mm512_mask_storeu_ps(sink.out + (token + t) * sink.out_stride + column, mask, value);
        if (sink.out_bf16 != nullptr)
            _mm256_mask_storeu_epi16(sink.out_bf16 + (token + t) * sink.bf16_stride + column, mask,
                                     round_bf16(value));
    }
}

void finish(const PanelTask& task, int64_t tile, int64_t token, int64_t rows, float* sums) {
    if (!task.sink.gated) return finish_linear(task, tile, token, rows, sums);
    switch (task.sink.kind) {
        case Glu::kSwiGlu:
            return finish_glu<Glu::kSwiGlu>(task, tile, token, rows, sums);
        case Glu::kGeGlu:
            return finish_glu<Glu::kGeGlu>(task, tile, token, rows, sums);
        case Glu::kReGlu:
            return finish_glu<Glu::kReGlu>(task, tile, token, rows, sums);
    }
}

/// All token blocks of one job; the panel of the following job is decoded on the way.
void run_job(const PanelTask& task,
             const Job& job,
             const std::byte* panel,
             std::byte* scratch,
             PanelFill& next) {
    const int64_t tokens = std::min(task.tokens - job.token, kPassTokens);
    const int64_t blocks = (tokens + kColumnRows - 1) / kColumnRows;
    const int64_t range_blocks =
        (std::min(task.tokens, kPassTokens) + kColumnRows - 1) / kColumnRows;
    const bool opens = job.unit == 0;
    const bool closes = job.unit + kPassUnits >= task.units;
    const int64_t interval = std::max<int64_t>(1, blocks / 2);
    float* local = reinterpret_cast<float*>(scratch);
    float* carried = local + 1024 + (job.tile - task.first) * range_blocks * 1024;
    int64_t configured = kColumnRows;
    for (int64_t block = 0; block < blocks; ++block) {
        const int64_t token = job.token + block * kColumnRows;
        const int64_t rows = std::min(task.tokens - token, kColumnRows);
        const bool two = rows > 16;
        if (rows != configured) configure(std::min<int64_t>(rows, 16), rows - 16);
        configured = rows;
        float* sums = opens && closes ? local : carried + block * 1024;
        const Step step{task.x + token * task.x_stride + job.unit * kUnitCols, task.x_stride, panel,
                        std::min(kPassUnits, task.units - job.unit)};
        if (opens)
            zero_sums();
        else
            load_sums(two, sums);
        if (two)
            multiply<true>(step, interval, next);
        else
            multiply<false>(step, interval, next);
        store_sums(two, sums);
        if (closes) finish(task, job.tile, token, rows, sums);
    }
    if (configured != kColumnRows) configure(16, 16);
}

/// scratch: panel_scratch_bytes(), 64-byte aligned: two panels, then the sums.
void panels(const PanelTask& task, std::byte* scratch) {
    if (task.first >= task.last || task.tokens == 0) return;
    const int64_t panel_bytes = std::min(task.units, kPassUnits) * 2 * kTileBytes;
    std::byte* panel[2] = {scratch, scratch + panel_bytes};
    std::byte* sums = scratch + 2 * panel_bytes;
    Jobs jobs(task);
    PanelFill first(task, jobs.now(), panel[0]);
    while (!first.done()) first.step();
    order_memory();
    configure(16, 16);
    for (int now = 0; !jobs.done(); now ^= 1) {
        const Job job = jobs.now();
        jobs.advance();
        // Behind the last job there is nothing to decode: an empty pass.
        Job following = jobs.now();
        if (jobs.done()) following = {job.token, task.units, job.tile};
        PanelFill next(task, following, panel[now ^ 1]);
        run_job(task, job, panel[now], sums, next);
        while (!next.done()) next.step();
        order_memory();
    }
    _tile_release();
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
