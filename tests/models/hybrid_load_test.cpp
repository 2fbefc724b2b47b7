// What hybrid and expert models are refused for, and what they may come with.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>

#include "core/codec.h"
#include "core/error.h"
#include "engine/engine.h"
#include "gguf/gguf_writer.h"
#include "models/synth.h"

namespace tessera {
namespace {

struct Part {
    std::string name;
    DType dtype = DType::kF32;
    std::vector<int64_t> shape;
    std::vector<std::byte> data;
};

/// A synthetic model that can be taken apart.
struct Parts {
    std::map<std::string, GgufValue> keys;
    std::vector<Part> tensors;
};

Parts tiny(const std::string& architecture, DType type = DType::kF32) {
    const std::vector<std::byte> bytes =
        synth_gguf({.architecture = architecture, .type = type, .threads = 1}, {});
    const GgufFile file = GgufFile::parse(bytes, "synth");
    Parts model;
    for (const GgufKeyValue& entry : file.key_values()) model.keys[entry.key] = entry.value;
    for (const GgufTensor& tensor : file.tensors())
        model.tensors.push_back({tensor.name,
                                 tensor.dtype,
                                 {tensor.shape.begin(), tensor.shape.begin() + tensor.rank},
                                 {tensor.data, tensor.data + tensor.bytes}});
    return model;
}

std::vector<std::byte> bytes_of(const Parts& model) {
    std::vector<std::byte> bytes;
    GgufWriter writer(bytes);
    for (const auto& [key, value] : model.keys) writer.set(key, value);
    for (const Part& part : model.tensors) writer.add_tensor(part.name, part.dtype, part.shape);
    writer.begin_data();
    for (const Part& part : model.tensors) writer.write(part.data.data(), std::ssize(part.data));
    writer.finish();
    return bytes;
}

GgufValue number(int64_t value) {
    return {.type = GgufType::kI64, .value = value};
}

EngineOptions options_of(bool draft) {
    EngineOptions options;
    options.backend.threads = 1;
    options.context = 128;
    options.load_text = false;
    options.draft_max = draft ? 2 : 0;
    return options;
}

/// Logits behind a few tokens.
std::vector<float> run(const Parts& model, bool draft = false) {
    const std::vector<std::byte> bytes = bytes_of(model);
    Engine engine(options_of(draft), GgufFile::parse(bytes, "model.gguf"));
    Sequence sequence = engine.new_sequence();
    const std::array<int32_t, 5> tokens{3, 1, 4, 1, 5};
    const SequenceInput input{.sequence = &sequence, .tokens = tokens};
    const Tensor logits = engine.decode({&input, 1});
    return {logits.as<float>(), logits.as<float>() + logits.elements()};
}

/// Loading fails for the file with one line that has `part` in it.
void expect_refused(const Parts& model, const std::string& part, bool draft = false) {
    const std::vector<std::byte> bytes = bytes_of(model);
    try {
        Engine engine(options_of(draft), GgufFile::parse(bytes, "model.gguf"));
        ADD_FAILURE() << "accepted; expected: " << part;
    } catch (const UserError& error) {
        const std::string line = error.what();
        EXPECT_EQ(error.code(), ExitCode::kModel) << line;
        EXPECT_TRUE(line.starts_with("model.gguf: ")) << line;
        EXPECT_NE(line.find(part), std::string::npos) << line;
        EXPECT_EQ(line.find('\n'), std::string::npos) << line;
    }
}

Parts without(Parts model, const std::string& name) {
    const auto removed =
        std::erase_if(model.tensors, [&](const Part& part) { return part.name == name; });
    EXPECT_EQ(removed, 1u) << name;
    return model;
}

/// The model with `count` blocks for multi-token prediction; it comes with one.
Parts with_draft_blocks(const std::string& architecture, int32_t count) {
    Parts model = tiny(architecture);
    const std::string own = "blk.4.";
    const std::vector<Part> all = model.tensors;
    if (count == 0)
        std::erase_if(model.tensors, [&](const Part& part) { return part.name.starts_with(own); });
    if (count == 2)
        for (Part part : all)
            if (part.name.starts_with(own)) {
                part.name = "blk.5." + part.name.substr(own.size());
                model.tensors.push_back(part);
            }
    model.keys[architecture + ".block_count"] = number(4 + count);
    model.keys[architecture + ".nextn_predict_layers"] = number(count);
    if (count == 0) model.keys.erase(architecture + ".nextn_predict_layers");
    return model;
}

// Guards against tables per layer that are sized without the draft block, and against a draft block
// that is asked for where there is none.
TEST(HybridLoad, S8_DraftBlocksZeroOneAndTwo) {
    for (const std::string architecture : {"qwen35", "qwen35moe"}) {
        const Parts none = with_draft_blocks(architecture, 0);
        const Parts one = with_draft_blocks(architecture, 1);
        const Parts two = with_draft_blocks(architecture, 2);
        const std::vector<float> expected = run(none);
        EXPECT_EQ(run(one), expected) << architecture;
        EXPECT_EQ(run(two), expected) << architecture;
        EXPECT_EQ(run(one, /*draft=*/true), expected) << architecture;
        expect_refused(none, "no block for multi-token prediction", /*draft=*/true);
        expect_refused(two, architecture + ".nextn_predict_layers' is 2", /*draft=*/true);
    }
    expect_refused(tiny("qwen3moe"), "no block for multi-token prediction", /*draft=*/true);
    Parts key = tiny("qwen35");
    key.keys["qwen35.nextn_predict_layers"] = number(5);
    expect_refused(key, "qwen35.nextn_predict_layers");
}

// Guards against text from a model of which a part was lost.
TEST(HybridLoad, N10_MissingTensorsAreNamed) {
    for (const char* name :
         {"blk.0.attn_qkv.weight", "blk.0.attn_gate.weight", "blk.1.ssm_a", "blk.1.ssm_dt.bias",
          "blk.2.ssm_conv1d.weight", "blk.2.ssm_norm.weight", "blk.0.ssm_out.weight",
          "blk.0.ssm_alpha.weight", "blk.0.ssm_beta.weight", "blk.3.attn_q_norm.weight",
          "blk.3.attn_k_norm.weight", "blk.3.attn_output.weight", "blk.3.ffn_down.weight",
          "blk.0.post_attention_norm.weight"})
        expect_refused(without(tiny("qwen35"), name), "'" + std::string(name) + "' is missing");
    for (const char* name :
         {"blk.0.ffn_gate_inp.weight", "blk.1.ffn_up_exps.weight", "blk.2.ffn_gate_exps.weight",
          "blk.3.ffn_down_exps.weight", "blk.0.ffn_gate_inp_shexp.weight",
          "blk.0.ffn_up_shexp.weight", "blk.0.ffn_down_shexp.weight"})
        expect_refused(without(tiny("qwen35moe"), name), "'" + std::string(name) + "' is missing");
    expect_refused(without(tiny("qwen3moe"), "blk.1.ffn_down_exps.weight"),
                   "'blk.1.ffn_down_exps.weight' is missing");
    for (const char* name : {"blk.4.nextn.eh_proj.weight", "blk.4.nextn.hnorm.weight",
                             "blk.4.nextn.enorm.weight", "blk.4.attn_q.weight"})
        expect_refused(without(tiny("qwen35"), name), "'" + std::string(name) + "' is missing",
                       /*draft=*/true);
}

// Guards against tensors that are skipped because nobody knows them, fused forms above all.
TEST(HybridLoad, M9_UnknownTensorsAreNamed) {
    for (const char* name :
         {"blk.0.ssm_in.weight", "blk.0.ssm_ba.weight", "blk.0.ffn_gate_up_exps.weight",
          "blk.3.attn_qkv.weight", "blk.3.attn_sinks.weight", "blk.5.nextn.eh_proj.weight"})
        for (const bool draft : {false, true}) {
            Parts model = tiny("qwen35moe");
            model.tensors.push_back({name, DType::kF32, {1}, std::vector<std::byte>(4)});
            expect_refused(model, "'" + std::string(name) + "'", draft);
        }
}

// Guards against shapes that nobody compared: what was found and what was expected are both named.
TEST(HybridLoad, MisshapenTensorsAreNamed) {
    Parts taps = tiny("qwen35");
    for (Part& part : taps.tensors)
        if (part.name == "blk.0.ssm_conv1d.weight") std::swap(part.shape[0], part.shape[1]);
    expect_refused(taps, "'blk.0.ssm_conv1d.weight' is [4, 256], expected [256, 4]");
    Parts experts = tiny("qwen35moe");
    experts.keys["qwen35moe.expert_count"] = number(4);
    expect_refused(experts, "'blk.0.ffn_gate_inp.weight' is [8, 256], expected [4, 256]");
}

// Guards against hyper-parameters that divide by zero or do not fit together.
TEST(HybridLoad, SenselessHyperParametersAreNamed) {
    for (const char* key : {"ssm.conv_kernel", "ssm.state_size", "ssm.group_count",
                            "ssm.time_step_rank", "ssm.inner_size", "full_attention_interval",
                            "expert_used_count", "expert_feed_forward_length"})
        for (const int64_t value : {int64_t{0}, int64_t{-1}, int64_t{1} << 40}) {
            Parts model = tiny("qwen35moe");
            model.keys["qwen35moe." + std::string(key)] = number(value);
            expect_refused(model, "qwen35moe." + std::string(key));
        }
    Parts heads = tiny("qwen35");
    heads.keys["qwen35.ssm.group_count"] = number(3);
    expect_refused(heads, "multiple of group_count 3");
    Parts choices = tiny("qwen35moe");
    choices.keys["qwen35moe.expert_used_count"] = number(9);
    expect_refused(choices, "qwen35moe.expert_used_count");
}

// ---- scales of NVFP4 matrices ----

bool is_scale(const Part& part) {
    return part.name.ends_with(".scale");
}

/// Every expert of every stack gets a scale of its own.
void spread_scales(Parts& model) {
    for (Part& part : model.tensors) {
        if (!is_scale(part)) continue;
        std::vector<float> values(part.data.size() / 4);
        std::memcpy(values.data(), part.data.data(), part.data.size());
        for (size_t i = 0; i < values.size(); ++i)
            values[i] *= 0.5f + 0.25f * static_cast<float>(i % 5);
        std::memcpy(part.data.data(), values.data(), part.data.size());
    }
}

/// The same weights as F32 without scales, so that what a scale does is seen.
Parts folded(const Parts& model) {
    std::map<std::string, std::vector<float>> scales;
    for (const Part& part : model.tensors) {
        if (!is_scale(part)) continue;
        std::vector<float>& values = scales[part.name.substr(0, part.name.size() - 5) + "weight"];
        values.resize(part.data.size() / 4);
        std::memcpy(values.data(), part.data.data(), part.data.size());
    }
    Parts plain{model.keys, {}};
    for (const Part& part : model.tensors) {
        if (is_scale(part)) continue;
        const auto found = scales.find(part.name);
        if (found == scales.end()) {
            plain.tensors.push_back(part);
            continue;
        }
        int64_t elements = 1;
        for (const int64_t extent : part.shape) elements *= extent;
        std::vector<float> values(static_cast<size_t>(elements));
        dequantize_row(part.dtype, part.data.data(), elements, values.data());
        const size_t each = values.size() / found->second.size();
        for (size_t i = 0; i < values.size(); ++i) values[i] *= found->second[i / each];
        std::vector<std::byte> data(values.size() * 4);
        std::memcpy(data.data(), values.data(), data.size());
        plain.tensors.push_back({part.name, DType::kF32, part.shape, data});
    }
    return plain;
}

// Guards against scales that are looked for under one name only, and against one scale for all
// experts.
TEST(HybridLoad, N14_BothNamingsOfScalesOfExperts) {
    for (const char* architecture : {"qwen35moe", "qwen3moe"}) {
        Parts model = tiny(architecture, DType::kNVFP4);
        spread_scales(model);
        const std::vector<float> one = run(model);
        Parts renamed = model;
        int32_t stacks = 0;
        for (Part& part : renamed.tensors)
            if (is_scale(part)) {
                stacks += part.shape == std::vector<int64_t>{8} ? 1 : 0;
                part.name = part.name.substr(0, part.name.size() - 5) + "weight.scale";
            }
        EXPECT_GE(stacks, 6) << architecture;
        EXPECT_EQ(run(renamed), one) << architecture;

        const std::vector<float> plain = run(folded(model));
        float largest = 0, difference = 0;
        for (size_t i = 0; i < plain.size(); ++i) {
            largest = std::max(largest, std::abs(plain[i]));
            difference = std::max(difference, std::abs(plain[i] - one[i]));
        }
        EXPECT_LT(difference, 0.1f * largest) << architecture;
    }
}

// Guards against scales of a wrong number and scales that are no numbers.
TEST(HybridLoad, BadScalesAreNamed) {
    const std::string name = "blk.1.ffn_up_exps.scale";
    const auto change = [&](const std::function<void(Part&)>& how) {
        Parts model = tiny("qwen35moe", DType::kNVFP4);
        for (Part& part : model.tensors)
            if (part.name == name) how(part);
        return model;
    };
    expect_refused(change([](Part& part) {
                       part.shape = {7};
                       part.data.resize(28);
                   }),
                   "'" + name + "' has 7 elements of F32, expected 8 of F32");
    expect_refused(change([](Part& part) {
                       const float bad = NAN;
                       std::memcpy(part.data.data() + 12, &bad, 4);
                   }),
                   "'" + name + "' holds the scale nan");
}

}  // namespace
}  // namespace tessera
