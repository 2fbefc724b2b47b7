// Guards against vocabularies that a file describes wrongly (faults L13, L14, T5), and against ids
// that differ from the reference tokenizer's for a real model.

#include "engine/vocab_from_gguf.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "text/tokenizer.h"

namespace tessera {
namespace {

/// Writes the metadata of a GGUF file byte by byte.
class Metadata {
  public:
    template <class T>
    static std::string number(T value) {
        std::string bytes(sizeof(T), '\0');
        std::memcpy(bytes.data(), &value, sizeof(T));
        return bytes;
    }
    static std::string text(const std::string& value) {
        return number<uint64_t>(value.size()) + value;
    }
    void set(const std::string& key, GgufType type, const std::string& value) {
        entries_ += text(key) + number(type) + value;
        ++count_;
    }
    void set_text(const std::string& key, const std::string& value) {
        set(key, GgufType::kString, text(value));
    }
    void set_texts(const std::string& key, const std::vector<std::string>& values) {
        std::string bytes = number(GgufType::kString) + number<uint64_t>(values.size());
        for (const std::string& value : values) bytes += text(value);
        set(key, GgufType::kArray, bytes);
    }
    template <class T>
    void set_numbers(const std::string& key, GgufType type, const std::vector<T>& values) {
        std::string bytes = number(type) + number<uint64_t>(values.size());
        for (const T value : values) bytes += number(value);
        set(key, GgufType::kArray, bytes);
    }
    VocabSource vocab() const {
        const std::string bytes = "GGUF" + number<uint32_t>(3) + number<uint64_t>(0) +
                                  number<uint64_t>(count_) + entries_;
        const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
        return vocab_from_gguf(GgufFile::parse({data, bytes.size()}, "model.gguf"));
    }
    std::string error() const {
        try {
            vocab();
        } catch (const UserError& error) {
            EXPECT_EQ(error.code(), ExitCode::kModel);
            return error.what();
        }
        return "no error";
    }

  private:
    std::string entries_;
    uint64_t count_ = 0;
};

Metadata basic(const std::string& model, const std::string& pre = "") {
    Metadata metadata;
    metadata.set_text("general.architecture", "llama");
    metadata.set_text("tokenizer.ggml.model", model);
    if (!pre.empty()) metadata.set_text("tokenizer.ggml.pre", pre);
    metadata.set_texts("tokenizer.ggml.tokens", {"a", "b", "ab"});
    return metadata;
}

Metadata with_merges(const std::string& pre) {
    Metadata metadata = basic("gpt2", pre);
    metadata.set_texts("tokenizer.ggml.merges", {"a b"});
    return metadata;
}

void expect_error(const Metadata& metadata, const std::string& key) {
    const std::string error = metadata.error();
    EXPECT_NE(error.find("model.gguf"), std::string::npos) << error;
    EXPECT_NE(error.find(key), std::string::npos) << error;
}

TEST(VocabFromGguf, TakesWhatTheFileSays) {
    Metadata metadata = with_merges("qwen2");
    metadata.set_numbers<int32_t>("tokenizer.ggml.token_type", GgufType::kI32, {1, 3, 4});
    metadata.set("tokenizer.ggml.bos_token_id", GgufType::kU32, Metadata::number<uint32_t>(1));
    metadata.set("tokenizer.ggml.eos_token_id", GgufType::kU32, Metadata::number<uint32_t>(2));
    metadata.set("tokenizer.ggml.padding_token_id", GgufType::kU32,
                 Metadata::number<uint32_t>(UINT32_MAX));
    metadata.set("tokenizer.ggml.add_bos_token", GgufType::kBool, Metadata::number<uint8_t>(1));
    metadata.set("tokenizer.ggml.add_space_prefix", GgufType::kBool, Metadata::number<uint8_t>(0));
    metadata.set_text("tokenizer.chat_template", "{{ messages }}");
    const VocabSource source = metadata.vocab();
    EXPECT_EQ(source.model, "gpt2");
    EXPECT_EQ(source.pre, "qwen2");
    EXPECT_EQ(source.tokens, (std::vector<std::string>{"a", "b", "ab"}));
    EXPECT_EQ(source.types,
              (std::vector{TokenType::kNormal, TokenType::kControl, TokenType::kUserDefined}));
    EXPECT_EQ(source.merges, std::vector<std::string>{"a b"});
    EXPECT_EQ(source.bos, 1);
    EXPECT_EQ(source.eos, 2);
    EXPECT_EQ(source.padding, -1);
    EXPECT_EQ(source.eot, -1);
    EXPECT_TRUE(source.add_bos);
    EXPECT_FALSE(source.add_space_prefix);
    EXPECT_EQ(source.chat_template, "{{ messages }}");
}

TEST(VocabFromGguf, NoBosKeyMeansNoBos) {
    EXPECT_EQ(with_merges("qwen2").vocab().bos, -1);
    EXPECT_FALSE(with_merges("qwen2").vocab().add_bos);
    EXPECT_TRUE(with_merges("llama-bpe").vocab().add_bos);
    EXPECT_TRUE(basic("llama").vocab().add_bos);
    Metadata gemma = basic("gemma4");
    gemma.set_texts("tokenizer.ggml.merges", {"a b"});
    gemma.set("tokenizer.ggml.add_bos_token", GgufType::kBool, Metadata::number<uint8_t>(0));
    EXPECT_TRUE(gemma.vocab().add_bos);
}

TEST(VocabFromGguf, ArraysOfTheWrongTypeOrLengthAreRefused) {
    Metadata types = with_merges("qwen2");
    types.set_numbers<uint8_t>("tokenizer.ggml.token_type", GgufType::kU8, {1, 1, 1});
    expect_error(types, "tokenizer.ggml.token_type");
    Metadata scores = with_merges("qwen2");
    scores.set_numbers<double>("tokenizer.ggml.scores", GgufType::kF64, {1, 1, 1});
    expect_error(scores, "tokenizer.ggml.scores");
    Metadata number = with_merges("qwen2");
    number.set("tokenizer.ggml.scores", GgufType::kF32, Metadata::number<float>(1));
    expect_error(number, "tokenizer.ggml.scores");
    for (const size_t count : {size_t{0}, size_t{2}, size_t{4}}) {
        Metadata few_types = with_merges("qwen2");
        few_types.set_numbers("tokenizer.ggml.token_type", GgufType::kI32,
                              std::vector<int32_t>(count, 1));
        expect_error(few_types, "tokenizer.ggml.token_type");
        Metadata few_scores = with_merges("qwen2");
        few_scores.set_numbers("tokenizer.ggml.scores", GgufType::kF32,
                               std::vector<float>(count, 1));
        expect_error(few_scores, "tokenizer.ggml.scores");
    }
    for (const int32_t type : {0, 7, -1, INT32_MIN}) {
        Metadata bad_type = with_merges("qwen2");
        bad_type.set_numbers<int32_t>("tokenizer.ggml.token_type", GgufType::kI32, {1, type, 1});
        expect_error(bad_type, "tokenizer.ggml.token_type[1]");
    }
}

TEST(VocabFromGguf, MissingKeysAreNamed) {
    expect_error(basic("gpt2"), "tokenizer.ggml.merges");
    Metadata none;
    none.set_text("general.architecture", "llama");
    expect_error(none, "tokenizer.ggml.model");
    none.set_text("tokenizer.ggml.model", "gpt2");
    expect_error(none, "tokenizer.ggml.tokens");
}

TEST(VocabFromGguf, SmolLm2HasTheIdsOfTheReferenceTokenizer) {
    const std::filesystem::path data(TESSERA_TEST_DATA);
    const auto model = data / "../../models/SmolLM2-135M-Instruct-Q4_1.gguf";
    if (!std::filesystem::exists(model))
        GTEST_SKIP() << "models/SmolLM2-135M-Instruct-Q4_1.gguf is not there; ./test.sh fetches it";
    const GgufFile file = GgufFile::open(model.string());
    const Tokenizer tokenizer(vocab_from_gguf(file), file.path());
    EXPECT_EQ(tokenizer.size(), 49152);
    EXPECT_TRUE(tokenizer.is_end(2));
    const auto read = [&](const char* name) {
        std::ifstream stream(data / "text" / name);
        return nlohmann::json::parse(stream);
    };
    const nlohmann::json texts = read("tokenizer_texts.json");
    const nlohmann::json ids = read("tokenizer_ids_smollm2.json").at("ids");
    ASSERT_EQ(texts.size(), ids.size());
    for (size_t i = 0; i < texts.size(); ++i) {
        EXPECT_EQ(nlohmann::json(tokenizer.encode(texts[i].get<std::string>(), true, true)), ids[i])
            << i << ": " << texts[i];
    }
}

}  // namespace
}  // namespace tessera
