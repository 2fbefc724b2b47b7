// Weights to the device: the file's bytes go through two pinned buffers, piece by piece, so that
// the host copies one while the other is on the bus; a kernel then brings each piece into the
// layout of formats.cuh. Repacking on the host was rejected: it would take several cores to keep
// up.
#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "backends/cuda/linear/fp4_places.h"
#include "backends/cuda/linear/linear.h"
#include "backends/cuda/linear/pack.cuh"
#include "backends/cuda/linear/product.cuh"
#include "backends/cuda/rows/codec.cuh"
#include "backends/cuda/rows/input.h"

namespace tessera::cuda {
namespace {

constexpr int64_t kAlignment = 256;
constexpr unsigned kPackThreads = 256;

int64_t round_up(int64_t value, int64_t unit) {
    return (value + unit - 1) / unit * unit;
}

uint8_t bit_of(ActFormat format) {
    return static_cast<uint8_t>(1u << static_cast<unsigned>(format));
}

/// F64, F8_E4M3 and integers become F32.
DType stored_format(DType format) {
    const bool plain = !is_block_format(format);
    return plain && format != DType::kF16 && format != DType::kBF16 ? DType::kF32 : format;
}

/// Where the streams of a weight lie in its one allocation.
struct Places {
    int64_t scales;
    int64_t outer;
    int64_t factors;  ///< of rows, where `factored`
    int64_t bytes;
};

/// Whether products take a factor of each row (Weight::row_factors).
bool is_factored(DType format, ActWants wants) {
    return wants_fp8(wants) || (wants_fp4(wants) && format == DType::kMXFP4);
}

Places places_of(const HostWeight& weight, bool factored) {
    const DType stored = stored_format(weight.format);
    const FormatLayout layout = layout_of(stored);
    const int64_t units = units_of(weight.cols), rows = weight.rows * weight.experts;
    Places places{};
    places.scales = round_up(rows * row_code_bytes(layout, units), kAlignment);
    places.outer = places.scales + round_up(rows * row_scale_bytes(layout, units), kAlignment);
    constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
    places.factors = places.outer + round_up(weight.experts * kFloat, kAlignment);
    places.bytes = places.factors + (factored ? round_up(rows * kFloat, kAlignment) : 0);
    return places;
}

/// A piece of a weight on its way: blocks [first_block, first_block + blocks) of all its rows.
struct PackArguments {
    const uint8_t* source;
    int64_t first_block;
    int64_t blocks;
    int64_t cols;
    DType format;
    uint8_t* codes;
    uint8_t* scales;
};

/// A thread per unit of a block format.
__global__ void pack_blocks(const PackArguments a, int block_bytes, int block_units) {
    const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (index >= a.blocks * block_units) return;
    const int64_t units = a.cols / kUnit;
    const int64_t unit = a.first_block * block_units + index;
    const int64_t row = unit / units;
    const FormatLayout layout = layout_of(a.format);
    const PackUnit pack{.block = a.source + index / block_units * block_bytes,
                        .sub = static_cast<int>(index % block_units),
                        .codes = a.codes + row * row_code_bytes(layout, units),
                        .scales = a.scales + row * row_scale_bytes(layout, units),
                        .unit = unit % units,
                        .units = units};
    pack.run(a.format);
}

template <class From, class To>
__device__ __forceinline__ void pack_value(const PackArguments& a, int64_t index) {
    constexpr int kPieces = kUnit * static_cast<int>(sizeof(To)) / kPieceBytes;
    const int64_t units = units_of(a.cols);
    const int64_t element = a.first_block + index;
    const int64_t row = element / a.cols, k = element % a.cols;
    const int64_t byte = k % kUnit * static_cast<int64_t>(sizeof(To));
    uint8_t* target =
        a.codes + row * units * kPieces * kPieceBytes +
        piece_offset(kPieces, units, k / kUnit, static_cast<int>(byte / kPieceBytes)) +
        byte % kPieceBytes;
    *reinterpret_cast<To*>(target) =
        static_cast<To>(reinterpret_cast<const From*>(a.source)[index]);
}

/// A byte that converts as a number does.
struct E4m3 {
    uint8_t code;
    __device__ explicit operator float() const { return rows::f32_of_e4m3(code); }
};

/// A thread per element of a plain format.
__global__ void pack_elements(const PackArguments a) {
    const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (index >= a.blocks) return;
    switch (a.format) {
        case DType::kF16:
        case DType::kBF16:
            return pack_value<uint16_t, uint16_t>(a, index);
        case DType::kF64:
            return pack_value<double, float>(a, index);
        case DType::kI8:
            return pack_value<int8_t, float>(a, index);
        case DType::kI16:
            return pack_value<int16_t, float>(a, index);
        case DType::kI32:
            return pack_value<int32_t, float>(a, index);
        case DType::kI64:
            return pack_value<int64_t, float>(a, index);
        case DType::kF8_E4M3:
            return pack_value<E4m3, float>(a, index);
        default:
            return pack_value<float, float>(a, index);
    }
}

/// The powers of two of rows of MXFP4 whose scales shall be ue4m3 numbers (fp4_places.h), a warp a
/// row. Scales of blocks of zeros may be anything and do not count.
__global__ void row_powers(
    const uint8_t* codes, const uint8_t* scales, int64_t rows, int64_t units, float* out) {
    const int64_t row = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    int largest = 0;
    for (int64_t unit = row * units + threadIdx.x % 32; unit < (row + 1) * units; unit += 32) {
        const uint4 own = reinterpret_cast<const uint4*>(codes)[unit];
        if (((own.x | own.y | own.z | own.w) & 0x77777777u) != 0)
            largest = max(largest, int{scales[unit]});
    }
    largest = __reduce_max_sync(0xffffffffu, largest);
    if (threadIdx.x % 32 == 0)
        out[row] = __uint_as_float(static_cast<uint32_t>(sm120::row_exponent(largest)) << 23);
}

/// memcpy by a few threads: one alone is slower than the bus when it has to fault the file's pages
/// in.
void copy_in_parallel(std::byte* to, const std::byte* from, size_t bytes) {
    constexpr size_t kShare = size_t{1} << 21;
    const size_t threads = std::clamp<size_t>(
        std::min<size_t>(bytes / kShare, std::thread::hardware_concurrency()), 1, 4);
    const size_t share = (bytes + threads - 1) / threads;
    std::vector<std::jthread> helpers;
    for (size_t begin = share; begin < bytes; begin += share)
        helpers.emplace_back(
            [=] { std::memcpy(to + begin, from + begin, std::min(share, bytes - begin)); });
    std::memcpy(to, from, std::min(share, bytes));
}

}  // namespace

/// Two buffers in pinned memory with their counterparts on the device.
struct CudaOps::Upload {
    std::byte* pinned[2] = {};
    std::byte* raw[2] = {};
    cudaEvent_t sent[2] = {};

    explicit Upload(Device& device) {
        for (int i = 0; i < 2; ++i) {
            check_cuda(cudaHostAlloc(reinterpret_cast<void**>(&pinned[i]), kUploadBytes,
                                     cudaHostAllocDefault),
                       "allocating pinned memory");
            check_cuda(cudaEventCreateWithFlags(&sent[i], cudaEventDisableTiming),
                       "making an event");
            raw[i] = device.allocate(kUploadBytes);
        }
    }
    ~Upload() {
        for (int i = 0; i < 2; ++i) {
            // Its buffer may still be on the bus.
            if (sent[i] != nullptr) cudaEventSynchronize(sent[i]);
            cudaEventDestroy(sent[i]);
            cudaFreeHost(pinned[i]);
        }
    }
    static void destroy(Upload* upload) { delete upload; }
};

int64_t matrix_bytes(DType format, int64_t rows, int64_t cols) {
    const FormatLayout layout = layout_of(format);
    const int64_t units = units_of(cols);
    return rows * (row_code_bytes(layout, units) + row_scale_bytes(layout, units));
}

int64_t CudaOps::upload_bytes(const HostWeight& weight) const {
    return places_of(weight, is_factored(weight.format, wants(weight.format, weight.experts)))
        .bytes;
}

ActWants CudaOps::wants(DType weight_format, int32_t experts) const {
    const DType stored = stored_format(weight_format);
    const auto act = [&](ActFormat chosen) {
        if (stored == DType::kF32) return bit_of(ActFormat::kF32);
        const bool fp4 = stored == DType::kNVFP4 || stored == DType::kMXFP4;
        const bool coarse = chosen == ActFormat::kFp8 || chosen == ActFormat::kNvfp4;
        const bool grouped = chosen == ActFormat::kFp8 && experts > 1;
        // Rows whose columns are not by 64, which MXFP4 alone may have, are not packed (ActView).
        const bool packed =
            chosen == ActFormat::kNvfp4 && fp4 && options_.fp4_products != Fp4Products::kOff;
        if (packed) return bit_of(ActFormat::kFp4);
        // Nobody asked for coarse rows where they are not faster.
        const bool unasked = options_.act_auto;
        return bit_of(coarse && (!fp4 || grouped || unasked) ? ActFormat::kBF16 : chosen);
    };
    return {act(options_.act_prompt), act(options_.act_generated), options_.nvfp4};
}

Weight CudaOps::upload(const HostWeight& weight) {
    const auto experts = static_cast<size_t>(weight.experts);
    check(weight.scales.size() <= 1 || weight.scales.size() == experts,
          "upload: one scale, or one per expert");
    device_->enter();
    if (upload_ == nullptr) upload_ = decltype(upload_)(new Upload(*device_), Upload::destroy);
    const DTypeInfo& info = dtype_info(weight.format);
    const ActWants wanted = wants(weight.format, weight.experts);
    const Places places = places_of(weight, is_factored(weight.format, wanted));
    std::byte* memory = allocate(static_cast<size_t>(places.bytes));
    // Columns that pad the last unit of a row count as zeros.
    if (weight.cols % kUnit != 0)
        check_cuda(
            cudaMemsetAsync(memory, 0, static_cast<size_t>(places.scales), device_->stream()),
            "clearing a weight");

    const int64_t blocks = weight.experts * weight.rows * (weight.cols / info.block_elements);
    const int64_t most = static_cast<int64_t>(kUploadBytes) / info.block_bytes;
    const int block_units = info.block_elements / kUnit;
    for (int64_t first = 0, piece = 0; first < blocks; first += most, ++piece) {
        const int64_t count = std::min(most, blocks - first);
        const auto bytes = static_cast<size_t>(count * info.block_bytes);
        const auto slot = static_cast<size_t>(piece % 2);
        // The buffer's last piece, maybe of the weight before, has left it.
        check_cuda(cudaEventSynchronize(upload_->sent[slot]), "sending a weight");
        copy_in_parallel(upload_->pinned[slot], weight.data + first * info.block_bytes, bytes);
        check_cuda(cudaMemcpyAsync(upload_->raw[slot], upload_->pinned[slot], bytes,
                                   cudaMemcpyHostToDevice, device_->stream()),
                   "sending a weight");
        check_cuda(cudaEventRecord(upload_->sent[slot], device_->stream()), "sending a weight");
        const PackArguments arguments{
            .source = reinterpret_cast<const uint8_t*>(upload_->raw[slot]),
            .first_block = first,
            .blocks = count,
            .cols = weight.cols,
            .format = weight.format,
            .codes = reinterpret_cast<uint8_t*>(memory),
            .scales = reinterpret_cast<uint8_t*>(memory + places.scales)};
        const int64_t threads = count * std::max(block_units, 1);
        const dim3 grid(static_cast<unsigned>(ceil_div(threads, kPackThreads)));
        if (block_units > 0)
            device_->launch("pack_blocks", pack_blocks, grid, dim3(kPackThreads), 0, arguments,
                            info.block_bytes, block_units);
        else
            device_->launch("pack_elements", pack_elements, grid, dim3(kPackThreads), 0, arguments);
    }

    std::vector<float> outer(experts, 1.0f);
    for (size_t e = 0; e < experts && !weight.scales.empty(); ++e)
        outer[e] = weight.scales[weight.scales.size() == 1 ? 0 : e];
    copy_to_device(memory + places.outer, outer.data(), experts * sizeof(float));
    Weight uploaded;
    uploaded.format = stored_format(weight.format);
    uploaded.rows = weight.rows;
    uploaded.cols = weight.cols;
    uploaded.experts = weight.experts;
    uploaded.codes = memory;
    uploaded.scales = memory + places.scales;
    uploaded.outer_scale = reinterpret_cast<const float*>(memory + places.outer);
    uploaded.wants = wanted;
    auto* const factors = reinterpret_cast<float*>(memory + places.factors);
    if (is_factored(weight.format, wanted)) uploaded.row_factors = factors;
    if (wants_fp4(wanted) && weight.format == DType::kMXFP4) {
        const int64_t rows = weight.experts * weight.rows;
        device_->launch("row_powers", row_powers,
                        dim3(static_cast<unsigned>(ceil_div(rows, kPackThreads / 32))),
                        dim3(kPackThreads), 0, reinterpret_cast<const uint8_t*>(uploaded.codes),
                        reinterpret_cast<const uint8_t*>(uploaded.scales), rows,
                        units_of(weight.cols), factors);
    }
#if TESSERA_SM90A
    if (wants_fp8(wanted)) {
        const auto find = weight.format == DType::kNVFP4 ? find_row_factors<DType::kNVFP4>
                                                         : find_row_factors<DType::kMXFP4>;
        find(*device_, reinterpret_cast<const uint8_t*>(uploaded.scales), weight.rows,
             units_of(weight.cols), factors);
    }
#endif
    return uploaded;
}

}  // namespace tessera::cuda
