// Folders that are damaged or not supported: each is one line that names the place, and nothing
// else happens.

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "hf/folder_writer.h"

namespace tessera::hf_test {
namespace {

const std::string kUp = "model.layers.0.mlp.up_proj";
const Json kModelOpt{{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}};

Tensors nvfp4_tensors(bool modelopt = true) {
    Tensors tensors;
    add_nvfp4(tensors, kUp, 4, 64, 1, modelopt);
    return tensors;
}

class BadFolder : public testing::Test {
  protected:
    void SetUp() override { config_ = dense_config("qwen3"); }
    std::string failure(const Tensors& tensors) {
        folder_.write_json("config.json", config_);
        folder_.write_tensors(tensors);
        return folder_.failure();
    }
    std::string failure() { return failure({{"model.norm.weight", ramp_tensor({64})}}); }

    Folder folder_;
    Json config_;
};

TEST_F(BadFolder, NoConfig) {
    EXPECT_EQ(folder_.failure(),
              "DIR: has no config.json; expected a GGUF file or the folder of a model");
}

TEST_F(BadFolder, NoTensors) {
    folder_.write_json("config.json", config_);
    EXPECT_EQ(folder_.failure(),
              "DIR: has no model.safetensors and no model.safetensors.index.json");
    folder_.write("pytorch_model.bin", "x");
    EXPECT_EQ(folder_.failure(),
              "DIR: holds weights in PyTorch's own format only; save them as safetensors");
}

TEST_F(BadFolder, OneFileOfAFolder) {
    for (const char* name : {"/model.safetensors", "/config.json"}) {
        try {
            open_model(folder_.path() + name);
            ADD_FAILURE();
        } catch (const UserError& error) {
            EXPECT_NE(std::string(error.what()).find("give the folder"), std::string::npos);
        }
    }
}

TEST_F(BadFolder, MalformedConfig) {
    folder_.write("config.json", "{\"model_type\": ");
    EXPECT_EQ(folder_.failure().substr(0, 24), "DIR/config.json: line 1,");
    folder_.write("config.json", "[1]");
    EXPECT_EQ(folder_.failure(), "DIR/config.json: is [1], expected an object");
}

TEST_F(BadFolder, Architecture) {
    config_["model_type"] = "qwen3_5_mo";
    EXPECT_EQ(failure(),
              "DIR/config.json: key 'model_type' is 'qwen3_5_mo', which is not supported; nearest "
              "known: qwen3_5_moe");
}

struct KeyCase {
    const char* key;
    Json value;
    const char* message;
};

// Each would be computed wrongly, or overflow, if it went through.
TEST_F(BadFolder, Keys) {
    const KeyCase cases[] = {
        {"num_hidden_layers", nullptr, "key 'num_hidden_layers' is missing"},
        {"num_hidden_layers", 0,
         "key 'num_hidden_layers' is 0, expected an integer from 1 to 4096"},
        {"num_hidden_layers", 18446744073709551615u,
         "key 'num_hidden_layers' is 18446744073709551615, expected an integer from 1 to 4096"},
        {"num_hidden_layers", 1.5,
         "key 'num_hidden_layers' is 1.5, expected an integer from 1 to 4096"},
        {"rms_norm_eps", "x", "key 'rms_norm_eps' is \"x\", expected a number"},
        {"hidden_act", "gelu", "key 'hidden_act' is \"gelu\", only silu is supported"},
        {"use_sliding_window", true,
         "key 'use_sliding_window' is true, sliding windows are not supported"},
        {"layer_types",
         {"sliding_attention"},
         "key 'layer_types' has a layer of 'sliding_attention', which is not supported"},
        {"layer_types",
         {"full_attention", "full_attention"},
         "key 'layer_types' has 2 entries for 1 layers"},
        {"rope_scaling", {{"rope_type", "longrope"}}, "rope scaling 'longrope' is not supported"},
    };
    for (const KeyCase& one : cases) {
        config_ = dense_config("qwen3");
        config_[one.key] = one.value;
        EXPECT_EQ(failure(), std::string("DIR/config.json: ") + one.message);
    }
}

struct SchemeCase {
    Json scheme;
    const char* name;
};

TEST_F(BadFolder, QuantizationThatIsNotRead) {
    const SchemeCase cases[] = {
        {{{"quant_method", "awq"}}, "'awq'"},
        {{{"quant_method", "gptq"}}, "'gptq'"},
        {{{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}, "'fp8'"},
        {{{"quant_method", "compressed-tensors"}, {"format", "pack-quantized"}},
         "'compressed-tensors' with format 'pack-quantized'"},
        {{{"quant_method", "compressed-tensors"},
          {"format", "mixed-precision"},
          {"config_groups", {{"g", {{"format", "int-quantized"}}}}}},
         "'compressed-tensors' with format 'int-quantized'"},
        {{{"quant_method", "compressed-tensors"},
          {"format", "nvfp4-pack-quantized"},
          {"transform_config", {{"config_groups", {{"R4", 1}}}}}},
         "'compressed-tensors' with transformed weights"},
        {{{"quant_method", "modelopt"}, {"quant_algo", "W4A8_AWQ"}},
         "'modelopt' with quant_algo 'W4A8_AWQ'"},
    };
    for (const SchemeCase& one : cases) {
        config_["quantization_config"] = one.scheme;
        EXPECT_EQ(failure(), std::string("DIR: quantization ") + one.name +
                                 " is not supported; NVFP4 (ModelOpt or compressed-tensors) and "
                                 "FP8 with a scale a matrix or row are");
    }
}

TEST_F(BadFolder, QuantizationThatOnlyItsOwnFileNames) {
    folder_.write_json("hf_quant_config.json", {{"producer", {{"name", "modelopt"}}},
                                                {"quantization", {{"quant_algo", "INT4_AWQ"}}}});
    EXPECT_EQ(failure().substr(0, 61),
              "DIR: quantization 'modelopt' with quant_algo 'INT4_AWQ' is no");
}

TEST_F(BadFolder, BlocksOfFp8) {
    Tensors tensors{{kUp + ".weight", bytes_tensor("F8_E4M3", {1, 2}, {0, 0})},
                    {kUp + ".weight_scale_inv", f32_tensor({1, 1}, {1.0f})}};
    EXPECT_EQ(failure(tensors).substr(0, 71),
              "DIR: quantization FP8 in blocks (tensors '.weight_scale_inv') is not su");
}

TEST_F(BadFolder, ScalesOfNvfp4) {
    config_["quantization_config"] = kModelOpt;
    Tensors tensors = nvfp4_tensors();
    tensors[kUp + ".weight_scale_2"] = f32_tensor({2}, {1.0f, 1.0f});
    EXPECT_EQ(failure(tensors),
              "DIR: tensor '" + kUp + ".weight_scale_2' has 2 elements of F32, expected 1 of F32");
    tensors[kUp + ".weight_scale_2"] = f32_tensor({}, {std::numeric_limits<float>::quiet_NaN()});
    EXPECT_EQ(failure(tensors), "DIR: tensor '" + kUp + ".weight_scale_2' holds the scale nan");
    tensors = nvfp4_tensors();
    tensors[kUp + ".weight_scale"].shape = {4, 2};
    tensors[kUp + ".weight_scale"].bytes.resize(8);
    EXPECT_EQ(failure(tensors),
              "DIR: tensor '" + kUp + ".weight_scale' is F8_E4M3 [4, 2], expected F8_E4M3 [4, 4]");
    tensors.erase(kUp + ".weight_scale");
    EXPECT_EQ(failure(tensors),
              "DIR: tensor '" + kUp + ".weight_scale' is missing beside quantized weights");
    tensors = nvfp4_tensors(false);
    tensors[kUp + ".weight_global_scale"] = f32_tensor({1}, {0.0f});
    EXPECT_EQ(failure(tensors), "DIR: tensor '" + kUp + ".weight_global_scale' holds the scale 0");
    tensors = nvfp4_tensors();
    tensors.erase(kUp + ".weight");
    EXPECT_EQ(failure(tensors),
              "DIR: tensor '" + kUp + ".input_scale' scales a weight that is missing");
}

TEST_F(BadFolder, RowsThatNoBlockOfNvfp4Divides) {
    config_["quantization_config"] = kModelOpt;
    Tensors tensors;
    add_nvfp4(tensors, kUp, 4, 96, 1, true);
    EXPECT_EQ(failure(tensors), "DIR: tensor '" + kUp +
                                    ".weight' has rows of 96 weights; NVFP4 is read in rows of a "
                                    "multiple of 64");
}

// A NaN among the block scales would be read as 0 and a negative one as positive. They are found
// when the tensor is made, not when the folder is opened.
TEST_F(BadFolder, BlockScales) {
    config_["quantization_config"] = kModelOpt;
    for (const auto& [code, name] : {std::pair{0x7f, "NaN"}, {0xff, "NaN"}, {0x81, "below zero"}}) {
        Tensors tensors = nvfp4_tensors();
        tensors[kUp + ".weight_scale"].bytes[9] = static_cast<uint8_t>(code);
        ASSERT_EQ(failure(tensors), "");
        const GgufFile file = folder_.open();
        std::vector<std::byte> buffer;
        try {
            tensor_bytes(*file.find_tensor("blk.0.ffn_up.weight"), buffer);
            ADD_FAILURE() << name;
        } catch (const UserError& error) {
            EXPECT_EQ(error.code(), ExitCode::kModel);
            EXPECT_EQ(std::string(error.what()), folder_.path() + ": tensor '" + kUp +
                                                     ".weight' has the block scale " + name +
                                                     " in row 2");
        }
    }
}

TEST_F(BadFolder, TensorsThatDoNotBelong) {
    EXPECT_EQ(failure({{"model.layers.0.mlp.extra.weight", ramp_tensor({2})}}),
              "DIR: tensor 'model.layers.0.mlp.extra.weight' is not part of the architecture "
              "'qwen3', so the model would be computed wrongly");
    EXPECT_EQ(failure({{"model.layers.1.mlp.up_proj.weight", ramp_tensor({2})}}),
              "DIR: tensor 'model.layers.1.mlp.up_proj.weight' is of no layer, there are 1");
    EXPECT_EQ(failure({{"model.norm.weight", bytes_tensor("I8", {2}, {1, 2})}}),
              "DIR: tensor 'model.norm.weight' is I8, expected BF16, F16, F32 or a quantized "
              "weight");
    EXPECT_EQ(failure({{"model.norm.weight", bytes_tensor("F32", {0}, {})}}),
              "DIR: tensor 'model.norm.weight' is empty");
}

TEST_F(BadFolder, HeadThatIsNeitherTiedNorThere) {
    config_["tie_word_embeddings"] = false;
    EXPECT_EQ(failure(), "DIR: tensor 'lm_head.weight' is missing");
}

TEST_F(BadFolder, HeadsOfTheWrongNumber) {
    config_ = hybrid_config();
    const std::string z = "model.layers.0.linear_attn.in_proj_z.weight";
    EXPECT_EQ(failure({{z, ramp_tensor({60, 64})}}),
              "DIR: tensor '" + z + "' has 60 rows, expected 64");
    const std::string conv = "model.layers.0.linear_attn.conv1d.weight";
    EXPECT_EQ(failure({{conv, ramp_tensor({64, 1, 4})}}),
              "DIR: tensor '" + conv + "' has 64 channels, expected 128");
    const std::string out = "model.layers.0.linear_attn.out_proj.weight";
    EXPECT_EQ(failure({{out, ramp_tensor({64, 32})}}),
              "DIR: tensor '" + out + "' has 32 columns, expected 64");
}

TEST_F(BadFolder, Experts) {
    config_ = dense_config("qwen3_moe");
    config_.update({{"num_experts", 3}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 4}});
    const auto name = [](int i) {
        return "model.layers.0.mlp.experts." + std::to_string(i) + ".up_proj.weight";
    };
    Tensors tensors{{name(0), ramp_tensor({4, 8})}, {name(2), ramp_tensor({4, 8})}};
    EXPECT_EQ(failure(tensors), "DIR: tensor '" + name(1) + "' is missing");
    tensors[name(1)] = ramp_tensor({4, 4});
    EXPECT_EQ(failure(tensors), "DIR: tensor '" + name(1) + "' is BF16 of 4 x 4, but '" + name(0) +
                                    "' is BF16 of 4 x 8");
    tensors[name(3)] = ramp_tensor({4, 8});
    EXPECT_EQ(failure(tensors), "DIR: tensor '" + name(3) + "' is of no expert, there are 3");
    EXPECT_EQ(failure({{"model.layers.0.mlp.experts.gate_up_proj", ramp_tensor({2, 4, 8})}}),
              "DIR: tensor 'model.layers.0.mlp.experts.gate_up_proj' is no stack of 3 pairs of "
              "matrices");
}

TEST_F(BadFolder, Shards) {
    folder_.write_json("config.json", config_);
    const auto index = [&](const Json& map) {
        folder_.write_json("model.safetensors.index.json", {{"weight_map", map}});
        return folder_.failure();
    };
    const Tensors norm{{"model.norm.weight", ramp_tensor({64})}};
    folder_.write_tensors(norm, "a.safetensors");
    EXPECT_EQ(index({{"model.norm.weight", "a.safetensors"}, {"x", "b.safetensors"}}),
              "DIR/b.safetensors: is missing, DIR/model.safetensors.index.json lists it "
              "(incomplete download?)");
    EXPECT_EQ(index({{"y", "a.safetensors"}}),
              "DIR/a.safetensors: has no tensor 'y', which DIR/model.safetensors.index.json places "
              "there");
    EXPECT_EQ(index({{"y", "../a.safetensors"}}),
              "DIR/model.safetensors.index.json: 'weight_map': key 'y' is \"../a.safetensors\", "
              "expected the name of a safetensors file");
    EXPECT_EQ(index(Json::object()),
              "DIR/model.safetensors.index.json: key 'weight_map' lists no tensors");
    EXPECT_EQ(index(3), "DIR/model.safetensors.index.json: 'weight_map': is 3, expected an object");
    folder_.write_tensors({{"model.norm.weight", ramp_tensor({64})}, {"x", ramp_tensor({1})}},
                          "b.safetensors");
    EXPECT_EQ(index({{"model.norm.weight", "a.safetensors"}, {"x", "b.safetensors"}}),
              "DIR: tensor 'model.norm.weight' is there twice");
}

}  // namespace
}  // namespace tessera::hf_test
