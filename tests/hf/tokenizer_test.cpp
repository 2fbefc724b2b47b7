// tokenizer.json and its companions to the keys `tokenizer.*`. The pre-tokenizers are those of the
// published files; rules of types and ids are llama.cpp's (gguf-py/gguf/vocab.py).

#include <gtest/gtest.h>

#include "hf/folder_writer.h"

namespace tessera::hf_test {
namespace {

Json split_then_bytes(const std::string& regex) {
    return {{"type", "Sequence"},
            {"pretokenizers",
             {{{"type", "Split"},
               {"pattern", {{"Regex", regex}}},
               {"behavior", "Isolated"},
               {"invert", false}},
              {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
}

const char* const kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+)"
    R"([\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+)"
    R"([\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

class HfTokenizer : public testing::Test {
  protected:
    void SetUp() override {
        config_ = dense_config("qwen2");
        tokenizer_ = {{"added_tokens",
                       {{{"id", 4}, {"content", "<|im_end|>"}, {"special", true}},
                        {{"id", 5}, {"content", "<think>"}, {"special", false}},
                        {{"id", 6}, {"content", "<|quad_start|>"}, {"special", false}}}},
                      {"normalizer", {{"type", "NFC"}}},
                      {"pre_tokenizer", split_then_bytes(kQwen2)},
                      {"model",
                       {{"type", "BPE"},
                        {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}, {"aba", 3}}},
                        {"merges", {"a b", "ab a"}}}}};
    }
    void write() {
        folder_.write_json("config.json", config_);
        folder_.write_tensors({{"model.norm.weight", ramp_tensor({64})}});
        folder_.write_json("tokenizer.json", tokenizer_);
        if (!options_.is_null()) folder_.write_json("tokenizer_config.json", options_);
    }
    GgufFile open() {
        write();
        return folder_.open();
    }
    std::string failure() {
        write();
        return folder_.failure();
    }
    std::string pre(const Json& pre_tokenizer, bool ignore_merges = false) {
        tokenizer_["pre_tokenizer"] = pre_tokenizer;
        tokenizer_["model"]["ignore_merges"] = ignore_merges;
        return open().get_string("tokenizer.ggml.pre").value_or("");
    }

    Folder folder_;
    Json config_, tokenizer_, options_;
};

TEST_F(HfTokenizer, PreTokenizersAreRecognised) {
    EXPECT_EQ(pre(split_then_bytes(kQwen2)), "qwen2");
    EXPECT_EQ(pre(split_then_bytes(kQwen35)), "qwen35");
    EXPECT_EQ(pre(split_then_bytes(kLlama3), true), "llama-bpe");
    EXPECT_EQ(pre(split_then_bytes(kLlama3), false), "smaug-bpe");
    EXPECT_EQ(pre(split_then_bytes(kO200k), true), "gpt-4o");
    const Json bytes{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}};
    EXPECT_EQ(pre(bytes), "gpt-2");
    EXPECT_EQ(pre({{"type", "Sequence"},
                   {"pretokenizers", {{{"type", "Digits"}, {"individual_digits", true}}, bytes}}}),
              "smollm");
}

// What differs in one character splits some text otherwise: it has to be refused.
TEST_F(HfTokenizer, OtherPreTokenizersAreRefused) {
    std::string other = kQwen2;
    other.replace(other.find(R"(\p{N}|)"), 6, R"(\p{N}{1,2}|)");
    tokenizer_["pre_tokenizer"] = split_then_bytes(other);
    EXPECT_EQ(failure().substr(0, 120),
              "DIR/tokenizer.json: the pre-tokenizer is none of the known ones (qwen2, qwen35, "
              "llama-bpe, gpt-4o, smollm, gpt-2): \"spli");
    tokenizer_["pre_tokenizer"] = {{"type", "Metaspace"}};
    EXPECT_NE(failure().find("\"Metaspace\""), std::string::npos);
    tokenizer_["pre_tokenizer"] = nullptr;
    EXPECT_NE(failure().find("none of the known ones"), std::string::npos);
}

TEST_F(HfTokenizer, TokensTypesAndPadding) {
    const GgufFile file = open();
    EXPECT_EQ(*file.get_string_array("tokenizer.ggml.tokens"),
              (std::vector<std::string>{"a", "b", "ab", "aba", "<|im_end|>", "<think>",
                                        "<|quad_start|>", "[PAD7]"}));
    EXPECT_EQ(*file.get_int_array("tokenizer.ggml.token_type"),
              (std::vector<int64_t>{1, 1, 1, 1, 3, 4, 3, 5}));
    EXPECT_EQ(file.get_string("tokenizer.ggml.model"), "gpt2");
}

TEST_F(HfTokenizer, MergesInBothForms) {
    const std::vector<std::string> expected{"a b", "ab a"};
    EXPECT_EQ(*open().get_string_array("tokenizer.ggml.merges"), expected);
    tokenizer_["model"]["merges"] =
        Json::array({Json::array({"a", "b"}), Json::array({"ab", "a"})});
    EXPECT_EQ(*open().get_string_array("tokenizer.ggml.merges"), expected);
}

TEST_F(HfTokenizer, SpecialIds) {
    config_["bos_token_id"] = 3;
    options_ = {{"eos_token", {{"content", "<|im_end|>"}}}, {"pad_token", "<think>"}};
    folder_.write_json("generation_config.json", {{"eos_token_id", {4, 6}}});
    const GgufFile file = open();
    EXPECT_EQ(file.get_int("tokenizer.ggml.bos_token_id"), 3);
    EXPECT_EQ(file.get_int("tokenizer.ggml.eos_token_id"), 4);
    EXPECT_EQ(file.get_int("tokenizer.ggml.eot_token_id"), 6);
    EXPECT_EQ(file.get_int("tokenizer.ggml.padding_token_id"), 5);
    EXPECT_EQ(file.get_bool("tokenizer.ggml.add_bos_token"), false);
    EXPECT_EQ(file.get_bool("tokenizer.ggml.add_eos_token"), false);
}

// T5: no id is made up.
TEST_F(HfTokenizer, T5NoIdsWhereNoneAreGiven) {
    const GgufFile file = open();
    EXPECT_EQ(file.find("tokenizer.ggml.bos_token_id"), nullptr);
    EXPECT_EQ(file.find("tokenizer.ggml.eos_token_id"), nullptr);
}

TEST_F(HfTokenizer, StartTokenOfThePostProcessor) {
    options_ = {{"bos_token", "<|im_end|>"}};
    const Json piece{{"type", "TemplateProcessing"},
                     {"single",
                      {{{"SpecialToken", {{"id", "<|im_end|>"}, {"type_id", 0}}}},
                       {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}}};
    tokenizer_["post_processor"] = {{"type", "Sequence"},
                                    {"processors", {{{"type", "ByteLevel"}}, piece}}};
    const GgufFile file = open();
    EXPECT_EQ(file.get_bool("tokenizer.ggml.add_bos_token"), true);
    EXPECT_EQ(file.get_bool("tokenizer.ggml.add_eos_token"), false);
    options_["add_bos_token"] = true;
    tokenizer_.erase("post_processor");
    EXPECT_EQ(open().get_bool("tokenizer.ggml.add_bos_token"), true);
}

TEST_F(HfTokenizer, ChatTemplate) {
    EXPECT_EQ(open().find("tokenizer.chat_template"), nullptr);
    options_ = {{"chat_template",
                 {{{"name", "tool_use"}, {"template", "no"}},
                  {{"name", "default"}, {"template", "listed"}}}}};
    EXPECT_EQ(open().get_string("tokenizer.chat_template"), "listed");
    options_ = {{"chat_template", "inside"}};
    EXPECT_EQ(open().get_string("tokenizer.chat_template"), "inside");
    folder_.write("chat_template.jinja", "own file");
    EXPECT_EQ(open().get_string("tokenizer.chat_template"), "own file");
}

TEST_F(HfTokenizer, NoTokenizerIsNoObstacle) {
    write();
    folder_.remove("tokenizer.json");
    EXPECT_EQ(folder_.open().find("tokenizer.ggml.model"), nullptr);
}

TEST_F(HfTokenizer, OtherKindsAreRefused) {
    tokenizer_["model"]["byte_fallback"] = true;
    EXPECT_EQ(failure(),
              "DIR/tokenizer.json: is a tokenizer of type BPE with byte fallback; "
              "byte-level BPE is supported");
    tokenizer_["model"] = {{"type", "Unigram"}};
    EXPECT_EQ(failure(),
              "DIR/tokenizer.json: is a tokenizer of type Unigram; byte-level BPE is "
              "supported");
}

TEST_F(HfTokenizer, DamagedFiles) {
    const Json good = tokenizer_;
    tokenizer_["model"]["vocab"]["x"] = 2;
    EXPECT_EQ(failure(),
              "DIR/tokenizer.json: 'model': 'vocab': key 'x' has the id 2, as another "
              "token has");
    tokenizer_ = good;
    tokenizer_["model"]["vocab"]["x"] = -1;
    EXPECT_EQ(failure(), "DIR/tokenizer.json: 'model': 'vocab': key 'x' is -1, expected an id");
    tokenizer_ = good;
    tokenizer_["added_tokens"][0]["id"] = 8;
    EXPECT_EQ(failure(),
              "DIR/tokenizer.json: token \"<|im_end|>\" has the id 8, the vocabulary of "
              "the model has 8 tokens");
    tokenizer_ = good;
    tokenizer_["model"]["merges"] = Json::array({1});
    EXPECT_EQ(failure(),
              "DIR/tokenizer.json: 'model': key 'merges' has the entry 1, expected a pair of "
              "tokens");
    tokenizer_ = good;
    tokenizer_.erase("model");
    EXPECT_EQ(failure(), "DIR/tokenizer.json: key 'model' is missing");
}

}  // namespace
}  // namespace tessera::hf_test
