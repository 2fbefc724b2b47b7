// Synthetic models: reproducible, independent of threads, with weights of the promised size.

#include "models/synth.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <set>
#include <string>

#include "core/codec.h"
#include "core/error.h"
#include "gguf/gguf.h"
#include "models/model.h"

namespace tessera {
namespace {

std::vector<std::byte> tiny(const std::string& arch, DType type, uint64_t seed, int32_t threads) {
    return synth_gguf(
        {.architecture = arch, .shape = "tiny", .type = type, .seed = seed, .threads = threads},
        {});
}

struct Moments {
    double mean = 0;
    double deviation = 0;
};

Moments moments_of(const GgufFile& file, const std::string& name) {
    const GgufTensor* tensor = file.find_tensor(name);
    if (tensor == nullptr) return {NAN, NAN};
    std::vector<float> values(static_cast<size_t>(tensor->elements()));
    dequantize_row(tensor->dtype, tensor->data, tensor->elements(), values.data());
    double sum = 0, squares = 0;
    for (const float value : values) {
        sum += value;
        squares += static_cast<double>(value) * value;
    }
    const double count = static_cast<double>(values.size());
    return {sum / count, std::sqrt(squares / count - sum / count * sum / count)};
}

// Guards against a benchmark model that differs from machine to machine.
TEST(Synth, BytesDependOnTheSeedOnly) {
    const std::vector<std::byte> one = tiny("llama", DType::kNVFP4, 1, 1);
    EXPECT_EQ(tiny("llama", DType::kNVFP4, 1, 7), one);
    EXPECT_NE(tiny("llama", DType::kNVFP4, 2, 1), one);
}

// Guards against activations that vanish or overflow with depth: see the scales in synth.h.
TEST(Synth, WeightsHaveThePromisedSize) {
    const std::vector<std::byte> bytes = tiny("qwen2", DType::kF32, 1, 2);
    const GgufFile file = GgufFile::parse(bytes, "synth");
    const double residual = std::sqrt(2.0 * 2);
    EXPECT_NEAR(moments_of(file, "token_embd.weight").deviation, 1.0, 0.01);
    EXPECT_NEAR(moments_of(file, "blk.0.attn_q.weight").deviation, 1 / 16.0, 0.001);
    EXPECT_NEAR(moments_of(file, "blk.1.attn_output.weight").deviation, 1 / 16.0 / residual, 0.001);
    EXPECT_NEAR(moments_of(file, "blk.1.ffn_down.weight").deviation,
                1 / std::sqrt(512.0) / residual, 0.001);
    EXPECT_NEAR(moments_of(file, "blk.0.attn_q.weight").mean, 0.0, 0.002);
    EXPECT_NEAR(moments_of(file, "blk.0.attn_norm.weight").mean, 1.0, 0.03);
    EXPECT_NEAR(moments_of(file, "blk.0.attn_q.bias").deviation, 0.1, 0.02);
}

// Guards against an NVFP4 model whose values depend on the format rather than on the seed.
TEST(Synth, Nvfp4HoldsTheSameNumbers) {
    const std::vector<std::byte> plain = tiny("llama", DType::kF32, 1, 2);
    const std::vector<std::byte> bytes = tiny("llama", DType::kNVFP4, 1, 2);
    const GgufFile exact = GgufFile::parse(plain, "exact");
    const GgufFile file = GgufFile::parse(bytes, "synth");
    const GgufTensor* tensor = file.find_tensor("blk.0.ffn_up.weight");
    ASSERT_EQ(tensor->dtype, DType::kNVFP4);
    float scale = 0;
    std::memcpy(&scale, file.find_tensor("blk.0.ffn_up.scale")->data, sizeof(scale));
    std::vector<float> found(static_cast<size_t>(tensor->elements()));
    std::vector<float> wanted(found.size());
    dequantize_row(tensor->dtype, tensor->data, tensor->elements(), found.data());
    dequantize_row(DType::kF32, exact.find_tensor("blk.0.ffn_up.weight")->data, tensor->elements(),
                   wanted.data());
    double error = 0, power = 0;
    for (size_t i = 0; i < found.size(); ++i) {
        error += std::pow(found[i] * scale - wanted[i], 2);
        power += std::pow(wanted[i], 2);
    }
    EXPECT_LT(error, 0.012 * power);
}

// Guards against a tensor that the model wants and the file lacks, or the other way round.
TEST(Synth, EveryArchitectureAndShapeDescribesAModel) {
    for (const std::string_view arch : synth_architectures()) {
        const std::vector<std::byte> bytes = tiny(std::string(arch), DType::kQ8_0, 1, 2);
        const GgufFile file = GgufFile::parse(bytes, "synth");
        const bool hybrid = arch.starts_with("qwen35");
        const std::unique_ptr<Model> model = make_model(file, {.draft = hybrid});
        EXPECT_EQ(model->info().architecture, arch);
        EXPECT_EQ(model->info().layers, hybrid ? 4 : 2);
        EXPECT_EQ(model->has_draft(), hybrid);
        std::set<std::string> known;
        for (const WeightRow& row : model->weights()) {
            known.insert(row.tensor);
            if (!row.required) continue;
            const GgufTensor* tensor = file.find_tensor(row.tensor);
            ASSERT_NE(tensor, nullptr) << row.tensor;
            EXPECT_EQ(tensor->shape[0], row.shape.back()) << row.tensor;
        }
        for (const GgufTensor& tensor : file.tensors())
            EXPECT_TRUE(known.contains(tensor.name)) << tensor.name;
    }
}

// Guards against states that never forget or forget everything, and against gates that are all
// alike: what a benchmark of such a model would measure is not what a real one does.
TEST(Synth, RecurrentLayersForgetAtManySpeeds) {
    const std::vector<std::byte> bytes = tiny("qwen35", DType::kF32, 1, 2);
    const GgufFile file = GgufFile::parse(bytes, "synth");
    float lowest = 0, highest = -100;
    for (const int layer : {0, 1, 2}) {
        const GgufTensor* rate = file.find_tensor("blk." + std::to_string(layer) + ".ssm_a");
        ASSERT_NE(rate, nullptr);
        std::vector<float> values(static_cast<size_t>(rate->elements()));
        dequantize_row(rate->dtype, rate->data, rate->elements(), values.data());
        lowest = std::min(lowest, *std::min_element(values.begin(), values.end()));
        highest = std::max(highest, *std::max_element(values.begin(), values.end()));
    }
    EXPECT_GE(lowest, -16.0f);
    EXPECT_LT(lowest, -1.0f);
    EXPECT_LT(highest, -0.05f);
    EXPECT_GT(highest, -1.0f);
    EXPECT_NEAR(moments_of(file, "blk.0.ssm_conv1d.weight").deviation, 0.5, 0.05);
    EXPECT_NEAR(moments_of(file, "blk.0.ssm_out.weight").deviation, 1 / std::sqrt(128.0 * 2 * 4),
                0.001);
    EXPECT_EQ(file.find_tensor("blk.3.ssm_a"), nullptr);
    EXPECT_NE(file.find_tensor("blk.4.nextn.eh_proj.weight"), nullptr);
}

// Guards against matrices in a format whose blocks do not divide them, and against routers and
// gates that are coarser than in real files.
TEST(Synth, FormatsFallBackWhereTheyDoNotFit) {
    const std::vector<std::byte> bytes = tiny("qwen35moe", DType::kQ4_K, 1, 2);
    const GgufFile file = GgufFile::parse(bytes, "synth");
    const auto type = [&](const std::string& part) {
        const GgufTensor* tensor = file.find_tensor("blk.0." + part + ".weight");
        return tensor == nullptr ? DType::kI8 : tensor->dtype;
    };
    EXPECT_EQ(type("ffn_gate_exps"), DType::kQ4_K);
    EXPECT_EQ(type("ffn_down_exps"), DType::kQ8_0);
    EXPECT_EQ(type("ssm_out"), DType::kQ8_0);
    EXPECT_EQ(type("ssm_alpha"), DType::kQ8_0);
    EXPECT_EQ(type("ffn_gate_inp"), DType::kF32);
    EXPECT_EQ(type("ffn_gate_inp_shexp"), DType::kF32);
    EXPECT_EQ(type("ssm_conv1d"), DType::kF32);
    EXPECT_EQ(file.find_tensor("blk.4.nextn.eh_proj.weight")->dtype, DType::kQ8_0);
}

TEST(Synth, TakesTheVocabularyOfAnotherModel) {
    const std::string donor = testing::TempDir() + "tessera_synth_donor.gguf";
    write_synth({.architecture = "llama", .shape = "tiny"}, donor, {});
    const std::vector<std::byte> bytes =
        synth_gguf({.architecture = "qwen3", .shape = "tiny", .vocab_from = donor}, {});
    std::remove(donor.c_str());
    const GgufFile file = GgufFile::parse(bytes, "synth");
    ASSERT_NE(file.get_string_array("tokenizer.ggml.tokens"), nullptr);
    EXPECT_EQ(file.get_string_array("tokenizer.ggml.tokens")->size(), 512u);
    EXPECT_EQ(file.find_tensor("token_embd.weight")->shape[1], 512);
}

TEST(Synth, RefusesWhatItCannotMake) {
    const auto message = [](const SynthSpec& spec) -> std::string {
        try {
            synth_gguf(spec, {});
        } catch (const UserError& error) {
            EXPECT_EQ(error.code(), ExitCode::kUsage);
            return error.what();
        }
        return "";
    };
    EXPECT_EQ(message({.architecture = "lama"}),
              "unknown architecture 'lama'; did you mean llama?");
    EXPECT_EQ(message({.shape = "2b"}), "unknown shape '2b'; did you mean 1b?");
    EXPECT_EQ(message({.architecture = "qwen35moe", .shape = "1b"}),
              "shape '1b' is not one of architecture qwen35moe, which has tiny, qwen3.6-35b-a3b");
    EXPECT_EQ(message({.architecture = "qwen35", .shape = "qwen3.6-35b-a3b"}),
              "shape 'qwen3.6-35b-a3b' is not one of architecture qwen35, which has tiny, 0.8b, "
              "qwen3.5-27b");
    EXPECT_EQ(message({.architecture = "qwen35", .shape = "qwen3.5-27"}),
              "unknown shape 'qwen3.5-27'; did you mean qwen3.5-27b?");
    EXPECT_EQ(message({.shape = "135m", .type = DType::kQ4_K}),
              "shape '135m' has matrices of width 576, which Q4_K cannot hold: its blocks have 256 "
              "elements");
}

}  // namespace
}  // namespace tessera
