#include <gtest/gtest.h>

#include "tools/run_text.h"

namespace tessera {
namespace {

// Guards against rates that count cached tokens or the first answer token, which cost no pass.
TEST(StatsLine, CountsWhatWasRun) {
    GenerateResult result;
    result.prompt_tokens = 1234;
    result.cached_tokens = 236;
    result.prompt_seconds = 0.1;
    result.generated.assign(128, 1);
    result.steps = 127;
    result.generate_seconds = 2;
    result.finish = FinishReason::kEnd;
    EXPECT_EQ(stats_line(result),
              "prompt 1234 tok (236 cached) 9,980 t/s | gen 128 tok 63.5 t/s | 2.1 s");
    result.finish = FinishReason::kCancelled;
    EXPECT_NE(stats_line(result).find("interrupted"), std::string::npos);
}

// Guards against a rate of passes where tokens are meant, and reports what drafting did.
TEST(StatsLine, SaysWhatDraftingDid) {
    GenerateResult result;
    result.prompt_tokens = 10;
    result.generated.assign(41, 1);
    result.steps = 25;
    result.generate_seconds = 2;
    result.drafted = 40;
    result.accepted = 15;
    result.accepted_lengths = {8, 9, 3};
    EXPECT_EQ(
        stats_line(result),
        "prompt 10 tok | gen 41 tok 20.0 t/s | drafts 15 of 40 right (38%), rounds with 0, 1, "
        "... right: 8 9 3, 1.60 tok a pass | 2.0 s | length");
}

// Guards against the rate of a whole prompt for one that was stopped in the middle.
TEST(StatsLine, CancelledPromptHasNoRate) {
    GenerateResult result;
    result.prompt_tokens = 5000;
    result.prompt_seconds = 1;
    result.finish = FinishReason::kCancelled;
    EXPECT_EQ(stats_line(result), "prompt 5000 tok | gen 0 tok | 1.0 s | interrupted");
}

// Guards against a division by zero on the line of a prompt that ended at once.
TEST(StatsLine, NothingGenerated) {
    GenerateResult result;
    result.prompt_tokens = 5;
    result.cached_tokens = 5;
    EXPECT_EQ(stats_line(result), "prompt 5 tok (5 cached) | gen 0 tok | 0.0 s | length");
}

TEST(RateDigits, GroupsThousands) {
    EXPECT_EQ(rate_digits(82.84), "82.8");
    EXPECT_EQ(rate_digits(999.4), "999.4");
    EXPECT_EQ(rate_digits(8860.2), "8,860");
    EXPECT_EQ(rate_digits(1234567.0), "1,234,567");
    EXPECT_EQ(rate_digits(1e9 / 0.0), "-");
}

}  // namespace
}  // namespace tessera
