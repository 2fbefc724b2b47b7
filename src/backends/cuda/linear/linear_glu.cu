// linear_glu: one product of prompt rows on Hopper, and of packed rows, which leaves bf16; products
// and passes of their results elsewhere.
#include <algorithm>
#include <bit>
#include <utility>

#include "backends/cuda/linear/linear.h"
#include "backends/cuda/linear/product.cuh"
#include "backends/cuda/rows/input.h"

namespace tessera::cuda {
namespace {

/// act(gate) * up as bf16 rows, in order or with transposed pairs.
struct GatedRows {
    void* data;
    bool pairs;
};

void run_prompt(
    Device& device, const ProductCall& call, const Weight& up, Glu kind, const GatedRows& out) {
    const Product gate = product_of(call);
    const GluProduct with{.codes = reinterpret_cast<const uint8_t*>(up.codes),
                          .scales = reinterpret_cast<const uint8_t*>(up.scales),
                          .outer = up.outer_scale,
                          .row_factors = up.row_factors,
                          .kind = kind,
                          .out = out.data,
                          .pairs = out.pairs};
    if (takes_packed(call.weight)) return run_glu_fp4(device, gate, with, call.weight.format);
#if TESSERA_SM90A
    const bool e4m3 = gate.row_factors != nullptr;
    device.note_operands(e4m3 ? Operands::kFp8 : Operands::k16Bits);
    if (e4m3)
        run_glu_sm90_fp8(device, gate, with, call.weight.format);
    else
        run_glu_sm90(device, gate, with, call.weight.format);
#endif
}

/// Whether prompt rows run in one product: shapes and formats alone decide, as the result differs
/// from that of two products where it is e4m3 (rounded to bf16 first), and where columns are cut
/// into chunks: two products scale each sum before they add it, and also cut the columns of tails.
bool is_one_product(const Device& device,
                    const GemmInput& x,
                    const Weight& gate,
                    const Weight& up,
                    Glu kind,
                    ActWants wants) {
    const bool one_format =
        std::has_single_bit(wants.prompt) && !wanted(wants.prompt, ActFormat::kF32);
    return gate.format == up.format && gate.wants == up.wants &&
           (kind == Glu::kSwiGlu || kind == Glu::kReGlu) && one_format && gate.rows % 32 == 0 &&
           takes_gated(device, x, gate);
}

}  // namespace

GemmInput CudaOps::linear_glu(
    Exec& ex, const GemmInput& x, const Weight& gate, const Weight& up, Glu kind, ActWants wants) {
    check(gate.rows == up.rows && gate.cols == up.cols && x.cols == gate.cols &&
              gate.experts == 1 && up.experts == 1,
          "linear_glu: shapes");
    const int64_t prompt = std::min<int64_t>(ex.prompt_rows, x.rows), n = gate.rows;
    // Nothing of this differs between plan and run.
    if (prompt == 0 || !is_one_product(*device_, x, gate, up, kind, wants))
        return Ops::linear_glu(ex, x, gate, up, kind, wants);
    GemmInput input = allocate_input(ex, x.rows, n, wants);
    const Scope scope(ex.arena);
    const size_t before = ex.arena.used_bytes();
    std::byte* const sums = allocate_sums(ex, *device_, gate, /*gated=*/true);
    // With sums, every division of the rows needs the same: plans try a few only.
    const bool put_aside = ex.arena.used_bytes() > before;
    const int64_t generated = x.rows - prompt, spare = put_aside ? x.rows : generated;
    const Tensor gated = ex.arena.allocate(DType::kF32, {spare, n});
    const Tensor other = ex.arena.allocate(DType::kF32, {spare, n});
    // The scale of a row needs all of it.
    const bool scaled = wants_row_scales(wants);
    const Tensor rounded = ex.arena.allocate(DType::kBF16, {scaled ? prompt : 0, n});
    if (ex.planning()) return input;
    if (generated > 0) {
        for (const auto& [weight, out] : {std::pair(&gate, &gated), std::pair(&up, &other)}) {
            const Timed timed(*this, product_label("linear", weight->format),
                              2.0 * static_cast<double>(generated * n * x.cols),
                              static_cast<double>(matrix_bytes(weight->format, n, x.cols)));
            launch_product(*device_, {.x = x,
                                      .weight = *weight,
                                      .bias = Tensor{},
                                      .out = *out,
                                      .kind = RowKind::kGenerated,
                                      .rows = generated});
        }
        GemmInput rest{.rows = generated,
                       .cols = n,
                       .prompt = {},
                       .generated = input.generated,
                       .nvfp4 = wants.nvfp4};
        const auto elements = static_cast<double>(generated * n);
        const Timed timed(*this, "glu_input", 8 * elements, 10 * elements);
        store_glu(*device_, gated.slice_rows(0, generated), other.slice_rows(0, generated), kind,
                  rest, 0);
    }
    const auto rows = static_cast<double>(prompt);
    const auto products = rows * static_cast<double>(n) * static_cast<double>(x.cols);
    {
        const std::string_view kernel = takes_packed(gate)      ? "fp4"
                                        : wants_fp8(gate.wants) ? "fp8"
                                                                : "";
        const Timed timed(*this, product_label("linear_glu", gate.format, kernel), 4 * products,
                          2 * static_cast<double>(matrix_bytes(gate.format, n, x.cols)) +
                              2 * rows * static_cast<double>(n + x.cols));
        const ActView& view = input.prompt[0];
        run_prompt(*device_,
                   {.x = x,
                    .weight = gate,
                    .bias = Tensor{},
                    .out = Tensor{},
                    .rows = prompt,
                    .sums = sums},
                   up, kind,
                   {.data = scaled ? rounded.data : view.values.data,
                    .pairs = !scaled && view.transposed_pairs});
    }
    if (scaled) {
        const double elements = rows * static_cast<double>(n);
        const Timed timed(*this, "prepare[bf16]", elements, 3 * elements);
        store_rounded(*device_, rounded, input);
    }
    return input;
}

}  // namespace tessera::cuda
