// What drafting costs where no guess is ever right: engines without and with the draft block in one
// process answer in turn, so that the machine's moods meet all of them.
//
//   draft_cost MODEL [TOKENS [THREADS [ROUNDS [PAIRS]]]]
//
// PAIRS (6) engines of each kind are loaded alternately, as physical memory is luck; a round lets
// each plain engine answer, each other one without drafting and drafting, in random order. Prints
// ratios of the times of generation over ROUNDS (25): mean, its standard error, median.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/generate.h"

namespace tessera {
namespace {

enum Kind { kPlain, kLoaded, kDrafting, kKinds };

struct Options {
    std::string_view model;
    int tokens = 2000, threads = 1, rounds = 25, pairs = 6;
};

std::unique_ptr<Engine> make_engine(const Options& options, int draft_max) {
    EngineOptions of;
    of.model_path = options.model;
    of.backend.name = "cpu";
    of.backend.threads = options.threads;
    of.draft_max = draft_max;
    return std::make_unique<Engine>(of);
}

GenerateResult answer(Engine& engine, const Options& options, Kind kind, int round) {
    Sequence sequence = engine.new_sequence();
    GenerateRequest request;
    request.sequence = &sequence;
    for (int i = 0; i < 8; ++i) request.tokens.push_back((round * 37 + i * 11 + 50) % 200 + 3);
    request.options.max_tokens = options.tokens;
    request.options.ignore_end = true;
    request.options.sampling.temperature = 0.0f;
    request.options.draft_max = kind == kDrafting ? 3 : 0;
    return generate(engine, {&request, 1}, {}).front();
}

void print_ratio(const char* name, const std::vector<double>& over, const std::vector<double>& of) {
    std::vector<double> ratios(over.size());
    std::transform(over.begin(), over.end(), of.begin(), ratios.begin(), std::divides<>());
    const auto count = static_cast<double>(ratios.size());
    const double mean = std::accumulate(ratios.begin(), ratios.end(), 0.0) / count;
    double squares = 0.0;
    for (const double ratio : ratios) squares += (ratio - mean) * (ratio - mean);
    std::sort(ratios.begin(), ratios.end());
    fmt::print("{}: {:.4f} ± {:.4f}, median {:.4f}\n", name, mean,
               std::sqrt(squares / std::max(count - 1.0, 1.0) / count), ratios[ratios.size() / 2]);
}

int run(int count, char** words) {
    Options options;
    int* const numbers[] = {&options.tokens, &options.threads, &options.rounds, &options.pairs};
    if (count < 2 || count > 6) {
        fmt::print(stderr, "usage: draft_cost MODEL [TOKENS [THREADS [ROUNDS [PAIRS]]]]\n");
        return 2;
    }
    options.model = words[1];
    for (int i = 2; i < count; ++i) *numbers[i - 2] = std::max(1, std::atoi(words[i]));

    std::vector<std::unique_ptr<Engine>> plain, with_block;
    for (int i = 0; i < options.pairs; ++i) {
        if (i % 2 == 0) with_block.push_back(make_engine(options, 3));
        plain.push_back(make_engine(options, 0));
        if (i % 2 == 1) with_block.push_back(make_engine(options, 3));
    }
    std::mt19937 random(1);
    std::vector<double> seconds[kKinds];
    int guesses = 0;
    for (int round = -1; round < options.rounds; ++round) {  // the first one warms up
        std::vector<int> order(static_cast<size_t>(kKinds * options.pairs));
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), random);
        double sums[kKinds] = {};
        for (const int turn : order) {
            const auto kind = static_cast<Kind>(turn % kKinds);
            const auto pair = static_cast<size_t>(turn / kKinds);
            Engine& engine = *(kind == kPlain ? plain : with_block)[pair];
            const GenerateResult result = answer(engine, options, kind, round);
            sums[kind] += result.generate_seconds;
            if (round >= 0) guesses += result.drafted;
        }
        for (int kind = 0; kind < kKinds && round >= 0; ++kind) seconds[kind].push_back(sums[kind]);
    }
    fmt::print("{:.1f} guesses an answer\n",
               static_cast<double>(guesses) / (options.rounds * options.pairs));
    print_ratio("with the block, not drafting / plain", seconds[kLoaded], seconds[kPlain]);
    print_ratio("drafting / with the block, not drafting", seconds[kDrafting], seconds[kLoaded]);
    print_ratio("drafting / plain", seconds[kDrafting], seconds[kPlain]);
    return 0;
}

}  // namespace
}  // namespace tessera

int main(int count, char** words) {
    try {
        return tessera::run(count, words);
    } catch (const tessera::UserError& error) {
        fmt::print(stderr, "draft_cost: {}\n", error.what());
        return static_cast<int>(error.code());
    }
}
