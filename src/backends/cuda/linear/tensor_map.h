#pragma once
// Descriptions of matrices for the copy engine of sm_90.

#include <cuda.h>

#include <cstdint>

namespace tessera::cuda {

/// Rows of `cols` elements, `stride` bytes apart (a multiple of 16), of which copies bring boxes of
/// `box_rows` x `box_cols`. The base is aligned to 16 bytes.
struct MatrixMap {
    CUtensorMapDataType type;
    const void* base;
    int64_t rows;
    int64_t cols;
    int64_t stride;
    int box_rows;
    int box_cols;
    CUtensorMapSwizzle swizzle;
};

/// UserError(kDevice) where the driver does not know such maps or refuses this one.
CUtensorMap tensor_map(const MatrixMap& matrix);

}  // namespace tessera::cuda
