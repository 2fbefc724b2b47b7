// What the card does at best, for `bench --ops`: products of registers alone, and reading and
// copying of more memory than any cache holds. Operands are random bits: a card that multiplies
// zeros draws less power and so clocks higher than any model will see. Short runs, the best of a
// few: a long prompt, which heats the card, may stay below.
#include <algorithm>

#include "backends/cuda/ceilings.h"
#include "backends/cuda/device.cuh"
#include "backends/cuda/ptx/mma.cuh"

namespace tessera::cuda {
namespace {

constexpr int32_t kRuns = 4;
constexpr int32_t kLoopThreads = 256;

/// f32: sums of each thread, which hide one another's latency, and rounds.
constexpr int32_t kChains = 8;
constexpr int32_t kF32Rounds = 8192;
constexpr int32_t kF32Blocks = 8;  ///< per multiprocessor
/// bf16: tiles of sums of each warp, and rounds.
constexpr int32_t kTiles = 8;
constexpr int32_t kMmaRounds = 4096;
constexpr int32_t kMmaBlocks = 2;

constexpr int64_t kMemoryBytes = int64_t{1} << 30;
constexpr int32_t kCopyThreads = 512;
constexpr int32_t kCopyBlocks = 4;  ///< per multiprocessor: all that fit

/// Any 32 bits; another `index`, others.
__device__ __forceinline__ uint32_t random_bits(uint32_t index) {
    uint32_t x = index * 0x9e3779b9u + 0x85ebca6bu;
    x = (x ^ x >> 16) * 0x7feb352du;
    return x ^ x >> 15;
}
/// Two bf16 numbers of magnitudes in [0.5, 1).
__device__ __forceinline__ uint32_t random_bf16(uint32_t index) {
    return (random_bits(index) & 0x807f807fu) | 0x3f003f00u;
}

__global__ void __launch_bounds__(kLoopThreads) f32_loop(float* sink) {
    float sums[kChains];
#pragma unroll
    for (int32_t i = 0; i < kChains; ++i) sums[i] = static_cast<float>(threadIdx.x + i);
    const float factor = 1.0f - 1e-6f * static_cast<float>(threadIdx.x % 7);
#pragma unroll 4
    for (int32_t round = 0; round < kF32Rounds; ++round) {
#pragma unroll
        for (int32_t i = 0; i < kChains; ++i) sums[i] = fmaf(sums[i], factor, 0.25f);
    }
    float total = 0.0f;
#pragma unroll
    for (int32_t i = 0; i < kChains; ++i) total += sums[i];
    if (total < 0.0f) *sink = total;  // never, which only we know
}

__global__ void __launch_bounds__(kLoopThreads) mma_loop(float* sink) {
    float sums[kTiles][4] = {};
    uint32_t left[2][4], right[2][2];
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
#pragma unroll
        for (int32_t j = 0; j < 4; ++j) left[i][j] = random_bf16(threadIdx.x * 16 + 4 * i + j);
#pragma unroll
        for (int32_t j = 0; j < 2; ++j) right[i][j] = random_bf16(threadIdx.x * 16 + 8 + 2 * i + j);
    }
    for (int32_t round = 0; round < kMmaRounds; ++round) {
#pragma unroll
        for (int32_t i = 0; i < kTiles; ++i) mma_bf16(sums[i], left[i % 2], right[i / 2 % 2]);
    }
    float total = 0.0f;
#pragma unroll
    for (int32_t i = 0; i < kTiles; ++i) total += sums[i][0] + sums[i][1] + sums[i][2] + sums[i][3];
    if (total == 0.123f) *sink = total;
}

__global__ void __launch_bounds__(kCopyThreads)
    read_loop(const uint4* __restrict__ from, int64_t count, uint32_t* sink) {
    const int64_t step = int64_t{gridDim.x} * kCopyThreads;
    uint32_t seen = 0;
#pragma unroll 8
    for (int64_t i = int64_t{blockIdx.x} * kCopyThreads + threadIdx.x; i < count; i += step) {
        const uint4 part = from[i];
        seen += part.x ^ part.y ^ part.z ^ part.w;
    }
    if (seen == 0x12345678u) *sink = seen;
}

__global__ void __launch_bounds__(kCopyThreads)
    copy_loop(const uint4* __restrict__ from, uint4* __restrict__ to, int64_t count) {
    const int64_t step = int64_t{gridDim.x} * kCopyThreads;
#pragma unroll 4
    for (int64_t i = int64_t{blockIdx.x} * kCopyThreads + threadIdx.x; i < count; i += step)
        to[i] = from[i];
}

/// Memory and events of a measurement.
struct Bench {
    Device& device;
    cudaEvent_t begin = nullptr, end = nullptr;
    std::byte* memory = nullptr;
    int64_t bytes = 0;  ///< of `memory` behind the sink's word

    explicit Bench(Device& on) : device(on) {
        device.enter();
        check_cuda(cudaEventCreate(&begin), "making an event");
        check_cuda(cudaEventCreate(&end), "making an event");
        // At most half of what is free, as others share the card; none: that is not measured.
        bytes = std::min<int64_t>(kMemoryBytes, static_cast<int64_t>(device.free_bytes() / 2));
        bytes -= bytes % (1 << 20);
        check_cuda(cudaMalloc(reinterpret_cast<void**>(&memory), static_cast<size_t>(bytes) + 256),
                   "allocating memory to measure with");
        check_cuda(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes) + 256, device.stream()),
                   "clearing memory to measure with");
    }
    ~Bench() {
        cudaFree(memory);
        for (cudaEvent_t event : {begin, end})
            if (event != nullptr) cudaEventDestroy(event);
    }
    Bench(const Bench&) = delete;
    Bench& operator=(const Bench&) = delete;

    /// The most work a second of a few runs; `queue` starts one and returns its work.
    template <class Queue>
    double best_rate(const Queue& queue) {
        double best = 0.0;
        queue();  // loads the kernel and wakes the clocks
        for (int32_t run = 0; run < kRuns; ++run) {
            check_cuda(cudaEventRecord(begin, device.stream()), "recording an event");
            const double work = queue();
            check_cuda(cudaEventRecord(end, device.stream()), "recording an event");
            float milliseconds = 0.0f;
            check_cuda(cudaEventSynchronize(end), "waiting for an event");
            check_cuda(cudaEventElapsedTime(&milliseconds, begin, end), "timing");
            best = std::max(best, work / (1e-3 * static_cast<double>(milliseconds)));
        }
        return best;
    }
};

/// Bytes a second of reading or of copying, whichever moves more.
double best_memory_rate(Bench& bench) {
    if (bench.bytes < kMemoryBytes / 8) return 0.0;  // caches would hold too much of it
    const dim3 grid(static_cast<uint32_t>(kCopyBlocks * bench.device.multiprocessors()));
    uint32_t* const sink = reinterpret_cast<uint32_t*>(bench.memory + bench.bytes);
    const int64_t count = bench.bytes / static_cast<int64_t>(sizeof(uint4));
    uint4* const from = reinterpret_cast<uint4*>(bench.memory);
    const double read = bench.best_rate([&] {
        bench.device.launch("read_loop", read_loop, grid, dim3(kCopyThreads), 0, from, count, sink);
        return static_cast<double>(bench.bytes);
    });
    const double copied = bench.best_rate([&] {
        bench.device.launch("copy_loop", copy_loop, grid, dim3(kCopyThreads), 0, from,
                            from + count / 2, count / 2);
        return static_cast<double>(bench.bytes);
    });
    return std::max(read, copied);
}

}  // namespace

double queue_loop(Device& device, LoopKind kind, float* sink) {
    const int32_t multiprocessors = device.multiprocessors();
    if (kind == LoopKind::kF32) {
        const int32_t blocks = kF32Blocks * multiprocessors;
        device.launch("f32_loop", f32_loop, dim3(static_cast<uint32_t>(blocks)), dim3(kLoopThreads),
                      0, sink);
        return 2.0 * kChains * kF32Rounds * kLoopThreads * blocks;
    }
    const int32_t blocks = kMmaBlocks * multiprocessors;
    device.launch("mma_loop", mma_loop, dim3(static_cast<uint32_t>(blocks)), dim3(kLoopThreads), 0,
                  sink);
    return 2.0 * 16 * 8 * 16 * kTiles * kMmaRounds * (kLoopThreads / 32) * blocks;
}

Ceilings CudaOps::measure_ceilings() {
    Bench bench(*device_);
    float* const sink = reinterpret_cast<float*>(bench.memory + bench.bytes);
    Ceilings ceilings;
    const auto measure = [&](Operands operands, LoopKind kind, auto* queue) {
        ceilings.flops_per_second[static_cast<size_t>(operands)] =
            bench.best_rate([&] { return queue(*device_, kind, sink); });
    };
    measure(Operands::kF32, LoopKind::kF32, queue_loop);
    const bool hopper = device_->hopper_kernels();
#if TESSERA_SM90A
    if (hopper) {
        measure(Operands::k16Bits, LoopKind::kHopperBF16, queue_loop_sm90);
        measure(Operands::kFp8, LoopKind::kHopperFp8, queue_loop_sm90);
    }
#endif
    if (!hopper) measure(Operands::k16Bits, LoopKind::kBF16, queue_loop);
    ceilings.bytes_per_second = best_memory_rate(bench);
    return ceilings;
}

}  // namespace tessera::cuda
