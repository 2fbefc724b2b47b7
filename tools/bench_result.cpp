#include "tools/bench_result.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"

namespace tessera {
namespace {

/// As for -c of the other commands.
constexpr int64_t kLongestContext = 1 << 30;

/// Calls `use` with every combination that needs an engine of its own.
template <class Use>
void for_each_configuration(const BenchOptions& options, const Use& use) {
    const size_t sources = options.models.size() + options.synth.size();
    BenchTest test;
    test.delta_bf16 = options.delta_bf16;
    test.emulate = options.emulate;
    for (test.source = 0; test.source < sources; ++test.source)
        for (const int32_t gpu_layers : options.gpu_layers)
            for (const std::string& load_mode : options.load_mode)
                for (const ActPolicy act : options.act)
                    for (const int32_t batch : options.batch)
                        for (const int32_t ubatch : options.ubatch)
                            for (const DType type_k : options.type_k)
                                for (const DType type_v : options.type_v)
                                    for (const int32_t flash_attn : options.flash_attn)
                                        for (const int32_t threads : options.threads) {
                                            test.gpu_layers = gpu_layers;
                                            test.load_mode = load_mode;
                                            test.act = act;
                                            test.batch = batch;
                                            test.ubatch = ubatch;
                                            test.type_k = type_k;
                                            test.type_v = type_v;
                                            test.flash_attn = flash_attn;
                                            test.threads = threads;
                                            use(test);
                                        }
}

}  // namespace

std::vector<BenchTest> expand_tests(const BenchOptions& options) {
    std::vector<BenchTest> tests;
    for_each_configuration(options, [&](BenchTest test) {
        for (const int32_t depth : options.n_depth) {
            test.n_depth = depth;
            const auto add = [&](int32_t prompt, int32_t gen) {
                if (prompt == 0 && gen == 0) return;
                const int64_t tokens = int64_t{depth} + prompt + gen;
                if (tokens > kLongestContext)
                    throw UserError(ExitCode::kUsage,
                                    fmt::format("a test of {} tokens: at most {} are possible",
                                                tokens, kLongestContext));
                test.n_prompt = prompt;
                test.n_gen = gen;
                tests.push_back(test);
            };
            for (const int32_t prompt : options.n_prompt) add(prompt, 0);
            for (const int32_t gen : options.n_gen) add(0, gen);
            for (const auto& [prompt, gen] : options.prompt_gen) add(prompt, gen);
        }
    });
    return tests;
}

std::string test_name(const BenchTest& test) {
    std::string name;
    if (test.n_gen == 0) {
        name = fmt::format("pp{}", test.n_prompt);
    } else if (test.n_prompt == 0) {
        name = fmt::format("tg{}", test.n_gen);
    } else {
        name = fmt::format("pp{}+tg{}", test.n_prompt, test.n_gen);
    }
    if (test.n_depth > 0) name += fmt::format(" @ d{}", test.n_depth);
    return name;
}

std::vector<double> samples_ts(const BenchResult& result) {
    const double tokens = result.test.n_prompt + result.test.n_gen;
    std::vector<double> rates;
    for (const int64_t nanoseconds : result.samples_ns)
        rates.push_back(1e9 * tokens / static_cast<double>(std::max<int64_t>(nanoseconds, 1)));
    return rates;
}

double mean(std::span<const double> values) {
    if (values.empty()) return 0;
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double sample_deviation(std::span<const double> values) {
    if (values.size() < 2) return 0;
    const double middle = mean(values);
    double squares = 0;
    for (const double value : values) squares += (value - middle) * (value - middle);
    return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

}  // namespace tessera
