// Rows of an embedding table as f32: bytes of the rows read, f32 written. A thread decodes eight
// values.
#include "backends/cuda/linear/linear.h"
#include "backends/cuda/linear/product.cuh"

namespace tessera::cuda {
namespace {

struct Embed {
    const int32_t* ids;
    const uint8_t* codes;
    const uint8_t* scales;
    const float* outer;
    float* out;
    int64_t out_stride;
    int64_t cols;
    int64_t tokens;
};

/// Values [8 kQ, 8 kQ + 8) of a unit to out[0 .. count). Which eight values a thread wants is known
/// at run time only; registers want it known before.
template <DType F, int kQ, class Raw>
__device__ __forceinline__ void put_values(const Raw& raw, float outer, int64_t count, float* out) {
    float values[8];
    decode<F>(raw, kQ, values);
#pragma unroll
    for (int i = 0; i < 8; ++i)
        if (i < count) out[i] = values[i] * outer;
}

template <DType F>
__global__ void embed_kernel(const Embed e) {
    const int64_t units = units_of(e.cols);
    const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int64_t token = index / (units * 4), within = index % (units * 4);
    if (token >= e.tokens) return;
    const int64_t row = e.ids[token];
    const FormatLayout layout = layout_of(F);
    const WeightRow weight{e.codes + row * row_code_bytes(layout, units),
                           e.scales + row * row_scale_bytes(layout, units)};
    const auto raw = load_unit<F>(weight, within / 4, units);
    const float outer = *e.outer;
    const int64_t k = within * 8;
    float* out = e.out + token * e.out_stride + k;
    switch (within % 4) {
        case 0:
            return put_values<F, 0>(raw, outer, e.cols - k, out);
        case 1:
            return put_values<F, 1>(raw, outer, e.cols - k, out);
        case 2:
            return put_values<F, 2>(raw, outer, e.cols - k, out);
        default:
            return put_values<F, 3>(raw, outer, e.cols - k, out);
    }
}

using Kernel = void (*)(Embed);

Kernel kernel_of(DType format) {
    switch (format) {
        case DType::kF16:
            return embed_kernel<DType::kF16>;
        case DType::kBF16:
            return embed_kernel<DType::kBF16>;
        case DType::kQ4_0:
            return embed_kernel<DType::kQ4_0>;
        case DType::kQ4_1:
            return embed_kernel<DType::kQ4_1>;
        case DType::kQ5_0:
            return embed_kernel<DType::kQ5_0>;
        case DType::kQ5_1:
            return embed_kernel<DType::kQ5_1>;
        case DType::kQ8_0:
            return embed_kernel<DType::kQ8_0>;
        case DType::kQ4_K:
            return embed_kernel<DType::kQ4_K>;
        case DType::kQ5_K:
            return embed_kernel<DType::kQ5_K>;
        case DType::kQ6_K:
            return embed_kernel<DType::kQ6_K>;
        case DType::kMXFP4:
            return embed_kernel<DType::kMXFP4>;
        case DType::kNVFP4:
            return embed_kernel<DType::kNVFP4>;
        default:
            return embed_kernel<DType::kF32>;
    }
}

}  // namespace

void CudaOps::embed(Exec& ex, const Tensor& ids, const Weight& table, const Tensor& out) {
    check(ids.dtype == DType::kI32 && out.rows() == ids.elements() && out.cols() == table.cols &&
              table.experts == 1,
          "embed: shapes");
    const int64_t tokens = ids.elements();
    if (ex.planning() || tokens == 0) return;
    const double elements = static_cast<double>(tokens * table.cols);
    const Timed timed(
        *this, "embed", elements,
        static_cast<double>(matrix_bytes(table.format, tokens, table.cols)) + 4 * elements);
    const Embed arguments{.ids = ids.as<int32_t>(),
                          .codes = reinterpret_cast<const uint8_t*>(table.codes),
                          .scales = reinterpret_cast<const uint8_t*>(table.scales),
                          .outer = table.outer_scale,
                          .out = out.as<float>(),
                          .out_stride = out.stride[0],
                          .cols = table.cols,
                          .tokens = tokens};
    constexpr unsigned kThreads = 256;
    const int64_t threads = tokens * units_of(table.cols) * 4;
    device_->launch("embed", kernel_of(table.format),
                    dim3(static_cast<unsigned>(ceil_div(threads, kThreads))), dim3(kThreads), 0,
                    arguments);
}

}  // namespace tessera::cuda
