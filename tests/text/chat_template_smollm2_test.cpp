// The template inside a real model file, against Jinja2 3.1.6 on the same conversations.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/error.h"
#include "gguf/gguf.h"
#include "text/chat_template.h"
#include "text/json_limits.h"

namespace tessera {
namespace {

// Guards against differences on the template that users meet first. The template belongs to the
// model, so it is read from there.
TEST(ChatTemplateSmolLm2, EqualsJinja2) {
    const std::filesystem::path data(TESSERA_TEST_DATA);
    const auto model = data / "../../models/SmolLM2-135M-Instruct-Q4_1.gguf";
    if (!std::filesystem::exists(model)) {
        GTEST_SKIP() << "models/SmolLM2-135M-Instruct-Q4_1.gguf is not there; ./test.sh fetches it";
    }
    const GgufFile file = GgufFile::open(model.string());
    const ChatTemplate source(file.get_string("tokenizer.chat_template").value(), "smollm2");
    std::ifstream cases(data / "templates" / "smollm2.jsonl");
    int count = 0;
    for (std::string line; std::getline(cases, line); ++count) {
        const nlohmann::ordered_json record = parse_json(line, "smollm2.jsonl");
        if (record.contains("raises")) {
            EXPECT_THROW(source.render(record["variables"]), UserError) << line;
        } else {
            EXPECT_EQ(source.render(record["variables"]), record["expect"].get<std::string>());
        }
    }
    EXPECT_EQ(count, 20);
}

}  // namespace
}  // namespace tessera
