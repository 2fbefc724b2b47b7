#pragma once
// Chat templates: a small Jinja2 interpreter with the behaviour of Hugging Face's
// `apply_chat_template` (ImmutableSandboxedEnvironment, trim_blocks, lstrip_blocks, loop controls,
// tojson without HTML escapes).

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tessera {

class ChatTemplate {
  public:
    /// UserError(kModel) with `where` and line for a syntax error or an unsupported construct.
    ChatTemplate(const std::string& source, const std::string& where);
    ~ChatTemplate();
    ChatTemplate(ChatTemplate&&) noexcept;

    /// Renders with the given variables: usually messages, tools, add_generation_prompt, bos_token,
    /// eos_token and template arguments such as enable_thinking. `variables` is an object; key
    /// order is kept. UserError(kModel) for raise_exception, undefined use, and when 10 million
    /// steps, depth 200 or 64 MiB of output are exceeded (templates come with models and are not
    /// trusted).
    std::string render(const nlohmann::ordered_json& variables) const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
