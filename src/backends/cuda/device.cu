// Opening a card and talking to it. Blocks share mappings (pools.h), so that a model of hundreds of
// small tensors does not pay the driver's granularity for each.
#include <cstring>

#include "backends/cuda/device.cuh"

namespace tessera::cuda {
namespace {

__global__ void probe_kernel() {}

[[noreturn]] void device_error(const std::string& message) {
    throw UserError(ExitCode::kDevice, message);
}

std::string version_text(int version) {
    return text(version / 1000, ".", version % 1000 / 10);
}

/// Devices that the driver offers; says why when there is none.
int32_t count_devices() {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    int driver = 0;
    cudaDriverGetVersion(&driver);
    if (driver == 0) device_error("no NVIDIA driver found: install one or take --backend cpu");
    if (status == cudaErrorInsufficientDriver)
        device_error(text("the NVIDIA driver supports CUDA ", version_text(driver),
                          ", this program needs ", version_text(CUDART_VERSION),
                          ": update the driver or take --backend cpu"));
    if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0))
        device_error(
            "the NVIDIA driver offers no GPU (CUDA_VISIBLE_DEVICES hides them, or there is "
            "none): take --backend cpu");
    check_cuda(status, "counting devices");
    return count;
}

}  // namespace

void check_cuda(cudaError_t status, std::string_view what) {
    if (status == cudaSuccess) return;
    cudaGetLastError();
    const ExitCode code =
        status == cudaErrorMemoryAllocation ? ExitCode::kMemory : ExitCode::kDevice;
    throw UserError(code, text("CUDA: ", what, ": ", cudaGetErrorString(status)));
}

std::string Device::Launch::describe() const {
    return text(kernel, " <<<(", grid.x, ", ", grid.y, ", ", grid.z, "), (", block.x, ", ", block.y,
                ", ", block.z, "), ", shared_bytes, " bytes>>>");
}

Device::Device(const CudaOptions& options) : options_(options) {
    const int32_t count = count_devices();
    if (options.device < 0 || options.device >= count)
        device_error(text("there is no device CUDA", options.device, ": the driver offers ", count,
                          count > 1 ? text(", CUDA0 to CUDA", count - 1) : ", CUDA0"));
    check_cuda(cudaSetDevice(options.device), text("opening CUDA", options.device));
    check_cuda(cudaGetDeviceProperties(&properties_, options.device), "reading the properties");
    cudaFuncAttributes attributes;
    const cudaError_t status = cudaFuncGetAttributes(&attributes, probe_kernel);
    if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction)
        device_error(text("this program has no kernels for ", properties_.name, " (sm_",
                          properties_.major, properties_.minor,
                          "): take --backend cpu or build with -DTESSERA_CUDA_ARCHS=",
                          properties_.major, properties_.minor));
    check_cuda(status, text("loading the kernels on ", properties_.name));
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
    check_cuda(
        cudaHostAlloc(reinterpret_cast<void**>(&faults_), sizeof(FaultWord), cudaHostAllocMapped),
        "allocating pinned memory");
    std::memset(faults_, 0, sizeof(FaultWord));
}

Device::~Device() {
    cudaStreamSynchronize(stream_);
    for (std::byte* mapping : mappings_) cudaFree(mapping);
    cudaFreeHost(faults_);
    cudaStreamDestroy(stream_);
}

bool Device::capturing() const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(stream_, &status);
    return status != cudaStreamCaptureStatusNone;
}

void Device::launched(std::string_view kernel_name, dim3 grid, dim3 block, size_t shared_bytes) {
    last_ = {kernel_name, grid, block, shared_bytes};
    cudaError_t status = cudaGetLastError();
    if (status == cudaSuccess && options_.synchronous && !capturing())
        status = cudaStreamSynchronize(stream_);
    if (status != cudaSuccess) check_cuda(status, last_.describe());
}

void Device::synchronize() {
    const cudaError_t status = cudaStreamSynchronize(stream_);
    if (status == cudaSuccess) return;
    check_cuda(status, last_.kernel.empty()
                           ? "waiting for the device"
                           : text("a kernel failed, the last one queued was ", last_.describe()));
}

void Device::throw_faults() {
    FaultWord found;
    std::memcpy(&found, faults_, sizeof(found));
    if (found.fault == static_cast<int32_t>(Fault::kNone)) return;
    std::memset(faults_, 0, sizeof(FaultWord));
    throw UserError(ExitCode::kFailure, text("expert id ", found.arguments[0], " is not in 0..",
                                             found.arguments[1] - 1));
}

std::byte* Device::allocate(size_t bytes) {
    Pools pools = pools_;
    const Pools::Place place = pools.take(bytes);
    if (place.fresh_bytes > 0) {
        std::byte* mapping = nullptr;
        check_cuda(cudaMalloc(reinterpret_cast<void**>(&mapping), place.fresh_bytes),
                   text("allocating ", place.fresh_bytes >> 20, " MiB of ", free_bytes() >> 20,
                        " MiB free"));
        mappings_.push_back(mapping);
        check_cuda(cudaMemsetAsync(mapping, options_.poison ? 0xff : 0, place.fresh_bytes, stream_),
                   "clearing fresh memory");
    }
    pools_ = std::move(pools);  // not before the mapping is there
    return mappings_[place.mapping] + place.offset;
}

size_t Device::free_bytes() const {
    size_t available = 0, total = 0;
    if (cudaMemGetInfo(&available, &total) != cudaSuccess) return 0;
    return available;
}

}  // namespace tessera::cuda
