#include "backends/cuda/device.cuh"
#include "gpu/launches/failing_launches.h"

namespace tessera {
namespace {

__global__ void idle_kernel() {}

__global__ void static_kernel(int* out) {
    __shared__ int own[256];
    own[threadIdx.x] = static_cast<int>(threadIdx.x);
    __syncthreads();
    if (out != nullptr) *out = own[blockDim.x - 1 - threadIdx.x];
}

__global__ void trap_kernel() {
    __trap();
}

}  // namespace

void launch_failing(FailingLaunch kind, bool synchronous) {
    cuda::CudaOptions options;
    options.synchronous = synchronous;
    cuda::Device device(options);
    switch (kind) {
        case FailingLaunch::kTooManyThreads:
            device.launch("idle_kernel", idle_kernel, dim3(3, 2), dim3(2048), 0);
            break;
        case FailingLaunch::kTooMuchSharedMemory:
            device.launch("idle_kernel", idle_kernel, dim3(3, 2), dim3(64), 1 << 20);
            break;
        case FailingLaunch::kTrap:
            device.launch("trap_kernel", trap_kernel, dim3(5), dim3(96), 16);
            break;
    }
    device.synchronize();
}

void launch_general(GeneralLaunch kind) {
    constexpr size_t kRoom = 101376 - 1024;
    cuda::CudaOptions options;
    options.general = true;
    cuda::Device device(options);
    switch (kind) {
        case GeneralLaunch::kFits:
            device.launch("static_kernel", static_kernel, dim3(2), dim3(256), kRoom, nullptr);
            break;
        case GeneralLaunch::kBeyond:
            device.launch("static_kernel", static_kernel, dim3(2), dim3(256), kRoom + 16, nullptr);
            break;
        case GeneralLaunch::kHopperKernel:
            device.launch_hopper("idle_kernel", idle_kernel, dim3(2), dim3(64), 0);
            break;
    }
    device.synchronize();
}

}  // namespace tessera
