#pragma once
// The tiny random checkpoints of tests/data/models and the logits that transformers computes from
// them (scripts/oracles/make_hybrid_models.py).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "engine/engine.h"
#include "gguf/safetensors.h"
#include "hf/open_model.h"

namespace tessera {

struct StoredModel {
    std::string file;      ///< a folder, or a GGUF file that llama.cpp's converter made of one
    std::string expected;  ///< name of the model whose logits are stored
    bool draft = false;    ///< it has a block for multi-token prediction
};

/// In the checkout that the program was built from or, where that is not on this machine, in the
/// one that it is started in.
inline std::string stored_model_path(const std::string& file) {
    const std::string built = std::string(TESSERA_TEST_DATA) + "/models";
    return (std::filesystem::exists(built) ? built : "tests/data/models") + "/" + file;
}

inline GgufFile open_stored(const StoredModel& model) {
    return open_model(stored_model_path(model.file));
}

/// One sequence of tokens and, for each, the logits of the token behind it.
struct StoredLogits {
    explicit StoredLogits(const std::string& name) {
        const auto file = SafetensorsFile::open(stored_model_path(name + ".expected.safetensors"));
        tokens.resize(static_cast<size_t>(file.find_tensor("tokens")->elements()));
        std::memcpy(tokens.data(), file.find_tensor("tokens")->data, tokens.size() * 4);
        logits = floats(file, "logits");
        mtp_logits = floats(file, "mtp_logits");
        mtp_chain = floats(file, "mtp_chain");
        vocab = std::ssize(logits) / std::ssize(tokens);
    }

    std::vector<int32_t> tokens;
    std::vector<float> logits;      ///< [tokens, vocab]
    std::vector<float> mtp_logits;  ///< the same by multi-token prediction, or empty
    std::vector<float> mtp_chain;   ///< [starts, 3, vocab] guessing on from 5, 64 and 200 tokens
    int64_t vocab = 0;

  private:
    static std::vector<float> floats(const SafetensorsFile& file, const char* name) {
        const SafetensorsTensor* tensor = file.find_tensor(name);
        if (tensor == nullptr) return {};
        std::vector<float> values(static_cast<size_t>(tensor->elements()));
        std::memcpy(values.data(), tensor->data, values.size() * 4);
        return values;
    }
};

/// max |found - wanted| / max |wanted| of one row of logits; infinite when a value is no number.
inline double relative_difference(const float* found, const float* wanted, int64_t vocab) {
    double largest = 0, difference = 0;
    for (int64_t i = 0; i < vocab; ++i) {
        if (!std::isfinite(found[i])) return INFINITY;
        largest = std::max(largest, std::abs(static_cast<double>(wanted[i])));
        difference = std::max(difference, std::abs(static_cast<double>(found[i]) - wanted[i]));
    }
    return difference / largest;
}

struct StoredEngine {
    std::string backend = "cpu";
    std::string isa = {};
    int32_t ubatch = 64;
    int32_t sequences = 1;
    bool exact = true;  ///< activations and attention memory in F32
    bool draft = false;
};

inline std::unique_ptr<Engine> stored_engine(const StoredModel& model, const StoredEngine& wanted) {
    EngineOptions options;
    options.backend.name = wanted.backend;
    options.backend.isa = wanted.isa;
    options.backend.threads = 1;
    options.context = 384;
    options.batch = 512;
    options.ubatch = wanted.ubatch;
    options.sequences = wanted.sequences;
    options.draft_max = wanted.draft ? 3 : 0;
    options.load_text = false;
    if (wanted.exact) {
        options.backend.act = ActPolicy::kF32;
        options.type_k = options.type_v = DType::kF32;
    }
    return std::make_unique<Engine>(options, open_stored(model));
}

}  // namespace tessera
