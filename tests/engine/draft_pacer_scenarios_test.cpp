// The pacing of drafts on answers that it was not tuned on: costs that grow unevenly, a machine
// that slows down and recovers, guesses whose luck wanders or changes with the text. Scenarios and
// texts are drawn from seeds; what a run costs is counted without the noise that the pacer sees.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/draft_pacer.h"

namespace tessera {
namespace {

/// SplitMix64.
class Dice {
  public:
    explicit Dice(uint64_t seed) : state_(seed) {}
    double uniform() {
        uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
    }
    double between(double low, double high) { return low + (high - low) * uniform(); }
    /// Evenly in the logarithm.
    double scale(double low, double high) { return low * std::pow(high / low, uniform()); }
    /// Of mean 0 and deviation 1.
    double normal() {
        return std::sqrt(-2.0 * std::log(1.0 - uniform())) * std::cos(6.283185307 * uniform());
    }
    bool chance(double share) { return uniform() < share; }

  private:
    uint64_t state_;
};

/// Times in plain steps.
struct Scenario {
    int32_t most = 3;
    double fixed = 0.0;      ///< what a drafting round costs beyond a plain step
    double per_guess = 0.0;  ///< and each of its guesses
    double crowded = 0.0;    ///< and each behind the third
    double follow = 0.0;     ///< what following a token costs the draft block
    double cold = 1.0;       ///< factor on the first steps, falling
    double noise = 0.0;      ///< deviation of a duration's logarithm
    double hiccups = 0.0;    ///< share of durations that are several times as long
    double sway = 0.0;       ///< deviation per token of the machine's speed
    double luck = 0.0;       ///< log odds of a right guess of the next token, at first
    double wander = 0.0;     ///< their deviation per token
    double topics = 0.0;     ///< share of tokens that begin a text of other luck
    double fading = 1.0;     ///< factor on the share of right guesses for each further token
    double expected = 1.0;   ///< what a guess is taken to cost at first, times what it does

    double first_guess() const { return expected * (fixed + per_guess); }
    /// Tokens before a first try may cost a hundredth of them, the tokens that it follows included.
    double wait() const { return 100.0 * 1.32 * first_guess(); }
    DraftPacer pacer() const { return {most, true, first_guess()}; }
};

Scenario draw_scenario(Dice& dice) {
    Scenario s;
    s.most = static_cast<int32_t>(dice.between(1.0, 8.99));
    s.fixed = dice.chance(0.3) ? 0.0 : dice.scale(0.02, 3.0);
    s.per_guess = dice.scale(0.02, 1.5);
    s.crowded = dice.chance(0.5) ? 0.0 : dice.scale(0.02, 1.0);
    s.follow = dice.chance(0.3) ? 0.0 : dice.scale(0.001, 0.1);
    s.cold = dice.chance(0.5) ? 1.0 : dice.scale(1.2, 12.0);
    s.noise = dice.chance(0.2) ? 0.0 : dice.scale(0.005, 0.15);
    s.hiccups = dice.chance(0.5) ? 0.0 : dice.scale(0.002, 0.03);
    s.sway = dice.chance(0.5) ? 0.0 : dice.scale(0.0005, 0.01);
    s.luck = dice.between(-4.0, 4.0);
    s.wander = dice.chance(0.4) ? 0.0 : dice.scale(0.005, 0.15);
    s.topics = dice.chance(0.6) ? 0.0 : dice.scale(0.001, 0.02);
    s.fading = dice.between(0.6, 1.0);
    s.expected = dice.scale(0.5, 1.5);
    return s;
}

/// What happens to an answer whatever is drafted: at each token the machine's speed and from how
/// far it is guessed right.
struct Text {
    std::vector<double> speed, luck, draw;
};

Text draw_text(const Scenario& s, int32_t tokens, Dice& dice) {
    Text text;
    double speed = 0.0, luck = s.luck;
    for (int32_t i = 0; i < tokens + 10; ++i) {
        speed = std::clamp(speed + s.sway * dice.normal(), -0.7, 0.7);
        luck = std::clamp(luck + s.wander * dice.normal(), -6.0, 6.0);
        if (dice.chance(s.topics)) luck = dice.between(-5.0, 5.0);
        const double cold = 1.0 + (s.cold - 1.0) * std::pow(0.5, i);
        text.speed.push_back(std::exp(speed) * cold);
        text.luck.push_back(1.0 / (1.0 + std::exp(-luck)));
        text.draw.push_back(dice.uniform());
    }
    return text;
}

int32_t right_guesses(const Scenario& s, const Text& text, int32_t made, int32_t drafted) {
    double share = 1.0;
    for (int32_t i = 0; i < drafted; ++i, share *= s.fading) {
        const auto token = static_cast<size_t>(made + i);
        if (text.draw[token] >= text.luck[token] * share) return i;
    }
    return drafted;
}

constexpr int32_t kWindow = 32;  ///< tokens that wait for the draft block at most

/// Plain steps that the answer takes, with `fixed` guesses in every round or as the pacer says.
double run(const Scenario& s, const Text& text, DraftPacer* pacer, int32_t fixed, Dice dice) {
    const auto tokens = static_cast<int32_t>(text.draw.size()) - 10;
    double total = 0.0;
    int32_t waiting = 0;
    bool lost = false;
    const auto seen = [&](double seconds) {
        total += seconds;
        const double hiccup = dice.chance(s.hiccups) ? dice.between(0.3, 2.0) : 0.0;
        return seconds * (std::exp(s.noise * dice.normal()) + hiccup);
    };
    for (int32_t made = 0; made < tokens;) {
        const double speed = text.speed[static_cast<size_t>(made)];
        const int32_t drafted =
            std::min(pacer != nullptr ? pacer->next() : fixed, tokens - made - 1);
        if (pacer != nullptr &&
            (drafted > 0 ? waiting > 4 : waiting == kWindow && pacer->follows()))
            pacer->record_follow(seen(s.follow * waiting * speed), std::exchange(waiting, 0));
        const int32_t kept = right_guesses(s, text, made, drafted);
        double seconds = 1.0;
        if (drafted > 0)
            seconds += s.fixed + s.per_guess * drafted + s.crowded * std::max(drafted - 3, 0) +
                       s.follow * waiting;
        // Behind an unseen token the next one only leaves its state.
        const bool seen_now = drafted > 0 || pacer == nullptr || pacer->sees();
        EXPECT_FALSE(drafted > 0 && lost) << "a guess without a state";
        if (drafted > 0 || lost || !seen_now)
            waiting = 0;
        else
            waiting = waiting < kWindow ? waiting + 1 : kWindow / 2 + 1;
        lost = !seen_now;
        seconds = seen(seconds * speed);
        if (pacer != nullptr) pacer->record(seconds, drafted, kept);
        made += kept + 1;
    }
    return total;
}

std::string describe(const Scenario& s) {
    std::string result;
    for (const auto& [name, value] :
         std::array<std::pair<const char*, double>, 14>{{{"most", s.most},
                                                         {"fixed", s.fixed},
                                                         {"per guess", s.per_guess},
                                                         {"crowded", s.crowded},
                                                         {"follow", s.follow},
                                                         {"cold", s.cold},
                                                         {"noise", s.noise},
                                                         {"hiccups", s.hiccups},
                                                         {"sway", s.sway},
                                                         {"luck", s.luck},
                                                         {"wander", s.wander},
                                                         {"topics", s.topics},
                                                         {"fading", s.fading},
                                                         {"expected", s.expected}}})
        result += std::string(name) + " " + std::to_string(value) + ", ";
    return result;
}

constexpr uint64_t kScenarios = 150;

/// Over several texts of every scenario: where drafting gains clearly, how much longer they take
/// than with the best number of guesses after the wait before the first try.
std::vector<double> check_scenarios(uint64_t first_seed, int32_t tokens) {
    std::vector<double> against_best;
    for (uint64_t seed = first_seed; seed < first_seed + kScenarios; ++seed) {
        Dice dice(seed);
        const Scenario s = draw_scenario(dice);
        double plain = 0.0, paced = 0.0;
        std::vector<double> fixed(static_cast<size_t>(s.most) + 1);
        for (int repeat = 0; repeat < 4; ++repeat) {
            const Text text = draw_text(s, tokens, dice);
            DraftPacer pacer = s.pacer();
            const double with = run(s, text, &pacer, 0, dice);
            const double without = run(s, text, nullptr, 0, dice);
            EXPECT_LE(with, (tokens < 500 ? 1.03 : 1.02) * without)
                << tokens << " tokens, " << seed << ": " << describe(s);
            paced += with;
            plain += without;
            for (int32_t n = 0; n <= s.most; ++n)
                fixed[static_cast<size_t>(n)] += run(s, text, nullptr, n, dice);
        }
        EXPECT_LE(paced, (tokens < 500 ? 1.03 : 1.015) * plain)
            << tokens << " tokens, " << seed << ": " << describe(s);
        const double best = *std::min_element(fixed.begin(), fixed.end());
        const double waited = std::min(s.wait() / tokens, 1.0);
        if (best <= plain / 1.15)
            against_best.push_back(paced / (waited * plain + (1.0 - waited) * best));
    }
    std::sort(against_best.begin(), against_best.end());
    return against_best;
}

// Guards against promises that hold only where the pacer's constants were chosen. No text of 500
// tokens or more takes more than 1.02 of the plain time, no scenario more than 1.015; shorter ones
// may take 1.03, as a first try may cost more than was expected of it. Where the best fixed number
// of guesses gains 1.15 or more, the pacer comes within a tenth of it once it may try (an eighth
// when answers are short, as it has to learn), but for one scenario in fifty: a first guess that
// fails by bad luck looks like one that always will.
TEST(DraftPacerScenarios, NoneLosesAndGainsAreFound) {
    for (const auto& [tokens, bound] : {std::pair{200, 1.15}, std::pair{500, 1.12},
                                        std::pair{1500, 1.10}, std::pair{4000, 1.10}}) {
        const std::vector<double> ratios =
            check_scenarios(100000u + static_cast<uint64_t>(tokens), tokens);
        ASSERT_GT(ratios.size(), 40u);
        EXPECT_LE(ratios[ratios.size() - 1 - ratios.size() / 50], bound) << tokens;
        EXPECT_LE(ratios.back(), 1.40) << tokens;
    }
}

}  // namespace
}  // namespace tessera
