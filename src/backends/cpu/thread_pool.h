#pragma once
// A fixed team of threads for fork-join work. Decoding calls it a few hundred times a token, so
// workers spin for some milliseconds before they sleep on a futex. One caller at a time.

#include <cstdint>
#include <memory>
#include <type_traits>

namespace tessera::cpu {

/// Non-owning reference to a callable `void(int32_t thread)`.
class TaskRef {
  public:
    template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, TaskRef>) TaskRef(F&& task)
        : object_(const_cast<void*>(static_cast<const void*>(&task))),
          call_([](void* object, int32_t thread) {
              (*static_cast<std::remove_reference_t<F>*>(object))(thread);
          }) {}
    void operator()(int32_t thread) const { call_(object_, thread); }

  private:
    void* object_;
    void (*call_)(void*, int32_t);
};

class ThreadPool {
  public:
    /// `threads` >= 1, the caller's own thread included.
    explicit ThreadPool(int32_t threads);
    ~ThreadPool();
    int32_t size() const;
    /// Runs task(thread) once on each of the size() threads and returns when all are done.
    void run(TaskRef task);
    /// Inside a task: waits until every thread of the team has arrived.
    void barrier();

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// [begin, end) of thread's share of `items` in units of `grain`: contiguous, balanced, the same
/// for every run.
struct Range {
    int64_t begin, end;
};
inline Range share(int64_t items, int64_t grain, int32_t thread, int32_t threads) {
    const int64_t units = (items + grain - 1) / grain;
    const int64_t begin = units * thread / threads * grain;
    const int64_t end = units * (thread + 1) / threads * grain;
    return {begin < items ? begin : items, end < items ? end : items};
}

/// body(begin, end) over the shares of [0, rows); on the caller alone when not `worth` a run.
template <class Body>
void parallel_rows(ThreadPool& pool, int64_t rows, bool worth, const Body& body) {
    if (rows <= 0) return;
    if (!worth || pool.size() == 1) return body(int64_t{0}, rows);
    pool.run([&](int32_t thread) {
        const Range range = share(rows, 1, thread, pool.size());
        if (range.begin < range.end) body(range.begin, range.end);
    });
}

}  // namespace tessera::cpu
