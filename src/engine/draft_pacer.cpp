#include "engine/draft_pacer.h"

#include <algorithm>

namespace tessera {
namespace {

constexpr double kBudget = 0.01;       ///< of the elapsed time may be lost,
constexpr double kLimit = 0.018;       ///< so much where drafting pays and its luck ends
constexpr double kGrace = 2.0;         ///< plain steps that cold rounds may lose besides
constexpr int32_t kColdRounds = 2;     ///< of a size: the first, and that which is recorded
constexpr double kCredit = 12.0;       ///< plain steps that gains may pay for later
constexpr double kCreditShare = 0.05;  ///< of the elapsed time, at most, is such credit
constexpr double kHiccup = 1.5;        ///< times typical: what is longer has other reasons
constexpr double kDearest = 4.0;       ///< plain steps that the first round of a size may take
constexpr double kCold = 0.7;          ///< a step this much faster: those before were cold
constexpr double kGuessKept = 0.7;     ///< before anything is known
constexpr double kHope = 0.25;  ///< of the cost per guess of smaller rounds, for further guesses
constexpr double kClearGain = 1.04;     ///< below it drafting is not worth its risk
constexpr double kFollowShare = 0.004;  ///< of a plain step: following a token is cheap
constexpr double kFollowDear = 0.012;   ///< this dear it is seen at once,
constexpr int32_t kFollowTries = 3;     ///< else following so often shows whether it is cheap
constexpr double kFollowGuess = 0.02;   ///< of a guess, for a token, before anything is known
constexpr int32_t kFollowMost = 32;     ///< tokens that the draft block follows before a try
constexpr int32_t kFollowMany = 16;     ///< tokens at a time: of fewer each costs more
constexpr int32_t kFollowFew = 8;       ///< tokens before a try, where following is dear
constexpr int32_t kRateSpan = 12;       ///< guesses that a share leans on
constexpr int32_t kFirstTry = 6;        ///< plain steps before the very first try
constexpr int32_t kRetryFirst = 8;      ///< plain steps between tries, at least
constexpr int32_t kRetryLast = 2048;    ///< and at most
constexpr double kRetryShare = 0.0035;  ///< of the plain steps between them, tries may cost
constexpr double kRetryWon = 0.02;      ///< the same while drafting has won more than it lost
constexpr int32_t kPlainFirst = 1;      ///< rounds between plain steps when drafting begins
constexpr int32_t kPlainLast = 64;      ///< and when it has paid for long
constexpr double kPlainGain = 64.0;     ///< such rounds for a gain of one, fewer for less

}  // namespace

void DraftPacer::Durations::add(double seconds) {
    // Cold ones come first.
    if (count > 0 && count <= kNewest && seconds < kCold * typical) count = 0;
    newest[static_cast<size_t>(count++ % kNewest)] = seconds;
    unused = 0;
    std::array<double, kNewest> sorted = newest;
    const auto end = sorted.begin() + std::min(count, kNewest);
    const auto middle = sorted.begin() + (std::min(count, kNewest) - 1) / 2;
    std::nth_element(sorted.begin(), middle, end);
    typical = *middle;
}

void DraftPacer::Rate::add(bool kept, double before) {
    if (count == 0) {
        value = before;
        count = 1;
    }
    count = std::min(count + 1, kRateSpan);
    value += ((kept ? 1.0 : 0.0) - value) / count;
    unused = 0;
}

DraftPacer::DraftPacer(int32_t most, bool adaptive, double guess_cost)
    : most_(most),
      adaptive_(adaptive),
      guess_cost_(guess_cost),
      rounds_(static_cast<size_t>(most) + 1),
      kept_(static_cast<size_t>(most)),
      grace_(kGrace),
      // Enough that the median is none of the cold ones.
      retry_after_(kFirstTry),
      plain_after_(kPlainFirst) {}

/// What is not known is taken to be as at the distance before.
double DraftPacer::kept_at(int32_t distance) const {
    for (; distance >= 0; --distance)
        if (const Rate& rate = kept_[static_cast<size_t>(distance)]; rate.count > 0)
            return rate.value;
    return kGuessKept;
}

/// A round of a size that is not known is taken to cost as much per further guess as the two next
/// smaller ones differ by; when only one is known, `share` of what its guesses cost; and none to
/// cost more than a larger one.
double DraftPacer::round_seconds(int32_t drafted, double share) const {
    const double plain = plain_.typical;
    double result = plain * (1.0 + guess_cost_ * drafted);
    int32_t known = drafted;
    while (known > 0 && !is_known(known)) --known;
    if (known > 0) {
        const double seconds = rounds_[static_cast<size_t>(known)].typical;
        int32_t smaller = known - 1;
        while (smaller > 0 && !is_known(smaller)) --smaller;
        const double below = smaller > 0 ? rounds_[static_cast<size_t>(smaller)].typical
                                         : seconds - share * (seconds - plain);
        result = seconds + (drafted - known) * std::max(seconds - below, 0.0) / (known - smaller);
    }
    for (int32_t larger = drafted + 1; larger <= most_; ++larger) {
        if (!is_known(larger)) continue;
        const double seconds = rounds_[static_cast<size_t>(larger)].typical;
        const double between = std::max(seconds - plain, 0.0) * drafted / larger;
        result = std::min(result, known == drafted ? seconds : plain + between);
    }
    return result;
}

/// The number of guesses with the most tokens per second; 0 when none is clearly better.
int32_t DraftPacer::best(double* gain) const {
    int32_t best = 0;
    double most = kClearGain / plain_.typical;
    double tokens = 1.0, reached = 1.0;
    for (int32_t n = 1; n <= most_; ++n) {
        reached *= kept_at(n - 1);
        tokens += reached;
        const double speed = tokens / round_seconds(n, kHope);
        if (speed <= most) continue;
        most = speed;
        best = n;
    }
    if (gain != nullptr) *gain = most * plain_.typical;
    return best;
}

int32_t DraftPacer::next() const {
    if (!adaptive_ || most_ == 0) return most_;
    if (!saw_) return 0;
    if (pays_ ? draft_run_ >= plain_after_ : plain_run_ < retry_after_) return 0;
    return affordable(elapsed_);
}

/// Tokens that the draft block takes before a try.
int32_t DraftPacer::catch_up_tokens() const {
    if (follow_.count == 0) return kFollowMany;
    return follow_is_dear() ? kFollowFew : kFollowMost;
}

double DraftPacer::catch_up_seconds() const {
    if (pays_) return 0.0;  // Every round takes its own.
    const double token =
        follow_.count > 0 ? follow_.typical : kFollowGuess * guess_cost_ * plain_.typical;
    return token * catch_up_tokens();
}

/// Guesses that may be risked once so much time has passed.
int32_t DraftPacer::affordable(double elapsed) const {
    int32_t drafted = std::max(best(nullptr), pays_ ? 0 : 1);
    // A round with none of its guesses kept has to fit into what may be lost. Where drafting pays,
    // that is more, if half of the hoped guesses bring it down to what else may be.
    const double plain = plain_.typical;
    const double budget = kBudget * elapsed - loss_ - catch_up_seconds();
    const double limit = pays_ ? kLimit * elapsed - loss_ : budget;
    double hoped = 0.0, reached = 1.0;
    for (int32_t n = 0; n < drafted; ++n) hoped += reached *= kept_at(n);
    const auto dear = [&](int32_t n) {
        const double lost = round_seconds(n, 1.0) - plain;
        return lost > limit || lost - (pays_ ? 0.5 * hoped * plain : 0.0) > budget;
    };
    while (drafted > 0 && dear(drafted)) {
        hoped *= (drafted - 1.0) / drafted;
        --drafted;
        // What is known to be too few guesses would only spend what more of them need.
        if (pays_ && drafted > 0 && is_known(drafted) &&
            (1.0 + hoped) * plain <= rounds_[static_cast<size_t>(drafted)].typical)
            return 0;
    }
    return drafted;
}

bool DraftPacer::follows() const {
    if (most_ == 0) return false;
    if (!adaptive_) return true;
    return follow_.count > 0 && follow_.typical <= kFollowShare * plain_.typical;
}

bool DraftPacer::follow_is_dear() const {
    if (follow_.count == 0) return true;
    const double cheap = follow_.count < kFollowTries ? kFollowDear : kFollowShare;
    return follow_.typical > cheap * plain_.typical;
}

bool DraftPacer::sees() const {
    if (most_ == 0) return false;
    if (!adaptive_) return true;
    if (pays_ || !follow_is_dear()) return true;
    // One more: the state behind the first of them is what the next one is seen with.
    const int32_t steps = catch_up_tokens() + 1;
    return plain_run_ + steps >= retry_after_ && affordable(elapsed_ + steps * plain_.typical) > 0;
}

/// Plain steps between tries of which the cost of one is a small enough share.
int32_t DraftPacer::rarest_try() const {
    const double plain = plain_.typical;
    const double lost = round_seconds(1, 1.0) - plain + catch_up_seconds();
    const double share = loss_ < 0.0 ? kRetryWon : kRetryShare;
    const double steps = lost / std::max(share * plain, 1e-12);
    return static_cast<int32_t>(std::clamp(steps, double{kRetryFirst}, double{kRetryLast}));
}

void DraftPacer::record_follow(double seconds, int32_t tokens) {
    elapsed_ += seconds;
    loss_ += seconds;
    if (tokens >= kFollowMany) follow_.add(seconds / tokens);
}

/// What the first rounds of a size took because they were cold, as far as there is grace for it.
double DraftPacer::forgiven(double seconds, int32_t drafted, int32_t before) {
    if (before >= kColdRounds) return 0.0;
    const double plain = plain_.typical;
    const double beyond = seconds - plain * (1.0 + guess_cost_ * drafted);
    const double granted = std::clamp(beyond, 0.0, grace_ * plain);
    grace_ -= granted / plain;
    return granted;
}

void DraftPacer::record_round(double seconds, int32_t drafted, int32_t kept) {
    ++draft_run_;
    plain_run_ = 0;
    Durations& round = rounds_[static_cast<size_t>(drafted)];
    if (!pays_)  // A new try: what the last one found may no longer hold.
        for (Rate& rate : kept_) rate.count = std::min(rate.count, &rate == kept_.data() ? 1 : 0);
    for (Durations& other : rounds_) {
        if (other.count == 0 || ++other.unused <= other.patience) continue;
        other.count = 0;
        other.patience *= 2;
    }
    for (Rate& rate : kept_)
        if (++rate.unused > kForgetAfter) rate.count = 0;
    const int32_t before = round.count;
    round.add(seconds);
    for (int32_t i = 0; i < drafted && i <= kept; ++i)
        kept_[static_cast<size_t>(i)].add(i < kept, kept_at(i));
    if (plain_.count == 0) return;
    const double plain = plain_.typical;
    // A machine that was busy elsewhere says nothing about drafts.
    const double counted =
        std::min(seconds, kHiccup * (round.count > 1 ? round.typical : kDearest * plain));
    elapsed_ += counted;
    loss_ += counted - forgiven(counted, drafted, before) - plain * (1 + kept);
    loss_ = std::max(loss_, -std::min(kCredit * plain, kCreditShare * elapsed_));
}

void DraftPacer::record(double seconds, int32_t drafted, int32_t kept) {
    saw_ = drafted > 0 || sees();
    if (drafted == 0) {
        plain_.add(seconds);
        // Time that the machine spent elsewhere pays for no tries.
        elapsed_ += std::min(seconds, kHiccup * plain_.typical);
        ++plain_run_;
        draft_run_ = 0;
        if (!pays_) return;
        // Where drafting wins little, what it is compared with has to be known better.
        plain_after_ =
            std::min(4 * plain_after_,
                     std::clamp(static_cast<int32_t>((gain_ - 1.0) * kPlainGain), 2, kPlainLast));
    } else {
        record_round(seconds, std::min(drafted, most_), kept);
        if (plain_.count == 0) return;
    }
    const bool paid = pays_;
    pays_ = best(&gain_) > 0;
    if (pays_) {
        if (!paid) retry_after_ = std::max(retry_after_ / 2, kRetryFirst);
    } else {
        // One right guess may be the first of many; what repeating it may cost, the purse says.
        retry_after_ = kept > 0 ? kRetryFirst : std::min(3 * retry_after_, rarest_try());
        plain_after_ = kPlainFirst;
    }
}

}  // namespace tessera
