// Compared with a recorded run of llama-bench (tests/data/bench): its samples must give its
// statistics, its lines and its order of tests.

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/bench_result.h"

namespace tessera {
namespace {

const nlohmann::ordered_json& recorded() {
    static const nlohmann::ordered_json values = [] {
        std::ifstream file(TESSERA_TEST_DATA "/bench/llama_bench.json");
        return nlohmann::ordered_json::parse(file);
    }();
    return values;
}

BenchOptions recorded_options() {
    BenchOptions options;
    options.models = {"F16.gguf"};
    options.n_prompt = {8, 16};
    options.n_gen = {4};
    options.prompt_gen = {{8, 2}};
    options.n_depth = {0, 8};
    options.ubatch = {32, 64};
    options.type_k = {DType::kF16, DType::kBF16};
    options.flash_attn = {1};
    options.load_mode = {"none"};
    options.threads = {2};
    return options;
}

BenchResult recorded_result(const nlohmann::ordered_json& test) {
    const nlohmann::ordered_json& shared = recorded()["shared"];
    BenchResult result;
    result.test.n_prompt = test["n_prompt"];
    result.test.n_gen = test["n_gen"];
    result.test.n_depth = test["n_depth"];
    result.test.batch = shared["n_batch"];
    result.test.ubatch = test["n_ubatch"];
    result.test.threads = shared["n_threads"];
    result.test.type_k = *dtype_from_name(test["type_k"].get<std::string>());
    result.test.flash_attn = shared["flash_attn"];
    result.test.load_mode = shared["load_mode"];
    result.build_commit = shared["build_commit"];
    result.build_number = shared["build_number"];
    result.cpu_info = shared["cpu_info"];
    result.backend = shared["backends"];
    result.model_filename = shared["model_filename"];
    result.model_type = shared["model_type"];
    result.model_bytes = shared["model_size"];
    result.model_parameters = shared["model_n_params"];
    result.samples_ns = test["samples_ns"].get<std::vector<int64_t>>();
    return result;
}

/// What a printer writes for these results.
std::string printed(BenchOutput output,
                    std::span<const BenchResult> results,
                    const BenchOptions& options) {
    std::FILE* const file = std::tmpfile();
    const std::unique_ptr<BenchPrinter> printer = make_bench_printer(output, file);
    printer->begin(options);
    for (const BenchResult& result : results) printer->print(result);
    printer->end(results.empty() ? nullptr : &results.back());
    std::string text(static_cast<size_t>(std::ftell(file)), '\0');
    std::rewind(file);
    EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
    std::fclose(file);
    return text;
}
std::string printed(BenchOutput output, std::span<const BenchResult> results) {
    return printed(output, results, recorded_options());
}

std::vector<BenchResult> recorded_results() {
    std::vector<BenchResult> results;
    for (const auto& test : recorded()["tests"]) results.push_back(recorded_result(test));
    return results;
}

// Guards against other statistics: mean of rates (not rate of the mean), n - 1 in the deviation.
TEST(BenchResult, StatisticsMatchLlamaBench) {
    for (const auto& test : recorded()["tests"]) {
        const BenchResult result = recorded_result(test);
        const std::vector<double> rates = samples_ts(result);
        EXPECT_NEAR(mean(rates), test["avg_ts"].get<double>(), 1e-6);
        EXPECT_NEAR(sample_deviation(rates), test["stddev_ts"].get<double>(), 1e-6);
    }
    EXPECT_EQ(sample_deviation(std::vector<double>{5.0}), 0.0);
}

// Guards against another order or another set of tests for the same flags.
TEST(ExpandTests, OrderMatchesLlamaBench) {
    const std::vector<BenchTest> tests = expand_tests(recorded_options());
    ASSERT_EQ(tests.size(), 32u);
    size_t index = 0;
    for (const auto& expected : recorded()["tests"]) {
        const BenchTest& test = tests[index++];
        EXPECT_EQ(test.n_prompt, expected["n_prompt"].get<int32_t>()) << index;
        EXPECT_EQ(test.n_gen, expected["n_gen"].get<int32_t>()) << index;
        EXPECT_EQ(test.n_depth, expected["n_depth"].get<int32_t>()) << index;
        EXPECT_EQ(test.ubatch, expected["n_ubatch"].get<int32_t>()) << index;
        EXPECT_EQ(test.type_k, *dtype_from_name(expected["type_k"].get<std::string>())) << index;
    }
    BenchOptions no_prompt = recorded_options();
    no_prompt.n_prompt = {0};
    no_prompt.prompt_gen.clear();
    for (const BenchTest& test : expand_tests(no_prompt)) EXPECT_GT(test.n_gen, 0);
}

// Guards against a table that eyes and scripts used to llama-bench cannot read: the lines are equal
// byte for byte.
TEST(BenchPrinter, MarkdownMatchesLlamaBench) {
    std::string expected;
    for (const auto& line : recorded()["heading"]) expected += line.get<std::string>() + "\n";
    for (const auto& test : recorded()["tests"])
        expected += test["markdown"].get<std::string>() + "\n";
    expected += "\nbuild: 0c1e570 (1)\n";
    const std::string text = printed(BenchOutput::kMarkdown, recorded_results());
    EXPECT_EQ(text.substr(0, expected.size()), expected);
}

// Guards against fields that are missing, renamed or of another JSON type.
TEST(BenchPrinter, JsonHasLlamaBenchsFields) {
    const std::vector<BenchResult> results = recorded_results();
    const auto parsed = nlohmann::ordered_json::parse(printed(BenchOutput::kJson, results));
    ASSERT_EQ(parsed.size(), results.size());
    const auto theirs =
        nlohmann::ordered_json::parse(recorded()["first_object"].get<std::string>());
    for (const auto& [name, value] : theirs.items()) {
        ASSERT_TRUE(parsed[0].contains(name)) << name;
        const bool numbers = value.is_number() && parsed[0][name].is_number();
        EXPECT_TRUE(numbers || value.type() == parsed[0][name].type()) << name;
        // llama-bench sums squares in 64-bit integers there, which costs the last digits.
        if (name == "stddev_ns") {
            EXPECT_NEAR(parsed[0][name].get<double>(), value.get<double>(), 10);
        } else if (name != "test_time" && name != "samples_ts") {
            EXPECT_EQ(parsed[0][name], value) << name;
        }
    }
    EXPECT_NEAR(parsed[0]["samples_ts"][0].get<double>(), theirs["samples_ts"][0].get<double>(),
                1e-3);

    const std::string lines = printed(BenchOutput::kJsonl, results);
    const auto first = nlohmann::ordered_json::parse(lines.substr(0, lines.find('\n')));
    EXPECT_EQ(first, parsed[0]);
}

// Guards against csv rows that do not line up with their heading.
TEST(BenchPrinter, CsvColumnsFollowTheFields) {
    std::vector<BenchResult> results = recorded_results();
    results.resize(1);
    results[0].model_filename = "a \"b\",c.gguf";
    const std::string text = printed(BenchOutput::kCsv, results);
    const std::string heading = text.substr(0, text.find('\n'));
    std::string expected;
    for (const auto& name : recorded()["fields"]) {
        if (name == "samples_ns" || name == "samples_ts") continue;
        expected += (expected.empty() ? "" : ",") + name.get<std::string>();
    }
    EXPECT_EQ(heading.substr(0, expected.size()), expected);
    EXPECT_NE(text.find("\"a \"\"b\"\",c.gguf\""), std::string::npos);
    const std::string row = text.substr(heading.size() + 1);
    size_t columns = 1;
    bool quoted = false;
    for (const char letter : row) {
        quoted ^= letter == '"';
        columns += letter == ',' && !quoted ? 1 : 0;
    }
    EXPECT_EQ(columns, static_cast<size_t>(std::count(heading.begin(), heading.end(), ',')) + 1);
}

// Guards against figures of --delta-bf16 that look like those without it, and against a column or a
// field that does not follow the switch.
TEST(BenchPrinter, ResultsSayThatTheDeltaRuleRanOnBf16) {
    for (const bool bf16 : {false, true}) {
        BenchOptions options = recorded_options();
        options.delta_bf16 = bf16;
        std::vector<BenchResult> results = recorded_results();
        results.resize(1);
        results[0].test = expand_tests(options).front();
        EXPECT_EQ(results[0].test.delta_bf16, bf16);
        const std::string table = printed(BenchOutput::kMarkdown, results, options);
        EXPECT_EQ(table.find("| delta_bf16 |") != std::string::npos, bf16) << table;
        EXPECT_EQ(table.find("|          1 |") != std::string::npos, bf16) << table;
        const auto json =
            nlohmann::ordered_json::parse(printed(BenchOutput::kJsonl, results, options));
        EXPECT_EQ(json.at("delta_bf16"), nlohmann::ordered_json(bf16));
    }
}

// Guards against figures of coarse activations that look like exact ones: what "auto" came to is
// there whatever was asked, and how NVFP4 was rounded where something was.
TEST(BenchPrinter, ResultsNameTheActivations) {
    struct Asked {
        ActPolicy act;
        ActFormat taken;
        bool policy;  ///< --act-policy amax6
        std::string cell, last_line;
    };
    for (const Asked& asked :
         {Asked{ActPolicy::kAuto, ActFormat::kFp4, false, "",
                "activations of prompts: auto (nvfp4)"},
          Asked{ActPolicy::kAuto, ActFormat::kBF16, true, "|       none |",
                "activations of prompts: auto (bf16)"},
          Asked{ActPolicy::kNvfp4, ActFormat::kNvfp4, true, "|        nvfp4 |      amax6 |", ""},
          Asked{ActPolicy::kFp8, ActFormat::kBF16, false, "|   fp8 (bf16) |", ""}}) {
        BenchOptions options = recorded_options();
        options.act = {asked.act};
        if (asked.policy) options.act_nvfp4 = Nvfp4Policy::kAmax6;
        std::vector<BenchResult> results = recorded_results();
        results.resize(1);
        results[0].test = expand_tests(options).front();
        results[0].act_prompt = asked.taken;
        const bool nvfp4 = act_name(asked.taken) == "nvfp4";
        if (nvfp4) results[0].act_policy = options.act_nvfp4;
        const std::string table = printed(BenchOutput::kMarkdown, results, options);
        EXPECT_NE(table.find(asked.cell), std::string::npos) << table;
        EXPECT_EQ(table.find("| act_policy |") != std::string::npos, asked.policy) << table;
        EXPECT_EQ(table.find("|          act |") != std::string::npos,
                  asked.act != ActPolicy::kAuto)
            << table;
        EXPECT_EQ(table.find("activations of prompts") != std::string::npos,
                  asked.act == ActPolicy::kAuto)
            << table;
        EXPECT_NE(table.find(asked.last_line), std::string::npos) << table;
        const auto json =
            nlohmann::ordered_json::parse(printed(BenchOutput::kJsonl, results, options));
        EXPECT_EQ(json.at("act_prompt"), std::string(act_name(asked.taken)));
        EXPECT_EQ(json.at("act_policy"), !nvfp4 ? "none" : asked.policy ? "amax6" : "search");
    }
}

// Guards against a sum of tokens that overflows: the context came out small and the run ended with
// an unrelated message.
TEST(Bench, TestsLongerThanAnyContextAreRefused) {
    BenchOptions options;
    options.models = {"m.gguf"};
    options.n_prompt = {1 << 30};
    options.n_gen = {0};
    EXPECT_EQ(expand_tests(options).size(), 1u);
    options.n_depth = {1 << 30};
    EXPECT_THROW(expand_tests(options), UserError);
    options.n_depth = {0};
    options.prompt_gen = {{1 << 30, 1}};
    EXPECT_THROW(expand_tests(options), UserError);
}

}  // namespace
}  // namespace tessera
