#include "engine/chat.h"

#include <algorithm>
#include <utility>

namespace tessera {
namespace {

/// Text of a special token as templates want it, "" when the vocabulary has none.
std::string special_text(const Tokenizer& tokenizer, int32_t id) {
    return id < 0 ? std::string() : tokenizer.piece(id, /*render_special=*/true);
}

}  // namespace

int32_t common_prefix(std::span<const int32_t> left, std::span<const int32_t> right) {
    const auto ends = std::mismatch(left.begin(), left.end(), right.begin(), right.end());
    return static_cast<int32_t>(ends.first - left.begin());
}

ChatFormat::ChatFormat(const Engine& engine, ChatOptions options)
    : engine_(engine), arguments_(std::move(options.template_arguments)) {
    if (!options.template_source.empty()) {
        own_template_.emplace(options.template_source, "chat template");
    } else if (engine.chat_template() == nullptr) {
        throw UserError(ExitCode::kModel,
                        "the model has no chat template: give one with --chat-template or use "
                        "-no-cnv");
    }
}

std::string ChatFormat::render(std::span<const ChatMessage> messages) const {
    const Tokenizer& tokenizer = engine_.tokenizer();
    nlohmann::ordered_json variables = nlohmann::ordered_json::object();
    variables["messages"] = nlohmann::ordered_json::array();
    for (const ChatMessage& message : messages)
        variables["messages"].push_back({{"role", message.role}, {"content", message.content}});
    variables["add_generation_prompt"] = true;
    variables["bos_token"] = special_text(tokenizer, tokenizer.bos());
    variables["eos_token"] = special_text(tokenizer, tokenizer.eos());
    if (arguments_.is_object())
        for (const auto& [name, value] : arguments_.items()) variables[name] = value;
    const ChatTemplate* const chosen =
        own_template_.has_value() ? &*own_template_ : engine_.chat_template();
    return chosen->render(variables);
}

std::vector<int32_t> ChatFormat::encode(std::span<const ChatMessage> messages) const {
    const Tokenizer& tokenizer = engine_.tokenizer();
    std::vector<int32_t> tokens =
        tokenizer.encode(render(messages), /*add_special=*/false, /*parse_special=*/true);
    const int32_t bos = tokenizer.bos();
    if (tokenizer.source().add_bos && bos >= 0 && (tokens.empty() || tokens.front() != bos))
        tokens.insert(tokens.begin(), bos);
    return tokens;
}

Chat::Chat(Engine& engine, ChatOptions options, std::string_view system)
    : engine_(engine), format_(engine, std::move(options)), sequence_(engine.new_sequence()) {
    if (!system.empty()) messages_.push_back({"system", std::string(system)});
}

void Chat::reset() {
    const bool has_system = !messages_.empty() && messages_.front().role == "system";
    messages_.resize(has_system ? 1 : 0);
}

GenerateResult Chat::ask(std::string_view user,
                         const GenerateOptions& options,
                         const std::function<void(std::string_view)>& on_text,
                         const std::function<bool()>& cancelled,
                         const ProgressFn& progress) {
    messages_.push_back({"user", std::string(user)});
    try {
        GenerateRequest request;
        request.tokens = format_.encode(messages_);
        const std::vector<int32_t> prompt = request.tokens;
        const int32_t reused = std::min(common_prefix(held_, prompt), sequence_.length());
        engine_.rewind(sequence_, reused);
        held_.resize(static_cast<size_t>(reused));
        request.sequence = &sequence_;
        request.options = options;
        request.on_text = on_text;
        request.cancelled = cancelled;
        GenerateResult result = std::move(generate(engine_, {&request, 1}, progress).front());
        const size_t run = std::min(prompt.size(), static_cast<size_t>(sequence_.length()));
        held_.assign(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(run));
        const bool nothing_said = result.finish == FinishReason::kCancelled && result.text.empty();
        if (result.finish == FinishReason::kNan || nothing_said) {
            messages_.pop_back();
        } else {
            messages_.push_back({"assistant", result.text});
        }
        return result;
    } catch (...) {
        messages_.pop_back();
        held_.resize(std::min(held_.size(), static_cast<size_t>(sequence_.length())));
        throw;
    }
}

}  // namespace tessera
