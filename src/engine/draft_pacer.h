#pragma once
// How many tokens to draft next. Drafting pays when enough guesses are kept; when they are not, it
// may cost at most a hundredth of the time spent on the answer and one plain step, so that an
// answer is never noticeably slower than without.

#include <cstdint>
#include <vector>

namespace tessera {

class DraftPacer {
  public:
    /// `most`: tokens that may be drafted at a time. `adaptive` false: always that many.
    DraftPacer(int32_t most, bool adaptive);

    /// Tokens to draft in the next round; 0: a plain step.
    int32_t next() const;
    /// A round took `seconds`, guessed `drafted` tokens and kept `kept` of them (for one sequence,
    /// or their averages).
    void record(double seconds, int32_t drafted, int32_t kept);

  private:
    /// A running mean that leans on new values.
    struct Mean {
        double value = 0.0;
        int32_t count = 0;
        void add(double sample);
    };
    double round_seconds(int32_t drafted) const;
    double tokens_per_second(int32_t drafted) const;

    int32_t most_;
    bool adaptive_;
    Mean plain_;
    std::vector<Mean> seconds_;  ///< of rounds by their number of guesses
    std::vector<Mean> kept_;     ///< share of guesses kept at each distance, once reached
    double elapsed_ = 0.0;
    double loss_ = 0.0;  ///< time lost against plain steps and not won back
    int32_t idle_ = 0;   ///< plain steps since the last drafting round
};

}  // namespace tessera
