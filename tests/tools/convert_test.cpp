// `convert` and the other commands on a Hugging Face folder.

#include "tools/convert.h"

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "hf/folder_writer.h"

namespace tessera::hf_test {
namespace {

const std::string kModel = std::string(TESSERA_TEST_DATA) + "/models/qwen35moe";

void convert(const std::string& input, const std::string& output, const std::string& type) {
    testing::internal::CaptureStderr();
    run_convert({.input = input, .output = output, .type = type, .threads = 2});
    testing::internal::GetCapturedStderr();
}

TEST(Convert, WritesWhatTheFolderIsReadAs) {
    const Folder folder;
    const std::string path = folder.path() + "/out.gguf";
    convert(kModel, path, "auto");
    const GgufFile read = open_model(kModel);
    const GgufFile written = GgufFile::open(path);
    ASSERT_EQ(written.tensors().size(), read.tensors().size());
    for (const GgufTensor& tensor : read.tensors())
        EXPECT_EQ(bytes_of(written, tensor.name), bytes_of(read, tensor.name)) << tensor.name;
    for (const GgufKeyValue& entry : read.key_values())
        EXPECT_NE(written.find(entry.key), nullptr) << entry.key;
    EXPECT_EQ(written.key_values().size(), read.key_values().size());
}

// llama.cpp's loader wants vectors, routers and the convolution in F32 whatever the type is.
TEST(Convert, TypeIsOfMatricesOnly) {
    const Folder folder;
    const std::string path = folder.path() + "/out.gguf";
    convert(kModel, path, "f16");
    const GgufFile file = GgufFile::open(path);
    for (const char* name : {"blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate_inp_shexp.weight",
                             "blk.0.ssm_conv1d.weight", "blk.0.attn_norm.weight", "blk.0.ssm_a"})
        EXPECT_EQ(file.find_tensor(name)->dtype, DType::kF32) << name;
    for (const char* name :
         {"blk.0.attn_qkv.weight", "blk.0.ffn_up_exps.weight", "token_embd.weight"})
        EXPECT_EQ(file.find_tensor(name)->dtype, DType::kF16) << name;
    EXPECT_EQ(file.get_int("general.file_type"), 1);
}

Json nvfp4_config() {
    Json config = dense_config("qwen3");
    config["quantization_config"] = {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}};
    return config;
}

TEST(Convert, Nvfp4StaysWhateverTheTypeIs) {
    const Folder folder;
    folder.write_json("config.json", nvfp4_config());
    Tensors tensors{{"model.embed_tokens.weight", ramp_tensor({8, 64})}};
    add_nvfp4(tensors, "model.layers.0.mlp.up_proj", 4, 64, 1, true);
    folder.write_tensors(tensors);
    const std::string path = folder.path() + "/out.gguf";
    convert(folder.path(), path, "f32");
    const GgufFile file = GgufFile::open(path);
    EXPECT_EQ(file.find_tensor("token_embd.weight")->dtype, DType::kF32);
    EXPECT_EQ(file.find_tensor("blk.0.ffn_up.weight")->dtype, DType::kNVFP4);
    EXPECT_EQ(file.get_int("general.file_type"), 39);
}

// A scale that is NaN is found half way through: nothing may be left behind.
TEST(Convert, WritesAllOrNothing) {
    const Folder folder;
    folder.write_json("config.json", nvfp4_config());
    Tensors tensors;
    add_nvfp4(tensors, "model.layers.0.mlp.up_proj", 4, 64, 1, true);
    tensors["model.layers.0.mlp.up_proj.weight_scale"].bytes[3] = 0x7f;
    folder.write_tensors(tensors);
    const std::string path = folder.path() + "/out.gguf";
    try {
        convert(folder.path(), path, "auto");
        ADD_FAILURE();
    } catch (const UserError& error) {
        testing::internal::GetCapturedStderr();
        EXPECT_EQ(error.code(), ExitCode::kModel);
        EXPECT_NE(std::string(error.what()).find("block scale NaN"), std::string::npos);
    }
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_FALSE(std::filesystem::exists(path + ".part"));
}

// The tensors of a folder are made while the engine loads: the same logits as from the file.
TEST(Convert, EngineComputesTheSameFromFolderAndFile) {
    const Folder folder;
    const std::string path = folder.path() + "/out.gguf";
    convert(kModel, path, "auto");
    const auto logits = [](const std::string& model) {
        EngineOptions options;
        options.model_path = model;
        options.context = 64;
        options.backend.threads = 1;
        Engine engine(options);
        Sequence sequence = engine.new_sequence();
        const std::vector<int32_t> tokens{5, 17, 3, 99, 42};
        const SequenceInput input{.sequence = &sequence, .tokens = tokens};
        const Tensor last = engine.decode({&input, 1});
        const float* first = last.as<float>();
        return std::vector<float>(first, first + last.cols());
    };
    EXPECT_EQ(logits(kModel), logits(path));
}

TEST(Convert, MissingTensorOfAFolder) {
    const Folder folder;
    folder.write_json("config.json", dense_config("qwen3"));
    folder.write_tensors({{"model.embed_tokens.weight", ramp_tensor({8, 64})}});
    EngineOptions options;
    options.model_path = folder.path();
    options.load_text = false;
    try {
        const Engine engine(options);
        ADD_FAILURE();
    } catch (const UserError& error) {
        EXPECT_EQ(error.code(), ExitCode::kModel);
        EXPECT_EQ(std::string(error.what()),
                  folder.path() + ": tensor 'blk.0.attn_norm.weight' is missing");
    }
}

}  // namespace
}  // namespace tessera::hf_test
