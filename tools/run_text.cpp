#include "tools/run_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

namespace tessera {

std::string rate_digits(double per_second) {
    if (!std::isfinite(per_second)) return "-";
    if (per_second < 999.5) return fmt::format("{:.1f}", per_second);
    std::string digits = fmt::format("{:.0f}", per_second);
    for (size_t place = digits.size(); place > 3; place -= 3) digits.insert(place - 3, 1, ',');
    return digits;
}

std::string stats_line(const GenerateResult& result) {
    std::string text = fmt::format("prompt {} tok", result.prompt_tokens);
    if (result.cached_tokens > 0) text += fmt::format(" ({} cached)", result.cached_tokens);
    const int32_t fresh = result.prompt_tokens - result.cached_tokens;
    // How much of a cancelled prompt was run is not known here.
    const bool whole = result.finish != FinishReason::kCancelled || !result.generated.empty();
    if (whole && fresh > 0 && result.prompt_seconds > 0)
        text += fmt::format(" {} t/s", rate_digits(fresh / result.prompt_seconds));
    text += fmt::format(" | gen {} tok", result.generated.size());
    // The first token comes with the prompt.
    const auto later = static_cast<double>(std::ssize(result.generated) - 1);
    if (later > 0 && result.generate_seconds > 0)
        text += fmt::format(" {} t/s", rate_digits(later / result.generate_seconds));
    if (result.drafted > 0)
        text += fmt::format(
            " | drafts {} of {} right ({:.0f}%), rounds with 0, 1, ... right: {}, "
            "{:.2f} tok a pass",
            result.accepted, result.drafted, 100.0 * result.accepted / result.drafted,
            fmt::join(result.accepted_lengths, " "), later / result.steps);
    text += fmt::format(" | {:.1f} s", result.prompt_seconds + result.generate_seconds);
    if (result.finish == FinishReason::kCancelled) text += " | interrupted";
    if (result.finish == FinishReason::kLength) text += " | length";
    return text;
}

}  // namespace tessera
