// Models whose metadata and tensors contradict each other (shared fault classes L16, N10, M9): one
// error that names the key or tensor, before anything is computed.

#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "core/error.h"
#include "engine/engine.h"
#include "gguf/gguf_writer.h"
#include "models/synth.h"

namespace tessera {
namespace {

/// How a copy of a valid model differs from it.
struct Change {
    std::map<std::string, GgufValue> keys = {};
    std::string dropped = {};   ///< this tensor or key is left out
    std::string integers = {};  ///< this tensor's bytes are called I32
    std::string added = {};     ///< a tensor of one value
    std::string architecture = "llama";
};

std::vector<std::byte> changed_model(const Change& change) {
    SynthSpec spec;
    spec.architecture = change.architecture;
    spec.type = DType::kF32;
    const std::vector<std::byte> bytes = synth_gguf(spec, {});
    const GgufFile source = GgufFile::parse(bytes, "source");
    std::vector<std::byte> copy;
    GgufWriter writer(copy);
    for (const GgufKeyValue& entry : source.key_values())
        if (entry.key != change.dropped) writer.set(entry.key, entry.value);
    for (const auto& [key, value] : change.keys) writer.set(key, value);
    for (const GgufTensor& tensor : source.tensors())
        if (tensor.name != change.dropped)
            writer.add_tensor(tensor.name,
                              tensor.name == change.integers ? DType::kI32 : tensor.dtype,
                              {tensor.shape.begin(), tensor.shape.begin() + tensor.rank});
    if (!change.added.empty()) writer.add_tensor(change.added, DType::kF32, {1});
    writer.begin_data();
    for (const GgufTensor& tensor : source.tensors())
        if (tensor.name != change.dropped) writer.write(tensor.data, tensor.bytes);
    const float value = 1.0f;
    if (!change.added.empty()) writer.write(reinterpret_cast<const std::byte*>(&value), 4);
    writer.finish();
    return copy;
}

void load(const std::vector<std::byte>& bytes, int64_t memory = 0) {
    EngineOptions options;
    options.backend.threads = 1;
    options.context = 64;
    options.load_text = false;
    options.memory_limit_bytes = memory;
    const Engine engine(options, GgufFile::parse(bytes, "model.gguf"));
}

/// Loading fails as `code` with a line that begins with the file and has `part` in it.
void expect_refused(const Change& change, const std::string& part) {
    try {
        load(changed_model(change));
        ADD_FAILURE() << "accepted; expected: " << part;
    } catch (const UserError& error) {
        const std::string line = error.what();
        EXPECT_EQ(error.code(), ExitCode::kModel) << line;
        EXPECT_TRUE(line.starts_with("model.gguf: ")) << line;
        EXPECT_NE(line.find(part), std::string::npos) << line;
    }
}

GgufValue number(int64_t value) {
    return {.type = GgufType::kI64, .value = value};
}

// Guards the test itself: unchanged copies load.
TEST(Load, UnchangedModelsLoad) {
    for (const char* architecture : {"llama", "qwen2", "qwen3"})
        EXPECT_NO_THROW(load(changed_model({.architecture = architecture}))) << architecture;
}

// Guards against divisions by zero, wild allocations and shapes that nobody compared (L16).
TEST(Load, SenselessHyperParametersAreNamed) {
    for (const char* key :
         {"llama.block_count", "llama.embedding_length", "llama.attention.head_count",
          "llama.attention.head_count_kv", "llama.feed_forward_length", "llama.context_length"})
        for (const int64_t value : {int64_t{0}, int64_t{-1}, int64_t{1} << 31, int64_t{1} << 62})
            expect_refused({.keys = {{key, number(value)}}}, key);
    expect_refused({.keys = {{"llama.rope.dimension_count", number(3)}}}, "dimension_count");
    expect_refused({.keys = {{"llama.rope.dimension_count", number((int64_t{1} << 32) + 16)}}},
                   "dimension_count");
    expect_refused({.keys = {{"llama.attention.head_count", number(3)}}}, "head_count");
    expect_refused({.keys = {{"llama.block_count", number(4000)}}}, "is missing");
    expect_refused({.dropped = "llama.block_count"}, "'llama.block_count' is missing");
    expect_refused({.keys = {{"general.architecture",
                              {.type = GgufType::kString, .value = std::string("lama")}}}},
                   "nearest known: llama");
}

// Guards against text from a model of which a part was lost (N10) or never understood (M9).
TEST(Load, MissingAndUnknownTensorsAreNamed) {
    expect_refused({.dropped = "blk.1.ffn_down.weight"}, "'blk.1.ffn_down.weight' is missing");
    expect_refused({.dropped = "blk.0.attn_q_norm.weight", .architecture = "qwen3"},
                   "'blk.0.attn_q_norm.weight' is missing");
    expect_refused({.dropped = "blk.0.attn_q.bias", .architecture = "qwen2"},
                   "'blk.0.attn_q.bias' is missing");
    expect_refused({.added = "blk.0.attn_sinks.weight"}, "'blk.0.attn_sinks.weight'");
}

// Guards against integers that are taken for weights.
TEST(Load, IntegersAreNoWeights) {
    for (const char* tensor : {"output_norm.weight", "blk.0.attn_q.weight", "token_embd.weight"})
        expect_refused({.integers = tensor}, tensor);
}

// Guards against memory that is found missing only while it is taken.
TEST(Load, WhatDoesNotFitIsRefusedBeforeLoading) {
    const std::vector<std::byte> bytes = changed_model({});
    try {
        load(bytes, 1 << 16);
        FAIL() << "64 KiB were enough";
    } catch (const UserError& error) {
        EXPECT_EQ(error.code(), ExitCode::kMemory);
        EXPECT_NE(std::string(error.what()).find("-c"), std::string::npos) << error.what();
    }
}

}  // namespace
}  // namespace tessera
