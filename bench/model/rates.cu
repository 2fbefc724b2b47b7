// What the simulation of general kernels (simulate.py) takes from a card: clocks that one warp or
// one multiprocessor needs for single instructions. Prints one line a quantity.
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a bench/model/rates.cu -o rates &&
//   ./rates
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int kTimes = 256;

void check(cudaError_t error) {
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "rates: %s\n", cudaGetErrorString(error));
    std::exit(1);
}

__device__ uint32_t shared_at(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Clocks of kTimes calls of body(), by each warp; out[0] by warp 0.
template <class Body>
__device__ void time_it(float* out, const Body& body) {
    body();  // instructions are in their cache
    __syncthreads();
    const int64_t start = clock64();
    body();
    __syncthreads();
    if (threadIdx.x == 0) *out = static_cast<float>(clock64() - start) / kTimes;
}

__device__ void multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Products whose sums are kSums different ones, in turn.
template <int kSums>
__global__ void products(float* out, float* sink) {
    float sums[kSums][4] = {};
    const uint32_t a[4] = {threadIdx.x, 0, 1, 2};
    time_it(out, [&] {
#pragma unroll 2
        for (int i = 0; i < kTimes; i += 64)
#pragma unroll
            for (int s = 0; s < 64; ++s) multiply(sums[s % kSums], a, 3, 4);
    });
    for (auto& sum : sums) sink[threadIdx.x] += sum[0];
}

__device__ uint32_t matrices(uint32_t address) {
    uint32_t x[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
    return x[0] | x[1] | x[2] | x[3];
}

/// Loads of four matrices, each with the address from the one before, or side by side.
template <bool kChain>
__global__ void matrix_loads(float* out, uint32_t* sink) {
    __shared__ alignas(128) uint32_t memory[4096];
    for (unsigned i = threadIdx.x; i < 4096; i += blockDim.x) memory[i] = 0;
    __syncthreads();
    uint32_t address = shared_at(memory) + threadIdx.x % 32 * 16, all = 0;
    time_it(out, [&] {
#pragma unroll 16
        for (int i = 0; i < kTimes; ++i) {
            if (kChain)
                address += matrices(address);
            else
                all |= matrices(address + i % 16 * 512);
        }
    });
    sink[threadIdx.x] = address + all;
}

__global__ void shared_loads(float* out, uint32_t* sink) {
    __shared__ uint32_t memory[1024];
    for (unsigned i = threadIdx.x; i < 1024; i += blockDim.x) memory[i] = 0;
    __syncthreads();
    uint32_t address = shared_at(memory) + threadIdx.x % 32 * 4;
    time_it(out, [&] {
#pragma unroll 16
        for (int i = 0; i < kTimes; ++i) {
            uint32_t x;
            asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
            address += x;
        }
    });
    sink[threadIdx.x] = address;
}

/// A chase through memory by one lane.
__global__ void chase(float* out, const uint32_t* next, uint32_t* sink) {
    uint32_t at = 0;
    const int64_t start = clock64();
#pragma unroll 1
    for (int i = 0; i < kTimes; ++i)
        asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(at) : "l"(next + at));
    *out = static_cast<float>(clock64() - start) / kTimes;
    *sink = at;
}

/// A copy to shared memory of 16 bytes a lane and the wait for it.
__global__ void copies(float* out, const uint8_t* from) {
    __shared__ alignas(128) uint8_t memory[16 * 32];
    const uint32_t to = shared_at(memory) + threadIdx.x * 16;
    time_it(out, [&] {
#pragma unroll 1
        for (int i = 0; i < kTimes; ++i) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to),
                         "l"(from + threadIdx.x * 16));
            asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
        }
    });
}

__global__ void barriers(float* out) {
    time_it(out, [&] {
#pragma unroll 16
        for (int i = 0; i < kTimes; ++i) __syncthreads();
    });
}

__global__ void exponentials(float* out, float* sink) {
    float x = static_cast<float>(threadIdx.x), y[8] = {};
    time_it(out, [&] {
#pragma unroll 16
        for (int i = 0; i < kTimes; ++i) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    });
    time_it(out + 1, [&] {
#pragma unroll 16
        for (int i = 0; i < kTimes; ++i)
            asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(y[i % 8]));
    });
    for (const float e : y) x += e;
    sink[threadIdx.x] = x;
}

__global__ void shuffles(float* out, float* sink) {
    float x = static_cast<float>(threadIdx.x);
    time_it(out, [&] {
#pragma unroll 16
        for (int i = 0; i < kTimes; ++i) x = __shfl_xor_sync(0xffffffffu, x, 1);
    });
    sink[threadIdx.x] = x;
}

}  // namespace

int main() {
    float* out = nullptr;
    uint32_t *sink = nullptr, *next = nullptr;
    constexpr size_t kWords = size_t{1} << 28;  // 1 GiB
    check(cudaMalloc(&out, 64));
    check(cudaMalloc(&sink, 1 << 16));
    check(cudaMalloc(&next, kWords * 4));
    auto* floats = reinterpret_cast<float*>(sink);
    const auto report = [&](const char* what) {
        check(cudaDeviceSynchronize());
        float clocks[2];
        check(cudaMemcpy(clocks, out, 8, cudaMemcpyDeviceToHost));
        std::printf("%-64s %8.1f clocks\n", what, clocks[0]);
        return clocks[1];
    };
    products<1><<<1, 32>>>(out, floats),
        report("product of 16 x 8 x 16, its sum from the one before");
    products<4><<<1, 32>>>(out, floats), report("... of one warp, four sums");
    products<8><<<1, 32>>>(out, floats), report("... of one warp, eight sums");
    products<8><<<1, 256>>>(out, floats), report("... eight sums, of each of two warps a quarter");
    matrix_loads<true><<<1, 32>>>(out, sink),
        report("load of four matrices, address from the one before");
    matrix_loads<false><<<1, 32>>>(out, sink), report("... of one warp, side by side");
    matrix_loads<false><<<1, 256>>>(out, sink), report("... of each of eight warps");
    shared_loads<<<1, 32>>>(out, sink),
        report("load from shared memory, address from the one before");
    shuffles<<<1, 32>>>(out, floats), report("shuffle, of the one before");
    exponentials<<<1, 32>>>(out, floats);
    std::printf("%-64s %8.1f clocks\n", "exponential, side by side",
                report("exponential, of the one before"));
    exponentials<<<1, 256>>>(out, floats);
    std::printf("%-64s %8.1f clocks\n", "... side by side, of each of two",
                report("... of each of two warps a quarter"));
    barriers<<<1, 256>>>(out), report("barrier of eight warps");
    std::vector<uint32_t> host(kWords);
    for (const size_t stride : {size_t{128} / 4, size_t{2} << 20 >> 2}) {
        const size_t steps = stride == 32 ? 4096 : kWords / stride;  // half a MiB, or all
        // A place in each stride, so that no two share a row of memory's banks by their addresses'
        // ends.
        for (size_t i = 0; i < steps; ++i) {
            const size_t to = (i + 1) % steps;
            const auto place = [&](size_t k) {
                return k * stride + (stride > 32 ? k * 7919 % (stride / 32) * 32 : 0);
            };
            host[place(i)] = static_cast<uint32_t>(place(to));
        }
        check(cudaMemcpy(next, host.data(), kWords * 4, cudaMemcpyHostToDevice));
        if (stride == 32) {
            for (int i = 0; i < 20; ++i) chase<<<1, 1>>>(out, next, sink);
            report("load from the second-level cache");
            copies<<<1, 32>>>(out, reinterpret_cast<const uint8_t*>(next)),
                report("copy of 512 bytes from there");
        } else {
            check(cudaMemset(next + kWords / 2, 0, 4));
            chase<<<1, 1>>>(out, next, sink), report("load from memory");
        }
    }
    return 0;
}
