// How much of a card's memory an engine takes, in arithmetic alone.
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "backends/cuda/pools.h"

namespace tessera::cuda {
namespace {

constexpr size_t kMib = size_t{1} << 20;

// Guards against two blocks at one address, blocks behind the end of a mapping, and kernels that
// load 16 bytes from an odd address.
TEST(CardMemory, BlocksLieApartInsideTheirMappings) {
    Pools pools;
    std::vector<size_t> mappings;
    std::vector<std::map<size_t, size_t>> taken;  // of each mapping: begin and end
    uint64_t random = 1;
    for (int i = 0; i < 3000; ++i) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const size_t bytes = (random >> 33) % (size_t{1} << (random % 27));
        const Pools::Place place = pools.take(bytes);
        if (place.fresh_bytes > 0) {
            ASSERT_EQ(place.mapping, mappings.size());
            EXPECT_EQ(place.fresh_bytes % Pools::kGranule, 0u);
            mappings.push_back(place.fresh_bytes);
            taken.emplace_back();
        }
        ASSERT_LT(place.mapping, mappings.size());
        EXPECT_EQ(place.offset % 256, 0u);
        EXPECT_LE(place.offset + bytes, mappings[place.mapping]);
        EXPECT_TRUE(taken[place.mapping].emplace(place.offset, place.offset + bytes).second);
    }
    size_t mapped = 0;
    for (const size_t bytes : mappings) mapped += bytes;
    EXPECT_EQ(pools.mapped_bytes(), mapped);
    for (const auto& blocks : taken) {
        size_t end = 0;
        for (const auto& [begin, behind] : blocks) {
            EXPECT_GE(begin, end);
            end = behind;
        }
    }
}

// Guards against layers of which a fifth of every mapping is wasted: 6.5 MiB go four times into 32.
TEST(CardMemory, LayersThatAreAlikeWasteNothing) {
    Pools pools;
    for (int i = 0; i < 40; ++i) pools.take(13 * kMib / 2);
    EXPECT_EQ(pools.mapped_bytes(), 260 * kMib);
}

// Guards against a mapping of its own for what fits behind a large block.
TEST(CardMemory, SmallBlocksFillTheEndsOfLargeOnes) {
    Pools pools;
    pools.take(100 * kMib + 1);
    EXPECT_EQ(pools.mapped_bytes(), 102 * kMib);
    for (int i = 0; i < 1200; ++i) pools.take(1024);
    EXPECT_EQ(pools.mapped_bytes(), 102 * kMib);
    pools.take(kMib);
    EXPECT_EQ(pools.mapped_bytes(), 134 * kMib);
}

// Guards against a plan that a card cannot keep: what the driver rounds up counts.
TEST(CardMemory, ThePlanCountsWhatIsMappedBesideTheBlocks) {
    constexpr auto kMibs = static_cast<int64_t>(kMib);
    const int64_t fixed = 128 * kMibs + 16 * kMibs;  // kernels and recordings, the upload
    EXPECT_EQ(bytes_beside({}), fixed);
    EXPECT_EQ(bytes_beside(std::vector<int64_t>{8 * kMibs, 100 * kMibs}), fixed);
    EXPECT_EQ(bytes_beside(std::vector<int64_t>{9 * kMibs}), fixed + kMibs);
    EXPECT_EQ(bytes_beside(std::vector<int64_t>{kMibs}), fixed + 31 * kMibs);
    EXPECT_EQ(bytes_beside(std::vector<int64_t>(5, 8 * kMibs - 1)), fixed + 5);
}

}  // namespace
}  // namespace tessera::cuda
