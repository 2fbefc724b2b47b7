// Guards against ids that differ from the reference tokenizers' (faults T1, T2, T4): special
// tokens behind punctuation, white-space look-ahead, case structure, digits, marks, NFC and NFD.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "text/pretokenizer.h"
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

class ByteLevelFamily : public testing::TestWithParam<const char*> {};

TEST_P(ByteLevelFamily, SplitsWhereTheReferenceTokenizerDoes) {
    const nlohmann::json expected = tokenizer_json("ids_" + std::string(GetParam()));
    const nlohmann::json texts = tokenizer_json("texts");
    const PreTokenizer pre_tokenizer(expected["pre"].get<std::string>(), "test");
    for (size_t i = 0; i < texts.size(); ++i) {
        const auto text = texts[i].get<std::string>();
        std::vector<std::string_view> pieces;
        pre_tokenizer.split(text, pieces);
        std::vector<size_t> ends;
        size_t characters = 0;
        for (const std::string_view piece : pieces) {
            for (const char c : piece) characters += (c & 0xC0) != 0x80 ? 1 : 0;
            ends.push_back(characters);
        }
        EXPECT_EQ(nlohmann::json(ends), expected["pieces"][i]) << i << ": " << texts[i];
    }
}

std::string test_name(const testing::TestParamInfo<const char*>& info) {
    std::string name = info.param;
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
}

#define BYTE_LEVEL \
    "gpt-2", "default", "smollm", "qwen2", "qwen35", "llama-bpe", "gpt-4o", "laguna", "tiny_aya"

INSTANTIATE_TEST_SUITE_P(
    Tokenizer,
    Family,
    testing::Values(BYTE_LEVEL, "gemma4", "gemma4_phrases", "spm", "spm_unused"),
    test_name);
INSTANTIATE_TEST_SUITE_P(Tokenizer, ByteLevelFamily, testing::Values(BYTE_LEVEL), test_name);

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
