#pragma once
// File blocks to the packed layout (isa/linear_layout.h) and back.

#include <cstddef>
#include <cstdint>

#include "backends/cpu/isa/linear_layout.h"

namespace tessera::cpu {

/// The format in which a weight is kept: itself, or F32 for F64 and integers.
DType stored_format(DType format);

/// Packs row block `block` of a matrix of file rows (dtype_bytes(format, cols) each) into `codes`
/// and `scales` of that row block, both zero-filled before.
struct PackTask {
    DType format;
    int64_t rows;
    int64_t cols;
    const std::byte* source;
    int64_t block;
    std::byte* codes;
    std::byte* scales;
};
void pack_block(const PackTask& task);

/// The numbers of a unit without block scale: value = code * scale[k / 16] + minimum.
struct UnitRows {
    float codes[kUnitCols][kBlockRows];
    float scale[2][kBlockRows];
    float minimum[kBlockRows];
};
/// All rows of unit `u`; `codes` and `scales` belong to the row block.
void unpack_unit(
    DType stored, const std::byte* codes, const std::byte* scales, int64_t u, UnitRows& out);

/// One row of the block, `cols` values as dequantize_row gives them.
void unpack_row(DType stored,
                const std::byte* codes,
                const std::byte* scales,
                int64_t row,
                int64_t cols,
                float* values);

}  // namespace tessera::cpu
