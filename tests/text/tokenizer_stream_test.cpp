// Guards against stop strings that leak, are missed or lose text (faults A2, A3) and against
// characters cut in two.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace tessera {
namespace {

/// What the user must see in all: the text up to where the earliest stop string begins.
std::string cut(const std::string& text, const std::vector<std::string>& stops) {
    size_t end = text.size();
    for (const std::string& stop : stops) {
        if (!stop.empty()) end = std::min(end, text.find(stop));
    }
    return text.substr(0, end);
}

std::string stream(const std::vector<std::string>& parts, const std::vector<std::string>& stops) {
    TextStream text_stream(stops);
    std::string shown;
    for (const std::string& part : parts) shown += text_stream.push(part);
    return shown + text_stream.finish();
}

TEST(TokenizerStream, EverySplitOfAStopString) {
    const std::string text = "Hello </end> world";
    for (size_t a = 0; a <= text.size(); ++a) {
        for (size_t b = a; b <= text.size(); ++b) {
            EXPECT_EQ(
                stream({text.substr(0, a), text.substr(a, b - a), text.substr(b)}, {"</end>"}),
                "Hello ");
        }
    }
}

TEST(TokenizerStream, StreamIsTheCutTextForRandomStopsAndSplits) {
    std::mt19937 random(5);
    const auto letters = [&](size_t most) {
        std::string text;
        for (size_t i = random() % most; i > 0; --i) text += "aab"[random() % 3];
        return text;
    };
    for (int round = 0; round < 20000; ++round) {
        const std::string text = letters(24);
        std::vector<std::string> stops;
        for (size_t i = random() % 4; i > 0; --i) stops.push_back(letters(7));
        std::vector<std::string> parts;
        for (size_t at = 0; at < text.size();) {
            parts.push_back(text.substr(at, random() % 5));
            at += parts.back().size();
        }
        ASSERT_EQ(stream(parts, stops), cut(text, stops)) << text;
    }
}

TEST(TokenizerStream, HoldsNoMoreThanItMust) {
    TextStream text_stream({"<stop>"});
    EXPECT_EQ(text_stream.push("abc"), "abc");
    EXPECT_EQ(text_stream.push("d<st"), "d");
    EXPECT_EQ(text_stream.push("x<"), "<stx");
    EXPECT_EQ(text_stream.push("<"), "<");
    EXPECT_EQ(text_stream.push("stop"), "");
    EXPECT_FALSE(text_stream.stopped());
    EXPECT_EQ(text_stream.push(">tail"), "");
    EXPECT_TRUE(text_stream.stopped());
    EXPECT_EQ(text_stream.push("more"), "");
    EXPECT_EQ(text_stream.finish(), "");
}

TEST(TokenizerStream, FinishGivesWhatWasHeld) {
    TextStream text_stream({"<stop>", ""});
    EXPECT_EQ(text_stream.push("a<sto"), "a");
    EXPECT_EQ(text_stream.finish(), "<sto");
    EXPECT_FALSE(text_stream.stopped());
}

TEST(TokenizerStream, AStopThatBeginsEarlierIsWaitedFor) {
    EXPECT_EQ(stream({"xabc", "d"}, {"abcd", "bc"}), "x");
    EXPECT_EQ(stream({"xabc", "e"}, {"abcd", "bc"}), "xa");
    TextStream open({"abcd", "bc"});
    EXPECT_EQ(open.push("xabc"), "x");
    EXPECT_EQ(open.finish(), "a");
    EXPECT_TRUE(open.stopped());
}

TEST(TokenizerStream, CharactersComeWhole) {
    // One, two, three and four bytes, a stop string of the last two.
    const std::string text = "z\xC3\xA9\xE4\xBD\xA0\xF0\x9F\x98\x80";
    TextStream text_stream({});
    std::vector<std::string> shown;
    for (const char byte : text) shown.push_back(text_stream.push(std::string(1, byte)));
    const std::vector<std::string> expected = {
        "z", "", "\xC3\xA9", "", "", "\xE4\xBD\xA0", "", "", "", "\xF0\x9F\x98\x80"};
    EXPECT_EQ(shown, expected);
    // A stop string that begins like the character before it must not cut that in two.
    TextStream alike({"\xE4\xBD\xA1"});
    EXPECT_EQ(alike.push("a\xE4\xBD"), "a");
    EXPECT_EQ(alike.push("\xA0"), "\xE4\xBD\xA0");
    EXPECT_EQ(alike.push("\xE4\xBD\xA1"), "");
    EXPECT_TRUE(alike.stopped());
    // Nor must one that begins in the middle of it.
    TextStream middle({"\xBD\xA0x"});
    EXPECT_EQ(middle.push("a\xE4\xBD"), "a");
    EXPECT_EQ(middle.push("\xA0"), "");
    EXPECT_EQ(middle.push("y"), "\xE4\xBD\xA0y");
}

TEST(TokenizerStream, MalformedBytesComeAsSoonAsTheyAreSure) {
    TextStream text_stream({});
    EXPECT_EQ(text_stream.push("\xFF"), "\xFF");
    EXPECT_EQ(text_stream.push("\xE4"), "");
    EXPECT_EQ(text_stream.push("x"), "\xE4x");
    EXPECT_EQ(text_stream.push("\xED"), "");
    EXPECT_EQ(text_stream.push("\xA0"), "\xED\xA0");
    EXPECT_EQ(text_stream.push("\xF0\x9F"), "");
    EXPECT_EQ(text_stream.finish(), "\xF0\x9F");
}

TEST(TokenizerStream, AnyBytesInAnySplitComeOutUnchanged) {
    std::mt19937 random(6);
    for (int round = 0; round < 3000; ++round) {
        std::vector<std::string> parts(random() % 6);
        std::string text;
        for (std::string& part : parts) {
            for (size_t i = random() % 6; i > 0; --i)
                part += "\xF0\x9F\x98\x80\xE4\xBD\xA0\xC3\xED\xF4\x90z"[random() % 12];
            text += part;
        }
        ASSERT_EQ(stream(parts, {"zz"}), cut(text, {"zz"}));
    }
}

}  // namespace
}  // namespace tessera
