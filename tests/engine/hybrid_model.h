#pragma once
// Tiny hybrid models for the tests of recurrent memory and of drafting.

#include <cstring>
#include <string>
#include <vector>

#include "engine/tiny_engine.h"
#include "gguf/gguf.h"

namespace tessera {

/// A random hybrid model whose draft block is often right: the layers of the trunk add only `noise`
/// of what they would, so that the next token depends mostly on the newest one, and the draft block
/// passes the newest token's embedding on.
inline std::vector<std::byte> predictable_hybrid(const std::string& architecture, float noise) {
    SynthSpec spec;
    spec.architecture = architecture;
    spec.type = DType::kF32;
    std::vector<std::byte> bytes = synth_gguf(spec, {});
    const GgufFile file = GgufFile::parse(bytes, "hybrid.gguf");
    for (const GgufTensor& tensor : file.tensors()) {
        std::byte* data = bytes.data() + (tensor.data - bytes.data());
        const auto value = [&](int64_t i) {
            float result = 0.0f;
            std::memcpy(&result, data + i * 4, 4);
            return result;
        };
        const auto set = [&](int64_t i, float to) { std::memcpy(data + i * 4, &to, 4); };
        const bool writes_residual = tensor.name.find("attn_output.weight") != std::string::npos ||
                                     tensor.name.find("ssm_out.weight") != std::string::npos ||
                                     tensor.name.find("ffn_down") != std::string::npos;
        const bool draft = file.find_tensor(tensor.name.substr(0, tensor.name.find('.', 4)) +
                                            ".nextn.eh_proj.weight") != nullptr;
        for (int64_t i = 0; i < tensor.elements(); ++i) {
            if (writes_residual) set(i, value(i) * (draft ? 0.0f : noise));
            if (tensor.name.ends_with("nextn.enorm.weight")) set(i, 1.0f);
            if (tensor.name.ends_with("nextn.eh_proj.weight"))
                set(i, i % tensor.shape[0] == i / tensor.shape[0] ? 1.0f : 0.0f);
        }
    }
    return bytes;
}

/// A random hybrid model as it is.
inline const std::vector<std::byte>& hybrid_bytes(const std::string& architecture) {
    static const auto make = [](const std::string& name) {
        SynthSpec spec;
        spec.architecture = name;
        spec.type = DType::kQ8_0;
        return synth_gguf(spec, {});
    };
    static const std::vector<std::byte> dense = make("qwen35");
    static const std::vector<std::byte> experts = make("qwen35moe");
    return architecture == "qwen35" ? dense : experts;
}

/// `count` token ids that repeat nowhere soon.
inline std::vector<int32_t> some_tokens(int32_t count, uint32_t seed) {
    std::vector<int32_t> tokens;
    uint32_t state = seed * 2654435761u + 1;
    for (int32_t i = 0; i < count; ++i) {
        state = state * 1664525u + 1013904223u;
        tokens.push_back(static_cast<int32_t>(state >> 16) % 256);
    }
    return tokens;
}

}  // namespace tessera
