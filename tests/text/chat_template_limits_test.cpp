// Templates come with models from anywhere: whatever they do ends in one line of error.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"
#include "text/chat_template.h"
#include "text/json_limits.h"

namespace tessera {
namespace {

std::string error_of(const std::string& source,
                     const nlohmann::ordered_json& variables = nlohmann::ordered_json::object()) {
    try {
        const std::string text = ChatTemplate(source, "m.gguf").render(variables);
        return "rendered " + text.substr(0, 100);
    } catch (const UserError& error) {
        EXPECT_EQ(error.code(), ExitCode::kModel);
        return error.what();
    }
}

std::string repeated(const std::string& text, size_t count) {
    std::string out;
    for (size_t i = 0; i < count; ++i) out += text;
    return out;
}

// Guards against endless loops: the step limit.
TEST(ChatTemplateLimits, Steps) {
    const std::string loops =
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
    EXPECT_EQ(error_of(loops), "m.gguf: line 1: the template takes more than 10 million steps");
    // Few statements that move many bytes count as well.
    const std::string bytes =
        "{% set x = 'a' * 9000000 %}\n{% for i in range(100000) %}"
        "{% set y = x|upper %}{% endfor %}";
    EXPECT_EQ(error_of(bytes), "m.gguf: line 2: the template takes more than 10 million steps");
}

// Guards against stack overflow by macros, call blocks, recursive loops and lazy filters.
TEST(ChatTemplateLimits, Recursion) {
    EXPECT_EQ(error_of("{% macro m() %}\n{{ m() }}{% endmacro %}{{ m() }}"),
              "m.gguf: line 2: calls are nested more than 200 levels deep");
    EXPECT_EQ(error_of("{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}"
                       "{{ m() }}"),
              "m.gguf: line 1: calls are nested more than 200 levels deep");
    EXPECT_EQ(error_of("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"),
              "m.gguf: line 1: calls are nested more than 200 levels deep");
    EXPECT_EQ(error_of("{% set ns = namespace(x=[1]) %}{% for i in range(9999) %}"
                       "{% set ns.x = ns.x|map('string') %}{% endfor %}{{ ns.x|list }}"),
              "m.gguf: line 1: values are nested more than 200 levels deep");
    // 150 calls are fine in Jinja2 and here.
    EXPECT_EQ(ChatTemplate("{% macro m(n) %}{% if n %}{{ m(n - 1) }}{% else %}end{% endif %}"
                           "{% endmacro %}{{ m(150) }}",
                           "m")
                  .render(nlohmann::ordered_json::object()),
              "end");
}

// Guards against stack overflow by values: nested lists, cycles, deep variables.
TEST(ChatTemplateLimits, NestedValues) {
    const std::string deep = "m.gguf: line 1: values are nested more than 200 levels deep";
    EXPECT_EQ(error_of("{% set ns = namespace(x=1) %}{% for i in range(99999) %}"
                       "{% set ns.x = [ns.x] %}{% endfor %}"),
              deep);
    EXPECT_EQ(error_of("{% set ns = namespace(x=1) %}{% for i in range(99999) %}"
                       "{% set ns.x = {'k': ns.x} %}{% endfor %}"),
              deep);
    EXPECT_EQ(error_of("{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns }}"), deep);
    nlohmann::ordered_json value = 1;
    for (int i = 0; i < 300; ++i) value = nlohmann::ordered_json::array({value});
    EXPECT_EQ(error_of("{{ v }}", {{"v", value}}),
              "m.gguf: line 1: variables are nested more than 200 levels deep");
}

// Guards against running out of memory: output, strings, shared structures that print large, lists.
TEST(ChatTemplateLimits, Memory) {
    const std::string large = "{% set x = 'a' * 1000000 %}";
    EXPECT_EQ(error_of(large + "{% for i in range(100) %}{{ x }}{% endfor %}"),
              "m.gguf: line 1: the template writes more than 64 MiB");
    EXPECT_EQ(error_of(large + "{{ x * 1000 }}"),
              "m.gguf: line 1: the template makes a string of more than 64 MiB");
    EXPECT_EQ(error_of(large + "{{ (x ~ x) * 40 }}"),
              "m.gguf: line 1: the template makes a string of more than 64 MiB");
    EXPECT_EQ(error_of("{% set ns = namespace(x='aaaaaaaaaaaaaaaaaaaa') %}{% for i in range(50) %}"
                       "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}"),
              "m.gguf: line 1: the template makes a string of more than 64 MiB");
    EXPECT_EQ(error_of(large + "{% set ns = namespace(x=[]) %}{% for i in range(10000) %}"
                               "{% set ns.x = ns.x + [x ~ i] %}{% endfor %}"),
              "m.gguf: line 1: the template needs more than 512 MiB of memory");
    EXPECT_EQ(error_of("{{ [0] * 9223372036854775807 }}"),
              "m.gguf: line 1: the template takes more than 10 million steps");
    EXPECT_EQ(error_of("{{ '%1000001d' % 1 }}"),
              "m.gguf: line 1: width or precision in a format is too large");
    EXPECT_EQ(error_of("{{ 'x'.ljust(9223372036854775807) }}"),
              "m.gguf: line 1: the template makes a string of more than 64 MiB");
}

// Guards against stack overflow in the parser.
TEST(ChatTemplateLimits, NestedSource) {
    const std::string deep = "m.gguf: line 1: expressions are nested too deeply";
    EXPECT_EQ(error_of("{{ " + repeated("(", 100000) + repeated(")", 100000) + " }}"), deep);
    EXPECT_EQ(error_of("{{ " + repeated("[", 100000) + repeated("]", 100000) + " }}"), deep);
    EXPECT_EQ(error_of("{{ " + repeated("-", 100000) + "1 }}"), deep);
    EXPECT_EQ(error_of("{{ " + repeated("not ", 100000) + "1 }}"), deep);
    EXPECT_EQ(error_of("{{ 1" + repeated("+1", 100000) + " }}"), deep);
    EXPECT_EQ(error_of("{{ a" + repeated(".b", 100000) + " }}"), deep);
    EXPECT_EQ(error_of("{{ 1" + repeated(" if 1 else 1", 100000) + " }}"), deep);
    EXPECT_EQ(error_of("{{ a" + repeated("|upper", 100000) + " }}"), deep);
    EXPECT_EQ(error_of(repeated("{% if 1 %}", 100000)),
              "m.gguf: line 1: statements are nested too deeply");
    // What is long but not deep is fine.
    const std::string chain = "{% if 0 %}" + repeated("{% elif 0 %}", 5000) + "x{% endif %}ok";
    EXPECT_EQ(ChatTemplate(chain, "m").render(nlohmann::ordered_json::object()), "ok");
}

// Guards against integers that wrap around where Python's grow.
TEST(ChatTemplateLimits, Integers) {
    const std::string message = "m.gguf: line 1: integers beyond 64 bits are not supported";
    for (const char* source :
         {"{{ 9223372036854775808 }}", "{{ 9223372036854775807 + 1 }}", "{{ 3 ** 60 }}",
          "{{ -(-9223372036854775807 - 1) }}", "{{ (-9223372036854775807 - 1) // -1 }}",
          "{{ 4294967296 * 4294967296 }}", "{{ '9223372036854775808'|int }}", "{{ 1e19|int }}",
          "{{ (-9223372036854775807 - 1)|abs }}"}) {
        EXPECT_EQ(error_of(source), message) << source;
    }
    EXPECT_EQ(error_of("x", {{"v", uint64_t{1} << 63}}), message);
}

// Guards against messages without place, and against the wrong line.
TEST(ChatTemplateLimits, Messages) {
    EXPECT_EQ(error_of("a\n\n{{ raise_exception('no ' ~ 'tools') }}"), "m.gguf: line 3: no tools");
    EXPECT_EQ(error_of("a\n{{ messages[0].role }}"), "m.gguf: line 2: 'messages' is undefined");
    EXPECT_EQ(error_of("{#\n\n#}\n{% nosuch %}"),
              "m.gguf: line 4: unknown or unsupported tag 'nosuch'");
    EXPECT_EQ(error_of("\n{{ 'a'|nosuch }}"), "m.gguf: line 2: No filter named 'nosuch'.");
    EXPECT_EQ(error_of("\n\n{{ 'a"), "m.gguf: line 3: unexpected char '");
    EXPECT_EQ(error_of("a\xff"), "m.gguf: line 1: the template is not valid UTF-8");
}

// Guards against text that is not UTF-8 in variables: it passes through and breaks nothing.
TEST(ChatTemplateLimits, InvalidUtf8InVariables) {
    const ChatTemplate source("{{ v }}|{{ v[1] }}|{{ v|length }}|{{ v|upper }}|{{ [v] }}", "m");
    EXPECT_EQ(source.render({{"v", "a\xff\xc3"}}),
              "a\xff\xc3|\xff|3|A\xff\xc3|['a\\udcff\\udcc3']");
}

std::string json_error(const std::string& text) {
    try {
        parse_json(text, "f.json");
        return "parsed";
    } catch (const UserError& error) {
        EXPECT_EQ(error.code(), ExitCode::kModel);
        return error.what();
    }
}

// Guards against stack overflow and silent rounding in JSON that is not trusted.
TEST(JsonLimits, Refuses) {
    EXPECT_EQ(json_error(repeated("[", 101) + repeated("]", 101)),
              "f.json: line 1, column 101: nested more than 100 levels deep");
    EXPECT_EQ(json_error(repeated("{\"a\":", 1000000)),
              "f.json: line 1, column 501: nested more than 100 levels deep");
    EXPECT_EQ(json_error("[\n1,\n 99999999999999999999]").substr(0, 14), "f.json: line 3");
    EXPECT_EQ(json_error("{\"a\": 1,\n \"b\" 2}").substr(0, 25), "f.json: line 2, column 7:");
    EXPECT_EQ(json_error("").substr(0, 16), "f.json: line 1, ");
    EXPECT_EQ(json_error("[1] x").substr(0, 16), "f.json: line 1, ");
    EXPECT_EQ(json_error("[1e999]").substr(0, 16), "f.json: line 1, ");
    EXPECT_EQ(json_error("\"\xff\"").substr(0, 16), "f.json: line 1, ");
}

// Guards against lost order, numbers and repeated keys.
TEST(JsonLimits, Keeps) {
    const std::string text =
        R"({"b":1,"a":[true,null,1.5,-7,18446744073709551615,"\u00e9"],"c":{}})";
    EXPECT_EQ(parse_json(text, "f").dump(),
              "{\"b\":1,\"a\":[true,null,1.5,-7,18446744073709551615,\"\u00e9\"],\"c\":{}}");
    EXPECT_EQ(parse_json(R"({"a":1,"b":2,"a":3})", "f").dump(), R"({"a":3,"b":2})");
    const std::string deep = repeated("[", 100) + repeated("]", 100);
    EXPECT_EQ(parse_json(deep, "f").dump(), deep);
}

}  // namespace
}  // namespace tessera
