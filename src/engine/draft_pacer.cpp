#include "engine/draft_pacer.h"

#include <algorithm>

namespace tessera {
namespace {

constexpr double kBudget = 0.01;         ///< of the elapsed time may be lost
constexpr double kCredit = 3.0;          ///< plain steps that gains may pay for later
constexpr double kCold = 0.7;            ///< a step this much faster: those before were cold
constexpr double kGuessKept = 0.7;       ///< before anything is known
constexpr double kGuessDraftCost = 0.5;  ///< of a plain step, for a guess and its verification
constexpr double kClearGain = 1.03;      ///< below it drafting is not worth its risk
constexpr int32_t kRateSpan = 12;        ///< guesses that a share leans on
constexpr int32_t kForgetAfter = 48;     ///< drafting rounds, so that old bad luck does not last
constexpr int32_t kRetryFirst = 8;       ///< plain steps between tries, at least
constexpr int32_t kRetryLast = 256;      ///< and at most
constexpr int32_t kPlainFirst = 1;       ///< rounds between plain steps when drafting begins
constexpr int32_t kPlainLast = 64;       ///< and when it has paid for long

}  // namespace

void DraftPacer::Durations::add(double seconds) {
    if (count > 0 && seconds < kCold * typical()) count = 0;
    newest[static_cast<size_t>(count++ % kNewest)] = seconds;
    unused = 0;
}

double DraftPacer::Durations::typical() const {
    std::vector<double> sorted(newest.begin(), newest.begin() + std::min(count, kNewest));
    std::sort(sorted.begin(), sorted.end());
    return sorted[(sorted.size() - 1) / 2];
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

DraftPacer::DraftPacer(int32_t most, bool adaptive)
    : most_(most),
      adaptive_(adaptive),
      rounds_(static_cast<size_t>(most) + 1),
      kept_(static_cast<size_t>(most)),
      // One more than the median looks at: the very first step is no measure.
      retry_after_(kNewest + 1),
      plain_after_(kPlainFirst) {}

/// What is not known is taken to be as at the distance before.
double DraftPacer::kept_at(int32_t distance) const {
    for (; distance >= 0; --distance)
        if (const Rate& rate = kept_[static_cast<size_t>(distance)]; rate.count > 0)
            return rate.value;
    return kGuessKept;
}

/// A round of a size that is not known is taken to cost half as much per further guess as the
/// smaller ones did: a part of their cost comes once a round, and one try will tell.
double DraftPacer::round_seconds(int32_t drafted) const {
    const double plain = plain_.typical();
    for (int32_t known = drafted; known > 0; --known) {
        const Durations& round = rounds_[static_cast<size_t>(known)];
        if (round.count == 0) continue;
        const double seconds = round.typical();
        return seconds + (drafted - known) * 0.5 * std::max(seconds - plain, 0.0) / known;
    }
    return plain * (1.0 + kGuessDraftCost * drafted);
}

/// The number of guesses with the most tokens per second; 0 when none is clearly better.
int32_t DraftPacer::best() const {
    int32_t best = 0;
    double most = kClearGain / plain_.typical();
    double tokens = 1.0, reached = 1.0;
    for (int32_t n = 1; n <= most_; ++n) {
        reached *= kept_at(n - 1);
        tokens += reached;
        const double speed = tokens / round_seconds(n);
        if (speed <= most) continue;
        most = speed;
        best = n;
    }
    return best;
}

int32_t DraftPacer::next() const {
    if (!adaptive_ || most_ == 0) return most_;
    if (pays_ ? draft_run_ >= plain_after_ : plain_run_ < retry_after_) return 0;
    int32_t drafted = std::max(best(), pays_ ? 0 : 1);
    // The worst case, nothing kept, has to fit into what may be lost.
    const double plain = plain_.typical();
    const double allowed = kBudget * elapsed_ + plain;
    while (drafted > 0 && loss_ + round_seconds(drafted) - plain > allowed) --drafted;
    return drafted;
}

void DraftPacer::record_round(double seconds, int32_t drafted, int32_t kept) {
    ++draft_run_;
    plain_run_ = 0;
    if (!pays_)  // A new try: what the last one found may no longer hold.
        for (Rate& rate : kept_) rate.count = std::min(rate.count, &rate == kept_.data() ? 1 : 0);
    for (Durations& round : rounds_)
        if (++round.unused > kForgetAfter) round.count = 0;
    for (Rate& rate : kept_)
        if (++rate.unused > kForgetAfter) rate.count = 0;
    rounds_[static_cast<size_t>(drafted)].add(seconds);
    for (int32_t i = 0; i < drafted && i <= kept; ++i)
        kept_[static_cast<size_t>(i)].add(i < kept, kept_at(i));
    if (plain_.count == 0) return;
    const double plain = plain_.typical();
    loss_ = std::max(loss_ + seconds - plain * (1 + kept), -kCredit * plain);
}

void DraftPacer::record(double seconds, int32_t drafted, int32_t kept) {
    elapsed_ += seconds;
    if (drafted == 0) {
        plain_.add(seconds);
        ++plain_run_;
        draft_run_ = 0;
        if (!pays_) return;
        plain_after_ = std::min(4 * plain_after_, kPlainLast);
    } else {
        record_round(seconds, std::min(drafted, most_), kept);
        if (plain_.count == 0) return;
    }
    const bool paid = pays_;
    pays_ = best() > 0;
    if (pays_) {
        if (!paid) retry_after_ = std::max(retry_after_ / 2, kRetryFirst);
    } else {
        retry_after_ = std::min(2 * retry_after_, kRetryLast);
        plain_after_ = kPlainFirst;
    }
}

}  // namespace tessera
