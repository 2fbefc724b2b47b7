#include "engine/draft_pacer.h"

#include <algorithm>

namespace tessera {
namespace {

constexpr int32_t kPlainFirst = 2;       ///< plain steps before anything is compared
constexpr double kBudget = 0.01;         ///< of the elapsed time may be lost
constexpr double kGuessKept = 0.7;       ///< before anything is known
constexpr double kGuessDraftCost = 0.5;  ///< of a plain step, for a guess and its verification
constexpr int32_t kRetryAfter = 16;      ///< plain steps before drafting is tried again

}  // namespace

void DraftPacer::Mean::add(double sample) {
    count = std::min(count + 1, 8);
    value += (sample - value) / count;
}

DraftPacer::DraftPacer(int32_t most, bool adaptive)
    : most_(most),
      adaptive_(adaptive),
      seconds_(static_cast<size_t>(most) + 1),
      kept_(static_cast<size_t>(most)) {}

double DraftPacer::round_seconds(int32_t drafted) const {
    const Mean& known = seconds_[static_cast<size_t>(drafted)];
    if (known.count > 0) return known.value;
    return plain_.value * (1.0 + kGuessDraftCost * drafted);
}

double DraftPacer::tokens_per_second(int32_t drafted) const {
    double tokens = 1.0, reached = 1.0;
    for (int32_t i = 0; i < drafted; ++i) {
        const Mean& kept = kept_[static_cast<size_t>(i)];
        reached *= kept.count > 0 ? kept.value : kGuessKept;
        tokens += reached;
    }
    return tokens / (drafted == 0 ? plain_.value : round_seconds(drafted));
}

int32_t DraftPacer::next() const {
    if (!adaptive_ || most_ == 0) return most_;
    if (plain_.count < kPlainFirst) return 0;
    int32_t best = 0;
    for (int32_t n = 1; n <= most_; ++n)
        if (tokens_per_second(n) > tokens_per_second(best)) best = n;
    if (best == 0 && idle_ >= kRetryAfter) best = 1;
    // The worst case, nothing kept, has to fit into what may be lost.
    const double allowed = kBudget * elapsed_ + plain_.value;
    while (best > 0 && loss_ + round_seconds(best) - plain_.value > allowed) --best;
    return best;
}

void DraftPacer::record(double seconds, int32_t drafted, int32_t kept) {
    elapsed_ += seconds;
    if (drafted == 0) {
        plain_.add(seconds);
        ++idle_;
        return;
    }
    idle_ = 0;
    drafted = std::min(drafted, most_);
    seconds_[static_cast<size_t>(drafted)].add(seconds);
    for (int32_t i = 0; i < drafted && i <= kept; ++i)
        kept_[static_cast<size_t>(i)].add(i < kept ? 1.0 : 0.0);
    loss_ = std::max(loss_ + seconds - plain_.value * (1 + kept), 0.0);
}

}  // namespace tessera
