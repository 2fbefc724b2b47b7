// Guards against lost or changed bytes: decode(encode(x)) must be x for byte-level vocabularies
// whatever x is, and long inputs without a word boundary must neither fail nor take quadratic time.

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "text/tokenizer.h"
#include "tokenizer_data.h"

namespace tessera {
namespace {

constexpr const char* kByteLevel[] = {"gpt-2",     "default", "smollm", "qwen2",   "qwen35",
                                      "llama-bpe", "gpt-4o",  "laguna", "tiny_aya"};

/// Bytes with a liking for the beginnings and pieces of UTF-8, spaces, quotes and digits.
std::string random_bytes(std::mt19937& random, size_t most) {
    const std::vector<std::string> parts = {
        "\xC3\xA9",     "\xE4\xBD\xA0",      "\xF0\x9F\x98\x80", "\xCC\x81",
        "\xED\xA0\x80", "\xC0\x80",          "\xF4\x90\x80\x80", "\xE2\x96\x81",
        "\xE1\xA0\x8E", "\xE2\x82",          "\xF0\x9F",         "'S",
        " \r\n",        "<|im_end|>",        "<think>",          "12345",
        "the",          std::string(1, '\0')};
    std::string text;
    const size_t length = random() % most;
    while (text.size() < length) {
        if (random() % 2 == 0)
            text += parts[random() % parts.size()];
        else
            text += static_cast<char>(random() % (random() % 2 == 0 ? 128 : 256));
    }
    return text;
}

TEST(TokenizerBytes, RoundTripOfAnyBytes) {
    std::mt19937 random(1);
    for (const char* pre : kByteLevel) {
        const Tokenizer tokenizer(tokenizer_vocab("gpt2", pre, "gpt-2"), "test");
        for (int i = 0; i < 400; ++i) {
            const std::string text = random_bytes(random, 200);
            const auto plain = tokenizer.encode(text, false, false);
            ASSERT_EQ(tokenizer.decode(plain, false), text) << pre;
            const auto parsed = tokenizer.encode(text, false, true);
            ASSERT_EQ(tokenizer.decode(parsed, true), text) << pre;
        }
    }
}

TEST(TokenizerBytes, SpaceMarkVocabulariesKeepAllBytesButTheMark) {
    std::mt19937 random(2);
    const Tokenizer gemma(tokenizer_vocab("gemma4", "", "gemma4"), "test");
    const Tokenizer spm(tokenizer_vocab("llama", "", "spm"), "test");
    const auto unmarked = [](std::string text) {
        for (size_t at; (at = text.find("\xE2\x96\x81")) != std::string::npos;)
            text.replace(at, 3, " ");
        return text;
    };
    for (int i = 0; i < 400; ++i) {
        const std::string text = random_bytes(random, 200);
        ASSERT_EQ(gemma.decode(gemma.encode(text, false, false), false), unmarked(text));
        const std::string prefix = text.empty() ? "" : " ";
        ASSERT_EQ(spm.decode(spm.encode(text, false, false), false), prefix + unmarked(text));
    }
}

TEST(TokenizerBytes, MalformedUtf8BecomesItsBytes) {
    const Tokenizer tokenizer(tokenizer_vocab("gpt2", "qwen2", "gpt-2"), "test");
    // An overlong slash, a surrogate, a cut character: each byte is a token of its own, and what
    // stands around them is tokenized as if they were not there.
    for (const std::string bad : {"\xC0\xAF", "\xED\xA0\x80", "\xE2\x82"}) {
        std::vector<int32_t> expected = tokenizer.encode("the ", false, false);
        for (const char byte : bad) {
            const auto ids = tokenizer.encode(std::string(1, byte), false, false);
            ASSERT_EQ(ids.size(), 1U);
            expected.push_back(ids[0]);
        }
        for (const int32_t id : tokenizer.encode("world", false, false)) expected.push_back(id);
        EXPECT_EQ(tokenizer.encode("the " + bad + "world", false, false), expected);
    }
}

/// Processor time, because a busy machine must not fail the test.
double seconds_for(const Tokenizer& tokenizer, const std::string& text) {
    const std::clock_t start = std::clock();
    const auto ids = tokenizer.encode(text, false, false);
    const std::clock_t end = std::clock();
    EXPECT_EQ(tokenizer.decode(ids, false), text);
    return static_cast<double>(end - start) / CLOCKS_PER_SEC;
}

std::string repeated(const std::string& unit, size_t bytes) {
    std::string text;
    while (text.size() < bytes) text += unit;
    return text;
}

TEST(TokenizerBytes, ALongRunOfOneCharacterTakesNoQuadraticTime) {
    // Linear time is below 0.1 s; trying every pair takes more than 5 s.
    constexpr size_t kLength = 1 << 17;
    constexpr double kSeconds = 3;
    for (const char* pre : kByteLevel) {
        const Tokenizer tokenizer(tokenizer_vocab("gpt2", pre, "gpt-2"), "test");
        for (const char* unit : {"a", " ", "1", "!"}) {
            const std::string text = repeated(unit, kLength) + "x";
            EXPECT_LT(seconds_for(tokenizer, text), kSeconds) << pre << " " << unit;
        }
    }
    const Tokenizer gemma(tokenizer_vocab("gemma4", "", "gemma4_phrases"), "test");
    for (const char* unit : {" ", "\n", "the "}) {
        EXPECT_LT(seconds_for(gemma, repeated(unit, kLength)), kSeconds) << "gemma4 " << unit;
    }
}

TEST(TokenizerBytes, AMegabyteOfOneCharacterStaysWithinTheMatcherLimits) {
    const Tokenizer tokenizer(tokenizer_vocab("gpt2", "gpt-4o", "gpt-2"), "test");
    for (const char* unit : {"Q", "\xCC\x81", "\xE4\xBD\xA0"}) {
        const std::string text = repeated(unit, 1 << 20);
        EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false, false), false), text) << unit;
    }
}

TEST(TokenizerBytes, ShortAndLongPiecesMergeAlike) {
    // Two orders of merging are implemented, by scan and by heap; a piece above the border between
    // them whose second half is inert must begin with the tokens of its first half alone.
    VocabSource source = tokenizer_vocab("gpt2", "gpt-2", "gpt-2");
    const Tokenizer tokenizer(source, "test");
    std::mt19937 random(3);
    for (int i = 0; i < 300; ++i) {
        std::string head;
        while (head.size() < 40) head += "etaoinshrdlu"[random() % 12];
        const std::string inert(60, 'Q');
        auto expected = tokenizer.encode(head, false, false);
        for (const int32_t id : tokenizer.encode(inert.substr(0, 30), false, false))
            expected.push_back(id);
        for (const int32_t id : tokenizer.encode(inert.substr(30), false, false))
            expected.push_back(id);
        ASSERT_EQ(tokenizer.encode(head + inert, false, false), expected) << head;
    }
}

TEST(TokenizerBytes, RepeatedWordsOfALongTextGiveTheSameTokens) {
    // The cache of pieces works in long texts only; its tokens must be those of short ones.
    const Tokenizer tokenizer(tokenizer_vocab("gpt2", "gpt-4o", "gpt-4o"), "test");
    std::mt19937 random(4);
    std::string text;
    std::vector<int32_t> expected;
    while (text.size() < 40000) {
        std::string word = " ";
        for (size_t i = 1 + random() % 4; i > 0; --i) word += "abcdehilnorst"[random() % 13];
        text += word;
        for (const int32_t id : tokenizer.encode(word, false, false)) expected.push_back(id);
    }
    EXPECT_EQ(tokenizer.encode(text, false, false), expected);
}

}  // namespace
}  // namespace tessera
