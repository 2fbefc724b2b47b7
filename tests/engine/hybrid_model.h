#pragma once
// Tiny hybrid models for the tests of recurrent memory and of drafting.

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/codec.h"
#include "engine/tiny_engine.h"
#include "gguf/gguf.h"
#include "gguf/gguf_writer.h"

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

/// `tensor` with axis `axis` so many times as long, of its own numbers at random places.
inline std::vector<std::byte> grown_data(const GgufTensor& tensor, size_t axis, int64_t times) {
    const int64_t elements = tensor.elements(), cols = tensor.shape[0] * (axis == 0 ? times : 1);
    std::vector<float> old(static_cast<size_t>(elements)), row(static_cast<size_t>(cols));
    dequantize_row(tensor.dtype, tensor.data, elements, old.data());
    // Longer sums of smaller products, but not of gains.
    const float factor =
        axis == 0 && tensor.rank > 1 ? 1.0f / std::sqrt(static_cast<float>(times)) : 1.0f;
    const auto row_bytes = static_cast<size_t>(dtype_bytes(tensor.dtype, cols));
    std::vector<std::byte> bytes(static_cast<size_t>(times * elements / cols) * row_bytes);
    std::mt19937_64 random(1);
    for (size_t at = 0; at < bytes.size(); at += row_bytes) {
        for (float& value : row) value = factor * old[random() % old.size()];
        quantize_row(tensor.dtype, row.data(), cols, bytes.data() + at, Nvfp4Policy::kAmax6);
    }
    return bytes;
}

/// The tiny hybrid model with two key heads and four value heads of 128 instead of 32: the size
/// that trained models have, and that kernels for it take.
inline std::vector<std::byte> long_headed_hybrid(const std::string& architecture, DType type) {
    constexpr int64_t kTimes = 4;
    constexpr std::array kGrown{std::pair{"attn_qkv.weight", 1}, std::pair{"attn_gate.weight", 1},
                                std::pair{"ssm_conv1d.weight", 1}, std::pair{"ssm_norm.weight", 0},
                                std::pair{"ssm_out.weight", 0}};
    SynthSpec spec;
    spec.architecture = architecture;
    spec.type = type;
    const std::vector<std::byte> tiny = synth_gguf(spec, {});
    const GgufFile file = GgufFile::parse(tiny, "hybrid.gguf");
    std::vector<std::byte> bytes;
    GgufWriter writer(bytes);
    for (const GgufKeyValue& entry : file.key_values()) writer.set(entry.key, entry.value);
    for (const char* key : {".ssm.state_size", ".ssm.inner_size"})
        writer.set_u32(architecture + key,
                       static_cast<uint32_t>(kTimes * file.get_int(architecture + key).value()));
    std::vector<std::vector<std::byte>> data;
    for (const GgufTensor& tensor : file.tensors()) {
        std::vector<int64_t> shape(tensor.shape.begin(), tensor.shape.begin() + tensor.rank);
        data.emplace_back(tensor.data, tensor.data + tensor.bytes);
        for (const auto& [name, axis] : kGrown) {
            if (!tensor.name.ends_with(std::string(".") + name)) continue;
            const auto grows = static_cast<size_t>(axis);
            shape.at(grows) *= kTimes;
            data.back() = grown_data(tensor, grows, kTimes);
        }
        writer.add_tensor(tensor.name, tensor.dtype, shape);
    }
    writer.begin_data();
    for (const std::vector<std::byte>& tensor : data)
        writer.write(tensor.data(), static_cast<int64_t>(tensor.size()));
    writer.finish();
    return bytes;
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
