#pragma once
// What an instruction set provides for products. cpu_linear.cpp schedules: it splits the work,
// prepares activations and finishes results.

#include <cstddef>
#include <cstdint>

#include "backends/cpu/isa/linear_layout.h"
#include "core/dtype.h"
#include "ops/ops.h"

namespace tessera::cpu {

/// 16 rows of a weight times some rows of activations. The sums of a row do not depend on how many
/// rows come with it.
struct BlockTask {
    const std::byte* codes;  ///< of the row block
    const std::byte* scales;
    int64_t units;
    /// f32 [tokens] rows of x_stride >= 32 units elements, or int8 in permuted order.
    const void* x;
    int64_t x_stride;
    const float* x_scales;   ///< int8: [tokens][units]
    const int32_t* x_zeros;  ///< int8: [tokens][units][2] -offset * sum of 16 codes
    const float* x_sums;     ///< [tokens][units] sums of the values; formats with a minimum only
    int64_t tokens;
    float* sums;  ///< [tokens][16]
};
using BlockKernel = void (*)(const BlockTask& task);

/// Where results go: out = sums * outer (* row_scales[t]) (+ bias) (+ out), or, for a gated unit,
/// out = act(first) * second with both columns scaled like that. Tensors start at the first row;
/// `row_scales` and `rows` count the rows of the product.
struct Sink {
    const float* row_scales;  ///< or null
    const float* bias;        ///< or null; not for gated units
    float* out;               ///< or null: bf16 only
    int64_t out_stride;
    uint16_t* out_bf16;  ///< or null; gated units only
    int64_t bf16_stride;
    const int32_t* rows;  ///< or null: row t of the product goes to row rows[t] of the outputs
    bool add;
    bool gated;
    Glu kind;

    int64_t out_row(int64_t token) const { return rows == nullptr ? token : rows[token]; }
};

/// A packed weight as kernels see it.
struct PackedView {
    DType format;  ///< stored
    const std::byte* codes;
    const std::byte* scales;
    int64_t code_step;  ///< bytes between row blocks
    int64_t scale_step;
    int64_t rows;
    float outer;
};

/// Column tiles [first, last) of the tile kernel, 2 x 16 weight rows each: neighbouring row blocks
/// of weights[0], or, gated, the same row block of weights[0] and weights[1] (of one format).
struct PanelTask {
    PackedView weights[2];
    int64_t units;
    int64_t first;
    int64_t last;
    const uint16_t* x;  ///< bf16 [tokens] x x_stride, zeros up to 32 units
    int64_t x_stride;
    int64_t tokens;
    Sink sink;
};
/// Columns of one pass; longer sums are carried in memory between passes.
inline constexpr int64_t kPassUnits = 64;
/// Room for the panels of so many units is always there.
inline constexpr int64_t kLeastPassUnits = 4;
/// Rows of activations of a pass: 600 KB of them stay in the second-level cache with two panels.
constexpr int64_t pass_tokens(int64_t units) {
    const int64_t row_bytes = (units < kPassUnits ? units : kPassUnits) * 64;
    const int64_t rows = 600 * 1024 / row_bytes / 32 * 32;
    return rows < 64 ? 64 : rows > 512 ? 512 : rows;
}
/// Scratch bytes of one thread for `tiles` column tiles.
constexpr int64_t panel_scratch_bytes(int64_t units, int64_t tiles, int64_t tokens) {
    const int64_t few = units < kLeastPassUnits ? kLeastPassUnits : units;
    const int64_t pass = few < kPassUnits ? few : kPassUnits;
    const int64_t carried = units <= kPassUnits ? 0 : tiles;
    const int64_t rows = (tokens < pass_tokens(units) ? tokens : pass_tokens(units)) + 31;
    return 8192 + 2 * pass * 2048 + carried * (rows / 32) * 4096;
}

/// Rows of int8 activations into the order and with the sums that the byte kernels need.
struct ByteRows {
    const int8_t* codes;  ///< [rows] x stride
    int64_t stride;
    const float* scales;  ///< [rows][units]
    int64_t rows;
    int64_t units;
    int32_t offset;  ///< byte_offset() of the weight's format
    int8_t* permuted;
    int32_t* zeros;
    float* sums;  ///< or null
};

/// Bytes of a weight are code + offset in the byte kernels.
constexpr int32_t byte_offset(DType stored) {
    switch (stored) {
        case DType::kNVFP4:
        case DType::kMXFP4:
            return 12;  // twice the e2m1 value
        case DType::kQ4_0:
            return 8;
        case DType::kQ5_0:
            return 16;
        case DType::kQ6_K:
            return 32;
        case DType::kQ8_0:
            return 128;
        default:
            return 0;
    }
}

constexpr bool has_minimum(DType stored) {
    return stored == DType::kQ4_1 || stored == DType::kQ5_1 || stored == DType::kQ4_K ||
           stored == DType::kQ5_K;
}

inline constexpr int kDTypes = static_cast<int>(DType::kNVFP4) + 1;

struct LinearKernels {
    BlockKernel f32[kDTypes] = {};    ///< by stored format
    BlockKernel bytes[kDTypes] = {};  ///< null: the format has none
    void (*permute_bytes)(const ByteRows& rows) = nullptr;
    /// Blocks of 32: scale amax/127, codes round to nearest even.
    void (*quantize_bytes)(const float* x, int64_t units, int8_t* codes, float* scales) = nullptr;
    void (*round_bf16)(const float* x, int64_t count, uint16_t* out) = nullptr;
    void (*widen_bf16)(const uint16_t* x, int64_t count, float* out) = nullptr;
    void (*sum_units)(const float* x, int64_t units, float* sums) = nullptr;
    void (*glu)(const float* gate, const float* up, int64_t count, Glu kind, float* out) = nullptr;
    /// The tile kernel of prompt rows, or null.
    void (*panels)(const PanelTask& task, std::byte* scratch) = nullptr;
};

const LinearKernels& linear_kernels_scalar();
#if defined(__x86_64__)
const LinearKernels& linear_kernels_avx2();
const LinearKernels& linear_kernels_avx512();
const LinearKernels& linear_kernels_amx();
#endif

}  // namespace tessera::cpu
