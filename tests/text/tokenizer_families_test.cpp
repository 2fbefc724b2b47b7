// Guards against ids that differ from the reference tokenizers' (faults T1, T2, T4): special
// tokens behind punctuation, white-space look-ahead, case structure, digits, marks, NFC and NFD.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/tokenizer.h"
#include "tokenizer_data.h"

namespace tessera {
namespace {

class Family : public testing::TestWithParam<const char*> {};

TEST_P(Family, GivesTheIdsOfTheReferenceTokenizer) {
    const nlohmann::json expected = tokenizer_json("ids_" + std::string(GetParam()));
    const nlohmann::json texts =
        expected.contains("texts") ? expected["texts"] : tokenizer_json("texts");
    const Tokenizer tokenizer(
        tokenizer_vocab(expected["model"], expected["pre"], expected["vocab"]), "test");
    const nlohmann::json parsed = expected.value("ids", nlohmann::json::array());
    // SentencePiece never parses control tokens: its ids stand for plain text only.
    const nlohmann::json unparsed = expected.value("unparsed", parsed);
    const nlohmann::json changed = expected.value("plain", nlohmann::json::object());
    ASSERT_EQ(unparsed.size(), texts.size());
    ASSERT_GT(texts.size(), 200U);
    for (size_t i = 0; i < texts.size(); ++i) {
        const auto text = texts[i].get<std::string>();
        const nlohmann::json plain = changed.value(std::to_string(i), unparsed[i]);
        EXPECT_EQ(nlohmann::json(tokenizer.encode(text, false, /*parse_special=*/false)), plain)
            << i << ": " << texts[i];
        if (parsed.empty()) continue;
        EXPECT_EQ(nlohmann::json(tokenizer.encode(text, false, /*parse_special=*/true)), parsed[i])
            << i << ": " << texts[i];
    }
}

INSTANTIATE_TEST_SUITE_P(Tokenizer,
                         Family,
                         testing::Values("gpt-2",
                                         "default",
                                         "smollm",
                                         "qwen2",
                                         "qwen35",
                                         "llama-bpe",
                                         "gpt-4o",
                                         "laguna",
                                         "tiny_aya",
                                         "gemma4",
                                         "gemma4_phrases",
                                         "spm",
                                         "spm_unused"),
                         [](const auto& param) {
                             std::string name = param.param;
                             for (char& c : name) {
                                 if (c == '-') c = '_';
                             }
                             return name;
                         });

TEST(TokenizerFamilies, AnAliasSplitsLikeItsFamily) {
    const std::string text = "It's 12345 wörds\n\n  हिन्दी fooBar!!";
    const auto ids = [&](const char* pre) {
        const Tokenizer tokenizer(tokenizer_vocab("gpt2", pre, "gpt-2"), "test");
        return tokenizer.encode(text, false, false);
    };
    EXPECT_EQ(ids("starcoder"), ids("smollm"));
    EXPECT_EQ(ids("deepseek-r1-qwen"), ids("qwen2"));
    EXPECT_EQ(ids("llama3"), ids("llama-bpe"));
    EXPECT_EQ(ids("llama4"), ids("gpt-4o"));
    EXPECT_EQ(ids("cohere2moe"), ids("tiny_aya"));
    EXPECT_EQ(ids("phi-2"), ids("gpt-2"));
    EXPECT_EQ(ids(""), ids("default"));
}

}  // namespace
}  // namespace tessera
