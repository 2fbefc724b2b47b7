// How prompts are cut into forward passes.
#include "engine/passes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace tessera {
namespace {

std::vector<int32_t> sizes_of(const std::vector<Pass>& passes) {
    std::vector<int32_t> sizes;
    for (const Pass& pass : passes) sizes.push_back(pass.rows);
    return sizes;
}

std::vector<Pass> cut(int32_t tokens, int32_t ubatch, int32_t chunk) {
    const std::vector<int32_t> ids(static_cast<size_t>(tokens));
    Sequence sequence;
    const SequenceInput input{.sequence = &sequence, .tokens = ids};
    return cut_passes({&input, 1}, ubatch, chunk);
}

// A rest of a few tokens would read all weights once more: 576 tokens would run slower than 512.
TEST(Passes, NoShortRestBehindFullPasses) {
    EXPECT_EQ(sizes_of(cut(576, 512, 64)), (std::vector<int32_t>{256, 320}));
    EXPECT_EQ(sizes_of(cut(513, 512, 1)), (std::vector<int32_t>{256, 257}));
    EXPECT_EQ(sizes_of(cut(2048, 512, 64)), (std::vector<int32_t>{512, 512, 512, 512}));
}

// Even cuts must not cost a pass, lose or repeat a token, or part a chunk of the delta rule.
TEST(Passes, AsFewAsThereCanBeAndNearlyOfOneSize) {
    for (const int32_t ubatch : {64, 128, 512})
        for (int32_t tokens = 1; tokens <= 3000; tokens += tokens < 200 ? 1 : 37) {
            SCOPED_TRACE(std::to_string(tokens) + " tokens, passes of " + std::to_string(ubatch));
            const std::vector<Pass> passes = cut(tokens, ubatch, 64);
            ASSERT_EQ(std::ssize(passes), (tokens + ubatch - 1) / ubatch);
            int32_t next = 0, least = tokens, most = 0;
            for (const Pass& pass : passes) {
                ASSERT_EQ(pass.segments.size(), 1u);
                EXPECT_EQ(pass.segments[0].first, next);
                EXPECT_EQ(pass.segments[0].position % 64, 0);
                EXPECT_LE(pass.rows, ubatch);
                next += pass.rows;
                least = std::min(least, pass.rows);
                most = std::max(most, pass.rows);
            }
            EXPECT_EQ(next, tokens);
            EXPECT_LE(most - least, 128);
        }
}

// -ub of a model without recurrence may be any number.
TEST(Passes, AnySizeWithoutChunks) {
    for (const int32_t ubatch : {1, 3, 63, 65, 100, 200})
        for (int32_t tokens = 1; tokens <= 700; tokens += 3) {
            SCOPED_TRACE(std::to_string(tokens) + " tokens, passes of " + std::to_string(ubatch));
            const std::vector<int32_t> sizes = sizes_of(cut(tokens, ubatch, 1));
            EXPECT_EQ(std::ssize(sizes), (tokens + ubatch - 1) / ubatch);
            EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), 0), tokens);
            EXPECT_LE(*std::max_element(sizes.begin(), sizes.end()), ubatch);
        }
}

}  // namespace
}  // namespace tessera
