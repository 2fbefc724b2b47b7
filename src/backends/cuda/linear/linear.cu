// Products with dense weights, and the choice of kernels for all products: a row's kernel follows
// from its kind and from the format of its activations, never from how many rows there are.
#include <algorithm>

#include "backends/cuda/linear/linear.h"
#include "backends/cuda/linear/product.cuh"

namespace tessera::cuda {
namespace {

uint8_t bit_of(ActFormat format) {
    return static_cast<uint8_t>(1u << static_cast<unsigned>(format));
}

bool starts_aligned(const Tensor& rows, size_t element_bytes, size_t alignment) {
    return reinterpret_cast<uintptr_t>(rows.data) % alignment == 0 &&
           static_cast<size_t>(rows.stride[0]) * element_bytes % alignment == 0;
}

using Run = void (*)(Device&, Product&);

Run gemm_of(DType format) {
    switch (format) {
        case DType::kF16:
            return run_gemm<DType::kF16>;
        case DType::kBF16:
            return run_gemm<DType::kBF16>;
        case DType::kQ4_0:
            return run_gemm<DType::kQ4_0>;
        case DType::kQ4_1:
            return run_gemm<DType::kQ4_1>;
        case DType::kQ5_0:
            return run_gemm<DType::kQ5_0>;
        case DType::kQ5_1:
            return run_gemm<DType::kQ5_1>;
        case DType::kQ8_0:
            return run_gemm<DType::kQ8_0>;
        case DType::kQ4_K:
            return run_gemm<DType::kQ4_K>;
        case DType::kQ5_K:
            return run_gemm<DType::kQ5_K>;
        case DType::kQ6_K:
            return run_gemm<DType::kQ6_K>;
        case DType::kMXFP4:
            return run_gemm<DType::kMXFP4>;
        case DType::kNVFP4:
            return run_gemm<DType::kNVFP4>;
        default:
            return nullptr;
    }
}

Run gemv_of(DType format) {
    switch (format) {
        case DType::kF32:
            return run_gemv<DType::kF32>;
        case DType::kF16:
            return run_gemv<DType::kF16>;
        case DType::kBF16:
            return run_gemv<DType::kBF16>;
        case DType::kQ4_0:
            return run_gemv<DType::kQ4_0>;
        case DType::kQ4_1:
            return run_gemv<DType::kQ4_1>;
        case DType::kQ5_0:
            return run_gemv<DType::kQ5_0>;
        case DType::kQ5_1:
            return run_gemv<DType::kQ5_1>;
        case DType::kQ8_0:
            return run_gemv<DType::kQ8_0>;
        case DType::kQ4_K:
            return run_gemv<DType::kQ4_K>;
        case DType::kQ5_K:
            return run_gemv<DType::kQ5_K>;
        case DType::kQ6_K:
            return run_gemv<DType::kQ6_K>;
        case DType::kMXFP4:
            return run_gemv<DType::kMXFP4>;
        case DType::kNVFP4:
            return run_gemv<DType::kNVFP4>;
        default:
            return nullptr;
    }
}

}  // namespace

const ActView& view_of(const std::array<ActView, 2>& views, uint8_t wants) {
    for (const ActView& view : views)
        if (!view.values.absent() && (wants & bit_of(view.format)) != 0) return view;
    check(false, "a product's rows lack the format that its weight wants");
    return views[0];
}

Product product_of(const ProductCall& call, const ActView& view) {
    const Weight& weight = call.weight;
    const bool f32 = view.format == ActFormat::kF32;
    Product p{};
    p.codes = reinterpret_cast<const uint8_t*>(weight.codes);
    p.scales = reinterpret_cast<const uint8_t*>(weight.scales);
    p.outer = weight.outer_scale;
    p.n = weight.rows;
    p.k = weight.cols;
    p.units = units_of(weight.cols);
    p.x = view.values.data;
    p.x_stride = view.values.stride[0];
    p.x_f32 = f32;
    p.x_paired = view.transposed_pairs;
    p.x_aligned = starts_aligned(view.values, f32 ? 4 : 2, 16);
    p.bias = call.bias.absent() ? nullptr : call.bias.as<float>();
    if (!call.out.absent()) {
        p.out = call.out.as<float>();
        p.out_stride = call.out.stride[0];
        p.out_pairs = starts_aligned(call.out, sizeof(float), 2 * sizeof(float));
    }
    p.add = call.accumulate == Accumulate::kAdd;
    p.sums = call.sums;
    p.rows = call.rows;
    return p;
}

bool on_hopper([[maybe_unused]] const Device& device,
               [[maybe_unused]] DType format,
               [[maybe_unused]] const ActView& view) {
#if TESSERA_SM90A
    return device.properties().major == 9 && (format == DType::kNVFP4 || format == DType::kMXFP4) &&
           view.format == ActFormat::kBF16 && view.transposed_pairs &&
           starts_aligned(view.values, 2, 16);
#else
    return false;
#endif
}

std::byte* allocate_sums([[maybe_unused]] Exec& ex,
                         [[maybe_unused]] const Device& device,
                         [[maybe_unused]] const Weight& weight) {
#if TESSERA_SM90A
    const bool fp4 = weight.format == DType::kNVFP4 || weight.format == DType::kMXFP4;
    if (device.properties().major == 9 && fp4 && ex.prompt_rows > 0)
        if (const size_t bytes = sums_bytes_sm90(weight.cols); bytes > 0)
            return ex.arena.allocate_bytes(bytes);
#endif
    return nullptr;
}

std::string product_label(std::string_view op, DType format) {
    std::string label(op);
    label += '[';
    for (const char c : dtype_info(format).name)
        label += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return label + ']';
}

void launch_product(Device& device, const ProductCall& call) {
    const bool prompt = call.kind == RowKind::kPrompt;
    const ActWants wants = call.weight.wants;
    const ActView& view =
        view_of(prompt ? call.x.prompt : call.x.generated, prompt ? wants.prompt : wants.generated);
    check(view.values.rows() == call.rows && view.values.cols() == call.weight.cols,
          "a product's view of its rows");
    Product p = product_of(call, view);
    if (call.work != nullptr) {
        const int64_t all = call.work->pairs.rows();
        check(all <= INT32_MAX, "more pairs than 32 bits count");
        p.rows = all;
        p.pairs = call.work->pairs.as<int32_t>();
        p.starts = call.work->starts.as<int32_t>();
        p.experts = call.weight.experts;
        p.pairs_per_row = static_cast<int32_t>(all / call.x.rows);
        p.first_row = static_cast<int32_t>(call.first_row);
        p.first_pair = static_cast<int32_t>(call.first_pair);
        p.end_pair = static_cast<int32_t>(call.first_pair + call.pairs);
    } else {
        check(call.weight.experts == 1, "linear: a stack of experts");
        p.out += call.first_row * p.out_stride;
        p.out_pairs = p.out_pairs && reinterpret_cast<uintptr_t>(p.out) % (2 * sizeof(float)) == 0;
    }
    const bool tensor_cores = prompt && view.format == ActFormat::kBF16;
#if TESSERA_SM90A
    if (prompt && call.work == nullptr && on_hopper(device, call.weight.format, view))
        return run_gemm_sm90(device, p, call.weight.format);
#endif
    const Run run = tensor_cores ? gemm_of(call.weight.format) : gemv_of(call.weight.format);
    check(run != nullptr, "no kernel for a weight of this format");
    check(tensor_cores || !p.x_paired, "transposed pairs are for tensor cores");
    run(device, p);
}

void CudaOps::linear(Exec& ex,
                     const GemmInput& x,
                     const Weight& weight,
                     const Tensor& bias,
                     const Tensor& out,
                     Accumulate accumulate) {
    check(x.cols == weight.cols && out.rows() == x.rows && out.cols() == weight.rows,
          "linear: shapes");
    check(bias.absent() || bias.elements() == weight.rows, "linear: bias");
    const Scope scope(ex.arena);
    std::byte* const sums = allocate_sums(ex, *device_, weight);
    if (ex.planning() || x.rows == 0) return;
    const int64_t prompt = std::min<int64_t>(ex.prompt_rows, x.rows);
    const double products = static_cast<double>(x.rows) * static_cast<double>(weight.rows);
    const Timed timed(*this, product_label("linear", weight.format),
                      2 * products * static_cast<double>(x.cols),
                      static_cast<double>(matrix_bytes(weight.format, weight.rows, weight.cols)) +
                          4 * products + 2 * static_cast<double>(x.rows * x.cols));
    ProductCall call{.x = x, .weight = weight, .bias = bias, .out = out, .accumulate = accumulate};
    call.sums = sums;
    if (prompt > 0) {
        call.kind = RowKind::kPrompt;
        call.rows = prompt;
        launch_product(*device_, call);
    }
    if (prompt < x.rows) {
        call.kind = RowKind::kGenerated;
        call.first_row = prompt;
        call.rows = x.rows - prompt;
        launch_product(*device_, call);
    }
}

}  // namespace tessera::cuda
