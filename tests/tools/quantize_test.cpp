// `quantize`: llama-quantize's choices, values that read back, and files that are whole or absent.

#include "engine/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <random>

#include "core/error.h"
#include "gguf/gguf_writer.h"
#include "models/synth.h"
#include "tools/scratch_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

class Quantize : public ScratchFolder {
  protected:
    std::string path(const std::string& name) const { return (folder_ / name).string(); }

    QuantizeOptions options(const std::string& type) const {
        QuantizeOptions options;
        options.input = path("in.gguf");
        options.output = path("out.gguf");
        options.target = find_quantize_target(type);
        options.threads = 2;
        return options;
    }
};

struct Layout {
    int32_t layers = 2;
    int32_t width = 256;
    int32_t narrow = 192;  ///< width of ffn_down's input
    bool tied = true;
    float poison = 0.0f;  ///< replaces one value of blk.1.attn_q.weight
};

void add(GgufWriter& writer,
         std::vector<std::vector<float>>& data,
         const std::string& name,
         const std::vector<int64_t>& shape,
         std::mt19937& random) {
    std::normal_distribution<float> normal(0.0f, 0.02f);
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal(random);
    writer.add_tensor(name, DType::kF32, shape);
    data.push_back(std::move(values));
}

/// A llama-like model; only names and shapes matter to quantize.
void write_model(const std::string& path, const Layout& layout) {
    std::mt19937 random(7);
    GgufWriter writer(path);
    writer.set_string("general.architecture", "llama");
    writer.set_u32("general.file_type", 0);
    writer.set_u32("llama.block_count", static_cast<uint32_t>(layout.layers));
    writer.set_u32("split.count", 1);
    std::vector<std::vector<float>> data;
    size_t poisoned = 0;
    add(writer, data, "token_embd.weight", {layout.width, 96}, random);
    for (int32_t i = 0; i < layout.layers; ++i) {
        const std::string block = "blk." + std::to_string(i) + ".";
        add(writer, data, block + "attn_norm.weight", {layout.width}, random);
        if (i == 1) poisoned = data.size();
        add(writer, data, block + "attn_q.weight", {layout.width, layout.width}, random);
        add(writer, data, block + "attn_k.weight", {layout.width, 64}, random);
        add(writer, data, block + "attn_v.weight", {layout.width, 64}, random);
        add(writer, data, block + "attn_output.weight", {layout.width, layout.width}, random);
        add(writer, data, block + "ffn_gate_inp.weight", {layout.width, 4}, random);
        add(writer, data, block + "ffn_up.weight", {layout.width, layout.narrow}, random);
        add(writer, data, block + "ffn_down.weight", {layout.narrow, layout.width}, random);
    }
    if (!layout.tied) add(writer, data, "output.weight", {layout.width, 96}, random);
    if (layout.poison != 0.0f) data[poisoned][1000] = layout.poison;
    writer.begin_data();
    for (const std::vector<float>& values : data)
        writer.write(reinterpret_cast<const std::byte*>(values.data()),
                     static_cast<int64_t>(values.size() * sizeof(float)));
    writer.finish();
}

void quantize(const QuantizeOptions& options) {
    const GgufFile file = GgufFile::open(options.input);
    quantize_file(file, options, plan_quantize(file, options), {});
}

std::vector<float> values_of(const GgufTensor& tensor) {
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    dequantize_row(tensor.dtype, tensor.data, tensor.elements(), values.data());
    return values;
}

std::string bytes_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Guards against choices that drift from llama-quantize's: the table was read off its output files.
TEST_F(Quantize, ChoosesFormatsAsLlamaQuantize) {
    std::ifstream table(TESSERA_TEST_DATA "/tools/quantize_types.txt");
    std::string kind, type, name, expected, written;
    std::map<std::string, std::map<std::string, DType>> plans;
    int checked = 0;
    while (table >> kind >> type >> name >> expected) {
        if (kind != written) write_model(path("in.gguf"), {.layers = 8, .tied = kind == "tied"});
        written = kind;
        auto& plan = plans[kind + type];
        if (plan.empty()) {
            const GgufFile file = GgufFile::open(path("in.gguf"));
            for (const TensorChoice& choice : plan_quantize(file, options(type)))
                plan[choice.tensor->name] = choice.target;
        }
        ASSERT_TRUE(plan.contains(name)) << name;
        EXPECT_EQ(dtype_info(plan[name]).name, expected) << kind << " " << type << " " << name;
        ++checked;
    }
    EXPECT_GT(checked, 900);
}

// Guards against a second-level scale that is missing, misplaced or applied twice.
TEST_F(Quantize, Nvfp4HasOneScaleBesideEachMatrix) {
    write_model(path("in.gguf"), {});
    quantize(options("NVFP4"));
    const GgufFile before = GgufFile::open(path("in.gguf"));
    const GgufFile after = GgufFile::open(path("out.gguf"));
    EXPECT_EQ(after.get_int("general.file_type"), 39);
    EXPECT_EQ(after.get_int("general.quantization_version"), 2);
    EXPECT_EQ(after.find("split.count"), nullptr);
    EXPECT_EQ(after.find_tensor("token_embd.scale"), nullptr);
    EXPECT_EQ(after.find_tensor("token_embd.weight")->dtype, DType::kQ8_0);
    for (const GgufTensor& tensor : after.tensors()) {
        if (tensor.name.ends_with(".scale")) continue;
        std::vector<float> values = values_of(tensor);
        if (tensor.dtype == DType::kNVFP4) {
            const GgufTensor* scale =
                after.find_tensor(tensor.name.substr(0, tensor.name.size() - 6) + "scale");
            ASSERT_NE(scale, nullptr) << tensor.name;
            ASSERT_EQ(scale->elements(), 1);
            for (float& value : values) value *= values_of(*scale)[0];
        }
        const std::vector<float> wanted = values_of(*before.find_tensor(tensor.name));
        double error = 0, power = 0;
        for (size_t i = 0; i < wanted.size(); ++i) {
            error += std::pow(values[i] - wanted[i], 2);
            power += std::pow(wanted[i], 2);
        }
        // Normal weights in NVFP4 keep about 0.9 % of their power as error.
        const double most = tensor.dtype == DType::kNVFP4 ? 0.012 : 1e-4;
        EXPECT_LE(error, most * power) << tensor.name;
        EXPECT_EQ(tensor.dtype == DType::kF32, error == 0) << tensor.name;
    }
}

TEST_F(Quantize, SearchIsAtLeastAsGoodAsTheUsualRule) {
    write_model(path("in.gguf"), {});
    std::map<Nvfp4Policy, double> errors;
    for (const Nvfp4Policy policy :
         {Nvfp4Policy::kAmax6, Nvfp4Policy::kFourSix, Nvfp4Policy::kSearch}) {
        QuantizeOptions how = options("NVFP4");
        how.policy = policy;
        quantize(how);
        const GgufFile before = GgufFile::open(path("in.gguf"));
        const GgufFile after = GgufFile::open(path("out.gguf"));
        const float scale = values_of(*after.find_tensor("blk.0.attn_q.scale"))[0];
        const std::vector<float> found = values_of(*after.find_tensor("blk.0.attn_q.weight"));
        const std::vector<float> wanted = values_of(*before.find_tensor("blk.0.attn_q.weight"));
        for (size_t i = 0; i < wanted.size(); ++i)
            errors[policy] += std::pow(found[i] * scale - wanted[i], 2);
    }
    EXPECT_LT(errors[Nvfp4Policy::kFourSix], errors[Nvfp4Policy::kAmax6]);
    EXPECT_LT(errors[Nvfp4Policy::kSearch], errors[Nvfp4Policy::kFourSix]);
}

TEST_F(Quantize, BytesDoNotDependOnThreads) {
    write_model(path("in.gguf"), {});
    QuantizeOptions how = options("NVFP4");
    how.threads = 1;
    quantize(how);
    const std::string one = bytes_of(path("out.gguf"));
    how.threads = 5;
    quantize(how);
    EXPECT_EQ(bytes_of(path("out.gguf")), one);
}

// Guards against a draft block in NVFP4 with second-level scales, which llama.cpp 0.3.36 refuses to
// load, and against 4-bit gates of the recurrence.
TEST_F(Quantize, HybridsKeepDraftBlocksAndGatesInEightBits) {
    write_synth({.architecture = "qwen35", .shape = "tiny", .type = DType::kF16}, path("in.gguf"),
                {});
    quantize(options("NVFP4"));
    const GgufFile file = GgufFile::open(path("out.gguf"));
    const auto format = [&](const char* name) { return file.find_tensor(name)->dtype; };
    EXPECT_EQ(format("blk.0.attn_qkv.weight"), DType::kNVFP4);
    EXPECT_EQ(format("blk.0.ssm_alpha.weight"), DType::kQ8_0);
    EXPECT_EQ(format("blk.0.ssm_beta.weight"), DType::kQ8_0);
    EXPECT_EQ(format("blk.4.attn_q.weight"), DType::kQ8_0);
    EXPECT_EQ(format("blk.4.nextn.eh_proj.weight"), DType::kQ8_0);
    EXPECT_EQ(file.find_tensor("blk.4.attn_q.scale"), nullptr);
}

TEST_F(Quantize, CopyKeepsEveryTensor) {
    write_model(path("in.gguf"), {});
    QuantizeOptions how = options("COPY");
    how.kv_overrides.emplace_back("general.name",
                                  GgufValue{.type = GgufType::kString, .value = std::string("x")});
    quantize(how);
    const GgufFile before = GgufFile::open(path("in.gguf"));
    const GgufFile after = GgufFile::open(path("out.gguf"));
    EXPECT_EQ(after.get_int("general.file_type"), 0);
    EXPECT_EQ(after.get_string("general.name"), "x");
    ASSERT_EQ(after.tensors().size(), before.tensors().size());
    for (const GgufTensor& tensor : before.tensors())
        EXPECT_EQ(values_of(*after.find_tensor(tensor.name)), values_of(tensor));
}

TEST_F(Quantize, RequantizingIsAskedForAndKeepsTheScale) {
    write_model(path("in.gguf"), {});
    quantize(options("NVFP4"));
    QuantizeOptions again = options("F32");
    again.input = path("out.gguf");
    again.output = path("again.gguf");
    EXPECT_THROW(quantize(again), UserError);
    EXPECT_FALSE(fs::exists(path("again.gguf")));
    again.allow_requantize = true;
    quantize(again);
    const GgufFile nvfp4 = GgufFile::open(path("out.gguf"));
    const GgufFile plain = GgufFile::open(path("again.gguf"));
    EXPECT_EQ(values_of(*plain.find_tensor("blk.1.ffn_up.scale")),
              values_of(*nvfp4.find_tensor("blk.1.ffn_up.scale")));
    EXPECT_EQ(values_of(*plain.find_tensor("blk.1.ffn_up.weight")),
              values_of(*nvfp4.find_tensor("blk.1.ffn_up.weight")));
}

// Guards against an old model being lost when the new one cannot be finished.
TEST_F(Quantize, AFailureLeavesTheOldFileAlone) {
    for (const float poison :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        write_model(path("in.gguf"), {.poison = poison});
        std::ofstream(path("out.gguf")) << "old";
        try {
            quantize(options("NVFP4"));
            FAIL() << "a poisoned tensor was accepted";
        } catch (const UserError& error) {
            EXPECT_EQ(error.code(), ExitCode::kModel);
            EXPECT_NE(std::string(error.what()).find("'blk.1.attn_q.weight' holds a NaN"),
                      std::string::npos);
        }
        EXPECT_EQ(bytes_of(path("out.gguf")), "old");
        EXPECT_FALSE(fs::exists(path("out.gguf.part")));
    }
}

// Guards against truncating the input: it stood where the output grows.
TEST_F(Quantize, AnInputNamedLikeThePartSurvives) {
    write_model(path("out.gguf.part"), {});
    const std::string before = bytes_of(path("out.gguf.part"));
    QuantizeOptions how = options("Q8_0");
    how.input = path("out.gguf.part");
    EXPECT_THROW(quantize(how), UserError);
    EXPECT_EQ(bytes_of(path("out.gguf.part")), before);
    EXPECT_FALSE(fs::exists(path("out.gguf")));
}

/// A file of one matrix of that shape and, if `factors` > 0, of that many second-level scales.
void write_matrix(const std::string& path, const std::vector<int64_t>& shape, int64_t factors) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    const std::vector<float> values(static_cast<size_t>(std::max(count, factors)), 0.5f);
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    GgufWriter writer(path);
    writer.set_string("general.architecture", "llama");
    writer.add_tensor("blk.0.ffn_down_exps.weight", DType::kF32, shape);
    if (factors > 0) writer.add_tensor("blk.0.ffn_down_exps.scale", DType::kF32, {factors});
    writer.begin_data();
    writer.write(bytes, 4 * count);
    if (factors > 0) writer.write(bytes, 4 * factors);
    writer.finish();
}

// Guards against reading past the second-level scales: a fourth axis has none of its own, and an
// input may bring too few.
TEST_F(Quantize, ScalesThatDoNotFitAreRefused) {
    const auto refused = [&](const std::vector<int64_t>& shape, int64_t factors) {
        write_matrix(path("in.gguf"), shape, factors);
        try {
            quantize(options("NVFP4"));
            ADD_FAILURE() << shape.size() << " axes, " << factors << " factors";
        } catch (const UserError& error) {
            EXPECT_EQ(error.code(), ExitCode::kModel);
        }
    };
    refused({64, 4, 2, 3}, 0);
    refused({64, 4, 5}, 2);
    write_matrix(path("in.gguf"), {64, 4, 5}, 5);
    quantize(options("NVFP4"));
    const GgufFile file = GgufFile::open(path("out.gguf"));
    EXPECT_EQ(file.find_tensor("blk.0.ffn_down_exps.scale")->elements(), 5);
}

// Guards against an abort, and against a file that claims to be one of several.
TEST_F(Quantize, KeysOfTheFileItselfCannotBeOverridden) {
    write_model(path("in.gguf"), {});
    for (const char* key : {"general.alignment", "split.count"}) {
        QuantizeOptions how = options("Q8_0");
        how.kv_overrides = {{key, {.type = GgufType::kI32, .value = int64_t{7}}}};
        EXPECT_THROW(quantize(how), UserError) << key;
        EXPECT_FALSE(fs::exists(path("out.gguf.part"))) << key;
    }
}

TEST_F(Quantize, FlagsChooseSingleTensors) {
    write_model(path("in.gguf"), {.tied = false});
    QuantizeOptions how = options("NVFP4");
    how.tensor_types = {{"attn_v", DType::kQ6_K}, {"blk\\.1\\.", DType::kBF16}};
    how.embedding_type = DType::kF16;
    how.leave_output = true;
    const GgufFile file = GgufFile::open(how.input);
    std::map<std::string, DType> plan;
    for (const TensorChoice& choice : plan_quantize(file, how))
        plan[choice.tensor->name] = choice.target;
    EXPECT_EQ(plan["blk.0.attn_v.weight"], DType::kQ6_K);
    EXPECT_EQ(plan["blk.1.attn_v.weight"], DType::kQ6_K) << "the first pattern wins";
    EXPECT_EQ(plan["blk.1.attn_q.weight"], DType::kBF16);
    EXPECT_EQ(plan["blk.0.attn_q.weight"], DType::kNVFP4);
    EXPECT_EQ(plan["token_embd.weight"], DType::kF16);
    EXPECT_EQ(plan["output.weight"], DType::kF32);
    how.tensor_types = {{"attn_x", DType::kQ6_K}};
    EXPECT_THROW(plan_quantize(file, how), UserError);
    how.tensor_types = {{"a[", DType::kQ6_K}};
    EXPECT_THROW(plan_quantize(file, how), UserError);
}

}  // namespace
}  // namespace tessera
