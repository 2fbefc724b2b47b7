// Templates against what Jinja2 3.1.6 makes of them (scripts/oracles/templates.py): every construct
// of the language, its errors, and chat templates over random conversations.

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "core/error.h"
#include "text/chat_template.h"
#include "text/json_limits.h"

namespace tessera {
namespace {

const std::string kFolder = std::string(TESSERA_TEST_DATA) + "/templates/";

std::string read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

struct Outcome {
    bool raises = false;
    std::string text;
};

Outcome render(const nlohmann::ordered_json& record, const nlohmann::ordered_json& shared) {
    const std::string source = record.contains("file")
                                   ? read_file(kFolder + record["file"].get<std::string>())
                                   : record["template"].get<std::string>();
    try {
        return {false, ChatTemplate(source, "case").render(record.value("variables", shared))};
    } catch (const UserError& error) {
        EXPECT_EQ(error.code(), ExitCode::kModel);
        EXPECT_EQ(std::string(error.what()).rfind("case: line ", 0), 0u) << error.what();
        return {true, error.what()};
    }
}

// Guards against any difference from Jinja2: scoping, white space, operators, filters, tests,
// methods, formats, errors.
TEST(ChatTemplateCases, EqualJinja2) {
    std::ifstream file(kFolder + "cases.jsonl");
    ASSERT_TRUE(file) << "no cases.jsonl";
    std::string line;
    ASSERT_TRUE(std::getline(file, line));
    // Most cases share the variables of the first line.
    const nlohmann::ordered_json shared = parse_json(line, "cases.jsonl")["variables"];
    int cases = 0, raising = 0;
    while (std::getline(file, line)) {
        const nlohmann::ordered_json record = parse_json(line, "cases.jsonl");
        const Outcome outcome = render(record, shared);
        const std::string title = record["name"].get<std::string>() + ": " +
                                  record.value("template", record.value("file", std::string()));
        if (record.contains("raises")) {
            EXPECT_TRUE(outcome.raises) << title << "\ngave " << outcome.text;
            ++raising;
        } else {
            EXPECT_FALSE(outcome.raises) << title << "\nraised " << outcome.text;
            EXPECT_EQ(outcome.text, record["expect"].get<std::string>()) << title;
        }
        ++cases;
    }
    // A truncated file must not pass.
    EXPECT_GE(cases, 380);
    EXPECT_GE(raising, 100);
}

}  // namespace
}  // namespace tessera
