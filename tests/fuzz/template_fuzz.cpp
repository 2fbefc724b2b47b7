// Arbitrary templates over a fixed conversation: they render or are refused with a UserError.

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"
#include "text/chat_template.h"

namespace {

const nlohmann::ordered_json& variables() {
    static const nlohmann::ordered_json value = nlohmann::ordered_json::parse(R"({
        "messages": [{"role": "system", "content": "s\u00e9"},
                     {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                     {"role": "assistant", "content": "", "tool_calls": [{"function":
                        {"name": "f", "arguments": {"x": [1, 2.5, null], "y": "z"}}}]}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "add_generation_prompt": true, "bos_token": "<s>", "s": "Hello World", "n": 7})");
    return value;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string source(reinterpret_cast<const char*>(data), size);
    try {
        const tessera::ChatTemplate chat_template(source, "fuzz");
        chat_template.render(variables());
    } catch (const tessera::UserError&) {
    }
    return 0;
}
