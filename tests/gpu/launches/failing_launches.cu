#include "backends/cuda/device.cuh"
#include "gpu/launches/failing_launches.h"

namespace tessera {
namespace {

__global__ void idle_kernel() {}

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

}  // namespace tessera
