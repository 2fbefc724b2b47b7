// The work of the products for Hopper, found by the code of the kernel on the host: no card needed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "gpu/cut/cut_work.h"

namespace tessera {
namespace {

constexpr int32_t kStep = 32;  ///< tokens that have the same work

/// What is wrong with an item of which these are the chunks, or "".
std::string fault_of_item(const CutWork& cut, const WorkChunk& first, const WorkChunk& last) {
    const int32_t tokens = last.end - last.token;
    if (last.count % kStep != 0 || last.count < tokens || last.count < 64 || last.count > 256)
        return fmt::format("{} columns of products for {} tokens", last.count, tokens);
    const bool whole = first.first_stage == 0 && last.end_stage == cut.stages;
    if (last.place < 0 && !whole)
        return fmt::format("stages {} to {} alone in tile {}", first.first_stage, last.end_stage,
                           last.feature);
    if (last.place >= 0 && (static_cast<size_t>(last.place) + 1) * cut.place_bytes > cut.sums_bytes)
        return fmt::format("place {} is beyond {} bytes", last.place, cut.sums_bytes);
    return "";
}

/// What is wrong with the work, or "".
std::string fault_of(const CutWork& cut, int32_t rows) {
    const int32_t steps = (rows + kStep - 1) / kStep;
    // Stages that have been multiplied, in the order of the sum.
    std::vector<int32_t> done(static_cast<size_t>(cut.feature_tiles * steps));
    std::set<int32_t> places;
    const WorkChunk *first = nullptr, *joined = nullptr;
    if (cut.sums_bytes > cut.most_sums_bytes) return fmt::format("{} bytes", cut.sums_bytes);
    for (const WorkChunk& work : cut.work) {
        if (first == nullptr) first = &work;
        if (work.feature < 0 || work.feature >= cut.feature_tiles || work.token % kStep != 0 ||
            work.end <= work.token || work.end > rows ||
            (work.end % kStep != 0 && work.end != rows))
            return fmt::format("tile {}, tokens {} to {}", work.feature, work.token, work.end);
        for (int32_t step = work.token / kStep; step * kStep < work.end; ++step) {
            int32_t& stage = done[static_cast<size_t>(work.feature * steps + step)];
            if (work.first_stage != stage || work.end_stage <= stage)
                return fmt::format("tile {}, token {}: stages {} to {} after {}", work.feature,
                                   step * kStep, work.first_stage, work.end_stage, stage);
            stage = work.end_stage;
        }
        if (work.place >= 0) {
            if (!places.insert(work.place).second) return fmt::format("place {} twice", work.place);
            // The second kernel asks the first item of a group for features and tokens of all.
            if (work.place % cut.chunks == 0) joined = &work;
            if (joined == nullptr || joined->place / cut.chunks != work.place / cut.chunks ||
                joined->feature != work.feature || joined->token != work.token ||
                joined->end != work.end || joined->count != work.count)
                return fmt::format("place {} is joined to another tile", work.place);
        }
        if (!work.last) continue;
        std::string fault = fault_of_item(cut, *first, work);
        if (!fault.empty()) return fault;
        first = nullptr;
    }
    for (const int32_t place : places)
        for (int32_t chunk = 0; chunk < cut.chunks; ++chunk)
            if (!places.contains(place / cut.chunks * cut.chunks + chunk))
                return fmt::format("place {} is joined with one that has no sums", place);
    for (size_t i = 0; i < done.size(); ++i)
        if (done[i] != cut.stages)
            return fmt::format("tile {}, token {}: {} of {} stages", i / static_cast<size_t>(steps),
                               i % static_cast<size_t>(steps) * kStep, done[i], cut.stages);
    return "";
}

struct Shape {
    CutProduct product;
    int32_t chunks;
    int32_t first;  ///< tile from which on there are chunks
};
/// With a tail, without one for each reason there is, and with columns that are cut anyway.
constexpr Shape kShapes[] = {
    {{17408, 5120}, 4, 66},       // 2 tiles beyond 66
    {{20992, 2080}, 4, 66},       // 16 tiles beyond, 17 stages: the last chunk is a short one
    {{33800, 2048}, 4, 132},      // 2 * 66 and one that is not full; the fewest stages
    {{33800, 1920}, 1, 0},        // too few stages
    {{21248, 2080}, 1, 0},        // too many tiles beyond 66
    {{16896, 5120}, 1, 0},        // none beyond
    {{4096, 5120}, 1, 0},         // fewer than 66
    {{17408, 5120, true}, 1, 0},  // a tail, if it were not gated
    {{5120, 17408}, 3, 0},        // columns are cut anyway
    {{17408, 5920}, 2, 0},        // ... which leaves no chunks to a tail
    {{300, 28672}, 5, 0},         // few tiles
    {{8192, 17408, true}, 3, 0},
};

// Guards against a tile that is computed twice (a residual is then added twice) or never, chunks
// that are added in another order, sums that overwrite others, and chunks that depend on the card
// or on the number of tokens: the bits of a row then would.
TEST(CutWork, CoversEachChunkOfEachTileOnce) {
    for (const Shape& shape : kShapes) {
        const CutProduct& product = shape.product;
        for (const int64_t clusters : {66, 1, 7, 57}) {
            for (int32_t rows = 1; rows <= 600; ++rows) {
                const CutWork cut = cut_work(product, rows, clusters);
                const std::string what =
                    fmt::format("{} x {}, {} tokens, {} clusters", product.features,
                                product.columns, rows, clusters);
                ASSERT_EQ(fault_of(cut, rows), "") << what;
                ASSERT_EQ(cut.chunks, shape.chunks) << what;
                ASSERT_EQ(cut.first, shape.first) << what;
            }
        }
    }
}

}  // namespace
}  // namespace tessera
