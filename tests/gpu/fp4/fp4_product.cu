#include "backends/cuda/linear/gemm_nvfp4_sm120.cuh"
#include "gpu/fp4/fp4_product.h"

namespace tessera {
namespace {

/// Up to four microseconds for each warp of a block and step.
struct DelayedFp4Mma : cuda::EmulatedFp4Mma {
    static __device__ __forceinline__ void pause(uint32_t step) {
        uint32_t x = (step * 64 + threadIdx.x / 32) * 0x9e3779b9u + blockIdx.x * 0x85ebca6bu;
        x = (x ^ x >> 16) * 0x7feb352du;
        __nanosleep((x ^ x >> 15) % 4096);
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

template <class Mma>
void run(cuda::Device& device,
         const cuda::Product& product,
         const cuda::Fp4Rows& x,
         std::optional<int> tile) {
    if (tile)
        cuda::sm120::run_tiles<Mma>(device, product, x, cuda::sm120::kTiles[*tile]);
    else
        cuda::run_gemm_nvfp4_sm120<Mma>(device, product, x);
}

}  // namespace

std::vector<float> multiply_fp4(const Fp4Problem& problem,
                                Fp4Instruction instruction,
                                std::optional<int> tile) {
    static_assert(std::size(cuda::sm120::kTiles) == kFp4Tiles);
    cuda::Device device(cuda::CudaOptions{});
    float* out = const_cast<float*>(send(device, problem.out));
    cuda::Product product{};
    product.codes = send(device, resident_codes(problem.weight));
    product.scales = send(device, problem.weight.scales);
    product.outer = send(device, std::vector<float>{problem.outer});
    product.bias = send(device, problem.bias);
    product.n = problem.weight.rows;
    product.k = problem.weight.cols;
    product.units = cuda::units_of(product.k);
    product.out = out;
    product.out_stride = problem.out_stride;
    product.rows = problem.x.rows;
    product.add = problem.add;
    const cuda::Fp4Rows x{send(device, plain_codes(problem.x)), send(device, problem.x.scales),
                          send(device, problem.row_scales)};
    switch (instruction) {
        case Fp4Instruction::kEmulated:
            run<cuda::EmulatedFp4Mma>(device, product, x, tile);
            break;
        case Fp4Instruction::kDelayed:
            run<DelayedFp4Mma>(device, product, x, tile);
            break;
        case Fp4Instruction::kNative:
            run<cuda::NativeFp4Mma>(device, product, x, tile);
            break;
    }
    device.synchronize();
    std::vector<float> result(problem.out.size());
    cuda::check_cuda(
        cudaMemcpy(result.data(), out, result.size() * sizeof(float), cudaMemcpyDeviceToHost),
        "reading a product");
    return result;
}

bool card_multiplies_fp4() {
    cuda::Device device(cuda::CudaOptions{});
    return device.properties().major == 12;
}

}  // namespace tessera
