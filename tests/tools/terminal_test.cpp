// What progress looks like: numbers that a person can trust, never wider than the terminal.

#include "tools/terminal.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Terminal, BytesHaveThreeDigits) {
    EXPECT_EQ(bytes_text(0), "0 B");
    EXPECT_EQ(bytes_text(999), "999 B");
    EXPECT_EQ(bytes_text(1000), "1.00 kB");
    EXPECT_EQ(bytes_text(12345), "12.3 kB");
    EXPECT_EQ(bytes_text(999600), "1.00 MB");
    EXPECT_EQ(bytes_text(768e6), "768 MB");
    EXPECT_EQ(bytes_text(4.2e15), "4200 TB");
}

TEST(Terminal, Durations) {
    EXPECT_EQ(duration_text(0.4), "0:00");
    EXPECT_EQ(duration_text(59.6), "1:00");
    EXPECT_EQ(duration_text(754), "12:34");
    EXPECT_EQ(duration_text(10800), "3:00:00");
}

TEST(Terminal, ProgressShowsShareRateAndTimeLeft) {
    EXPECT_EQ(
        progress_text("loading", ProgressUnit::kBytes, 250000000, 1000000000, 0.5, 100),
        "loading [#######.......................]  25%  250 MB of 1.00 GB  500 MB/s  0:02 left")
        << "the bar is at most 30 wide";
    EXPECT_EQ(progress_text("prompt", ProgressUnit::kTokens, 512, 512, 2.0, 80),
              "prompt [##############################] 100%  512 tok of 512 tok  256 tok/s");
}

// Guards against a line that wraps and then scrolls the terminal at every redraw.
TEST(Terminal, ProgressNeverExceedsTheWidth) {
    for (int width = 1; width < 120; ++width) {
        for (const int64_t done : {int64_t{0}, int64_t{123456789}, int64_t{999999999999}}) {
            const std::string text =
                progress_text("quantizing blk.17.ffn_down.weight", ProgressUnit::kBytes, done,
                              999999999999, 3.0, width);
            EXPECT_LE(text.size(), static_cast<size_t>(width));
        }
    }
}

}  // namespace
}  // namespace tessera
