#pragma once
// A conversation with history: messages -> template -> token ids -> answer. Turns share the
// beginning of their tokens, and only what is new is run.
//
// Which beginning may be reused: tokens that went through the model as prompt rows. An answer's own
// tokens went through as generated rows, whose kernels may round otherwise (ops/exec.h); as part of
// the next prompt they are run again as prompt rows. So a turn with reuse gives the same bytes as
// the same conversation started afresh, at the price of one answer's length of prefill per turn.

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/generate.h"

namespace tessera {

struct ChatMessage {
    std::string role;  ///< "system", "user", "assistant"
    std::string content;
};

struct ChatOptions {
    std::string template_source;  ///< instead of the model's own; "": the model's
    /// Further variables of the template (enable_thinking, ...): an object or null.
    nlohmann::ordered_json template_arguments;
};

/// Turns messages into a prompt with one template.
class ChatFormat {
  public:
    /// UserError(kModel): the template has an error, or neither the model nor the options have one.
    ChatFormat(const Engine& engine, ChatOptions options);

    /// Text of the conversation, up to where the assistant has to speak.
    std::string render(std::span<const ChatMessage> messages) const;
    /// The same as token ids. BOS comes first when the vocabulary asks for it, once, whether or not
    /// the template writes it.
    std::vector<int32_t> encode(std::span<const ChatMessage> messages) const;

  private:
    const Engine& engine_;
    nlohmann::ordered_json arguments_;
    std::optional<ChatTemplate> own_template_;
};

/// One conversation and its sequence. The Engine must outlive it.
class Chat {
  public:
    /// `system`: first message, "" for none.
    Chat(Engine& engine, ChatOptions options, std::string_view system);

    /// Adds the user's message, runs the answer and adds it (whatever was shown, when it was cut
    /// short). Callbacks as in GenerateRequest. When it throws, gives kNan or is cancelled before
    /// anything was shown, the message is taken back and the conversation is as before.
    GenerateResult ask(std::string_view user,
                       const GenerateOptions& options,
                       const std::function<void(std::string_view)>& on_text,
                       const std::function<bool()>& cancelled,
                       const ProgressFn& progress);

    const std::vector<ChatMessage>& messages() const { return messages_; }
    /// Forgets everything but the system message.
    void reset();

  private:
    Engine& engine_;
    ChatFormat format_;
    Sequence sequence_;
    std::vector<ChatMessage> messages_;
    std::vector<int32_t> held_;  ///< tokens that the sequence holds as prompt rows
};

/// Length of the common beginning of two token lists.
int32_t common_prefix(std::span<const int32_t> left, std::span<const int32_t> right);

}  // namespace tessera
