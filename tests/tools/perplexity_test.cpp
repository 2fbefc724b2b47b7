#include "tools/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tools/perplexity_file.h"
#include "tools/perplexity_stats.h"

namespace tessera {
namespace {

/// Values of scripts/oracles/perplexity_stats.py.
const nlohmann::json& oracle() {
    static const nlohmann::json values = [] {
        std::ifstream file(TESSERA_TEST_DATA "/perplexity/stats.json");
        return nlohmann::json::parse(file);
    }();
    return values;
}

DivergenceStats compared_rows() {
    const auto logits = oracle()["logits"].get<std::vector<std::vector<float>>>();
    const auto words = oracle()["base_words"].get<std::vector<std::vector<uint16_t>>>();
    const auto tokens = oracle()["tokens"].get<std::vector<int32_t>>();
    DivergenceStats stats;
    for (size_t i = 0; i < tokens.size(); ++i)
        stats.add(compare_row(logits[i], tokens[i], words[i]));
    return stats;
}

void expect_estimate(const Estimate& found, const char* name) {
    const auto expected = oracle()[name].get<std::vector<double>>();
    EXPECT_NEAR(found.value, expected[0], 1e-5 * std::abs(expected[0])) << name;
    EXPECT_NEAR(found.error, expected[1], 1e-4 * std::abs(expected[1])) << name;
}

std::string temporary_path(const char* name) {
    return (std::filesystem::temp_directory_path() /
            (std::string("tessera_") + name + std::to_string(::getpid())))
        .string();
}

// Guards against a log-softmax that loses the maximum or the sum.
TEST(TokenNll, MatchesNumpy) {
    const auto logits = oracle()["logits"].get<std::vector<std::vector<float>>>();
    const auto tokens = oracle()["tokens"].get<std::vector<int32_t>>();
    const auto expected = oracle()["nll"].get<std::vector<double>>();
    PerplexitySum sum;
    for (size_t i = 0; i < tokens.size(); ++i) {
        const double nll = token_nll(logits[i], tokens[i]);
        EXPECT_NEAR(nll, expected[i], 1e-5) << i;
        sum.add(nll);
    }
    expect_estimate(sum.perplexity(), "perplexity");
}

// Guards against a layout that llama-perplexity cannot read: header order, scale, codes, padding.
TEST(StoreRow, WritesTheSharedLayout) {
    const auto logits = oracle()["base_logits"].get<std::vector<std::vector<float>>>();
    const auto expected = oracle()["base_words"].get<std::vector<std::vector<uint16_t>>>();
    const auto tokens = oracle()["tokens"].get<std::vector<int32_t>>();
    const int32_t vocab = oracle()["vocab"].get<int32_t>();
    for (size_t i = 0; i < logits.size(); ++i) {
        std::vector<uint16_t> words(row_words(vocab), 0xffff);
        ASSERT_EQ(words.size(), expected[i].size());
        const double nll = store_row(logits[i], tokens[i], words);
        EXPECT_NEAR(nll, token_nll(logits[i], tokens[i]), 1e-12);
        std::array<float, 2> found{};
        std::array<float, 2> wanted{};
        std::memcpy(found.data(), words.data(), sizeof(found));
        std::memcpy(wanted.data(), expected[i].data(), sizeof(wanted));
        EXPECT_NEAR(found[0], wanted[0], 1e-6f * wanted[0]);
        EXPECT_NEAR(found[1], wanted[1], 1e-5f);
        for (size_t k = 4; k < words.size(); ++k)
            EXPECT_NEAR(words[k], expected[i][k], 1) << i << " " << k;
        EXPECT_EQ(words[4 + 3], 0) << "a token more than 16 below the best has code 0";
    }
}

// Guards against another definition of any of the statistics that are compared across engines.
TEST(DivergenceStats, MatchNumpy) {
    const DivergenceStats stats = compared_rows();
    expect_estimate(stats.perplexity(), "perplexity");
    expect_estimate(stats.log_ratio(), "log_ratio");
    expect_estimate(stats.divergence(), "mean_divergence");
    expect_estimate(stats.rms_p_diff(), "rms_p_diff");
    expect_estimate(stats.same_top(), "same_top");
}

TEST(Percentile, MatchesNumpyQuantiles) {
    std::vector<double> values = oracle()["divergence"].get<std::vector<double>>();
    std::sort(values.begin(), values.end());
    for (const auto& [fraction, expected] : oracle()["percentiles"].items())
        EXPECT_NEAR(percentile(values, std::stod(fraction)), expected.get<double>(), 1e-9)
            << fraction;
}

LogitsHeader small_header() {
    return {.context = 8, .vocab = 3, .chunks = 2, .tokens = std::vector<int32_t>(16, 2)};
}

// Guards against a writer and a reader that disagree, and against a half-written file with the
// final name.
TEST(LogitsFile, RoundTrip) {
    const std::string path = temporary_path("round");
    const LogitsHeader header = small_header();
    const size_t words = header.rows_per_chunk() * row_words(header.vocab);
    ASSERT_EQ(words, 3u * 8u);
    {
        LogitsWriter unfinished(path, header);
        unfinished.write(std::vector<uint16_t>(words, 1));
    }
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_FALSE(std::filesystem::exists(path + ".part"));
    {
        LogitsWriter writer(path, header);
        writer.write(std::vector<uint16_t>(words, 7));
        writer.write(std::vector<uint16_t>(words, 9));
        writer.finish();
    }
    // 8 + 3 x 4 bytes of header, 16 tokens, 2 chunks of 3 rows of 8 words.
    EXPECT_EQ(std::filesystem::file_size(path), 8u + 12u + 64u + 2u * 3u * 8u * 2u);
    LogitsReader reader(path);
    EXPECT_EQ(reader.header().context, 8);
    EXPECT_EQ(reader.header().tokens, header.tokens);
    std::vector<uint16_t> rows(words);
    reader.read(rows);
    EXPECT_EQ(rows, std::vector<uint16_t>(words, 7));
    reader.read(rows);
    EXPECT_EQ(rows, std::vector<uint16_t>(words, 9));
    std::filesystem::remove(path);
}

// Guards against a device that becomes a plain file, and against a part that nobody removes because
// its writer failed while it was made.
TEST(LogitsFile, UnwritableTargetsLeaveNothing) {
    const std::string folder = temporary_path("folder");
    std::filesystem::create_directory(folder);
    EXPECT_THROW(LogitsWriter(folder, small_header()), UserError);
    EXPECT_FALSE(std::filesystem::exists(folder + ".part"));
    std::filesystem::remove(folder);
    // Every write to /dev/full finds a full disk.
    const std::string full = temporary_path("full");
    std::filesystem::create_symlink("/dev/full", full + ".part");
    EXPECT_THROW(LogitsWriter(full, small_header()), UserError);
    EXPECT_FALSE(std::filesystem::is_symlink(full + ".part"));
}

// Guards against a result about no data: it said 1.0000, and the comparison read an empty list.
TEST(Perplexity, NoChunksAreRefused) {
    PerplexityOptions options;
    options.engine.model_path = "absent.gguf";
    options.prompt = "text";
    options.chunks = 0;
    try {
        run_perplexity(options);
        FAIL() << "0 chunks were accepted";
    } catch (const UserError& error) {
        EXPECT_EQ(error.code(), ExitCode::kUsage);
    }
}

// Guards against a damaged file that is read as numbers, allocates wildly or crashes.
TEST(LogitsFile, DamagedFilesAreRefused) {
    const auto file = [](std::array<int32_t, 3> numbers, size_t bytes) {
        std::string text = "_logits_";
        text.append(reinterpret_cast<const char*>(numbers.data()), sizeof(numbers));
        text.resize(std::max(text.size(), bytes), '\0');
        return text;
    };
    std::string bad_token = file({8, 3, 2}, 8 + 12 + 64 + 96);
    bad_token[8 + 12] = 3;
    const std::vector<std::string> damaged{"",
                                           "_logits",
                                           "GGUF____________________",
                                           file({8, 3, 2}, 0),
                                           file({8, 3, 2}, 8 + 12 + 64 + 95),
                                           file({0, 3, 2}, 400),
                                           file({8, -1, 2}, 400),
                                           file({8, 3, 0}, 400),
                                           file({1 << 24, 1 << 24, 1 << 24}, 400),
                                           file({2147483647, 3, 2}, 400),
                                           bad_token};
    const std::string path = temporary_path("damaged");
    for (const std::string& bytes : damaged) {
        std::ofstream(path, std::ios::binary) << bytes;
        EXPECT_THROW(LogitsReader reader(path), UserError) << bytes.size();
    }
    std::filesystem::remove(path);
    EXPECT_THROW(LogitsReader reader(path), UserError);
}

}  // namespace
}  // namespace tessera
