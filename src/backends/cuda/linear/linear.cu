// Products with dense weights, and the choice of kernels for all products: a row's kernel follows
// from its kind and from the format of its activations, never from how many rows there are.
#include <algorithm>

#include "backends/cuda/linear/by_format.h"
#include "backends/cuda/linear/gemm_nvfp4_sm120.h"
#include "backends/cuda/linear/linear.h"
#include "backends/cuda/linear/product.cuh"
#include "backends/cuda/rows/input.h"
#include "ops/checks.h"

namespace tessera::cuda {
namespace {

uint8_t bit_of(ActFormat format) {
    return static_cast<uint8_t>(1u << static_cast<unsigned>(format));
}

/// What a weight wants of prompt rows that have its columns.
uint8_t prompt_wants(const Weight& weight) {
    const bool unpacked = wants_fp4(weight.wants) && !takes_packed(weight);
    return unpacked ? bit_of(ActFormat::kNvfp4) : weight.wants.prompt;
}

/// The view that a weight wants.
const ActView& view_of(const ActViews& views, uint8_t wants) {
    for (const ActView& view : views)
        if (!view.values.absent() && (wants & bit_of(view.format)) != 0) return view;
    check(false, "a product's rows lack the format that its weight wants");
    return views[0];
}

bool starts_aligned(const Tensor& rows, size_t element_bytes, size_t alignment) {
    return reinterpret_cast<uintptr_t>(rows.data) % alignment == 0 &&
           static_cast<size_t>(rows.stride[0]) * element_bytes % alignment == 0;
}

using Run = void (*)(Device&, Product&);

Run gemm_of(DType format) {
    return by_format(format, []<DType F>() -> Run { return run_gemm<F>; });
}

/// Whether weights of this format have the product of gemm_sm90.cuh.
bool on_hopper(const Device& device, DType format) {
    return device.hopper_kernels() && (format == DType::kNVFP4 || format == DType::kMXFP4);
}

/// Whether products run in gemm_decoded_sm90.cuh.
bool decodes_apart(const Device& device, DType format) {
    return device.hopper_kernels() && gemm_of(format) != nullptr && !on_hopper(device, format);
}

Run gemv_of(DType format) {
    if (format == DType::kF32) return run_gemv<DType::kF32>;
    return by_format(format, []<DType F>() -> Run { return run_gemv<F>; });
}

/// Why prompt rows do without the card's best kernel; empty where they have it. `general`: they run
/// on the tensor cores of any card.
std::string_view why_general(const Device& device,
                             const ProductCall& call,
                             const Product& p,
                             bool general) {
    if (call.kind != RowKind::kPrompt) return {};
    const DType format = call.weight.format;
    if (p.x_f32)
        return format == DType::kF32 ? "f32 weights: no tensor cores"
                                     : "f32 activations: no tensor cores";
    if (!general || !device.hopper_kernels()) return {};
    if (p.x_scales != nullptr) return "nvfp4 activations: general tensor-core kernel";
    if (call.work != nullptr) return "experts: general tensor-core kernel";
    return "activations unpaired or unaligned: general tensor-core kernel";
}

/// Calls run.operator()<Mma>() with the FP4 instruction of the card, or with what stands for it.
template <class Run>
void with_fp4_instruction([[maybe_unused]] Device& device, [[maybe_unused]] const Run& run) {
#if TESSERA_SM120F
    if (device.properties().major == 12) return run.template operator()<NativeFp4Mma>();
#endif
#if TESSERA_SM90A
    if (device.properties().major == 9) {
        device.note_fallback("fp4 products: emulated");
        return run.template operator()<EmulatedFp4Mma>();
    }
#endif
    check(false, "no product of fp4 on this card");
}

Fp4Rows fp4_rows(const Product& p) {
    return {static_cast<const uint8_t*>(p.x), p.x_block_scales, p.x_scales};
}

}  // namespace

void run_fp4(Device& device, const Product& product, DType format) {
    device.note_operands(Operands::kFp4);
    with_fp4_instruction(device, [&]<class Mma>() {
        run_gemm_nvfp4_sm120<Mma>(device, product, format, fp4_rows(product));
    });
}

void run_glu_fp4(Device& device, const Product& gate, const GluProduct& with, DType format) {
    device.note_operands(Operands::kFp4);
    with_fp4_instruction(device, [&]<class Mma>() {
        run_glu_nvfp4_sm120<Mma>(device, gate, with, format, fp4_rows(gate));
    });
}

bool takes_packed(const Weight& weight) {
    return wants_fp4(weight.wants) && weight.cols % 64 == 0;
}

std::string product_label(std::string_view op, DType format, std::string_view kernel) {
    std::string label(op);
    label += '[';
    for (const char c : dtype_info(format).name)
        label += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if (!kernel.empty()) (label += ',') += kernel;
    return label + ']';
}

Product product_of(const ProductCall& call) {
    const bool prompt = call.kind == RowKind::kPrompt;
    const Weight& weight = call.weight;
    const ActView& view = view_of(prompt ? call.x.prompt : call.x.generated,
                                  prompt ? prompt_wants(weight) : weight.wants.generated);
    const bool packed = view.format == ActFormat::kFp4;
    check(view.values.rows() == call.rows && view.values.cols() * (packed ? 2 : 1) == weight.cols,
          "a product's view of its rows");
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
    if (!view.row_scales.absent()) p.x_scales = view.row_scales.as<float>();
    if (packed) p.x_block_scales = view.block_scales.as<uint8_t>();
    if (view.format == ActFormat::kFp8)
        check(view.transposed_quads && weight.row_factors != nullptr, "a product of e4m3");
    if (packed || view.format == ActFormat::kFp8) p.row_factors = weight.row_factors;
    p.bias = call.bias.absent() ? nullptr : call.bias.as<float>();
    if (!call.out.absent()) {
        p.out = call.out.as<float>();
        p.out_stride = call.out.stride[0];
        p.out_pairs = starts_aligned(call.out, sizeof(float), 2 * sizeof(float));
    }
    p.add = call.accumulate == Accumulate::kAdd;
    p.sums = call.sums;
    p.rows = call.rows;
    if (call.work != nullptr) {
        const int64_t all = call.work->pairs.rows();
        check(all <= INT32_MAX, "more pairs than 32 bits count");
        p.rows = all;
        p.pairs = call.work->pairs.as<int32_t>();
        p.starts = call.work->starts.as<int32_t>();
        p.experts = weight.experts;
        p.pairs_per_row = static_cast<int32_t>(all / call.x.rows);
        p.first_row = static_cast<int32_t>(call.first_row);
        p.first_pair = static_cast<int32_t>(call.first_pair);
        p.end_pair = static_cast<int32_t>(call.first_pair + call.pairs);
    } else {
        check(weight.experts == 1, "linear: a stack of experts");
        p.out += call.first_row * p.out_stride;
        p.out_pairs = p.out_pairs && reinterpret_cast<uintptr_t>(p.out) % (2 * sizeof(float)) == 0;
    }
    return p;
}

bool is_narrow(const Device& device, const Weight& weight) {
    const bool special = on_hopper(device, weight.format) || decodes_apart(device, weight.format);
    return weight.experts == 1 && weight.rows <= (special ? 128 : 256) &&
           weight.cols % kUnit == 0 && (weight.wants.prompt & bit_of(ActFormat::kBF16)) != 0;
}

bool takes_gated(const Device& device, const GemmInput& x, const Weight& weight) {
    if (takes_packed(weight)) return true;
    if (!on_hopper(device, weight.format) || is_narrow(device, weight)) return false;
    const uint8_t wants = weight.wants.prompt;
#if TESSERA_SM90A
    if (wants == bit_of(ActFormat::kFp8))
        return view_of(x.prompt, wants).transposed_quads &&
               gated_sm90_fp8(weight.format, weight.cols);
#endif
    if (wants != bit_of(ActFormat::kBF16)) return false;
    const ActView& view = view_of(x.prompt, wants);
    return view.transposed_pairs && starts_aligned(view.values, 2, 16);
}

std::byte* allocate_sums([[maybe_unused]] Exec& ex,
                         [[maybe_unused]] const Device& device,
                         [[maybe_unused]] const Weight& weight,
                         [[maybe_unused]] bool gated) {
#if TESSERA_SM90A
    const bool taken = ex.prompt_rows > 0 && on_hopper(device, weight.format) &&
                       !is_narrow(device, weight) &&
                       (weight.wants.prompt & bit_of(ActFormat::kBF16)) != 0;
    const size_t bytes = taken ? sums_bytes_sm90(gated ? 0 : weight.rows, weight.cols) : 0;
    if (bytes > 0) return ex.arena.allocate_bytes(bytes);
#endif
    return nullptr;
}

void launch_product(Device& device, const ProductCall& call) {
    Product p = product_of(call);
    const DType format = call.weight.format;
    if (p.x_block_scales != nullptr) return run_fp4(device, p, format);
    const bool e4m3 = p.row_factors != nullptr;
    const bool tensor_cores = call.kind == RowKind::kPrompt && !p.x_f32 && !e4m3;
    device.note_operands(e4m3 ? Operands::kFp8 : tensor_cores ? Operands::k16Bits : Operands::kF32);
    if (tensor_cores && call.work == nullptr && is_narrow(device, call.weight))
        return launch_narrow(device, format, {&p, 1});
#if TESSERA_SM90A
    if (tensor_cores && call.work == nullptr && p.x_aligned && decodes_apart(device, format))
        return run_decoded_sm90(device, format, p);
#endif
    Run run = tensor_cores ? gemm_of(format) : gemv_of(format);
#if TESSERA_SM90A
    if (e4m3) {
        check(call.work == nullptr && on_hopper(device, format),
              "products of e4m3 are plain ones on Hopper");
        return run_gemm_sm90_fp8(device, p, format);
    }
    // Rows of nvfp4 are here to be judged, not to be fast.
    if (tensor_cores && p.x_scales == nullptr && call.work == nullptr && p.x_paired &&
        p.x_aligned && on_hopper(device, format))
        return run_gemm_sm90(device, p, format);
#endif
    check(!e4m3, "no product of e4m3 but on Hopper");
    device.note_fallback(why_general(device, call, p, run == gemm_of(format)));
    check(run != nullptr, "no kernel for a weight of this format");
    check(tensor_cores || !p.x_paired, "transposed pairs are for tensor cores");
    run(device, p);
}

ProductCost product_cost(int64_t rows, const Weight& weight) {
    const double products = static_cast<double>(rows) * static_cast<double>(weight.rows);
    return {2 * products * static_cast<double>(weight.cols),
            static_cast<double>(matrix_bytes(weight.format, weight.rows, weight.cols)) +
                4 * products + 2 * static_cast<double>(rows * weight.cols)};
}

void CudaOps::linear(Exec& ex,
                     const GemmInput& x,
                     const Weight& weight,
                     const Tensor& bias,
                     const Tensor& out,
                     Accumulate accumulate) {
    check_linear(x, weight, bias, out);
    const Scope scope(ex.arena);
    std::byte* const sums = allocate_sums(ex, *device_, weight, /*gated=*/false);
    if (ex.planning() || x.rows == 0) return;
    const int64_t prompt = std::min<int64_t>(ex.prompt_rows, x.rows);
    const bool narrow = prompt > 0 && is_narrow(*device_, weight);
    const ProductCost cost = product_cost(x.rows, weight);
    const bool e4m3 = prompt > 0 && wants_fp8(weight.wants);
    const bool fp4 = prompt > 0 && takes_packed(weight);
    const Timed timed(*this,
                      product_label("linear", weight.format,
                                    narrow ? "narrow"
                                    : e4m3 ? "fp8"
                                    : fp4  ? "fp4"
                                           : ""),
                      cost.flops, cost.bytes);
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
