// Guards against damaged or unusual vocabularies (faults L12, L14, T2, T5): each is one UserError
// that names file and key, and control tokens never come from plain text.

#include <gtest/gtest.h>

#include <cmath>
#include <ctime>
#include <string>
#include <vector>

#include "core/error.h"
#include "text/tokenizer.h"
#include "tokenizer_data.h"

namespace tessera {
namespace {

using Ids = std::vector<int32_t>;

VocabSource byte_level(std::vector<std::pair<std::string, TokenType>> extra = {}) {
    VocabSource source;
    source.model = "gpt2";
    source.pre = "qwen2";
    source.tokens = byte_tokens();
    source.types.assign(256, TokenType::kNormal);
    for (auto& [text, type] : extra) {
        source.tokens.push_back(std::move(text));
        source.types.push_back(type);
    }
    return source;
}

VocabSource sentence_piece() {
    VocabSource source;
    source.model = "llama";
    source.tokens = {"<unk>",
                     "<s>",
                     "</s>",
                     "<0x41>",
                     "\xE2\x96\x81",
                     "a",
                     "\xE2\x96\x81"
                     "a"};
    source.types = {TokenType::kUnknown, TokenType::kControl, TokenType::kControl, TokenType::kByte,
                    TokenType::kNormal,  TokenType::kNormal,  TokenType::kNormal};
    source.scores = {0, 0, 0, 0, -1, -2, -3};
    source.unknown = 0;
    source.bos = 1;
    source.eos = 2;
    source.add_bos = true;
    return source;
}

std::string error_of(const VocabSource& source) {
    try {
        const Tokenizer tokenizer(source, "model.gguf");
    } catch (const UserError& error) {
        EXPECT_EQ(error.code(), ExitCode::kModel);
        EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
        return error.what();
    }
    return "no error";
}

void expect_error(const VocabSource& source, const std::string& part) {
    const std::string error = error_of(source);
    EXPECT_TRUE(error.starts_with("model.gguf: ")) << error;
    EXPECT_NE(error.find(part), std::string::npos) << error;
}

TEST(TokenizerVocab, ByteTokensMustHaveTwoHexadecimalDigits) {
    for (const char* text :
         {"<0x-1>", "<0xZZ>", "<0x1>", "<0x100>", "<0x 1>", "", "0x41", "<0X41>"}) {
        for (const char* model : {"llama", "gemma4", "gpt2"}) {
            VocabSource source = sentence_piece();
            source.model = model;
            source.tokens[3] = text;
            expect_error(source, "tokenizer.ggml.tokens[3]");
        }
    }
    VocabSource lower_case = sentence_piece();
    lower_case.tokens[3] = "<0x4a>";
    EXPECT_EQ(Tokenizer(lower_case, "model.gguf").encode("J", false, false), (Ids{4, 3}));
}

TEST(TokenizerVocab, ArraysMustHaveOneEntryAToken) {
    for (const size_t length : {size_t{1}, size_t{6}, size_t{8}}) {
        VocabSource types = sentence_piece();
        types.types.resize(length, TokenType::kNormal);
        expect_error(types, "tokenizer.ggml.token_type");
        VocabSource scores = sentence_piece();
        scores.scores.resize(length);
        expect_error(scores, "tokenizer.ggml.scores");
    }
    VocabSource no_scores = sentence_piece();
    no_scores.scores.clear();
    expect_error(no_scores, "tokenizer.ggml.scores");
    VocabSource not_a_number = sentence_piece();
    not_a_number.scores[5] = std::nanf("");
    expect_error(not_a_number, "tokenizer.ggml.scores[5]");
    VocabSource empty = byte_level();
    empty.tokens.clear();
    empty.types.clear();
    expect_error(empty, "tokenizer.ggml.tokens");
    VocabSource bad_type = byte_level();
    bad_type.types[7] = static_cast<TokenType>(9);
    expect_error(bad_type, "tokenizer.ggml.token_type[7]");
}

TEST(TokenizerVocab, MergesMustNameTokens) {
    VocabSource source = byte_level({{"ab", TokenType::kNormal}});
    for (const char* merge : {"a b", "a", "", " ", "a ", "ab", "a c", "xyz b", "a xyz", "a\nb c"}) {
        source.merges = {"a b", merge};
        if (std::string(merge) == "a b")
            EXPECT_EQ(error_of(source), "no error");
        else
            expect_error(source, "tokenizer.ggml.merges[1]");
    }
}

TEST(TokenizerVocab, SpecialIdsMustBeTokens) {
    int32_t VocabSource::*const fields[] = {&VocabSource::bos,     &VocabSource::eos,
                                            &VocabSource::eot,     &VocabSource::eom,
                                            &VocabSource::unknown, &VocabSource::padding};
    const char* names[] = {"bos", "eos", "eot", "eom", "unknown", "padding"};
    for (size_t i = 0; i < std::size(fields); ++i) {
        for (const int32_t id : {-2, 256, INT32_MAX, INT32_MIN}) {
            VocabSource source = byte_level();
            source.*fields[i] = id;
            expect_error(source, "tokenizer.ggml." + std::string(names[i]) + "_token_id");
        }
    }
}

TEST(TokenizerVocab, UnknownNamesAreAnsweredWithTheNearest) {
    VocabSource source = byte_level();
    source.pre = "qwen-2";
    expect_error(source, "'qwen2'");
    source.pre = "no such thing\n\x1b[31m";
    expect_error(source, "tokenizer.ggml.pre");
    source.pre = std::string(1 << 20, 'x');
    EXPECT_LT(error_of(source).size(), 300U);
    source = byte_level();
    source.model = "lama";
    expect_error(source, "'llama'");
}

TEST(TokenizerVocab, NoBosKeyMeansNoBos) {
    VocabSource source = byte_level({{"<s>", TokenType::kControl}, {"</s>", TokenType::kControl}});
    source.add_bos = true;
    source.add_eos = true;
    EXPECT_TRUE(Tokenizer(source, "").encode("", true, true).empty());
    EXPECT_EQ(Tokenizer(source, "").bos(), -1);
    source.bos = 256;
    source.eos = 257;
    EXPECT_EQ(Tokenizer(source, "").encode("", true, true), (Ids{256, 257}));
    EXPECT_TRUE(Tokenizer(source, "").encode("", false, true).empty());
    source.add_bos = false;
    EXPECT_EQ(Tokenizer(source, "").encode("", true, true), Ids{257});
}

TEST(TokenizerVocab, PlainTextNeverBecomesAControlToken) {
    // By merging.
    VocabSource merged = byte_level({{"ab", TokenType::kControl}, {"cd", TokenType::kNormal}});
    merged.merges = {"a b", "c d"};
    const Tokenizer merging(merged, "");
    EXPECT_EQ(merging.encode("ab", false, false).size(), 2U);
    EXPECT_EQ(merging.encode("ab", false, true), Ids{256});
    EXPECT_EQ(merging.encode("cd", false, false), Ids{257});
    // As a whole word where merges are ignored.
    merged.pre = "llama-bpe";
    merged.merges.clear();
    const Tokenizer whole(merged, "");
    EXPECT_EQ(whole.encode("ab", false, false).size(), 2U);
    EXPECT_EQ(whole.encode("cd", false, false), Ids{257});
    // As a text that scores would build.
    VocabSource scored = sentence_piece();
    scored.types[6] = TokenType::kControl;
    scored.add_space_prefix = false;
    EXPECT_EQ(Tokenizer(scored, "").encode(" a", false, false), (Ids{4, 5}));
    // As a byte token spelled out.
    EXPECT_EQ(Tokenizer(sentence_piece(), "").encode("A", false, false), (Ids{4, 3}));
    EXPECT_NE(Tokenizer(sentence_piece(), "").encode("<0x41>", false, false), (Ids{4, 3}));
}

TEST(TokenizerVocab, SpacePrefixFollowsEverySpecialToken) {
    VocabSource source = sentence_piece();
    const Tokenizer with(source, "");
    EXPECT_EQ(with.encode("a", true, true), (Ids{1, 6}));
    EXPECT_EQ(with.encode("a</s>a", true, true), (Ids{1, 6, 2, 6}));
    EXPECT_EQ(with.encode("</s>", false, true), Ids{2});
    EXPECT_EQ(with.encode("", false, true), Ids{});
    source.add_space_prefix = false;
    EXPECT_EQ(Tokenizer(source, "").encode("a</s>a", false, true), (Ids{5, 2, 5}));
}

TEST(TokenizerVocab, BytesWithoutATokenAreUnknown) {
    VocabSource source = sentence_piece();
    EXPECT_EQ(Tokenizer(source, "")
                  .encode("\xC3\xA9"
                          "a",
                          false, false),
              (Ids{4, 0, 5}));
    source.unknown = -1;
    EXPECT_EQ(Tokenizer(source, "")
                  .encode("\xC3\xA9"
                          "a",
                          false, false),
              (Ids{4, 5}));
}

TEST(TokenizerVocab, TheLongestSpecialTokenWinsAtTheLeftmostPlace) {
    const Tokenizer tokenizer(byte_level({{"<a>", TokenType::kControl},
                                          {"<a>b", TokenType::kUserDefined},
                                          {"<a>bcd", TokenType::kControl},
                                          {"bcde", TokenType::kUserDefined},
                                          {"", TokenType::kControl}}),
                              "");
    EXPECT_EQ(tokenizer.encode("<a>", false, true), Ids{256});
    EXPECT_EQ(tokenizer.encode("<a>b", false, true), Ids{257});
    EXPECT_EQ(tokenizer.encode("<a>bcd", false, true), Ids{258});
    EXPECT_EQ(tokenizer.encode("<a>bcd", false, false)[0], 257);
    EXPECT_EQ(tokenizer.encode("<a>bc", false, true)[0], 257);
    EXPECT_EQ(tokenizer.encode("<a>bcde", false, true)[0], 258);
    EXPECT_EQ(tokenizer.encode("<<a>", false, true)[1], 256);
    EXPECT_EQ(tokenizer.encode("abcde", false, false)[1], 259);
}

TEST(TokenizerVocab, ControlTokensAreShownOnlyWhenAsked) {
    const Tokenizer tokenizer(byte_level({{"<|im_end|>", TokenType::kControl},
                                          {"<think>", TokenType::kUserDefined},
                                          {"<|channel|>", TokenType::kControl}}),
                              "");
    const Ids ids = tokenizer.encode("a<|im_end|><think><|channel|>", false, true);
    EXPECT_EQ(ids.size(), 4U);
    EXPECT_EQ(tokenizer.decode(ids, false), "a<think><|channel|>");
    EXPECT_EQ(tokenizer.decode(ids, true), "a<|im_end|><think><|channel|>");
    EXPECT_EQ(tokenizer.piece(256, false), "");
    EXPECT_EQ(tokenizer.piece(256, true), "<|im_end|>");
    EXPECT_TRUE(tokenizer.is_control(256));
    EXPECT_FALSE(tokenizer.is_control(257));
    // Shown, yet no text of a user becomes it.
    EXPECT_GT(tokenizer.encode("<|channel|>", false, false).size(), 1U);
}

TEST(TokenizerVocab, EndTokensAreThoseOfTheFileAndTheWellKnown) {
    const auto ends = [](std::vector<std::string> names, int32_t eos) {
        VocabSource source = byte_level();
        for (std::string& name : names) {
            source.tokens.push_back(std::move(name));
            source.types.push_back(TokenType::kControl);
        }
        source.eos = eos;
        const Tokenizer tokenizer(source, "");
        std::string found;
        for (int32_t id = 0; id < tokenizer.size(); ++id) {
            if (tokenizer.is_end(id)) found += tokenizer.piece(id, true) + " ";
        }
        return found;
    };
    EXPECT_EQ(ends({"<|endoftext|>", "<|im_end|>", "<|im_start|>"}, 256),
              "<|endoftext|> <|im_end|> ");
    EXPECT_EQ(ends({"<|start|>", "my_end"}, 257), "my_end ");
    EXPECT_EQ(ends({"<|end|>", "<|user|>"}, -1), "<|end|> ");
    EXPECT_EQ(ends({"<|end|>", "<|return|>", "<|call|>"}, -1), "<|return|> <|call|> ");
    EXPECT_EQ(ends({"</s>", "<eos>", "<turn|>", "<|tool_response>"}, -1),
              "<eos> <turn|> <|tool_response> ");
    EXPECT_EQ(ends({"</s>", "<s>"}, -1), "</s> ");
    EXPECT_EQ(ends({"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"}, -1),
              "<|eot_id|> <|eom_id|> <|end_of_text|> ");
}

TEST(TokenizerVocab, AQuarterOfAMillionTokensLoadFast) {
    VocabSource source = byte_level();
    // Words of base-16 digits: each is a merge of its first half-dozen letters and a last one.
    for (size_t i = 0; source.tokens.size() < 250000; ++i) {
        const std::string left = source.tokens[i < 16 ? i : 256 + i - 16];
        for (char last = 'a'; last < 'q' && source.tokens.size() < 250000; ++last) {
            source.tokens.push_back(left + last);
            source.merges.push_back(left + " " + last);
        }
    }
    source.types.assign(source.tokens.size(), TokenType::kNormal);
    for (size_t i = 240000; i < 244000; ++i) source.types[i] = TokenType::kControl;
    const std::clock_t start = std::clock();
    const Tokenizer tokenizer(std::move(source), "");
    const std::clock_t loaded = std::clock();
    EXPECT_EQ(tokenizer.decode(tokenizer.encode("!abcab", false, false), false), "!abcab");
    const double seconds = static_cast<double>(loaded - start) / CLOCKS_PER_SEC;
    RecordProperty("load_ms", static_cast<int>(seconds * 1000));
    // The aim is 0.5 s; sanitizers get an allowance, quadratic time does not.
    EXPECT_LT(seconds, 3);
}

}  // namespace
}  // namespace tessera
