#pragma once
// The card, its stream, and the one way to launch a kernel on it. Every .cu file of the backend
// includes this; nothing outside the backend does.

#include <cuda_runtime.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/pools.h"

namespace tessera::cuda {

/// What a kernel found wrong with its operands, first come first kept; copy_to_host() turns it into
/// a UserError.
enum class Fault : int32_t {
    kNone = 0,
    kExpertId  ///< an expert id outside [0, experts): argument 0 the id, argument 1 the experts
};
struct FaultWord {
    int32_t fault;
    int32_t arguments[2];
};

/// What the launches of an op's call say about it, for its counter.
struct LaunchNotes {
    Operands operands = Operands::kF32;
    std::string_view fallback;  ///< as OpCount's
};

/// The parts one after the other (nvcc cannot digest fmt's compile-time checks).
template <class... Parts>
std::string text(const Parts&... parts) {
    std::ostringstream out;
    (out << ... << parts);
    return out.str();
}

/// UserError(kDevice) that names the call when `status` is a failure.
void check_cuda(cudaError_t status, std::string_view what);

/// The way of bytes from anywhere on the host to a stream: through pinned memory, piece by piece.
/// CUDA does not promise that an asynchronous copy has read pageable memory when it returns, and
/// memory that is pinned has to stay as it is until the copy is through.
class SendRing {
  public:
    SendRing();
    ~SendRing();
    SendRing(const SendRing&) = delete;
    SendRing& operator=(const SendRing&) = delete;
    /// In order with the stream; `from` is free on return. The host waits only where it is a whole
    /// ring ahead of the stream.
    void send(cudaStream_t stream, void* to, const void* from, size_t bytes);

  private:
    static constexpr size_t kPieces = 4;
    static constexpr size_t kPieceBytes = size_t{512} << 10;
    void next_piece(cudaStream_t stream);

    std::byte* memory_ = nullptr;
    cudaEvent_t sent_[kPieces] = {};  ///< all copies out of a piece are through
    size_t piece_ = 0;
    size_t used_ = 0;
};

class Device {
  public:
    explicit Device(const CudaOptions& options);
    ~Device();
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    cudaStream_t stream() const { return stream_; }
    const cudaDeviceProp& properties() const { return properties_; }
    bool capturing() const;
    /// Makes this card the calling thread's: CUDA starts every thread on card 0. Asked of CUDA each
    /// time, as other libraries of the process may change it, too.
    void enter() const;
    int32_t multiprocessors() const { return properties_.multiProcessorCount; }
    /// Whether prompts run on kernels made for Hopper: card and build have them, and nobody asked
    /// for the general ones. The one question that every choice of kernels and layouts asks.
    bool hopper_kernels() const {
        return TESSERA_SM90A && properties_.major == 9 && !options_.general;
    }
    /// Device address that kernels report faults to.
    FaultWord* faults() const { return faults_; }

    /// kernel<<<grid, block, shared bytes>>>(arguments...) on the stream. A launch that fails
    /// throws UserError(kDevice) naming the kernel and its shape; more than 48 KiB of shared memory
    /// is asked for here. A grid with a zero extent launches nothing. With CudaOptions::general a
    /// block with more shared memory than a card of compute capability 12.x gives is a bug of ours.
    template <class... Parameters, class... Arguments>
    void launch(std::string_view kernel_name,
                void (*kernel)(Parameters...),
                dim3 grid,
                dim3 block,
                size_t shared_bytes,
                Arguments&&... arguments) {
        if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
        enter();
        if (options_.general)
            check_room(reinterpret_cast<const void*>(kernel),
                       {kernel_name, grid, block, shared_bytes});
        if (shared_bytes > kPlainSharedBytes) {
            const cudaError_t status =
                cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(shared_bytes));
            if (status != cudaSuccess)
                check_cuda(status, Launch{kernel_name, grid, block, shared_bytes}.describe());
        }
        kernel<<<grid, block, shared_bytes, stream_>>>(
            static_cast<Parameters>(std::forward<Arguments>(arguments))...);
        launched(kernel_name, grid, block, shared_bytes);
    }

    /// launch() of a kernel made for Hopper: a bug of ours where hopper_kernels() is false.
    template <class Kernel, class... Arguments>
    void launch_hopper(std::string_view kernel_name,
                       Kernel* kernel,
                       dim3 grid,
                       dim3 block,
                       size_t shared_bytes,
                       Arguments&&... arguments) {
        check_hopper(kernel_name);
        launch(kernel_name, kernel, grid, block, shared_bytes,
               std::forward<Arguments>(arguments)...);
    }

    /// Products of these operands were launched for the op under way.
    void note_operands(Operands operands) { notes_.operands = std::max(notes_.operands, operands); }
    /// A general kernel was launched for the op under way though this card has a special one for
    /// such ops: why, and which. A literal; the first of a call is kept.
    void note_fallback(std::string_view why) {
        if (notes_.fallback.empty()) notes_.fallback = why;
    }
    /// The notes since the last call.
    LaunchNotes take_notes() { return std::exchange(notes_, {}); }

    /// Host memory to the device, in order with the launches; `from` is free on return. Not for
    /// recordings: a replay would read what the ring then holds.
    void send(void* to, const void* from, size_t bytes);

    /// Waits for everything on the stream; a fault of the device names the last kernels.
    void synchronize();
    /// Throws what the kernels have reported since the last call; the stream is synchronized.
    void throw_faults();

    /// Zeroed (or poisoned) memory that lives as long as the device.
    std::byte* allocate(size_t bytes);
    size_t free_bytes() const;

  private:
    static constexpr size_t kPlainSharedBytes = 48 * 1024;
    struct Launch {
        std::string_view kernel;
        dim3 grid, block;
        size_t shared_bytes = 0;  ///< dynamic
        std::string describe() const;
    };
    void check_room(const void* kernel, const Launch& launch) const;
    void check_hopper(std::string_view kernel_name) const;
    void launched(std::string_view kernel_name, dim3 grid, dim3 block, size_t shared_bytes);

    CudaOptions options_;
    cudaStream_t stream_ = nullptr;
    cudaDeviceProp properties_{};
    FaultWord* faults_ = nullptr;
    Launch last_;
    LaunchNotes notes_;
    std::unique_ptr<SendRing> ring_;
    std::vector<std::byte*> mappings_;
    Pools pools_;
};

/// The shape and strides of a tensor as kernels take them, outer axes padded with 1: element
/// (a, b, c, i) stands at data[a * stride[0] + b * stride[1] + c * stride[2] + i].
template <class T>
struct View {
    T* data = nullptr;
    int64_t shape[4] = {1, 1, 1, 1};
    int64_t stride[4] = {0, 0, 0, 1};

    View() = default;
    explicit View(const Tensor& tensor) : data(tensor.as<T>()) {
        const int32_t skip = 4 - tensor.rank;
        for (int32_t axis = 0; axis < tensor.rank; ++axis) {
            shape[skip + axis] = tensor.shape[static_cast<size_t>(axis)];
            stride[skip + axis] = tensor.stride[static_cast<size_t>(axis)];
        }
    }
    /// Rows of the last axis.
    __host__ __device__ int64_t rows() const { return shape[0] * shape[1] * shape[2]; }
    /// Row `index` of all rows, the outermost axis slowest.
    __device__ T* row(int64_t index) const {
        const int64_t c = index % shape[2], ab = index / shape[2];
        return data + ab / shape[1] * stride[0] + ab % shape[1] * stride[1] + c * stride[2];
    }
};

inline int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

}  // namespace tessera::cuda
