// Names, orders and number formats of the tensors that a folder becomes. Expected bytes come from
// llama.cpp's converter (tests/data/models/qwen35moe.gguf) or from element-wise definitions here.

#include <gtest/gtest.h>

#include <cmath>

#include "hf/folder_writer.h"

namespace tessera::hf_test {
namespace {

/// Value head h of GGUF belongs to key head h mod 2; a checkpoint groups them by key head.
int64_t stored_head(int64_t head) {
    return head % 2 * 2 + head / 2;
}

std::vector<int64_t> value_order(int64_t size, int64_t before) {
    std::vector<int64_t> order = as_stored(before);
    for (int64_t head = 0; head < 4; ++head)
        for (int64_t i = 0; i < size; ++i) order.push_back(before + stored_head(head) * size + i);
    return order;
}

int32_t ulps_apart(float a, float b) {
    return std::abs(std::bit_cast<int32_t>(a) - std::bit_cast<int32_t>(b));
}

// Any wrong name, order of heads, missing +1 or -exp, or lost tensor shows against the file that
// llama.cpp's own converter made of the same folder.
TEST(HfTensors, AreThoseOfTheConverterOfLlamaCpp) {
    const std::string data = std::string(TESSERA_TEST_DATA) + "/models/qwen35moe";
    const GgufFile made = open_model(data);
    const GgufFile expected = GgufFile::open(data + ".gguf");
    EXPECT_EQ(made.tensors().size(), expected.tensors().size());
    for (const GgufTensor& tensor : expected.tensors()) {
        const GgufTensor* found = made.find_tensor(tensor.name);
        ASSERT_NE(found, nullptr) << tensor.name;
        EXPECT_EQ(found->shape, tensor.shape) << tensor.name;
        EXPECT_EQ(found->dtype, tensor.dtype) << tensor.name;
        if (!tensor.name.ends_with("ssm_a")) {
            EXPECT_EQ(bytes_of(made, tensor.name), bytes_of(expected, tensor.name)) << tensor.name;
            continue;
        }
        // Two libraries' exp may differ in the last bit.
        const std::vector<float> a = numbers_of(made, tensor.name);
        const std::vector<float> b = numbers_of(expected, tensor.name);
        for (size_t i = 0; i < a.size(); ++i) EXPECT_LE(ulps_apart(a[i], b[i]), 1);
    }
}

std::string value_text(const GgufValue& value) {
    return std::visit(
        [](const auto& content) -> std::string {
            if constexpr (std::is_same_v<std::decay_t<decltype(content)>, GgufValue::Array>)
                return std::visit([](const auto& list) { return Json(list).dump(); }, content);
            else
                return Json(content).dump();
        },
        value.value);
}

TEST(HfKeys, AreThoseOfTheConverterOfLlamaCpp) {
    const std::string data = std::string(TESSERA_TEST_DATA) + "/models/qwen35moe";
    const GgufFile made = open_model(data);
    const GgufFile expected = GgufFile::open(data + ".gguf");
    for (const GgufKeyValue& entry : expected.key_values()) {
        // Its pre-tokenizer is a guess from hashes of known vocabularies; names are for people.
        if (entry.key.starts_with("general.") || entry.key == "tokenizer.ggml.pre") continue;
        const GgufValue* found = made.find(entry.key);
        ASSERT_NE(found, nullptr) << entry.key;
        EXPECT_EQ(found->type, entry.value.type) << entry.key;
        EXPECT_EQ(value_text(*found), value_text(entry.value)) << entry.key;
    }
    EXPECT_EQ(made.get_string("general.architecture"), "qwen35moe");
    EXPECT_EQ(made.get_string("tokenizer.ggml.pre"), "qwen35");
}

// Llama's rotation turns neighbours: rows of a head's halves have to interleave, biases too.
TEST(HfTensors, LlamaQueryAndKeyRowsInterleaveHalves) {
    Folder folder;
    folder.write_json("config.json", dense_config("llama"));
    const std::string layer = "model.layers.0.self_attn.";
    folder.write_tensors({{layer + "q_proj.weight", ramp_tensor({64, 64})},
                          {layer + "q_proj.bias", bf16_tensor({64}, ramp(64))},
                          {layer + "k_proj.weight", ramp_tensor({32, 64})},
                          {layer + "v_proj.weight", ramp_tensor({32, 64})}});
    const GgufFile file = folder.open();
    const std::vector<float> bias = numbers_of(file, "blk.0.attn_q.bias");
    ASSERT_EQ(bias.size(), 64u);
    EXPECT_EQ(std::vector<float>(bias.begin(), bias.begin() + 18),
              (std::vector<float>{0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15, 16, 24}));
    const std::vector<float> stored = ramp(32 * 64);
    const std::vector<float> k = numbers_of(file, "blk.0.attn_k.weight");
    ASSERT_EQ(k.size(), stored.size());
    EXPECT_EQ(k[64], stored[8 * 64]);
    EXPECT_EQ(k[16 * 64], stored[16 * 64]);
    EXPECT_EQ(numbers_of(file, "blk.0.attn_v.weight"), stored);
    EXPECT_EQ(file.find_tensor("blk.0.attn_v.weight")->produce, nullptr) << "needs no copy";
}

TEST(HfTensors, Qwen3RowsStayAndNormsAreF32) {
    Folder folder;
    folder.write_json("config.json", dense_config("qwen3"));
    folder.write_tensors({{"model.layers.0.self_attn.q_proj.weight", ramp_tensor({64, 64})},
                          {"model.layers.0.input_layernorm.weight", ramp_tensor({64})},
                          {"model.embed_tokens.weight", ramp_tensor({8, 64})},
                          {"lm_head.weight", ramp_tensor({8, 64})}});
    const GgufFile file = folder.open();
    EXPECT_EQ(numbers_of(file, "blk.0.attn_q.weight"), ramp(64 * 64));
    EXPECT_EQ(file.find_tensor("blk.0.attn_norm.weight")->dtype, DType::kF32);
    EXPECT_EQ(numbers_of(file, "blk.0.attn_norm.weight"), ramp(64)) << "no +1 for this family";
    EXPECT_EQ(file.find_tensor("output.weight"), nullptr) << "tied, whatever is stored";
}

Tensors hybrid_nvfp4(bool modelopt) {
    Tensors tensors;
    const std::string layer = "model.language_model.layers.0.linear_attn.";
    add_nvfp4(tensors, layer + "in_proj_qkv", 128, 64, 1, modelopt);
    add_nvfp4(tensors, layer + "in_proj_z", 64, 64, 2, modelopt);
    add_nvfp4(tensors, layer + "in_proj_a", 4, 64, 3, modelopt);
    add_nvfp4(tensors, layer + "out_proj", 64, 64, 4, modelopt);
    return tensors;
}

Json with_scheme(Json config, const Json& scheme) {
    config["quantization_config"] = scheme;
    return config;
}

const Json kModelOpt{{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}};
const Json kCompressed{{"quant_method", "compressed-tensors"}, {"format", "nvfp4-pack-quantized"}};

// Codes must be repaired from neighbours to halves, and scales must travel with the rows and
// columns of regrouped value heads.
TEST(HfNvfp4, ModelOptWeightsOfRegroupedHeads) {
    Folder folder;
    folder.write_json("config.json", with_scheme(hybrid_config(), kModelOpt));
    const Tensors tensors = hybrid_nvfp4(true);
    folder.write_tensors(tensors);
    const GgufFile file = folder.open();
    const std::string layer = "model.language_model.layers.0.linear_attn.";
    const auto expect = [&](const char* name, const std::string& source,
                            const std::vector<int64_t>& rows, const std::vector<int64_t>& cols) {
        EXPECT_EQ(file.find_tensor(name)->dtype, DType::kNVFP4);
        EXPECT_EQ(bytes_of(file, name),
                  expected_nvfp4(tensors.at(layer + source + ".weight"),
                                 tensors.at(layer + source + ".weight_scale"), rows, cols))
            << name;
    };
    expect("blk.0.attn_qkv.weight", "in_proj_qkv", value_order(16, 64), as_stored(64));
    expect("blk.0.attn_gate.weight", "in_proj_z", value_order(16, 0), as_stored(64));
    expect("blk.0.ssm_alpha.weight", "in_proj_a", value_order(1, 0), as_stored(64));
    expect("blk.0.ssm_out.weight", "out_proj", as_stored(64), value_order(16, 0));
    EXPECT_EQ(numbers_of(file, "blk.0.attn_gate.scale"),
              std::vector<float>{1.0f / (1.0f / 0.125f)});
    EXPECT_EQ(numbers_of(file, "blk.0.attn_gate.input_scale"), std::vector<float>{0.5f});
    EXPECT_EQ(file.get_int("general.file_type"), 39);
}

// N13: compressed-tensors stores divisors where ModelOpt stores factors.
TEST(HfNvfp4, N13CompressedTensorsGivesTheSameFile) {
    Folder first;
    first.write_json("config.json", with_scheme(hybrid_config(), kModelOpt));
    first.write_tensors(hybrid_nvfp4(true));
    const GgufFile expected = first.open();
    const std::string second = first.path() + "/packed";
    std::filesystem::create_directories(second);
    std::ofstream(second + "/config.json") << with_scheme(hybrid_config(), kCompressed).dump();
    first.write_tensors(hybrid_nvfp4(false), "packed/model.safetensors");
    const GgufFile file = open_model(second);
    ASSERT_EQ(file.tensors().size(), expected.tensors().size());
    for (const GgufTensor& tensor : expected.tensors())
        EXPECT_EQ(bytes_of(file, tensor.name), bytes_of(expected, tensor.name)) << tensor.name;
}

Json expert_config() {
    Json config = dense_config("qwen3_moe");
    config.update({{"num_experts", 12},
                   {"num_experts_per_tok", 2},
                   {"moe_intermediate_size", 64},
                   {"norm_topk_prob", true}});
    return config;
}

// Experts are stacked by number (not by name: 10 stands before 2 there), one scale each.
TEST(HfNvfp4, ExpertsAreStackedInOrderOfTheirNumbers) {
    Folder folder;
    folder.write_json("config.json", with_scheme(expert_config(), kModelOpt));
    Tensors tensors;
    std::vector<uint8_t> expected;
    std::vector<float> scales;
    for (uint32_t i = 0; i < 12; ++i) {
        const std::string base = "model.layers.0.mlp.experts." + std::to_string(i) + ".up_proj";
        add_nvfp4(tensors, base, 8, 64, i + 1, true);
        const std::vector<uint8_t> one =
            expected_nvfp4(tensors[base + ".weight"], tensors[base + ".weight_scale"], as_stored(8),
                           as_stored(64));
        expected.insert(expected.end(), one.begin(), one.end());
        scales.push_back(1.0f / (1.0f / (0.25f / static_cast<float>(i + 1))));
    }
    folder.write_tensors(tensors);
    const GgufFile file = folder.open();
    const GgufTensor* tensor = file.find_tensor("blk.0.ffn_up_exps.weight");
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->shape, (std::array<int64_t, 4>{64, 8, 12, 1}));
    EXPECT_EQ(bytes_of(file, "blk.0.ffn_up_exps.weight"), expected);
    EXPECT_EQ(numbers_of(file, "blk.0.ffn_up_exps.scale"), scales);
}

// M9: fused experts are two tensors of GGUF, gate rows first.
TEST(HfTensors, M9FusedExpertsAreSplit) {
    Folder folder;
    folder.write_json("config.json", expert_config());
    folder.write_tensors({{"model.layers.0.mlp.experts.gate_up_proj", ramp_tensor({12, 4, 64})},
                          {"model.layers.0.mlp.experts.down_proj", ramp_tensor({12, 64, 2})}});
    const GgufFile file = folder.open();
    const std::vector<float> all = ramp(12 * 4 * 64);
    std::vector<float> gate, up;
    for (size_t i = 0; i < all.size(); ++i) (i / 64 % 4 < 2 ? gate : up).push_back(all[i]);
    EXPECT_EQ(numbers_of(file, "blk.0.ffn_gate_exps.weight"), gate);
    EXPECT_EQ(numbers_of(file, "blk.0.ffn_up_exps.weight"), up);
    EXPECT_EQ(numbers_of(file, "blk.0.ffn_down_exps.weight"), ramp(12 * 64 * 2));
}

TEST(HfFp8, WeightsBecomeBf16) {
    Folder folder;
    folder.write_json("config.json",
                      with_scheme(dense_config("qwen3"), {{"quant_method", "compressed-tensors"},
                                                          {"format", "float-quantized"}}));
    // 1, -2, the largest, the smallest subnormal.
    folder.write_tensors(
        {{"model.layers.0.mlp.up_proj.weight",
          bytes_tensor("F8_E4M3", {2, 2}, {0x38, 0xc0, 0x7e, 0x01})},
         {"model.layers.0.mlp.up_proj.weight_scale", f32_tensor({2, 1}, {0.5f, 2.0f})},
         {"model.layers.0.mlp.down_proj.weight", bytes_tensor("F8_E4M3", {1, 2}, {0x38, 0xb8})},
         {"model.layers.0.mlp.down_proj.weight_scale", f32_tensor({}, {3.0f})},
         {"model.layers.0.mlp.down_proj.input_scale", f32_tensor({}, {3.0f})}});
    const GgufFile file = folder.open();
    EXPECT_EQ(numbers_of(file, "blk.0.ffn_up.weight"),
              (std::vector<float>{0.5f, -1.0f, 896.0f, 0x1p-8f}));
    EXPECT_EQ(numbers_of(file, "blk.0.ffn_down.weight"), (std::vector<float>{3.0f, -3.0f}));
}

TEST(HfTensors, ShardsAreOneModel) {
    Folder folder;
    folder.write_json("config.json", dense_config("qwen3"));
    folder.write_tensors({{"model.embed_tokens.weight", ramp_tensor({8, 64})}}, "a.safetensors");
    folder.write_tensors({{"model.norm.weight", ramp_tensor({64})}}, "b.safetensors");
    folder.write_json("model.safetensors.index.json",
                      {{"weight_map",
                        {{"model.embed_tokens.weight", "a.safetensors"},
                         {"model.norm.weight", "b.safetensors"}}}});
    const GgufFile file = folder.open();
    EXPECT_EQ(numbers_of(file, "token_embd.weight"), ramp(8 * 64));
    EXPECT_EQ(numbers_of(file, "output_norm.weight"), ramp(64));
    EXPECT_GT(file.file_bytes(), 8 * 64 * 2 + 64 * 2);
}

// Frequencies of Llama 3.1 by the published rule: long waves are divided, short ones stay.
TEST(HfKeys, LlamaThreeRotationFactors) {
    Json config = dense_config("llama");
    config["head_dim"] = 128;
    config["rope_theta"] = 500000.0;
    config["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", 8.0},
                              {"low_freq_factor", 1.0},
                              {"high_freq_factor", 4.0},
                              {"original_max_position_embeddings", 8192}};
    Folder folder;
    folder.write_json("config.json", config);
    folder.write_tensors({{"model.norm.weight", ramp_tensor({64})}});
    const std::vector<float> factors = numbers_of(folder.open(), "rope_freqs.weight");
    ASSERT_EQ(factors.size(), 64u);
    EXPECT_EQ(factors.front(), 1.0f);
    EXPECT_EQ(factors.back(), 8.0f);
    // Wave 2 pi 500000^(60/128) = 2948.3: its share is (8192/2948.3 - 1) / 3 = 0.59285.
    EXPECT_NEAR(factors[30], 1.0 / (0.40715 / 8 + 0.59285), 1e-4);
}

}  // namespace
}  // namespace tessera::hf_test
