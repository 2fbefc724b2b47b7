#pragma once
// Vocabularies and expected ids written by scripts/oracles/tokenizer.py.

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace tessera {

inline nlohmann::json tokenizer_json(const std::string& name) {
    std::ifstream file(std::string(TESSERA_TEST_DATA) + "/text/tokenizer_" + name + ".json");
    EXPECT_TRUE(file.good()) << name;
    return nlohmann::json::parse(file);
}

/// The vocabulary that `tokenizer_vocab_<vocab>.json` holds.
inline VocabSource tokenizer_vocab(const std::string& model,
                                   const std::string& pre,
                                   const std::string& vocab) {
    const nlohmann::json data = tokenizer_json("vocab_" + vocab);
    VocabSource source;
    source.model = model;
    source.pre = pre;
    source.tokens = data.at("tokens").get<std::vector<std::string>>();
    source.types.assign(source.tokens.size(), TokenType::kNormal);
    const std::pair<const char*, TokenType> kinds[] = {{"unknown", TokenType::kUnknown},
                                                       {"control", TokenType::kControl},
                                                       {"user_defined", TokenType::kUserDefined},
                                                       {"unused", TokenType::kUnused},
                                                       {"bytes", TokenType::kByte}};
    for (const auto& [key, type] : kinds) {
        for (const size_t id : data.value(key, std::vector<size_t>{})) source.types.at(id) = type;
    }
    source.scores = data.value("scores", std::vector<float>{});
    source.merges = data.value("merges", std::vector<std::string>{});
    const auto unknown = data.value("unknown", std::vector<int32_t>{});
    if (!unknown.empty()) source.unknown = unknown[0];
    return source;
}

/// The 256 byte tokens of a byte-level vocabulary.
inline std::vector<std::string> byte_tokens() {
    auto tokens = tokenizer_json("vocab_gpt-2").at("tokens").get<std::vector<std::string>>();
    tokens.resize(256);
    return tokens;
}

}  // namespace tessera
