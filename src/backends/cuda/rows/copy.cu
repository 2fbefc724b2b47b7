// copy and concat: launches of copy.cuh.

#include "backends/cuda/rows/copy.cuh"
#include "backends/cuda/rows/row_map.h"
#include "ops/checks.h"

namespace tessera::cuda {
namespace {

bool is_integer(DType dtype) {
    return dtype == DType::kI8 || dtype == DType::kI16 || dtype == DType::kI32 ||
           dtype == DType::kI64;
}

/// `per_row` units, elements or chunks in each row.
rows::CopyArguments copy_arguments(const Tensor& from, const Tensor& to, int64_t per_row) {
    const DTypeInfo& info = dtype_info(to.dtype);
    rows::CopyArguments arguments;
    arguments.from = rows::row_map<const std::byte>(from);
    arguments.to = rows::row_map<std::byte>(to);
    arguments.from_format = from.dtype;
    arguments.to_format = to.dtype;
    arguments.to_block = info.block_elements;
    arguments.to_block_bytes = info.block_bytes;
    arguments.per_row = per_row;
    arguments.count = rows::row_count(from) * per_row;
    arguments.cols = from.cols();
    return arguments;
}

dim3 blocks_of(int64_t count, int64_t per_block) {
    return dim3(static_cast<uint32_t>(ceil_div(count, per_block)));
}

/// Bits that are set where the rows of `tensor` begin or step.
uint64_t address_bits(const Tensor& tensor) {
    uint64_t bits = reinterpret_cast<uintptr_t>(tensor.data);
    for (int32_t axis = 0; axis + 1 < tensor.rank; ++axis) {
        const auto a = static_cast<size_t>(axis);
        if (tensor.shape[a] > 1)
            bits |= static_cast<uint64_t>(dtype_bytes(tensor.dtype, tensor.stride[a]));
    }
    return bits;
}

/// Same format on both sides.
void move_rows(Device& device, std::string_view name, const Tensor& from, const Tensor& to) {
    if (from.elements() == 0) return;
    if (from.contiguous() && to.contiguous() && from.rank > 1) {
        const int64_t elements = from.elements();
        move_rows(device, name, from.reshape({elements}), to.reshape({elements}));
        return;
    }
    const int64_t row_bytes = dtype_bytes(from.dtype, from.cols());
    const uint64_t bits =
        address_bits(from) | address_bits(to) | static_cast<uint64_t>(row_bytes) | 16u;
    const auto unit = static_cast<int64_t>(bits & (~bits + 1));  // the lowest set bit
    void (*kernel)(rows::CopyArguments) = rows::move_kernel<uint8_t>;
    if (unit == 16) kernel = rows::move_kernel<uint4>;
    if (unit == 8) kernel = rows::move_kernel<uint2>;
    if (unit == 4) kernel = rows::move_kernel<uint32_t>;
    if (unit == 2) kernel = rows::move_kernel<uint16_t>;
    const rows::CopyArguments arguments = copy_arguments(from, to, row_bytes / unit);
    device.launch(name, kernel, blocks_of(arguments.count, rows::kCopyThreads),
                  dim3(rows::kCopyThreads), 0, arguments);
}

/// To a plain format: integers exactly, f64 among plain formats as f64, all else as f32.
void convert_rows(Device& device, const Tensor& from, const Tensor& to) {
    const bool f64 = from.dtype == DType::kF64 || to.dtype == DType::kF64;
    void (*kernel)(rows::CopyArguments) = rows::convert_kernel<float>;
    if (f64 && !is_block_format(from.dtype)) kernel = rows::convert_kernel<double>;
    if (is_integer(from.dtype) && is_integer(to.dtype)) kernel = rows::convert_kernel<int64_t>;
    const rows::CopyArguments arguments = copy_arguments(from, to, from.cols());
    device.launch("copy", kernel, blocks_of(arguments.count, rows::kCopyThreads),
                  dim3(rows::kCopyThreads), 0, arguments);
}

void encode_rows(Device& device, const Tensor& from, const Tensor& to) {
    const rows::CopyArguments arguments =
        copy_arguments(from, to, ceil_div(from.cols(), rows::kChunk));
    device.launch("copy", rows::encode_kernel, blocks_of(arguments.count, rows::kEncodeWarps),
                  dim3(32 * rows::kEncodeWarps), 0, arguments);
}

}  // namespace

void CudaOps::copy(Exec& ex, const Tensor& from, const Tensor& to) {
    check_copy(from, to);
    if (ex.planning() || from.elements() == 0) return;
    const Timed timed(*this, "copy", 0, rows::bytes_of(from) + rows::bytes_of(to));
    if (from.dtype == to.dtype)
        move_rows(*device_, "copy", from, to);
    else if (is_block_format(to.dtype))
        encode_rows(*device_, from, to);
    else
        convert_rows(*device_, from, to);
}

void CudaOps::concat(Exec& ex, const Tensor& a, const Tensor& b, int32_t axis, const Tensor& out) {
    check_concat(a, b, axis, out);
    const auto joined = static_cast<size_t>(axis);
    if (ex.planning() || out.elements() == 0) return;
    const Timed timed(*this, "concat", 0, 2 * rows::bytes_of(out));
    Tensor first = out, second = out;
    first.shape = a.shape;
    second.shape = b.shape;
    second.data =
        out.as<std::byte>() + dtype_bytes(out.dtype, a.shape[joined] * out.stride[joined]);
    move_rows(*device_, "concat", a, first);
    move_rows(*device_, "concat", b, second);
}

}  // namespace tessera::cuda
