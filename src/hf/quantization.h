#pragma once
// Private to src/hf: which quantized checkpoints are read, and how a weight lies in them.
//
// Two tools write NVFP4. ModelOpt: `X.weight` (two codes a byte, the even element in the low
// nibble), `X.weight_scale` (e4m3, one per 16), `X.weight_scale_2` (f32 factor), `X.input_scale`.
// compressed-tensors: `X.weight_packed`, `X.weight_scale`, `X.weight_global_scale` and
// `X.input_global_scale`, of which the last two are divisors. FP8 weights have e4m3 elements and
// one `X.weight_scale` a matrix or a row. What a tensor is follows from the tensors beside it; the
// configuration only has to name a scheme that is read. (Facts: llama.cpp:conversion/base.py.)

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/dtype.h"
#include "gguf/safetensors.h"
#include "hf/checkpoint.h"
#include "hf/folder_json.h"

namespace tessera {

enum class WeightLayout : uint8_t { kPlain, kNvfp4, kFp8 };

/// A matrix, a vector (rows x 1) or a stack of matrices, with what belongs to it.
struct StoredWeight {
    std::string name;  ///< for messages
    WeightLayout layout = WeightLayout::kPlain;
    DType dtype = DType::kF32;  ///< of plain elements
    const SafetensorsTensor* elements = nullptr;
    const SafetensorsTensor* scales = nullptr;  ///< NVFP4: of blocks; FP8: of rows or all
    float factor = 1.0f;                        ///< second level of NVFP4
    float input_factor = 1.0f;                  ///< of its activations
    int64_t matrices = 1;
    int64_t rows = 0;
    int64_t cols = 1;
};

/// Whether the checkpoint has quantized weights at all. UserError(kModel) that names the scheme
/// when it is one that is not read.
bool check_quantization_scheme(const JsonObject& config, const std::string& folder);

/// The name without the parts that only quantized checkpoints add: "X.weight" for
/// "X.weight_packed"; nothing for scales, which belong to another tensor.
std::optional<std::string> weight_name(const Checkpoint& checkpoint, std::string_view name);

/// The weight `name` ("X.weight", or a name of its own), nothing when it is not there.
/// UserError(kModel), one line: scales that are missing, of another shape or type, below zero, NaN
/// or infinite; an element type that is not read.
std::optional<StoredWeight> find_weight(const Checkpoint& checkpoint, const std::string& name);

}  // namespace tessera
