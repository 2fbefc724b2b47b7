// A pre-tokenizer is recognised by its steps, expressions included, word for word: what is nearly
// a known one splits nearly all text alike, and the rest silently wrongly. (The alternative,
// llama.cpp's hash over the tokens of a test text, knows every vocabulary only once it has seen
// it.)

#include "hf/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera {
namespace {

enum TokenTypeId : int64_t { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5 };

struct AddedToken {
    std::string text;
    int64_t id = 0;
    bool special = false;
};

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES R"(\s*[\r\n]+|\s+(?!\S)|\s+)"
#define UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
#define LEAD R"([^\r\n\p{L}\p{N}]?)"
#define CASED_WORD \
    LEAD UPPER "*" LOWER "+" CONTRACTIONS "?|" LEAD UPPER "+" LOWER "*" CONTRACTIONS "?|"

struct PreTokenizerRow {
    std::string_view steps;  ///< as describe_steps() writes them
    std::string_view name;   ///< `tokenizer.ggml.pre`
    std::string_view name_when_whole_words_win;
};

// The expressions are facts of the published tokenizers.
constexpr PreTokenizerRow kPreTokenizers[] = {
    {"split " CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" SPACES
     "; bytes",
     "qwen2", ""},
    {"split " CONTRACTIONS
     R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)" SPACES "; bytes",
     "qwen35", ""},
    {"split " CONTRACTIONS
     R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" SPACES "; bytes",
     "smaug-bpe", "llama-bpe"},
    {"split " CASED_WORD R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" SPACES "; bytes", "gpt-4o",
     "gpt-4o"},
    {"digits; words and bytes", "smollm", ""},
    {"words and bytes", "gpt-2", ""},
};
#undef CASED_WORD
#undef LEAD
#undef LOWER
#undef UPPER
#undef SPACES
#undef CONTRACTIONS

/// The steps of a pre-tokenizer in one line.
void describe_steps(const JsonObject& step, std::string& text) {
    const std::string type = step.find_string("type").value_or("");
    if (type == "Sequence") {
        const Json* steps = step.find("pretokenizers");
        if (steps == nullptr || !steps->is_array()) step.fail_key("pretokenizers", "is no list");
        // Sequences do not nest in published tokenizers, and nesting is bounded by the parser.
        for (const Json& inner : *steps) describe_steps(JsonObject(inner, step.where()), text);
        return;
    }
    std::string part = type;
    if (type == "ByteLevel") {
        const bool words = step.find_bool("use_regex").value_or(true);
        part = words ? "words and bytes" : "bytes";
        if (step.find_bool("add_prefix_space").value_or(true)) part += " behind a space";
    } else if (type == "Digits") {
        part = step.find_bool("individual_digits").value_or(false) ? "digits" : "numbers";
    } else if (type == "Split") {
        const std::optional<JsonObject> pattern = step.find_object("pattern");
        const std::string regex =
            pattern ? pattern->find_string("Regex").value_or("?") : std::string("?");
        part = "split " + regex;
        if (step.find_string("behavior").value_or("") != "Isolated" ||
            step.find_bool("invert").value_or(false))
            part += " (not isolated)";
    }
    text += (text.empty() ? "" : "; ") + part;
}

/// Whether the id is one of a special token.
class TokenizerReader {
  public:
    TokenizerReader(const std::string& folder, JsonObject tokenizer, const JsonObject& config)
        : folder_(folder),
          tokenizer_(std::move(tokenizer)),
          model_(require_model(tokenizer_)),
          config_(config),
          options_(JsonObject::open(folder + "/tokenizer_config.json")),
          generation_(JsonObject::open(folder + "/generation_config.json")) {}

    void add_keys(int32_t vocab, KeyList& keys) {
        check_kind();
        read_added_tokens();
        keys.text("tokenizer.ggml.model", "gpt2");
        keys.text("tokenizer.ggml.pre", pre_tokenizer());
        add_tokens(vocab, keys);
        keys.texts("tokenizer.ggml.merges", merges());
        add_special_ids(vocab, keys);
        if (const std::optional<std::string> chat = chat_template())
            keys.text("tokenizer.chat_template", *chat);
    }

  private:
    static JsonObject require_model(const JsonObject& tokenizer) {
        std::optional<JsonObject> model = tokenizer.find_object("model");
        if (!model) tokenizer.fail_key("model", "is missing");
        return *std::move(model);
    }

    /// Refuses what byte-level BPE as GGUF knows it does not do.
    void check_kind() const {
        const std::string type = model_.find_string("type").value_or("BPE");
        if (type != "BPE" || model_.find_bool("byte_fallback").value_or(false))
            fail_folder(tokenizer_.where(),
                        fmt::format("is a tokenizer of type {}{}; byte-level BPE is supported",
                                    type, type == "BPE" ? " with byte fallback" : ""));
        for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
            if (!model_.find_string(key).value_or("").empty())
                model_.fail_key(key, "is not supported");
        const std::optional<JsonObject> normalizer = tokenizer_.find_object("normalizer");
        const std::string normal =
            normalizer ? normalizer->find_string("type").value_or("") : std::string("NFC");
        if (normal != "NFC")
            fail_folder(tokenizer_.where(),
                        fmt::format("normalizer '{}' is not supported", normal));
    }

    std::string pre_tokenizer() const {
        std::string steps;
        if (const std::optional<JsonObject> first = tokenizer_.find_object("pre_tokenizer"))
            describe_steps(*first, steps);
        const bool whole_words = model_.find_bool("ignore_merges").value_or(false);
        for (const PreTokenizerRow& row : kPreTokenizers) {
            if (row.steps != steps) continue;
            if (!whole_words) return std::string(row.name);
            if (row.name_when_whole_words_win.empty())
                model_.fail_key(
                    "ignore_merges",
                    fmt::format("is true, which pre-tokenizer '{}' does not support", row.name));
            return std::string(row.name_when_whole_words_win);
        }
        fail_folder(tokenizer_.where(), fmt::format("the pre-tokenizer is none of the known ones "
                                                    "(qwen2, qwen35, llama-bpe, gpt-4o, smollm, "
                                                    "gpt-2): {}",
                                                    shown_json(Json(steps))));
    }

    void read_added_tokens() {
        const Json* list = tokenizer_.find("added_tokens");
        if (list == nullptr) return;
        if (!list->is_array()) tokenizer_.fail_key("added_tokens", "is no list");
        for (const Json& entry : *list) {
            const JsonObject token(entry, tokenizer_.where() + ": 'added_tokens'");
            const std::optional<std::string> text = token.find_string("content");
            if (!text) token.fail_key("content", "is missing");
            added_.push_back({*text, token.require_int("id", 0, kMostTokens),
                              token.find_bool("special").value_or(false)});
        }
    }

    /// Tokens that are marks for the program, though not all files say so.
    static bool looks_special(std::string_view text) {
        static constexpr std::string_view kBar = "\xEF\xBD\x9C";  // U+FF5C
        static constexpr std::string_view kNames[] = {"<pad>", "<mask>", "<2mass>", "[@BOS@]"};
        return std::find(std::begin(kNames), std::end(kNames), text) != std::end(kNames) ||
               (text.starts_with("<|") && text.ends_with("|>")) ||
               (text.starts_with("<" + std::string(kBar)) &&
                text.ends_with(std::string(kBar) + ">")) ||
               (text.starts_with("<unused") && text.ends_with(">"));
    }

    void add_tokens(int32_t vocab, KeyList& keys) {
        std::vector<std::string> tokens(static_cast<size_t>(vocab));
        std::vector<int64_t> types(tokens.size(), kUnused);
        const auto set = [&](const std::string& text, int64_t id, int64_t type) {
            if (id >= vocab)
                fail_folder(tokenizer_.where(),
                            fmt::format("token {} has the id {}, the vocabulary of the model has "
                                        "{} tokens",
                                        shown_json(Json(text)), id, vocab));
            tokens[static_cast<size_t>(id)] = text;
            types[static_cast<size_t>(id)] = type;
        };
        const std::optional<JsonObject> vocabulary = model_.find_object("vocab");
        if (!vocabulary) model_.fail_key("vocab", "is missing");
        for (const auto& [text, id] : vocabulary->json().items()) {
            if (!id.is_number_unsigned() || id.get<uint64_t>() > kMostTokens)
                vocabulary->fail_key(text, fmt::format("is {}, expected an id", shown_json(id)));
            const int64_t number = id.get<int64_t>();
            if (number < vocab && types[static_cast<size_t>(number)] != kUnused)
                vocabulary->fail_key(text,
                                     fmt::format("has the id {}, as another token has", number));
            set(text, number, kNormal);
        }
        for (const AddedToken& token : added_)
            set(token.text, token.id,
                token.special || looks_special(token.text) ? kControl : kUserDefined);
        for (size_t i = 0; i < tokens.size(); ++i)
            if (types[i] == kUnused) tokens[i] = fmt::format("[PAD{}]", i);
        keys.texts("tokenizer.ggml.tokens", std::move(tokens));
        keys.i32s("tokenizer.ggml.token_type", std::move(types));
    }

    /// Pairs stand as "left right" or, in newer files, as lists of two.
    std::vector<std::string> merges() const {
        const Json* list = model_.find("merges");
        if (list == nullptr || !list->is_array()) model_.fail_key("merges", "is no list");
        std::vector<std::string> merged;
        merged.reserve(list->size());
        for (const Json& entry : *list) {
            const bool is_pair = entry.is_array() && entry.size() == 2 && entry[0].is_string() &&
                                 entry[1].is_string();
            if (!is_pair && !entry.is_string())
                model_.fail_key("merges", fmt::format("has the entry {}, expected a pair of tokens",
                                                      shown_json(entry)));
            merged.push_back(is_pair ? without_spaces(entry[0].get<std::string>()) + " " +
                                           without_spaces(entry[1].get<std::string>())
                                     : entry.get<std::string>());
        }
        return merged;
    }

    /// In byte-level text a space is U+0120; a true one would look like the gap between the two.
    static std::string without_spaces(const std::string& text) {
        std::string out;
        for (const char c : text) out += c == ' ' ? std::string("\xC4\xA0") : std::string(1, c);
        return out;
    }

    std::optional<int64_t> id_of(std::string_view text) const {
        for (const AddedToken& token : added_)
            if (token.text == text) return token.id;
        return std::nullopt;
    }

    /// The text of a special token in tokenizer_config.json: a string, or an object around it.
    std::optional<std::string> special_text(const std::string& kind) const {
        const Json* entry = options_ ? options_->find(kind + "_token") : nullptr;
        if (entry == nullptr) return std::nullopt;
        if (entry->is_string()) return entry->get<std::string>();
        if (!entry->is_object()) return std::nullopt;
        return JsonObject(*entry, options_->where() + ": '" + kind + "_token'")
            .find_string("content");
    }

    /// By the text in tokenizer_config.json, else by the number in config.json.
    std::optional<int64_t> special_id(const std::string& kind, int32_t vocab) const {
        if (const std::optional<std::string> text = special_text(kind))
            if (const std::optional<int64_t> id = id_of(*text)) return id;
        const Json* number = config_.find(kind + "_token_id");
        if (number == nullptr || !number->is_number_unsigned()) return std::nullopt;
        const uint64_t id = number->get<uint64_t>();
        return id < static_cast<uint64_t>(vocab) ? std::optional<int64_t>(id) : std::nullopt;
    }

    void add_special_ids(int32_t vocab, KeyList& keys) const {
        static constexpr std::pair<const char*, const char*> kKinds[] = {
            {"bos", "bos"}, {"eos", "eos"}, {"unk", "unknown"}, {"pad", "padding"}};
        for (const auto& [kind, name] : kKinds)
            if (const std::optional<int64_t> id = special_id(kind, vocab))
                keys.u32(fmt::format("tokenizer.ggml.{}_token_id", name), *id);
        add_second_end(vocab, keys);
        for (const char* kind : {"bos", "eos"})
            keys.boolean(fmt::format("tokenizer.ggml.add_{}_token", kind), adds(kind));
    }

    /// generation_config.json may name more ends than the tokenizer; GGUF has room for a second.
    void add_second_end(int32_t vocab, KeyList& keys) const {
        const Json* ends = generation_ ? generation_->find("eos_token_id") : nullptr;
        if (ends == nullptr) return;
        const std::optional<int64_t> first = special_id("eos", vocab);
        for (const Json& end : ends->is_array() ? *ends : Json::array({*ends})) {
            if (!end.is_number_unsigned() || end.get<uint64_t>() >= static_cast<uint64_t>(vocab))
                continue;
            if (first && end.get<int64_t>() == *first) continue;
            return keys.u32("tokenizer.ggml.eot_token_id", end.get<int64_t>());
        }
    }

    /// Whether a text gets this token at its start or end: the template of the post-processor says
    /// so, else tokenizer_config.json.
    bool adds(const std::string& kind) const {
        if (const std::optional<JsonObject> processor = tokenizer_.find_object("post_processor"))
            if (const std::optional<bool> found = template_adds(*processor, kind)) return *found;
        return options_ && options_->find_bool("add_" + kind + "_token").value_or(false);
    }

    std::optional<bool> template_adds(const JsonObject& processor, const std::string& kind) const {
        const std::string type = processor.find_string("type").value_or("");
        if (type == "Sequence") {
            const Json* inner = processor.find("processors");
            if (inner == nullptr || !inner->is_array())
                processor.fail_key("processors", "is no list");
            std::optional<bool> found;
            for (const Json& step : *inner)
                if (const auto one = template_adds(JsonObject(step, processor.where()), kind))
                    found = one;
            return found;
        }
        const Json* single = processor.find("single");
        if (type != "TemplateProcessing" || single == nullptr || !single->is_array() ||
            single->empty())
            return std::nullopt;
        const Json& edge = kind == "bos" ? single->front() : single->back();
        if (!edge.is_object() || !edge.contains("SpecialToken")) return false;
        const JsonObject token(edge["SpecialToken"], processor.where());
        return token.find_string("id") == special_text(kind);
    }

    std::optional<std::string> chat_template() const {
        if (std::optional<std::string> text = read_folder_file(folder_ + "/chat_template.jinja"))
            return text;
        for (const std::optional<JsonObject>& file :
             {options_, JsonObject::open(folder_ + "/chat_template.json")}) {
            const Json* found = file ? file->find("chat_template") : nullptr;
            if (found == nullptr) continue;
            if (found->is_string()) return found->get<std::string>();
            if (!found->is_array()) continue;
            for (const Json& entry : *found) {
                const JsonObject named(entry, file->where() + ": 'chat_template'");
                if (named.find_string("name") == "default") return named.find_string("template");
            }
        }
        return std::nullopt;
    }

    static constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();

    const std::string& folder_;
    JsonObject tokenizer_;
    JsonObject model_;
    const JsonObject& config_;
    std::optional<JsonObject> options_;
    std::optional<JsonObject> generation_;
    std::vector<AddedToken> added_;
};

}  // namespace

void add_tokenizer_keys(const std::string& folder,
                        const JsonObject& config,
                        int32_t vocab,
                        KeyList& keys) {
    std::optional<JsonObject> tokenizer = JsonObject::open(folder + "/tokenizer.json");
    if (!tokenizer) return;
    TokenizerReader(folder, *std::move(tokenizer), config).add_keys(vocab, keys);
}

}  // namespace tessera
