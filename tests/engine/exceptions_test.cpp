// A pass that is left by an exception, here of an allocation, which this program lets fail on
// demand.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "engine/hybrid_model.h"

namespace {

/// Allocations of this thread until one fails; negative: none does. What replaces operator new has
/// no argument of ours, so it has to be global.
thread_local int64_t allocations_left = -1;

}  // namespace

// Not inlined: the compiler would see free() take what new returned, and warn.
[[gnu::noinline]] void* operator new(size_t bytes) {
    if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
    if (void* memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
    std::free(memory);
}

namespace tessera {
namespace {

/// False when it was left because allocation number `fails` of it failed.
bool decode_failing(Engine& engine, std::span<const SequenceInput> inputs, int64_t fails) {
    allocations_left = fails;
    try {
        engine.decode(inputs);
    } catch (const std::bad_alloc&) {
        return false;
    }
    allocations_left = -1;
    return true;
}

// Guards against checkpoint slots that are taken for a pass and lost when it does not end: after a
// failure at any place both sequences are as long as before, and go on to hold all the checkpoints
// that the plan reserved, with the same bytes as sequences that saw no failure.
TEST(Exceptions, AFailedPassLosesNoSlot) {
    for (const int32_t draft_max : {0, 2}) {
        const auto engine = tiny_engine({.backend = "reference",
                                         .context = 320,
                                         .batch = 192,
                                         .ubatch = 192,
                                         .sequences = 2,
                                         .checkpoints = 2,
                                         .draft_max = draft_max},
                                        hybrid_bytes("qwen35"));
        Sequence a = engine->new_sequence(), b = engine->new_sequence();
        const std::vector<int32_t> tokens = some_tokens(300, 1);
        std::vector<SequenceInput> inputs = {{.sequence = &a, .tokens = {}},
                                             {.sequence = &b, .tokens = {}}};
        const auto feed = [&](int64_t fails) {
            for (SequenceInput& input : inputs)
                input.tokens =
                    std::span(tokens).subspan(static_cast<size_t>(input.sequence->length()), 75);
            return decode_failing(*engine, inputs, fails);
        };
        for (int32_t piece = 0; piece < 4; ++piece) feed(-1);
        const uint64_t expected = engine->memory_hash(a);
        EXPECT_EQ(engine->rewind(a, 255), 192);
        int64_t failures = 0;
        for (int64_t fails = 0;; fails += 4) {
            engine->rewind(a, 0);
            engine->rewind(b, 0);
            if (feed(fails)) break;
            ++failures;
            ASSERT_EQ(a.length(), 0);
            ASSERT_EQ(b.length(), 0);
        }
        EXPECT_GT(failures, 5);
        for (int32_t piece = 1; piece < 4; ++piece) ASSERT_TRUE(feed(-1));
        EXPECT_EQ(engine->memory_hash(a), expected);
        EXPECT_EQ(engine->memory_hash(b), expected);
        EXPECT_EQ(engine->rewind(a, 255), 192);
        EXPECT_EQ(engine->rewind(b, 255), 192);
    }
}

}  // namespace
}  // namespace tessera
