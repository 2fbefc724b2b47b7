#pragma once
// Writes small Hugging Face folders for tests.

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/numeric.h"
#include "gguf/gguf.h"
#include "hf/open_model.h"

namespace tessera::hf_test {

using Json = nlohmann::ordered_json;

struct Stored {
    std::string type;
    std::vector<int64_t> shape;
    std::vector<uint8_t> bytes;
};
using Tensors = std::map<std::string, Stored>;

inline int64_t count_of(const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    return count;
}

inline Stored bytes_tensor(const std::string& type,
                           std::vector<int64_t> shape,
                           std::vector<uint8_t> bytes) {
    return {type, std::move(shape), std::move(bytes)};
}

inline Stored f32_tensor(std::vector<int64_t> shape, const std::vector<float>& values) {
    Stored stored{"F32", std::move(shape), std::vector<uint8_t>(values.size() * 4)};
    std::memcpy(stored.bytes.data(), values.data(), stored.bytes.size());
    return stored;
}

inline Stored bf16_tensor(std::vector<int64_t> shape, const std::vector<float>& values) {
    Stored stored{"BF16", std::move(shape), {}};
    for (const float value : values) {
        const uint16_t half = bf16_from_f32(value);
        stored.bytes.push_back(static_cast<uint8_t>(half & 0xff));
        stored.bytes.push_back(static_cast<uint8_t>(half >> 8));
    }
    return stored;
}

/// Numbers 0, 1, 2, ... as far as BF16 holds them apart (mod 251).
inline std::vector<float> ramp(int64_t count, int64_t first = 0) {
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>((first + i) % 251));
    return values;
}

inline Stored ramp_tensor(std::vector<int64_t> shape) {
    const int64_t count = count_of(shape);
    return bf16_tensor(std::move(shape), ramp(count));
}

/// A folder that is removed with the object.
class Folder {
  public:
    Folder() {
        const auto* info = testing::UnitTest::GetInstance()->current_test_info();
        std::string name = std::string(info->test_suite_name()) + "-" + info->name();
        for (char& c : name)
            if (c == '/') c = '-';
        path_ = std::filesystem::temp_directory_path() /
                ("tessera-hf-" + std::to_string(::getpid()) + "-" + name);
        std::filesystem::create_directories(path_);
    }
    ~Folder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;

    std::string path() const { return path_.string(); }
    void write(const std::string& name, const std::string& text) const {
        std::ofstream(path_ / name, std::ios::binary) << text;
    }
    void remove(const std::string& name) const { std::filesystem::remove(path_ / name); }
    void write_json(const std::string& name, const Json& json) const { write(name, json.dump()); }
    void write_tensors(const Tensors& tensors,
                       const std::string& name = "model.safetensors") const {
        Json header = Json::object();
        std::string data;
        for (const auto& [key, tensor] : tensors) {
            const size_t begin = data.size();
            data.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
            header[key] = {{"dtype", tensor.type},
                           {"shape", tensor.shape},
                           {"data_offsets", {begin, data.size()}}};
        }
        const std::string text = header.dump();
        const uint64_t length = text.size();
        std::string file(reinterpret_cast<const char*>(&length), 8);
        write(name, file + text + data);
    }

    GgufFile open() const { return open_model(path()); }
    /// The message of the failure to open, without the folder; "" when it opens.
    std::string failure() const {
        try {
            open();
        } catch (const UserError& error) {
            EXPECT_EQ(error.code(), ExitCode::kModel);
            std::string text = error.what();
            EXPECT_EQ(text.find('\n'), std::string::npos) << text;
            for (size_t at; (at = text.find(path())) != std::string::npos;)
                text.replace(at, path().size(), "DIR");
            return text;
        }
        return "";
    }

  private:
    std::filesystem::path path_;
};

/// The bytes of a tensor of the file, which has to be there.
inline std::vector<uint8_t> bytes_of(const GgufFile& file, const std::string& name) {
    const GgufTensor* tensor = file.find_tensor(name);
    if (tensor == nullptr) {
        ADD_FAILURE() << name << " is missing";
        return {};
    }
    std::vector<std::byte> buffer;
    const auto bytes = tensor_bytes(*tensor, buffer);
    EXPECT_EQ(static_cast<int64_t>(bytes.size()), tensor->bytes);
    std::vector<uint8_t> out(bytes.size());
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
}

/// The numbers of an F32 or BF16 tensor.
inline std::vector<float> numbers_of(const GgufFile& file, const std::string& name) {
    const std::vector<uint8_t> bytes = bytes_of(file, name);
    const GgufTensor* tensor = file.find_tensor(name);
    std::vector<float> values;
    if (tensor == nullptr) return values;
    if (tensor->dtype == DType::kF32) {
        values.resize(bytes.size() / 4);
        std::memcpy(values.data(), bytes.data(), bytes.size());
        return values;
    }
    EXPECT_EQ(tensor->dtype, DType::kBF16) << name;
    for (size_t i = 0; i + 1 < bytes.size(); i += 2)
        values.push_back(f32_from_bf16(static_cast<uint16_t>(bytes[i] | bytes[i + 1] << 8)));
    return values;
}

inline Json dense_config(const std::string& type) {
    return {{"model_type", type},         {"vocab_size", 8},
            {"hidden_size", 64},          {"num_hidden_layers", 1},
            {"num_attention_heads", 4},   {"num_key_value_heads", 2},
            {"intermediate_size", 64},    {"max_position_embeddings", 128},
            {"rms_norm_eps", 1e-6},       {"rope_theta", 10000.0},
            {"tie_word_embeddings", true}};
}

/// A hybrid with 2 key heads and 4 value heads of 16, layer 0 recurrent.
inline Json hybrid_config() {
    Json text = dense_config("qwen3_5_text");
    text.update({{"head_dim", 32},
                 {"layer_types", {"linear_attention"}},
                 {"linear_num_key_heads", 2},
                 {"linear_num_value_heads", 4},
                 {"linear_key_head_dim", 16},
                 {"linear_value_head_dim", 16},
                 {"linear_conv_kernel_dim", 4}});
    return {{"model_type", "qwen3_5"}, {"text_config", text}, {"tie_word_embeddings", true}};
}

/// NVFP4 codes and scales whose every byte is another one than its neighbours'.
inline void add_nvfp4(Tensors& tensors,
                      const std::string& base,
                      int64_t rows,
                      int64_t cols,
                      uint32_t seed,
                      bool modelopt) {
    Stored codes{"U8", {rows, cols / 2}, {}};
    Stored scales{"F8_E4M3", {rows, cols / 16}, {}};
    uint32_t state = seed * 2654435761u + 1;
    const auto next = [&] { return (state = state * 1664525u + 1013904223u) >> 24; };
    for (int64_t i = 0; i < rows * cols / 2; ++i)
        codes.bytes.push_back(static_cast<uint8_t>(next()));
    for (int64_t i = 0; i < rows * cols / 16; ++i)
        scales.bytes.push_back(static_cast<uint8_t>(next() % 0x7f));
    const float factor = 0.25f / static_cast<float>(seed);
    tensors[base + (modelopt ? ".weight" : ".weight_packed")] = codes;
    tensors[base + ".weight_scale"] = scales;
    tensors[base + (modelopt ? ".weight_scale_2" : ".weight_global_scale")] =
        modelopt ? f32_tensor({}, {1.0f / (1.0f / factor)}) : f32_tensor({1}, {1.0f / factor});
    tensors[base + (modelopt ? ".input_scale" : ".input_global_scale")] =
        modelopt ? f32_tensor({}, {0.5f}) : f32_tensor({1}, {2.0f});
}

/// What GGUF's blocks of 64 have to be for rows `order` of codes and scales as add_nvfp4() makes
/// them: four scales, then for each 16 elements the bytes (element j, element j + 8).
inline std::vector<uint8_t> expected_nvfp4(const Stored& codes,
                                           const Stored& scales,
                                           const std::vector<int64_t>& row_order,
                                           const std::vector<int64_t>& column_order) {
    const int64_t cols = codes.shape[1] * 2;
    const auto element = [&](int64_t row, int64_t col) {
        const uint8_t byte = codes.bytes[static_cast<size_t>((row * cols + col) / 2)];
        return static_cast<uint8_t>(col % 2 == 0 ? byte & 15 : byte >> 4);
    };
    std::vector<uint8_t> out;
    for (const int64_t row : row_order) {
        for (int64_t first = 0; first < cols; first += 64) {
            for (int64_t s = 0; s < 4; ++s) {
                const int64_t from = column_order[static_cast<size_t>(first + 16 * s)];
                out.push_back(scales.bytes[static_cast<size_t>(row * cols / 16 + from / 16)]);
            }
            for (int64_t s = 0; s < 4; ++s)
                for (int64_t j = 0; j < 8; ++j) {
                    const auto at = static_cast<size_t>(first + 16 * s + j);
                    out.push_back(static_cast<uint8_t>(element(row, column_order[at]) |
                                                       element(row, column_order[at + 8]) << 4));
                }
        }
    }
    return out;
}

inline std::vector<int64_t> as_stored(int64_t count) {
    std::vector<int64_t> order;
    for (int64_t i = 0; i < count; ++i) order.push_back(i);
    return order;
}

}  // namespace tessera::hf_test
