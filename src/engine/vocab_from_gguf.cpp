#include "engine/vocab_from_gguf.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace tessera {
namespace {

constexpr const char* kTokens = "tokenizer.ggml.tokens";

[[noreturn]] void fail(const GgufFile& file, const std::string& what) {
    throw UserError(ExitCode::kModel, file.path() + ": " + what);
}

/// Whether `key` is there; UserError when it is no array of `count` elements of one of `types`.
bool has_array(const GgufFile& file,
               const std::string& key,
               std::initializer_list<GgufType> types,
               size_t count) {
    const GgufValue* value = file.find(key);
    if (value == nullptr) return false;
    const bool type_fits =
        value->type == GgufType::kArray &&
        std::find(types.begin(), types.end(), value->element_type) != types.end();
    if (!type_fits) {
        const bool whole = *types.begin() == GgufType::kI32;
        fail(file, key + " must be an array of " + (whole ? "int32" : "float32"));
    }
    const size_t found = std::visit([](const auto& elements) { return elements.size(); },
                                    std::get<GgufValue::Array>(value->value));
    if (found != count) {
        fail(file, key + " has " + std::to_string(found) + " entries, but there are " +
                       std::to_string(count) + " tokens");
    }
    return true;
}

int32_t special_id(const GgufFile& file, const char* name) {
    const std::string key = "tokenizer.ggml." + std::string(name) + "_token_id";
    const int64_t id = file.get_int(key).value_or(-1);
    // Some writers put -1 into an unsigned field.
    if (id == -1 || id == std::numeric_limits<uint32_t>::max()) return -1;
    if (id < 0 || id > std::numeric_limits<int32_t>::max())
        fail(file, key + " is " + std::to_string(id) + ", which is no token");
    return static_cast<int32_t>(id);
}

bool adds_bos_by_default(const VocabSource& source) {
    constexpr std::string_view kLlama3[] = {"llama-bpe", "llama3",  "llama-v3", "falcon3",
                                            "falcon-h1", "pixtral", "midm-2.0", "lfm2"};
    if (source.model != "gpt2") return true;
    return std::find(std::begin(kLlama3), std::end(kLlama3), source.pre) != std::end(kLlama3);
}

}  // namespace

VocabSource vocab_from_gguf(const GgufFile& file) {
    VocabSource source;
    source.model = file.get_string("tokenizer.ggml.model").value_or("");
    const bool is_folder = file.version() == 0;
    if (source.model.empty())
        fail(file, is_folder ? "has no tokenizer.json" : "tokenizer.ggml.model is missing");
    source.pre = file.get_string("tokenizer.ggml.pre").value_or("");
    const std::vector<std::string>* tokens = file.get_string_array(kTokens);
    if (tokens == nullptr || tokens->empty())
        fail(file, std::string(kTokens) + (tokens == nullptr ? " is missing" : " is empty"));
    source.tokens = *tokens;

    constexpr const char* kTypes = "tokenizer.ggml.token_type";
    if (has_array(file, kTypes, {GgufType::kI32, GgufType::kU32}, tokens->size())) {
        const std::vector<int64_t> types = *file.get_int_array(kTypes);
        source.types.reserve(types.size());
        for (size_t i = 0; i < types.size(); ++i) {
            if (types[i] < 1 || types[i] > 6) {
                fail(file, std::string(kTypes) + "[" + std::to_string(i) + "] is " +
                               std::to_string(types[i]) + ", not 1 to 6");
            }
            source.types.push_back(static_cast<TokenType>(types[i]));
        }
    }
    constexpr const char* kScores = "tokenizer.ggml.scores";
    if (has_array(file, kScores, {GgufType::kF32}, tokens->size()))
        source.scores = *file.get_float_array(kScores);
    const std::vector<std::string>* merges = file.get_string_array("tokenizer.ggml.merges");
    if (merges != nullptr) source.merges = *merges;
    if (merges == nullptr && source.model != "llama")
        fail(file, "tokenizer.ggml.merges is missing");

    source.bos = special_id(file, "bos");
    source.eos = special_id(file, "eos");
    source.eot = special_id(file, "eot");
    source.eom = special_id(file, "eom");
    source.unknown = special_id(file, "unknown");
    source.padding = special_id(file, "padding");
    source.add_bos =
        file.get_bool("tokenizer.ggml.add_bos_token").value_or(adds_bos_by_default(source)) ||
        source.model == "gemma4";
    source.add_eos = file.get_bool("tokenizer.ggml.add_eos_token").value_or(false);
    source.add_space_prefix = file.get_bool("tokenizer.ggml.add_space_prefix").value_or(true);
    source.chat_template = file.get_string("tokenizer.chat_template").value_or("");
    return source;
}

}  // namespace tessera
