// Opening a card and talking to it. Blocks share mappings (pools.h), so that a model of hundreds of
// small tensors does not pay the driver's granularity for each.
#include <algorithm>
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

SendRing::SendRing() {
    check_cuda(cudaHostAlloc(reinterpret_cast<void**>(&memory_), kPieces * kPieceBytes,
                             cudaHostAllocDefault),
               "allocating pinned memory");
    for (cudaEvent_t& event : sent_)
        check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
}

SendRing::~SendRing() {
    for (cudaEvent_t event : sent_)
        if (event != nullptr) cudaEventDestroy(event);
    cudaFreeHost(memory_);
}

void SendRing::next_piece(cudaStream_t stream) {
    check_cuda(cudaEventRecord(sent_[piece_], stream), "sending to the device");
    piece_ = (piece_ + 1) % kPieces;
    // Its last round of copies has left it; at once in the first round.
    check_cuda(cudaEventSynchronize(sent_[piece_]), "sending to the device");
    used_ = 0;
}

void SendRing::send(cudaStream_t stream, void* to, const void* from, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        const size_t left = bytes - done;
        if (used_ > 0 && left > kPieceBytes - used_) next_piece(stream);
        const size_t part = std::min(left, kPieceBytes - used_);
        std::byte* pinned = memory_ + piece_ * kPieceBytes + used_;
        std::memcpy(pinned, static_cast<const std::byte*>(from) + done, part);
        check_cuda(cudaMemcpyAsync(static_cast<std::byte*>(to) + done, pinned, part,
                                   cudaMemcpyHostToDevice, stream),
                   "sending to the device");
        used_ += part;
        done += part;
    }
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
    ring_ = std::make_unique<SendRing>();
}

Device::~Device() {
    cudaSetDevice(options_.device);
    cudaStreamSynchronize(stream_);
    for (std::byte* mapping : mappings_) cudaFree(mapping);
    ring_.reset();
    cudaFreeHost(faults_);
    cudaStreamDestroy(stream_);
}

void Device::enter() const {
    int current = -1;
    if (cudaGetDevice(&current) == cudaSuccess && current == options_.device) return;
    check_cuda(cudaSetDevice(options_.device), text("choosing CUDA", options_.device));
}

bool Device::capturing() const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(stream_, &status);
    return status != cudaStreamCaptureStatusNone;
}

void Device::check_room(const void* kernel, const Launch& launch) const {
    constexpr size_t kBlackwellBytes = 101376;  // of a block: 99 KiB
    cudaFuncAttributes attributes, none;
    check_cuda(cudaFuncGetAttributes(&attributes, kernel), launch.describe());
    // What the system may keep of every block, 1 KiB from sm_90 on, is no part of the 99.
    check_cuda(cudaFuncGetAttributes(&none, probe_kernel), launch.describe());
    const size_t bytes = launch.shared_bytes + attributes.sharedSizeBytes - none.sharedSizeBytes;
    if (bytes > kBlackwellBytes)
        check(false, text(launch.describe(), ": ", bytes, " bytes of shared memory, ",
                          kBlackwellBytes, " are what a block has on compute capability 12.x"));
}

void Device::check_hopper(std::string_view kernel_name) const {
    if (!hopper_kernels())
        check(false, text(kernel_name, ": a kernel for Hopper, and general ones were asked for"));
}

void Device::launched(std::string_view kernel_name, dim3 grid, dim3 block, size_t shared_bytes) {
    last_ = {kernel_name, grid, block, shared_bytes};
    cudaError_t status = cudaGetLastError();
    if (status == cudaSuccess && options_.synchronous && !capturing())
        status = cudaStreamSynchronize(stream_);
    if (status != cudaSuccess) check_cuda(status, last_.describe());
}

void Device::send(void* to, const void* from, size_t bytes) {
    check(!capturing(), "a copy from the host cannot be recorded");
    enter();
    ring_->send(stream_, to, from, bytes);
}

void Device::synchronize() {
    enter();
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
    enter();
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
    enter();
    size_t available = 0, total = 0;
    if (cudaMemGetInfo(&available, &total) != cudaSuccess) return 0;
    return available;
}

}  // namespace tessera::cuda
