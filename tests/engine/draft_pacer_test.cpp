// The pacing of drafts in simulated time.
#include "engine/draft_pacer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

namespace tessera {
namespace {

/// A model as the pacer sees it. Times are in warm plain steps at the start of the answer.
struct Model {
    double fixed = 0.05;            ///< what a drafting round costs beyond a plain step
    double per_guess = 0.2;         ///< and what each guess adds
    std::vector<double> cold = {};  ///< what the first steps cost, guesses apart
    double cold_round = 1.0;        ///< factor on the first drafting round
    double expected = 1.0;          ///< what a guess is taken to cost at first, times what it does
    double noise = 0.0;             ///< each duration is off by up to this share
    double drift = 0.0;             ///< growth of all durations over 1000 tokens
    std::function<double(int32_t)> kept = [](int32_t) { return 0.0; };  ///< by tokens made

    DraftPacer pacer(int32_t most) const { return {most, true, expected * (fixed + per_guess)}; }
};

/// What came of an answer of some tokens.
struct Outcome {
    double seconds = 0.0;
    double plain_seconds = 0.0;  ///< had every token taken a plain step
    double dearest = 0.0;        ///< round
    int32_t rounds = 0;          ///< of drafting
    int32_t first_half = 0;      ///< of them before half of the tokens were made
};

class Simulation {
  public:
    Simulation(const Model& model, uint32_t seed)
        : model_(model), random_(seed * 2654435761u + 1) {}

    /// Without a pacer: `fixed_drafts` guesses in every round.
    Outcome run(DraftPacer* pacer, int32_t fixed_drafts, int32_t tokens) {
        Outcome out;
        int32_t steps = 0;
        for (int32_t made = 0; made < tokens; ++steps) {
            const int32_t drafted = pacer != nullptr ? pacer->next() : fixed_drafts;
            int32_t kept = 0;
            while (kept < drafted && uniform() < model_.kept(made)) ++kept;
            const auto step = static_cast<size_t>(steps);
            double seconds = step < model_.cold.size() ? model_.cold[step] : 1.0;
            if (drafted > 0) {
                seconds += model_.fixed + model_.per_guess * drafted;
                if (out.rounds++ == 0) seconds *= model_.cold_round;
            }
            out.first_half += drafted > 0 && made < tokens / 2 ? 1 : 0;
            const double grown = 1.0 + model_.drift * made / 1000.0;
            seconds *= grown * (1.0 + model_.noise * (2.0 * uniform() - 1.0));
            if (drafted > 0) out.dearest = std::max(out.dearest, seconds);
            out.seconds += seconds;
            for (int32_t i = 0; i <= kept; ++i) out.plain_seconds += plain_seconds(made + i);
            made += kept + 1;
            if (pacer != nullptr) pacer->record(seconds, drafted, kept);
        }
        return out;
    }

  private:
    double uniform() {
        random_ = random_ * 6364136223846793005u + 1442695040888963407u;
        return static_cast<double>(random_ >> 40) * 0x1p-24;
    }
    double plain_seconds(int32_t token) const {
        const auto step = static_cast<size_t>(token);
        const double cold = step < model_.cold.size() ? model_.cold[step] : 1.0;
        return cold * (1.0 + model_.drift * token / 1000.0);
    }

    const Model& model_;
    uint64_t random_;
};

std::function<double(int32_t)> always(double share) {
    return [share](int32_t) { return share; };
}

constexpr uint32_t kSeeds = 20;

/// Fails unless every answer takes at most 1.01 of the plain time and one round.
void expect_no_loss(const Model& model, int32_t most, const std::string& what) {
    for (const int32_t tokens : {200, 1000})
        for (uint32_t seed = 0; seed < kSeeds / 4; ++seed) {
            DraftPacer pacer = model.pacer(most);
            const Outcome out = Simulation(model, seed).run(&pacer, 0, tokens);
            // Of the noise, the share that does not average out.
            const double noise = 1.8 * model.noise * std::sqrt(out.plain_seconds);
            EXPECT_LE(out.seconds, 1.01 * out.plain_seconds + out.dearest + noise)
                << what << ", most " << most << ", " << tokens << " tokens, seed " << seed;
        }
}

const std::vector<double> kCold = {6.0, 3.0, 2.0, 1.3};

// Guards against drafting that slows an answer down, whatever a guess costs, however often it is
// right, and however slow the first steps are.
TEST(DraftPacer, NeverLosesMoreThanTwoPercent) {
    for (const double per_guess : {0.01, 0.1, 0.3, 0.6, 1.0, 2.0, 4.0})
        for (const double kept : {0.0, 0.3, 0.6, 0.9})
            for (const double noise : {0.0, 0.2})
                for (const double drift : {0.0, 0.5, -0.3})
                    for (const int32_t most : {1, 3, 8}) {
                        const Model model{.per_guess = per_guess,
                                          .cold = kCold,
                                          .cold_round = 2.0,
                                          .noise = noise,
                                          .drift = drift,
                                          .kept = always(kept)};
                        expect_no_loss(model, most,
                                       std::to_string(per_guess) + " a guess, kept " +
                                           std::to_string(kept) + ", noise " +
                                           std::to_string(noise) + ", drift " +
                                           std::to_string(drift));
                    }
}

// Guards against a plain speed taken from cold steps: a model so small that a round costs 3 to 5
// steps, none of its guesses right. The mean of two cold steps made such rounds look cheap, and 8
// in a row took 3316 tokens/s down to 2081.
TEST(DraftPacer, ColdStepsDoNotMakeFailingDraftsLookCheap) {
    for (const double fixed : {2.0, 3.0, 4.0})
        for (const auto& cold : {std::vector<double>{5.0, 4.0}, std::vector<double>{9.0, 4.0, 2.0},
                                 std::vector<double>(6, 3.0)}) {
            const Model model{.fixed = fixed, .per_guess = 0.3, .cold = cold, .noise = 0.2};
            for (uint32_t seed = 0; seed < kSeeds; ++seed) {
                DraftPacer pacer = model.pacer(3);
                EXPECT_LE(Simulation(model, seed).run(&pacer, 0, 256).rounds, 3) << fixed;
            }
            expect_no_loss(model, 3, "a tiny model");
        }
}

// Guards against a pacer that gives up where drafting pays: where the best number of guesses gains
// much, within a tenth of it, and elsewhere no loss; also when the first guesses fail or a round
// has costs that only more guesses make up for.
TEST(DraftPacer, ComesCloseToTheBestNumberOfGuesses) {
    for (const double kept : {0.7, 0.9, 0.97})
        for (const double per_guess : {0.05, 0.15, 0.3, 0.5})
            for (const double fixed : {0.0, 0.3, 0.6})
                for (const double noise : {0.0, 0.2}) {
                    const Model model{.fixed = fixed,
                                      .per_guess = per_guess,
                                      .cold = kCold,
                                      .noise = noise,
                                      .kept = always(kept)};
                    double plain = 0.0, best = 1e9, paced = 0.0;
                    for (int32_t drafts = 0; drafts <= 5; ++drafts) {
                        double seconds = 0.0;
                        for (uint32_t seed = 0; seed < kSeeds; ++seed)
                            seconds += Simulation(model, seed).run(nullptr, drafts, 600).seconds;
                        if (drafts == 0) plain = seconds;
                        best = std::min(best, seconds);
                    }
                    for (uint32_t seed = 0; seed < kSeeds; ++seed) {
                        DraftPacer pacer = model.pacer(5);
                        paced += Simulation(model, seed).run(&pacer, 0, 600).seconds;
                    }
                    // Before its first try it waits until that may cost a hundredth.
                    const double waited = 1.32 * 100.0 * (fixed + per_guess) / 600.0;
                    const double after = waited * plain + (1.0 - waited) * best;
                    const double allowed = best < plain / 1.6 ? 1.10 * after : 1.02 * plain;
                    EXPECT_LE(paced, allowed)
                        << kept << " kept, " << fixed << " + " << per_guess << ", noise " << noise;
                }
}

// Guards against a pacer that holds on to what it learned: guesses that stop being right cost next
// to nothing, and guesses that become right are found again.
TEST(DraftPacer, FollowsAChangeInTheMiddle) {
    for (const double per_guess : {0.1, 0.3})
        for (uint32_t seed = 0; seed < kSeeds; ++seed) {
            const Model falls{.per_guess = per_guess, .noise = 0.2, .kept = [](int32_t made) {
                                  return made < 500 ? 0.9 : 0.0;
                              }};
            const Model half{.per_guess = per_guess, .noise = 0.2, .kept = always(0.9)};
            DraftPacer falling = falls.pacer(3), first = half.pacer(3);
            const double after = Simulation(falls, seed).run(&falling, 0, 1000).seconds -
                                 Simulation(half, seed).run(&first, 0, 500).seconds;
            EXPECT_LE(after, 1.02 * 500 + 10.0) << per_guess << " seed " << seed;
            const Model rises{.per_guess = per_guess, .noise = 0.2, .kept = [](int32_t made) {
                                  return made < 500 ? 0.0 : 0.9;
                              }};
            DraftPacer rising = rises.pacer(3);
            const Outcome out = Simulation(rises, seed).run(&rising, 0, 1500);
            EXPECT_LE(out.seconds, 0.9 * out.plain_seconds) << per_guess << " seed " << seed;
            EXPECT_LE(out.first_half, out.rounds / 2);
        }
}

// Guards against work for drafts that never come: a model that follows at a price sees only the
// tokens before the tries, one that follows for nothing all of them, and where nobody may draft
// none is seen.
TEST(DraftPacer, TokensAreSeenWhereThatIsCheapOrATryIsNear) {
    const auto seen_of = [](double follow, int32_t most, bool* follows) {
        DraftPacer pacer(most, true, 0.5);
        int32_t seen = 0, waiting = 0;
        for (int32_t made = 0; made < 1000; ++made) {
            const int32_t drafted = pacer.next();
            if (drafted > 0 || (waiting == 32 && pacer.follows())) {
                if (waiting > 0) pacer.record_follow(follow * waiting, waiting);
                waiting = 0;
            }
            const bool sees = drafted > 0 || pacer.sees();
            seen += sees ? 1 : 0;
            waiting = sees && drafted == 0 ? std::min(waiting + 1, 32) : 0;
            pacer.record(1.0 + 0.5 * drafted, drafted, 0);
        }
        *follows = pacer.follows();
        return seen;
    };
    bool follows = false;
    for (const double dear : {0.02, 0.1}) {
        const int32_t seen = seen_of(dear, 3, &follows);
        EXPECT_LE(seen, 120) << dear;
        EXPECT_GE(seen, 32) << dear;
        EXPECT_FALSE(follows) << dear;
    }
    EXPECT_GE(seen_of(0.001, 3, &follows), 950);
    EXPECT_TRUE(follows);
    EXPECT_EQ(seen_of(0.001, 0, &follows), 0);
    EXPECT_FALSE(follows);
}

// Guards against tries that nothing has paid for: at no token have refused guesses cost more than a
// hundredth of the time so far, or 0.018 of it where they are so cheap that one in three would pay.
TEST(DraftPacer, RefusedGuessesNeverCostMoreThanAHundredth) {
    for (const double cost : {0.05, 0.3, 1.0, 3.0}) {
        DraftPacer pacer(3, true, cost);
        double elapsed = 0.0;
        int32_t rounds = 0, waiting = 0;
        for (int32_t made = 0; made < 3000; ++made) {
            const int32_t drafted = pacer.next();
            if (drafted > 0) {
                pacer.record_follow(0.01 * cost * waiting, waiting);
                elapsed += 0.01 * cost * waiting;
                ++rounds;
            }
            waiting = drafted == 0 && pacer.sees() ? std::min(waiting + 1, 32) : 0;
            elapsed += 1.0 + cost * drafted;
            pacer.record(1.0 + cost * drafted, drafted, 0);
            ASSERT_LE(elapsed, (cost < 0.5 ? 1.0181 : 1.0101) * (made + 1)) << cost << ", " << made;
        }
        EXPECT_GE(rounds, 4) << cost;
    }
}

// Guards against a purse that stays empty: guesses of a model whose tries are dear that become
// right after a thousand tokens without luck still win, and so do cheap ones.
TEST(DraftPacer, LateLuckIsFound) {
    for (const double fixed : {0.1, 0.5, 1.0})
        for (uint32_t seed = 0; seed < kSeeds; ++seed) {
            const Model late{.fixed = fixed,
                             .per_guess = 0.1,
                             .cold = kCold,
                             .noise = 0.1,
                             .kept = [](int32_t made) { return made < 1000 ? 0.0 : 0.95; }};
            DraftPacer pacer = late.pacer(4);
            const Outcome out = Simulation(late, seed).run(&pacer, 0, 2000);
            EXPECT_LE(out.seconds, (fixed < 1.0 ? 0.85 : 0.95) * out.plain_seconds)
                << fixed << " seed " << seed;
            EXPECT_LE(out.first_half, 50) << fixed << " seed " << seed;
        }
}

// The same records give the same decisions, and without adaptation nothing is decided.
TEST(DraftPacer, FixedNumbersStay) {
    DraftPacer fixed(3, false, 1.0), none(0, true, 1.0);
    for (int i = 0; i < 20; ++i) {
        EXPECT_EQ(fixed.next(), 3);
        EXPECT_EQ(none.next(), 0);
        fixed.record(1.0, 3, 0);
        none.record(1.0, 0, 0);
    }
}

}  // namespace
}  // namespace tessera
