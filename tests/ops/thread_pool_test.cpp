// The team that every op of the CPU backend runs on.
#include "backends/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

namespace tessera::cpu {
namespace {

// Guards against a worker that misses a run or takes one twice (lost or stale wake-ups), with fewer
// and with more threads than cores.
TEST(ThreadPool, EveryThreadRunsEveryTaskOnce) {
    for (const int32_t threads : {1, 2, 3, 9}) {
        ThreadPool pool(threads);
        ASSERT_EQ(pool.size(), threads);
        std::vector<int64_t> runs(static_cast<size_t>(threads), 0);
        constexpr int64_t kRuns = 500;
        for (int64_t i = 0; i < kRuns; ++i)
            pool.run([&](int32_t thread) { ++runs[static_cast<size_t>(thread)]; });
        for (const int64_t count : runs) EXPECT_EQ(count, kRuns) << threads << " threads";
    }
}

// Guards against run() returning before the workers' writes are visible.
TEST(ThreadPool, RunPublishesTheWorkOfAllThreads) {
    ThreadPool pool(3);
    std::vector<int32_t> values(3000, 0);
    for (int32_t round = 1; round <= 200; ++round) {
        pool.run([&](int32_t thread) {
            const Range range = share(3000, 16, thread, pool.size());
            for (int64_t i = range.begin; i < range.end; ++i) values[static_cast<size_t>(i)] += 1;
        });
        ASSERT_EQ(std::accumulate(values.begin(), values.end(), int64_t{0}), 3000 * round);
    }
}

// Guards against a barrier that lets a fast thread into the next phase: each thread reads what its
// neighbour wrote in the phase before.
TEST(ThreadPool, BarrierSeparatesPhases) {
    for (const int32_t threads : {1, 2, 5}) {
        ThreadPool pool(threads);
        std::vector<int32_t> written(static_cast<size_t>(threads), 0);
        std::atomic<int32_t> errors{0};
        pool.run([&](int32_t thread) {
            for (int32_t phase = 1; phase <= 300; ++phase) {
                written[static_cast<size_t>(thread)] = phase;
                pool.barrier();
                if (written[static_cast<size_t>((thread + 1) % threads)] != phase) ++errors;
                pool.barrier();
            }
        });
        EXPECT_EQ(errors.load(), 0) << threads << " threads";
    }
}

// Guards against a hang when the workers have gone to sleep between two runs.
TEST(ThreadPool, SleepingWorkersWakeUp) {
    ThreadPool pool(2);
    std::atomic<int32_t> runs{0};
    for (int32_t i = 0; i < 5; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        pool.run([&](int32_t) { ++runs; });
    }
    EXPECT_EQ(runs.load(), 10);
}

// Guards against silent corruption: a task may not start another run on the same team.
TEST(ThreadPoolDeathTest, NestedRunIsABug) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_DEATH(
        {
            ThreadPool pool(1);
            pool.run([&](int32_t) { pool.run([](int32_t) {}); });
        },
        "ThreadPool::run");
}

// Guards against shares that overlap, leave a gap, or cut a unit of the grain.
TEST(ThreadPool, SharesTileTheItems) {
    for (const int64_t items : {0, 1, 15, 16, 17, 1000})
        for (const int64_t grain : {1, 16})
            for (const int32_t threads : {1, 2, 3, 7}) {
                int64_t next = 0;
                for (int32_t thread = 0; thread < threads; ++thread) {
                    const Range range = share(items, grain, thread, threads);
                    EXPECT_EQ(range.begin, next);
                    EXPECT_TRUE(range.end == items || range.end % grain == 0);
                    next = range.end;
                }
                EXPECT_EQ(next, items);
            }
}

}  // namespace
}  // namespace tessera::cpu
