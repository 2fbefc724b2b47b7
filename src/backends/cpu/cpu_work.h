#pragma once
// Small arithmetic of sharing work out, for all of the CPU backend.

#include <cstdint>

#include "backends/cpu/thread_pool.h"

namespace tessera::cpu {

/// Products of a call below which the team is not woken: about two microseconds of work.
inline constexpr int64_t kWorthProducts = int64_t{64} << 10;

inline int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

inline int64_t round_up(int64_t value, int64_t unit) {
    return ceil_div(value, unit) * unit;
}

/// task(thread) on every thread, or on the caller's alone.
template <class Task>
void run_team(ThreadPool& pool, bool whole_team, const Task& task) {
    if (whole_team)
        pool.run(task);
    else
        task(0);
}

}  // namespace tessera::cpu
