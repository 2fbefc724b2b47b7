#pragma once
// Private to src/hf: how the bytes of a GGUF tensor are made of the weights of a checkpoint. One
// tensor is made at a time, into memory of the caller; what needs no work is a view.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "gguf/gguf.h"
#include "hf/quantization.h"

namespace tessera {

/// What is done to each element; the result is F32.
enum class ElementOp : uint8_t { kNone, kPlusOne, kMinusExp };

struct Recipe {
    /// Of one shape and layout. Stacked in this order, each with all its matrices.
    std::vector<StoredWeight> sources;
    int64_t first_row = 0;  ///< of each matrix
    int64_t rows = 0;
    std::vector<int32_t> row_order;  ///< source row (from first_row) of each row; empty: as stored
    std::vector<int32_t> column_order;  ///< source group of each group of columns; empty: as stored
    int64_t column_group = 1;           ///< columns that move together
    ElementOp op = ElementOp::kNone;
    DType target = DType::kF32;
    std::string folder;  ///< for messages
};

/// A GGUF tensor of that name with shape cols x rows [x matrices] (`rank` axes; 1: rows only).
/// UserError(kModel) when the sources do not fit together or the columns of NVFP4 weights would
/// have to move by less than a block.
GgufTensor make_tensor_of(Recipe recipe, std::string name, int32_t rank);

/// An F32 vector of these values.
GgufTensor vector_tensor(std::string name, std::vector<float> values);

}  // namespace tessera
