#pragma once
// Writes a model again in another number format: the library part of `tessera quantize`. Which
// tensor gets which format follows llama-quantize (`llama.cpp:src/llama-quant.cpp`), so that sizes
// and quality compare; what it lacks (NVFP4 as a target, a dense MXFP4) is decided here.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/codec.h"
#include "gguf/gguf.h"

namespace tessera {

/// A target that can be asked for by name.
struct QuantizeTarget {
    std::string_view name;   ///< "NVFP4", "Q4_K_M", "COPY"
    DType dtype;             ///< of most matrices
    int32_t file_type;       ///< `general.file_type` (LLAMA_FTYPE_*); -1: keeps the input's
    std::string_view about;  ///< a few words for help
};

std::span<const QuantizeTarget> quantize_targets();
/// By name (any case) or by the number of its file type; nullptr when there is none.
const QuantizeTarget* find_quantize_target(std::string_view name);

/// Formats that single tensors may be given (--tensor-type and the like).
std::span<const DType> quantize_formats();

struct QuantizeOptions {
    std::string input;
    std::string output;
    const QuantizeTarget* target = nullptr;
    int32_t threads = 0;                                      ///< 0: one per core
    Nvfp4Policy policy = Nvfp4Policy::kSearch;                ///< of NVFP4 block scales
    std::optional<DType> output_type;                         ///< of output.weight
    std::optional<DType> embedding_type;                      ///< of token_embd.weight
    std::vector<std::pair<std::string, DType>> tensor_types;  ///< regex on the name, first wins
    std::vector<std::pair<std::string, GgufValue>> kv_overrides;
    bool pure = false;              ///< one format for every matrix
    bool allow_requantize = false;  ///< from formats that are already quantized
    bool keep_quantized = false;    ///< what is in a block format stays as it is
    bool leave_output = false;      ///< output.weight stays as it is
    bool dry_run = false;           ///< plan only
};

/// What happens to one tensor.
struct TensorChoice {
    const GgufTensor* tensor = nullptr;
    DType target = DType::kF32;
    bool fell_back = false;   ///< its width does not divide by the block of the wanted format
    bool own_scale = false;   ///< NVFP4 with a `.scale` tensor beside it
    int64_t bytes_after = 0;  ///< the scale included
};

/// Decides all tensors of the file. UserError(kModel): a tensor would have to be requantized
/// without `allow_requantize`. UserError(kUsage): a bad regular expression, a --tensor-type that
/// fits no tensor.
std::vector<TensorChoice> plan_quantize(const GgufFile& file, const QuantizeOptions& options);

using QuantizeProgress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

/// Carries out `plan` and writes `options.output`, complete or not at all. Memory: a few MB a
/// thread besides the mapping. UserError(kModel) for NaN or infinity in a tensor, naming it.
void quantize_file(const GgufFile& file,
                   const QuantizeOptions& options,
                   const std::vector<TensorChoice>& plan,
                   const QuantizeProgress& progress);

}  // namespace tessera
