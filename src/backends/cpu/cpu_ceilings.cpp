// What the machine does at best, for `bench --ops`: all threads multiply registers, or read memory
// that no cache holds.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/isa/peak_kernels.h"

namespace tessera::cpu {
namespace {

constexpr int32_t kRuns = 4;
constexpr int64_t kMemoryBytes = int64_t{1} << 30;

const PeakKernels& peak_kernels(Isa isa) {
    static constexpr PeakKernels kNone;
#if defined(__x86_64__)
    if (isa == Isa::kAmx) return peak_kernels_amx();
    if (isa == Isa::kAvx512) return peak_kernels_avx512();
    if (isa == Isa::kAvx2) return peak_kernels_avx2();
#else
    static_cast<void>(isa);
#endif
    return kNone;
}

/// The most work a second of a few runs of `task(thread)`, which returns its work, on all threads.
template <class Task>
double best_rate(ThreadPool& pool, const Task& task) {
    double best = 0.0;
    for (int32_t run = 0; run < kRuns; ++run) {
        std::vector<double> work(static_cast<size_t>(pool.size()));
        const auto start = std::chrono::steady_clock::now();
        pool.run([&](int32_t thread) { work[static_cast<size_t>(thread)] = task(thread); });
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        double sum = 0.0;
        for (const double part : work) sum += part;
        best = std::max(best, sum / std::max(took.count(), 1e-9));
    }
    return best;
}

/// The exclusive or of words, in as many lanes as the compiler likes.
uint64_t folded(const std::byte* bytes, int64_t count) {
    uint64_t lanes[16] = {};
    for (int64_t i = 0; i < count; i += int64_t{sizeof(lanes)}) {
        uint64_t block[16];
        std::memcpy(block, bytes + i, sizeof(block));
        for (size_t lane = 0; lane < 16; ++lane) lanes[lane] ^= block[lane];
    }
    uint64_t all = 0;
    for (const uint64_t lane : lanes) all ^= lane;
    return all;
}

}  // namespace

double CpuOps::best_read_rate() {
    // At most half of what nobody uses; little would stay in caches, and is not measured.
    const int64_t free = int64_t{sysconf(_SC_AVPHYS_PAGES)} * sysconf(_SC_PAGESIZE);
    const int64_t bytes = std::min(kMemoryBytes, free / 2) & -(int64_t{1} << 20);
    if (bytes < kMemoryBytes / 4) return 0.0;
    std::byte* const memory = map(static_cast<size_t>(bytes), /*huge_pages=*/true);
    const auto range = [&](int32_t thread) { return share(bytes, 4096, thread, pool_.size()); };
    pool_.run([&](int32_t thread) {
        const Range part = range(thread);
        std::memset(memory + part.begin, thread + 1, static_cast<size_t>(part.end - part.begin));
    });
    std::vector<uint64_t> sinks(static_cast<size_t>(pool_.size()));
    const double rate = best_rate(pool_, [&](int32_t thread) {
        const Range part = range(thread);
        sinks[static_cast<size_t>(thread)] ^= folded(memory + part.begin, part.end - part.begin);
        return static_cast<double>(part.end - part.begin);
    });
    memory_.pop_back();
    return rate;
}

Ceilings CpuOps::measure_ceilings() {
    const PeakKernels& kernels = peak_kernels(isa_);
    const std::array<std::pair<Operands, PeakLoop>, 3> loops{{{Operands::kF32, kernels.f32},
                                                              {Operands::k16Bits, kernels.bf16},
                                                              {Operands::kInt8, kernels.int8}}};
    Ceilings ceilings;
    for (const auto& [operands, loop] : loops) {
        if (loop == nullptr) continue;
        ceilings.flops_per_second[static_cast<size_t>(operands)] =
            best_rate(pool_, [run = loop](int32_t) {
                float sink = 0.0f;
                return run(&sink);
            });
    }
    ceilings.bytes_per_second = best_read_rate();
    return ceilings;
}

}  // namespace tessera::cpu
