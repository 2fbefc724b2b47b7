// The expressions are facts of the published tokenizers (the `pre_tokenizer` of each family's
// tokenizer.json). Two things differ from their wording, not from their meaning: `\s` is spelled
// out, because PCRE2's includes U+180E, which is no white space; and the look-ahead over groups
// of three digits, which is quadratic in the length of a number, is a loop here.

#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pretokenizer.h"

#include <pcre2.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/error.h"
#include "core/nearest.h"
#include "text/tokenizer_utf8.h"

namespace tessera {
namespace {

// clang-format off
#define WHITE R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f})" \
              R"(\x{205f}\x{3000})"
#define CONTRACTIONS R"((?i:'s|'t|'re|'ve|'m|'ll|'d))"
#define NEWLINES_THEN_SPACES "[" WHITE "]*[\\r\\n]+|[" WHITE "]+(?![^" WHITE "])|[" WHITE "]+"

constexpr const char* kOneNumber = R"(\p{N})";
constexpr const char* kLines = R"([^\n]+|\n+)";
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^)" WHITE R"(\p{L}\p{N}]+|[)" WHITE
    "]+(?![^" WHITE "])|[" WHITE "]+";
constexpr const char* kQwen2Pattern =
    CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^)" WHITE R"(\p{L}\p{N}]+[\r\n]*|)"
    NEWLINES_THEN_SPACES;
constexpr const char* kQwen35Pattern =
    CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^)" WHITE
    R"(\p{L}\p{M}\p{N}]+[\r\n]*|)" NEWLINES_THEN_SPACES;
constexpr const char* kLlama3Pattern =
    CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^)" WHITE R"(\p{L}\p{N}]+[\r\n]*|)"
    NEWLINES_THEN_SPACES;
constexpr const char* kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    CONTRACTIONS
    R"(?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    CONTRACTIONS R"(?|\p{N}{1,3}| ?[^)" WHITE R"(\p{L}\p{N}]+[\r\n/]*|)" NEWLINES_THEN_SPACES;
// A number that ends at a word boundary. The look-behind keeps PCRE2's interpreter from trying
// every digit of a number that does not (its compiled code knows without).
constexpr const char* kNumberBeforeBoundary =
    R"((?<!\p{Nd})\p{Nd}++(?![\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149})"
    R"(\x{1f150}-\x{1f169}\x{1f170}-\x{1f189}]))";
constexpr const char* kPunctuationRuns = R"([\p{P}$+<=>^~|]+)";
constexpr const char* kNumbers = R"(\p{N}+)";
constexpr const char* kThreeDigits = "[0-9][0-9][0-9]";
#undef NEWLINES_THEN_SPACES
#undef CONTRACTIONS
#undef WHITE
// clang-format on

enum class Family { kDefault, kGpt2, kStarCoder, kQwen2, kQwen35, kLlama3, kO200k, kAya, kLaguna };

struct Name {
    std::string_view name;
    Family family;
    bool ignores_merges = false;
};

// Names that converters write for the same splitting.
constexpr Name kNames[] = {
    {"default", Family::kDefault},
    {"gpt-2", Family::kGpt2},
    {"phi-2", Family::kGpt2},
    {"mpt", Family::kGpt2},
    {"olmo", Family::kGpt2},
    {"jais", Family::kGpt2},
    {"trillion", Family::kGpt2},
    {"granite-docling", Family::kGpt2},
    {"gigachat", Family::kGpt2},
    {"exaone4", Family::kGpt2},
    {"a.x-4.0", Family::kGpt2},
    {"mellum", Family::kGpt2},
    {"modern-bert", Family::kGpt2},
    {"smollm", Family::kStarCoder},
    {"starcoder", Family::kStarCoder},
    {"refact", Family::kStarCoder},
    {"command-r", Family::kStarCoder},
    {"codeshell", Family::kStarCoder},
    {"exaone", Family::kStarCoder},
    {"minerva-7b", Family::kStarCoder},
    {"mellum2", Family::kStarCoder},
    {"qwen2", Family::kQwen2},
    {"deepseek-r1-qwen", Family::kQwen2},
    {"kormo", Family::kQwen2},
    {"f2llmv2", Family::kQwen2},
    {"stablelm2", Family::kQwen2},
    {"megrez", Family::kQwen2},
    {"hunyuan", Family::kQwen2},
    {"solar-open", Family::kQwen2},
    {"grok-2", Family::kQwen2},
    {"qwen35", Family::kQwen35},
    {"llama-bpe", Family::kLlama3, true},
    {"llama3", Family::kLlama3, true},
    {"llama-v3", Family::kLlama3, true},
    {"falcon3", Family::kLlama3, true},
    {"falcon-h1", Family::kLlama3, true},
    {"pixtral", Family::kLlama3, true},
    {"midm-2.0", Family::kLlama3, true},
    {"lfm2", Family::kLlama3, true},
    {"glm4", Family::kLlama3, true},
    {"glm5", Family::kLlama3, true},
    {"chatglm-bpe", Family::kLlama3},
    {"dbrx", Family::kLlama3},
    {"smaug-bpe", Family::kLlama3},
    {"gpt-4o", Family::kO200k},
    {"llama4", Family::kO200k},
    {"kanana2", Family::kO200k},
    {"talkie", Family::kO200k},
    {"minimax-m2", Family::kO200k},
    {"tiny_aya", Family::kAya},
    {"cohere2moe", Family::kAya},
    {"laguna", Family::kLaguna},
};

std::vector<const char*> patterns_of(Family family) {
    switch (family) {
        case Family::kDefault:
            return {kPunctuationRuns, kGpt2Pattern, kNumbers, kThreeDigits};
        case Family::kGpt2:
            return {kGpt2Pattern};
        case Family::kStarCoder:
            return {kOneNumber, kGpt2Pattern};
        case Family::kQwen2:
            return {kQwen2Pattern};
        case Family::kQwen35:
            return {kQwen35Pattern};
        case Family::kLlama3:
            return {kLlama3Pattern};
        case Family::kO200k:
            return {kO200kPattern};
        case Family::kAya:
            return {kNumberBeforeBoundary, kO200kPattern};
        case Family::kLaguna:
            return {kLines, kQwen2Pattern};
    }
    check(false, "every family has patterns");
    return {};
}

const Name& find_name(std::string_view name, const std::string& where) {
    if (name.empty()) name = "default";
    const auto* found = std::find_if(std::begin(kNames), std::end(kNames),
                                     [&](const Name& known) { return known.name == name; });
    if (found != std::end(kNames)) return *found;
    std::vector<std::string_view> known;
    for (const Name& entry : kNames) known.push_back(entry.name);
    const std::string nearest(nearest_name(name, known));
    throw UserError(ExitCode::kModel,
                    where + ": unknown pre-tokenizer " + utf8::quoted(name) +
                        " (tokenizer.ggml.pre)" +
                        (nearest.empty() ? "" : "; the nearest known one is '" + nearest + "'"));
}

struct MatchDeleter {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct ContextDeleter {
    void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct CodeDeleter {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};

/// A compiled expression; immutable, so that threads may share it.
class Regex {
  public:
    explicit Regex(const char* pattern) {
        int error = 0;
        PCRE2_SIZE offset = 0;
        code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED,
                                  PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
        check(code_ != nullptr, "a pre-tokenizer expression compiles");
        jit_ = pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE) == 0;
        context_.reset(pcre2_match_context_create(nullptr));
        check(context_ != nullptr, "memory for a match context");
        // The expressions are ours and linear: the text's length is the only limit.
        pcre2_set_match_limit(context_.get(), UINT32_MAX);
        pcre2_set_depth_limit(context_.get(), UINT32_MAX);
        pcre2_set_heap_limit(context_.get(), UINT32_MAX);
    }

    std::unique_ptr<pcre2_match_data, MatchDeleter> match_data() const {
        std::unique_ptr<pcre2_match_data, MatchDeleter> data(pcre2_match_data_create(1, nullptr));
        check(data != nullptr, "memory for a match");
        return data;
    }

    /// The first match at or after `start`; false when there is none.
    bool find(std::string_view text, size_t start, pcre2_match_data* data) const {
        const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
        int found = PCRE2_ERROR_JIT_STACKLIMIT;
        if (jit_) {
            found =
                pcre2_jit_match(code_.get(), subject, text.size(), start, 0, data, context_.get());
        }
        // The interpreter keeps its stack on the heap: the way out for text that needs more than
        // the machine stack of compiled code, and for systems that forbid such code.
        if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
            found = pcre2_match(code_.get(), subject, text.size(), start,
                                PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, context_.get());
        }
        check(found > 0 || found == PCRE2_ERROR_NOMATCH, "a pre-tokenizer expression runs");
        return found > 0;
    }

  private:
    std::unique_ptr<pcre2_code, CodeDeleter> code_;
    std::unique_ptr<pcre2_match_context, ContextDeleter> context_;
    bool jit_ = false;
};

/// Appends `number` in groups of three digits counted from the right.
void split_number(std::string_view number, std::vector<std::string_view>& pieces) {
    std::vector<size_t> starts;
    for (size_t at = 0; at < number.size(); at += utf8::char_bytes(number.substr(at)))
        starts.push_back(at);
    size_t digit = 0;
    while (digit < starts.size()) {
        const size_t left = starts.size() - digit;
        const size_t taken = left % 3 == 0 ? 3 : left % 3;
        const size_t end = digit + taken < starts.size() ? starts[digit + taken] : number.size();
        pieces.push_back(number.substr(starts[digit], end - starts[digit]));
        digit += taken;
    }
}

}  // namespace

struct PreTokenizer::Impl {
    struct Stage {
        Regex regex;
        bool group_digits = false;  ///< split each match into groups of three digits
    };
    std::vector<Stage> stages;
    bool ignores_merges = false;
};

PreTokenizer::PreTokenizer(std::string_view name, const std::string& where)
    : impl_(std::make_unique<Impl>()) {
    const Name& known = find_name(name, where);
    impl_->ignores_merges = known.ignores_merges;
    for (const char* pattern : patterns_of(known.family))
        impl_->stages.push_back({Regex(pattern), pattern == kNumberBeforeBoundary});
}

PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;

bool PreTokenizer::ignores_merges() const {
    return impl_->ignores_merges;
}

void PreTokenizer::split(std::string_view text, std::vector<std::string_view>& pieces) const {
    if (text.empty()) return;
    std::vector<std::string_view> current{text};
    std::vector<std::string_view> next;
    for (const Impl::Stage& stage : impl_->stages) {
        const auto data = stage.regex.match_data();
        const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data.get());
        next.clear();
        for (const std::string_view piece : current) {
            size_t at = 0;
            while (at < piece.size() && stage.regex.find(piece, at, data.get())) {
                const size_t begin = bounds[0];
                const size_t end = bounds[1];
                check(end > begin, "a pre-tokenizer expression matches no empty text");
                if (begin > at) next.push_back(piece.substr(at, begin - at));
                const std::string_view match = piece.substr(begin, end - begin);
                if (stage.group_digits)
                    split_number(match, next);
                else
                    next.push_back(match);
                at = end;
            }
            if (at < piece.size()) next.push_back(piece.substr(at));
        }
        current.swap(next);
    }
    pieces.insert(pieces.end(), current.begin(), current.end());
}

}  // namespace tessera
