#include "backends/cuda/linear/fp4_self_test.cuh"
#include "backends/cuda/linear/gemm_nvfp4_sm120.cuh"
#include "backends/cuda/rows/scaled_rows.cuh"
#include "gpu/fp4/fp4_product.h"

namespace tessera {
namespace {

__device__ uint32_t delay_seed;

/// Up to four microseconds, others for each block, warp, step and seed: loader warps wait before
/// they fill a stage, the others before they read one.
struct DelayedFp4Mma : cuda::EmulatedFp4Mma {
    static __device__ __forceinline__ void pause(uint32_t step) {
        uint32_t x = (step * 64 + threadIdx.x / 32) * 0x9e3779b9u + blockIdx.x * 0x85ebca6bu +
                     delay_seed * 0xc2b2ae35u;
        x = (x ^ x >> 16) * 0x7feb352du;
        x = (x ^ x >> 15) * 0x846ca68bu;
        // Every fourth does not wait at all, so that the distance between warps grows.
        x ^= x >> 16;
        if (x % 4 != 0) __nanosleep(x / 4 % 4096);
        __syncwarp();
    }
};

template <class T>
const T* send(cuda::Device& device, const std::vector<T>& from) {
    if (from.empty()) return nullptr;
    std::byte* to = device.allocate(from.size() * sizeof(T));
    device.send(to, from.data(), from.size() * sizeof(T));
    return reinterpret_cast<const T*>(to);
}

template <class T>
std::vector<T> fetch(cuda::Device& device, const T* from, size_t count) {
    device.synchronize();
    std::vector<T> out(count);
    cuda::check_cuda(cudaMemcpy(out.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost),
                     "reading results");
    return out;
}

/// Calls run.operator()<Mma>() with what stands for the instruction; `seed` is that of delays.
template <class Run>
void with_instruction(cuda::Device& device,
                      Fp4Instruction instruction,
                      uint32_t seed,
                      const Run& run) {
    switch (instruction) {
        case Fp4Instruction::kEmulated:
            return run.template operator()<cuda::EmulatedFp4Mma>();
        case Fp4Instruction::kDelayed:
            cuda::check_cuda(cudaMemcpyToSymbolAsync(delay_seed, &seed, sizeof(seed), 0,
                                                     cudaMemcpyHostToDevice, device.stream()),
                             "setting the seed of delays");
            return run.template operator()<DelayedFp4Mma>();
        case Fp4Instruction::kNative:
            return run.template operator()<cuda::NativeFp4Mma>();
    }
}

/// The operands of a problem on the device.
struct Sent {
    cuda::Product product{};
    cuda::Fp4Rows x;

    Sent(cuda::Device& device, const Fp4Problem& problem)
        : x{send(device, plain_codes(problem.x)), send(device, problem.x.scales),
            send(device, problem.row_scales)} {
        product.codes = send(device, resident_codes(problem.weight));
        product.scales = send(device, problem.weight.scales);
        product.outer = send(device, std::vector<float>{problem.outer});
        product.bias = send(device, problem.bias);
        product.n = problem.weight.rows;
        product.k = problem.weight.cols;
        product.units = cuda::units_of(product.k);
        product.out = const_cast<float*>(send(device, problem.out));
        product.out_stride = problem.out_stride;
        product.rows = problem.x.rows;
        product.add = problem.add;
    }
};

/// Reads the scales of tokens from the lanes of another selector.
struct WrongFp4Mma : cuda::EmulatedFp4Mma {
    template <int ASelector, int BSelector>
    static __device__ __forceinline__ void run(float* c,
                                               const uint32_t (&a)[4],
                                               const uint32_t (&b)[2],
                                               uint32_t a_scales,
                                               uint32_t b_scales) {
        EmulatedFp4Mma::run<ASelector, BSelector ^ 1>(c, a, b, a_scales, b_scales);
    }
};

/// Rounds ties to the larger magnitude.
struct WrongE2m1 : cuda::rows::SoftwareE2m1 {
    using SoftwareE2m1::SoftwareE2m1;
    __device__ uint32_t codes(const float (&values)[4]) const {
        float larger[4];
        for (int i = 0; i < 4; ++i) larger[i] = values[i] * (1.0f + 0x1p-23f);
        return SoftwareE2m1::codes(larger);
    }
};

template <class Mma, class E2m1>
std::vector<std::string> probe(cuda::Device& device) {
    std::vector<std::string> faults = cuda::fp4_probe::check<Mma>(device);
    for (const std::string& fault : cuda::fp4_probe::check_rounding<E2m1>(device))
        faults.push_back(fault);
    return faults;
}

}  // namespace

std::vector<std::string> probe_fp4(Fp4Probed probed) {
    cuda::Device device(cuda::CudaOptions{});
    switch (probed) {
        case Fp4Probed::kNative:
            return probe<cuda::NativeFp4Mma, cuda::rows::NativeE2m1>(device);
        case Fp4Probed::kWrong:
            return probe<WrongFp4Mma, WrongE2m1>(device);
        case Fp4Probed::kEmulated:
            break;
    }
    return probe<cuda::EmulatedFp4Mma, cuda::rows::SoftwareE2m1>(device);
}

std::vector<float> multiply_fp4(const Fp4Problem& problem,
                                Fp4Instruction instruction,
                                std::optional<int> tile,
                                uint32_t seed) {
    static_assert(std::size(cuda::sm120::kTiles) == kFp4Tiles);
    cuda::Device device(cuda::CudaOptions{});
    const Sent sent(device, problem);
    with_instruction(device, instruction, seed, [&]<class Mma>() {
        if (tile)
            cuda::sm120::run_tiles<Mma>(device, sent.product, DType::kNVFP4, sent.x,
                                        cuda::sm120::kTiles[*tile]);
        else
            cuda::run_gemm_nvfp4_sm120<Mma>(device, sent.product, DType::kNVFP4, sent.x);
    });
    return fetch(device, sent.product.out, problem.out.size());
}

std::vector<float> multiply_fp4_groups(const Fp4Problem& problem,
                                       const Fp4Groups& groups,
                                       Fp4Instruction instruction,
                                       int tokens) {
    cuda::Device device(cuda::CudaOptions{});
    Sent sent(device, problem);
    cuda::Product& product = sent.product;
    product.experts = static_cast<int32_t>(groups.outers.size());
    product.outer = send(device, groups.outers);
    product.n = problem.weight.rows / product.experts;
    product.rows = static_cast<int64_t>(groups.pairs.size());
    product.pairs = send(device, groups.pairs);
    product.starts = send(device, groups.starts);
    product.pairs_per_row = groups.pairs_per_row;
    product.end_pair = groups.end_pair;
    with_instruction(device, instruction, /*seed=*/1, [&]<class Mma>() {
        cuda::sm120::run_groups<Mma>(device, product, DType::kNVFP4, sent.x, tokens);
    });
    return fetch(device, product.out, problem.out.size());
}

Fp4Quantized quantize_fp4(const std::vector<float>& x,
                          int64_t rows,
                          int64_t cols,
                          Nvfp4Policy policy) {
    cuda::Device device(cuda::CudaOptions{});
    const auto count = static_cast<size_t>(rows * cols);
    cuda::rows::ScaledCopy<float> work;
    work.x.data = send(device, x);
    work.x.stride[0] = cols;
    work.vector = true;
    work.sink.fp4 = reinterpret_cast<uint8_t*>(device.allocate(count / 2));
    work.sink.fp4_scales = reinterpret_cast<uint8_t*>(device.allocate(count / 16));
    work.sink.row_scales =
        reinterpret_cast<float*>(device.allocate(static_cast<size_t>(rows) * sizeof(float)));
    work.sink.prompt_rows = static_cast<uint32_t>(rows);
    work.sink.cols = cols;
    work.sink.policy = policy;
    const int64_t threads = cuda::ceil_div(cols / 4, 32 * cuda::rows::kScaledHeld) * 32;
    device.launch(
        "quantize_fp4", cuda::rows::scaled_rows_kernel<cuda::rows::ScaledCopy<float>>,
        dim3(static_cast<unsigned>(rows)),
        dim3(static_cast<unsigned>(std::min<int64_t>(threads, cuda::rows::kScaledMaxThreads))), 0,
        work);
    return {fetch(device, work.sink.fp4, count / 2),
            fetch(device, work.sink.fp4_scales, count / 16),
            fetch(device, work.sink.row_scales, static_cast<size_t>(rows))};
}

bool card_multiplies_fp4() {
    cuda::Device device(cuda::CudaOptions{});
    return device.properties().major == 12;
}

}  // namespace tessera
