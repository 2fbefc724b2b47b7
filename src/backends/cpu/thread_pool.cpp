// Fork-join by an epoch counter: run() publishes the task and bumps `epoch`, workers see the bump,
// work and count `pending` down. All three waits (for work, for the team, in the barrier) spin for
// a few milliseconds, longer than an op of a token, and then sleep on a futex. With more threads
// than cores nobody spins: a spinner would hold the core that the thread it waits for needs. A
// condition variable was rejected: its wake-up costs more than most ops.
#include "backends/cpu/thread_pool.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "core/error.h"

#if defined(__x86_64__)
#    include <immintrin.h>
#endif

namespace tessera::cpu {
namespace {

/// Longer than any op that is not worth a sleep: on virtual machines a wake-up costs a tenth of a
/// millisecond.
constexpr std::chrono::milliseconds kSpin{3};
/// A wait shorter than this does not yield.
constexpr std::chrono::microseconds kAlone{50};

inline void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");  // a hint to the core, no memory is touched
#endif
}

/// Returns once `word` differs from `seen`, with the writes before that change visible.
template <class T>
void wait_for_change(const std::atomic<T>& word, T seen, std::chrono::nanoseconds spin) {
    // The clock costs about as much as one pause; looking every 16 pauses keeps the reaction fast.
    constexpr int32_t kPausesPerLook = 16;
    if (word.load(std::memory_order_acquire) != seen) return;
    if (spin.count() > 0) {
        const auto start = std::chrono::steady_clock::now();
        auto now = start;
        do {
            for (int32_t i = 0; i < kPausesPerLook; ++i) {
                if (word.load(std::memory_order_acquire) != seen) return;
                relax();
            }
            // Whoever else can use this core shall have it; with nobody there this returns at once.
            if (now - start > kAlone) std::this_thread::yield();
            now = std::chrono::steady_clock::now();
        } while (now - start < spin);
    }
    while (word.load(std::memory_order_acquire) == seen) word.wait(seen, std::memory_order_acquire);
}

}  // namespace

struct ThreadPool::Impl {
    int32_t threads = 1;
    std::chrono::nanoseconds spin{0};
    std::vector<std::thread> workers;

    // Each word that one side writes while the other polls has its own cache line.
    alignas(64) std::atomic<uint32_t> epoch{0};
    const TaskRef* task = nullptr;  // published by `epoch`
    bool stop = false;              // published by `epoch`
    alignas(64) std::atomic<int32_t> pending{0};
    alignas(64) std::atomic<bool> running{false};
    alignas(64) std::atomic<int32_t> arrived{0};
    alignas(64) std::atomic<uint32_t> generation{0};

    void publish() {
        epoch.fetch_add(1, std::memory_order_seq_cst);
        epoch.notify_all();
    }

    void work(int32_t thread) {
        uint32_t seen = 0;
        for (;;) {
            wait_for_change(epoch, seen, spin);
            ++seen;
            if (stop) return;
            (*task)(thread);
            if (pending.fetch_sub(1, std::memory_order_acq_rel) == 1) pending.notify_one();
        }
    }
};

ThreadPool::ThreadPool(int32_t threads) : impl_(std::make_unique<Impl>()) {
    check(threads >= 1, "a thread pool has at least one thread");
    impl_->threads = threads;
    const auto cores = static_cast<int32_t>(std::thread::hardware_concurrency());
    if (threads > 1 && (cores == 0 || threads <= cores)) impl_->spin = kSpin;
    for (int32_t thread = 1; thread < threads; ++thread)
        impl_->workers.emplace_back([impl = impl_.get(), thread] { impl->work(thread); });
}

ThreadPool::~ThreadPool() {
    impl_->stop = true;
    impl_->publish();
    for (std::thread& worker : impl_->workers) worker.join();
}

int32_t ThreadPool::size() const {
    return impl_->threads;
}

void ThreadPool::run(TaskRef task) {
    Impl& impl = *impl_;
    check(!impl.running.exchange(true, std::memory_order_acquire),
          "ThreadPool::run inside a task or from two threads");
    if (impl.threads > 1) {
        impl.task = &task;
        impl.pending.store(impl.threads - 1, std::memory_order_relaxed);
        impl.publish();
        task(0);
        for (int32_t left; (left = impl.pending.load(std::memory_order_acquire)) != 0;)
            wait_for_change(impl.pending, left, impl.spin);
    } else {
        task(0);
    }
    impl.running.store(false, std::memory_order_release);
}

void ThreadPool::barrier() {
    Impl& impl = *impl_;
    if (impl.threads == 1) return;
    const uint32_t generation = impl.generation.load(std::memory_order_acquire);
    if (impl.arrived.fetch_add(1, std::memory_order_acq_rel) == impl.threads - 1) {
        impl.arrived.store(0, std::memory_order_relaxed);
        impl.generation.fetch_add(1, std::memory_order_seq_cst);
        impl.generation.notify_all();
    } else {
        wait_for_change(impl.generation, generation, impl.spin);
    }
}

}  // namespace tessera::cpu
