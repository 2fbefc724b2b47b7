#pragma once
// Weights and activations as matrix multiplication sees them.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/codec.h"
#include "core/tensor.h"

namespace tessera {

/// A matrix (or a stack of expert matrices) as a file stores it: row-major blocks of `format`,
/// `cols` is the contiguous input dimension K, a multiple of the block size.
struct HostWeight {
    std::string_view name;  ///< for messages
    DType format = DType::kF32;
    int64_t rows = 0;  ///< output dimension N
    int64_t cols = 0;  ///< input dimension K
    int32_t experts = 1;
    const std::byte* data = nullptr;  ///< [experts][rows] rows of dtype_bytes(format, cols)
    std::span<const float>
        scales;  ///< fp32 second-level scale: empty (1.0), one, or one per expert
};

/// Number format of the activations that enter a matrix product.
enum class ActFormat : uint8_t {
    kF32,    ///< as they are: the reference
    kBF16,   ///< rounded to bf16 (W4A16: the weights are exact)
    kInt8,   ///< blocks of 32: int8 codes x f32 scale amax/127, round to nearest even
    kNvfp4,  ///< per-row f32 scale x e4m3 per 16 x e2m1 (W4A4 numerics), by an Nvfp4Policy
    kFp8,    ///< per-row f32 scale amax/448 x e4m3
    kFp4     ///< the numbers of kNvfp4, packed: for products of FP4 with FP4
};

/// The scale of a row in kNvfp4 whose largest magnitude is `amax` (a NaN does not count): amax /
/// nvfp4_row_span(), at least 2^-126, so that neither is it 0 nor its reciprocal infinite (rows
/// below 2^-126 * the span keep fewer bits instead), or 1 for a row of zeros. Values divided by it,
/// both rounded to f32, then take blocks of 16 (a last one that K does not fill is padded with
/// zeros) as `quantize_row` encodes them: block scale e4m3(m / 6) for a block with largest
/// magnitude m, by kFourSix the better of that and e4m3(m / 4), by kSearch the best of the code of
/// the first, c, then c - 1, c + 1, c - 2, c + 2, then e4m3(m / 4): least squared error, the first
/// among equals; then e2m1, nearest even. 6 * 448 puts the largest block scale at the end of e4m3.
/// Where m / 4, half as large again, is tried, too, the row's scale leaves it the room: 6 * 256,
/// since 256 * 1.5 = 384 <= 448. A weight's scale is 6 * 448 whatever its policy, as files have it;
/// m / 4 of its largest blocks becomes 448. Source: "Four Over Six" (arXiv 2512.02010), its scale
/// of the whole included; the neighbours: `ggml:src/ggml-cuda/quantize.cu`.
constexpr float nvfp4_row_span(Nvfp4Policy policy) {
    return policy == Nvfp4Policy::kAmax6 ? 6.0f * 448.0f : 6.0f * 256.0f;
}
inline constexpr float kNvfp4LeastScale = 0x1p-126f;
constexpr float nvfp4_row_scale(float amax, Nvfp4Policy policy) {
    const float scale = amax / nvfp4_row_span(policy);
    if (amax == 0.0f) return 1.0f;
    return scale > kNvfp4LeastScale ? scale : kNvfp4LeastScale;
}

/// The scale of a row in kFp8 whose largest magnitude is `amax` (a NaN does not count): amax / 448,
/// at least 2^-126, so that its reciprocal is a number, too. A value becomes the nearest even e4m3
/// of value * (1 / scale), both operations rounded to f32, which saturates at 448. The product's
/// terms are code * scale. A NaN stays one; an infinity makes the scale infinite and with it every
/// product of the row NaN.
inline constexpr float kFp8Largest = 448.0f;
inline constexpr float kFp8LeastScale = 0x1p-126f;

/// The activation formats that a product needs, one bit (1 << ActFormat) each, for prompt rows and
/// for generated rows, and how those in kNvfp4 are rounded. A producer is asked for the union over
/// its consumers: `gate.wants | up.wants`. All weights of a backend want one policy; no weight, the
/// default here, wants the least enumerator.
struct ActWants {
    uint8_t prompt = 0;
    uint8_t generated = 0;
    Nvfp4Policy nvfp4 = Nvfp4Policy::kAmax6;
    friend ActWants operator|(ActWants a, ActWants b) {
        return {static_cast<uint8_t>(a.prompt | b.prompt),
                static_cast<uint8_t>(a.generated | b.generated),
                a.nvfp4 > b.nvfp4 ? a.nvfp4 : b.nvfp4};
    }
    bool operator==(const ActWants&) const = default;
};

/// A weight that a backend has taken over. Its physical layout is private to that backend, which
/// also owns the memory; models read only rows, cols and experts and never see formats.
struct Weight {
    DType format = DType::kF32;
    int64_t rows = 0;
    int64_t cols = 0;
    int32_t experts = 0;  ///< 0: no such weight (an optional tensor that the file lacks)
    const std::byte* codes = nullptr;
    const std::byte* scales = nullptr;   ///< block scales, where the layout keeps them apart
    const float* outer_scale = nullptr;  ///< [experts] fp32, multiplies the product; never null
    /// [experts][rows] or null: a row divided by its own factor fits e4m3 (for kFp8 activations),
    /// or its block scales do (MXFP4, for kFp4 activations).
    const float* row_factors = nullptr;
    ActWants wants;
    bool absent() const { return experts == 0; }
};

/// The activations of some rows in one format, ready for a product.
/// kF32, kBF16: `values` [rows, cols]. kInt8: `values` I8 [rows, cols], `block_scales` F32 [rows,
/// cols/32]. kNvfp4: `values` BF16 [rows, cols] holding e2m1 * e4m3 exactly, `row_scales` F32
/// [rows]. kFp8: `values` F8_E4M3 [rows, cols], `row_scales` F32 [rows].
/// kFp4: `values` I8 [rows, cols/2], the e2m1 code of column 2j in the lower half of byte j, of
/// column 2j + 1 in the upper one; `block_scales` F8_E4M3 [rows, cols/16] without sign;
/// `row_scales` F32 [rows], NaN for a row that holds a NaN or an infinity, as no code is one. All
/// three contiguous and aligned to 16 bytes. Columns are a multiple of 64; rows of others, which no
/// matrix of NVFP4 but some of MXFP4 have, come as kNvfp4 to whoever asks for kFp4. Nobody asks for
/// both.
/// `transposed_pairs`: within every 32 columns the 4 x 4 matrix of pairs of columns is transposed:
/// the value of column 8q + 2c + b stands at 8c + 2q + b (what a lane of a tensor core product
/// needs of a weight's unit is then one word of it).
/// `transposed_quads`: the same for e4m3: within every 32 columns the 4 x 2 matrix of groups of
/// four columns is transposed: the value of column 8t + 4s + b stands at 16s + 4t + b.
struct ActView {
    ActFormat format = ActFormat::kF32;
    Tensor values;
    Tensor block_scales;
    Tensor row_scales;
    bool transposed_pairs = false;
    bool transposed_quads = false;
};

/// Place of a column where pairs are transposed; an involution.
constexpr int64_t transposed_pair_place(int64_t column) {
    const int64_t inside = column % 32;
    return column - inside + inside % 8 / 2 * 8 + inside / 8 * 2 + inside % 2;
}

/// Place of a column where groups of four are transposed.
constexpr int64_t transposed_quad_place(int64_t column) {
    const int64_t inside = column % 32;
    return column - inside + inside / 4 % 2 * 16 + inside / 8 * 4 + inside % 4;
}

/// The views of some rows: as many as there are formats among the consumers of an activation. Three
/// at most: F32 for a router, BF16, and what matrices of FP4 take.
using ActViews = std::array<ActView, 3>;

/// An activation in every format that its consumers want. `prompt` holds the rows [0,
/// Exec::prompt_rows), `generated` the rest; one view per wanted format, absent ones have rank 0.
struct GemmInput {
    int64_t rows = 0;
    int64_t cols = 0;
    ActViews prompt;
    ActViews generated;
    Nvfp4Policy nvfp4 = Nvfp4Policy::kAmax6;  ///< as its producer was asked
};

}  // namespace tessera
