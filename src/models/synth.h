#pragma once
// Random models of a given shape, so that any size can be measured anywhere. Metadata comes first;
// the tensors are then those that the model itself asks for (`Model::weights`), so that no second
// list of names exists. Numbers are a function of seed, tensor name and element index alone: the
// same bytes for any number of threads.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "models/synth_shapes.h"

namespace tessera {

struct SynthSpec {
    std::string architecture = "llama";  ///< see synth_architectures()
    std::string shape = "tiny";          ///< see synth_shapes()
    DType type = DType::kNVFP4;          ///< of the matrices; vectors are F32
    uint64_t seed = 1;
    std::string vocab_from =
        {};               ///< GGUF file whose tokenizer (and vocabulary size) to take; "": bytes
    int32_t threads = 0;  ///< 0: one per core
};

/// Called as tensors are made: bytes done and in total.
using SynthProgress = std::function<void(int64_t done, int64_t total)>;

/// The bytes of the GGUF file; hybrid models have a block for multi-token prediction. Weights are
/// normal with standard deviation 1 / sqrt(K), those that write to the residual stream divided by
/// sqrt(2 layers), norm gains 1 + 0.1 N(0, 1), biases 0.1 N(0, 1), embeddings N(0, 1), decay rates
/// -exp(0.8 N(0, 1)), time steps N(0, 1) - 2. Logits have standard deviation 3: the output matrix
/// is that much larger or, where it is the embedding, the gains of the last norm (and the draft
/// block's) are 3 / sqrt(K) N(0, 1). Inner matrices that the type's blocks do not divide are Q8_0
/// or BF16. UserError(kUsage) for an unknown architecture or shape (naming the nearest
/// known one) and a type that the shape's widths do not divide by.
std::vector<std::byte> synth_gguf(const SynthSpec& spec, const SynthProgress& progress);

/// The same, written to a file (complete or not at all).
void write_synth(const SynthSpec& spec, const std::string& path, const SynthProgress& progress);

}  // namespace tessera
