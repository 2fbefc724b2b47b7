#pragma once
// How many tokens to draft next. Drafting pays when enough guesses are kept; when they are not, it
// may cost at most a hundredth of the time spent on the answer so far and a little of what it has
// won, so that an answer is never noticeably slower than without: nothing is tried before that
// purse pays for it with every guess refused. So the first try waits, the longer the more it is
// expected to cost; only what it and the next ones cost beyond that because they run with cold
// caches is forgiven, two plain steps of it. What is done only so that somebody may draft later
// (the draft block follows the tokens) comes out of the same purse.
//
// Plain steps and rounds of each size are compared by the median of their newest durations: a mean
// would take the first steps, which run with cold caches, for the speed of the model and every
// draft for a gain. Plain steps are measured again and again while drafting pays, the more often
// the less it gains, and tries that fail are repeated at growing intervals, up to where what they
// cost is next to nothing. Numbers of guesses that were not tried are hoped to be cheap, so that
// they are tried once when there is something to lose.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera {

/// Decides from what is recorded alone: the same records give the same decisions.
class DraftPacer {
  public:
    /// `most`: tokens that may be drafted at a time. `adaptive` false: always that many.
    /// `guess_cost`: what a round with one guess is expected to take beyond a plain step, in plain
    /// steps.
    DraftPacer(int32_t most, bool adaptive, double guess_cost);

    /// Tokens to draft in the next round; 0: a plain step, also behind one that was not seen.
    int32_t next() const;
    /// A round took `seconds`, was to guess `drafted` tokens and kept `kept` of them (for several
    /// sequences: the least of any).
    void record(double seconds, int32_t drafted, int32_t kept);

    /// Whether the draft block should follow generated tokens though nobody drafts: where that is
    /// known to cost next to nothing.
    bool follows() const;
    /// Whether the draft block has to see the token of the next plain step: where following is
    /// dear, only the last ones before a try; none when nobody may draft.
    bool sees() const;
    /// The draft block followed `tokens` in `seconds`, which are no part of a round.
    void record_follow(double seconds, int32_t tokens);

  private:
    static constexpr int32_t kNewest = 13;
    static constexpr int32_t kForgetAfter = 48;  ///< so that old bad luck does not last
    /// The newest durations of one kind of round.
    struct Durations {
        std::array<double, kNewest> newest{};
        int32_t count = 0;                ///< ever added; 0 again: forgotten
        int32_t unused = 0;               ///< drafting rounds since the last one of this kind
        int32_t patience = kForgetAfter;  ///< such rounds before it is forgotten
        double typical = 0.0;             ///< their median
        void add(double seconds);
    };
    /// Share of guesses kept at one distance, once reached; leans on new values.
    struct Rate {
        double value = 0.0;
        int32_t count = 0;
        int32_t unused = 0;
        void add(bool kept, double before);
    };
    bool is_known(int32_t size) const { return rounds_[static_cast<size_t>(size)].count > 0; }
    double kept_at(int32_t distance) const;
    double round_seconds(int32_t drafted, double share) const;
    double catch_up_seconds() const;
    int32_t catch_up_tokens() const;
    double forgiven(double seconds, int32_t drafted, int32_t before);
    int32_t best(double* gain) const;
    int32_t affordable(double elapsed) const;
    bool follow_is_dear() const;
    int32_t rarest_try() const;
    void record_round(double seconds, int32_t drafted, int32_t kept);

    int32_t most_;
    bool adaptive_;
    double guess_cost_;
    Durations plain_;
    Durations follow_;               ///< of one of many tokens
    std::vector<Durations> rounds_;  ///< by their number of guesses
    std::vector<Rate> kept_;         ///< by distance
    double elapsed_ = 0.0;           ///< without what the machine spent elsewhere
    double loss_ = 0.0;              ///< time lost against plain steps and not won back
    double grace_;                   ///< plain steps that cold rounds may still cost besides
    double gain_ = 1.0;              ///< of the best number of guesses, times the plain speed
    bool pays_ = false;              ///< the last try did
    bool saw_ = true;                ///< the draft block sees the newest token
    int32_t plain_run_ = 0;          ///< plain steps since the last drafting round
    int32_t draft_run_ = 0;          ///< drafting rounds since the last plain step
    int32_t retry_after_;            ///< plain steps before the next try
    int32_t plain_after_;            ///< drafting rounds before the next plain step
};

}  // namespace tessera
