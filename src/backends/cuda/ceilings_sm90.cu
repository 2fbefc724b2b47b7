// Products of warpgroups without pause: left operands in registers, the right one in shared memory,
// as this machine has it. Two warpgroups a multiprocessor, so that one multiplies while the other
// waits for its results. Bound: the tensor cores; 64 of 128 bytes a clock of shared memory.
#include "backends/cuda/ceilings.h"
#include "backends/cuda/device.cuh"
#include "backends/cuda/ptx/named_barrier.cuh"
#include "backends/cuda/ptx/wgmma.cuh"

namespace tessera::cuda {
namespace {

constexpr int32_t kGroups = 2;
constexpr int32_t kThreads = 128 * kGroups;
constexpr int32_t kColumns = 128;
constexpr int32_t kSteps = 4;     ///< of 32 bytes in the right operand's rows of 128 bytes
constexpr int32_t kProducts = 8;  ///< between two waits
constexpr int32_t kRounds = 4096;

struct BF16Loop {
    static constexpr int32_t kDepth = 16;  ///< of a product
    /// Numbers of any sign and mantissa, of magnitudes in [0.5, 1).
    static constexpr uint32_t kRandom = 0x807f807f, kFixed = 0x3f003f00;
    static __device__ __forceinline__ void run(float (&sums)[kColumns / 2],
                                               const uint32_t (&left)[4],
                                               uint64_t right) {
        wgmma<false, false>(sums, left, right, true);
    }
};

struct Fp8Loop {
    static constexpr int32_t kDepth = 32;
    static constexpr uint32_t kRandom = 0x87878787, kFixed = 0x30303030;
    static __device__ __forceinline__ void run(float (&sums)[kColumns / 2],
                                               const uint32_t (&left)[4],
                                               uint64_t right) {
        wgmma_e4m3(sums, left, right, true);
    }
};

template <class Loop>
__device__ __forceinline__ uint32_t random_operands(uint32_t index) {
    uint32_t x = index * 0x9e3779b9u + 0x85ebca6bu;
    x = (x ^ x >> 16) * 0x7feb352du;
    return ((x ^ x >> 15) & Loop::kRandom) | Loop::kFixed;
}

template <class Loop>
__global__ void __launch_bounds__(kThreads, 1) wgmma_loop(float* sink) {
    __shared__ __align__(1024) uint32_t right[kColumns * 32];
    for (uint32_t i = threadIdx.x; i < kColumns * 32; i += kThreads)
        right[i] = random_operands<Loop>(i);
    uint32_t left[kSteps][4];
#pragma unroll
    for (uint32_t i = 0; i < kSteps; ++i) {
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j)
            left[i][j] = random_operands<Loop>(threadIdx.x * 64 + 4 * i + j);
    }
    float sums[kColumns / 2] = {};
    fence_async_proxy();  // the products read what ordinary stores wrote
    __syncthreads();
    const uint32_t start = wgmma_start(right);
#pragma unroll 1
    for (int32_t round = 0; round < kRounds; ++round) {
        wgmma_fence();
#pragma unroll
        for (uint32_t i = 0; i < kProducts; ++i)
            Loop::run(sums, left[i % kSteps], wgmma_rows_from(start + 2 * (i % kSteps)));
        wgmma_commit();
        wgmma_wait<0>();
        pin_registers(sums);
    }
    float total = 0.0f;
#pragma unroll
    for (int32_t i = 0; i < kColumns / 2; ++i) total += sums[i];
    if (total == 0.123f) *sink = total;  // never, which only we know
}

template <class Loop>
double queue(Device& device, float* sink) {
    device.launch_hopper("wgmma_loop", wgmma_loop<Loop>,
                         dim3(static_cast<uint32_t>(device.multiprocessors())), dim3(kThreads), 0,
                         sink);
    return 2.0 * 64 * kColumns * Loop::kDepth * kProducts * kRounds * kGroups *
           device.multiprocessors();
}

}  // namespace

double queue_loop_sm90(Device& device, LoopKind kind, float* sink) {
    return kind == LoopKind::kHopperFp8 ? queue<Fp8Loop>(device, sink)
                                        : queue<BF16Loop>(device, sink);
}

}  // namespace tessera::cuda
