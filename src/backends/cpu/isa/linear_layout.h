#pragma once
// How the CPU backend stores weights ("tile16"): the one container for prompt and generated rows.
//
// Rows go in blocks of 16, columns in units of 32; a unit of a row block is a fixed number of
// bytes, and the units of a row block follow each other, then the next row block. Rows are padded
// to 16 and columns to 32 with zeros. 16 rows side by side fill the lanes of a vector register, so
// that a product needs no sum across lanes. Scales stand in an array of their own.
//
// Four-bit codes: 4 vectors of 64 bytes, vector h holds the columns 8h..8h+7; 32-bit lane r is row
// r and nibble 4w + j (bits 16w + 4j) is column 8h + 2j + w. Shifted by 4j, the low nibbles of the
// two 16-bit halves are a pair of neighbouring columns; masked with 0x0f the four bytes are the
// columns {0,4,1,5} and, shifted by 4, {2,6,3,7} of the eight: "quads" 2h and 2h + 1, the operands
// of byte products. Activations in int8 are permuted the same way.
//   Q5_*: 64 bytes behind the nibbles; lane r, byte b, bit q: fifth bit of byte b of quad q.
//   Q6_K: 128 bytes behind the nibbles; vector half, lane r, byte b, bits 2q, 2q+1: upper bits of
//         byte b of quad 4 half + q.
//   Q8_0: [32 columns][16 rows] int8, columns of each eight in the order 0,4,1,5,2,6,3,7.
//   BF16: [16 pairs][16 rows][2]; F16 and F32: [32 columns][16 rows].
// Scales of a row block, by unit:
//   NVFP4: [2 groups][16 rows] bytes E5M3: f32 bits = (byte << 20) + (118 << 23), E4M3 without
//          subnormals; a zero scale is stored as codes 0.
//   MXFP4: [16] E8M0. Q4_0, Q5_0, Q8_0: [16] f16. Q4_1, Q5_1: [16] f16 scale, [16] f16 minimum.
//   Q4_K, Q5_K: for 8 units [16] f16 d, [16] f16 dmin, then by unit [16] u8 scale, [16] u8 minimum.
//   Q6_K: for 8 units [16] f16 d, then by unit [2 groups][16] i8 scale.

#include <cstdint>

#include "core/dtype.h"

namespace tessera::cpu {

inline constexpr int64_t kBlockRows = 16;
inline constexpr int64_t kUnitCols = 32;

struct Layout {
    int32_t unit_bytes;   ///< codes of 16 rows x 32 columns
    int32_t scale_units;  ///< units that share one group of scales; 0: no scales
    int32_t scale_bytes;  ///< bytes of that group
};

/// The layout of a stored format (F64 and integers are stored as F32).
constexpr Layout layout_of(DType stored) {
    switch (stored) {
        case DType::kNVFP4:
            return {256, 1, 32};
        case DType::kMXFP4:
            return {256, 1, 16};
        case DType::kQ4_0:
            return {256, 1, 32};
        case DType::kQ4_1:
            return {256, 1, 64};
        case DType::kQ5_0:
            return {320, 1, 32};
        case DType::kQ5_1:
            return {320, 1, 64};
        case DType::kQ8_0:
            return {512, 1, 32};
        case DType::kQ4_K:
            return {256, 8, 320};
        case DType::kQ5_K:
            return {320, 8, 320};
        case DType::kQ6_K:
            return {384, 8, 288};
        case DType::kBF16:
        case DType::kF16:
            return {1024, 0, 0};
        default:
            return {2048, 0, 0};
    }
}

/// Column within its eight of byte `position` of the permuted order.
inline constexpr int kByteOrder[8] = {0, 4, 1, 5, 2, 6, 3, 7};

/// Sizes of one matrix in this layout.
struct PackedShape {
    Layout layout;
    int64_t blocks;  ///< row blocks
    int64_t units;   ///< per row block
    constexpr int64_t block_code_bytes() const { return units * layout.unit_bytes; }
    constexpr int64_t block_scale_bytes() const {
        return layout.scale_units == 0 ? 0 : units / layout.scale_units * layout.scale_bytes;
    }
    constexpr int64_t code_bytes() const { return blocks * block_code_bytes(); }
    constexpr int64_t scale_bytes() const { return blocks * block_scale_bytes(); }
    /// Bytes between the codes (scales) of two experts: cache lines are not shared.
    constexpr int64_t matrix_code_bytes() const { return (code_bytes() + 63) / 64 * 64; }
    constexpr int64_t matrix_scale_bytes() const { return (scale_bytes() + 63) / 64 * 64; }
};

constexpr PackedShape packed_shape(DType stored, int64_t rows, int64_t cols) {
    return {layout_of(stored), (rows + kBlockRows - 1) / kBlockRows,
            (cols + kUnitCols - 1) / kUnitCols};
}

}  // namespace tessera::cpu
