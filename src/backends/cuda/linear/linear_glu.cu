// linear_glu and linear_experts_glu: one product of prompt rows on Hopper (not of experts), and of
// packed rows, which leaves bf16; products and passes of their results elsewhere.
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

/// Whether prompt rows may run in one product: formats alone decide, as the result differs from
/// that of two products where it is e4m3 (rounded to bf16 first), and where columns are cut into
/// chunks: two products scale each sum before they add it, and also cut the columns of tails.
bool may_be_one(const Weight& gate, const Weight& up, Glu kind, ActWants wants) {
    const bool one_format =
        std::has_single_bit(wants.prompt) && !wanted(wants.prompt, ActFormat::kF32);
    return gate.format == up.format && gate.wants == up.wants &&
           (kind == Glu::kSwiGlu || kind == Glu::kReGlu) && one_format && gate.rows % 32 == 0;
}

/// Rows of which the first `before` are not there.
Tensor behind(const Tensor& rows, int64_t before) {
    Tensor all = rows;
    all.data = rows.as<float>() - before * rows.stride[0];
    return all;
}

}  // namespace

GemmInput CudaOps::gated_product(Exec& ex, const GatedOperands& of, ActWants wants) {
    const GemmInput& x = of.x;
    const ExpertWork* const work = of.work;
    const std::string_view name = work == nullptr ? "linear" : "linear_experts";
    const DType format = of.gate.format;
    const int64_t n = of.gate.rows, choices = work == nullptr ? 1 : work->choices;
    const int64_t results = work == nullptr ? x.rows : work->pairs.rows();
    const int64_t prompt = std::min<int64_t>(ex.prompt_rows * choices, results);
    const int64_t generated = results - prompt, prompt_rows = prompt * x.rows / results;
    Exec result_rows{.arena = ex.arena, .prompt_rows = static_cast<int32_t>(prompt)};
    GemmInput input = allocate_input(result_rows, results, n, wants);
    const Scope scope(ex.arena);
    const size_t before = ex.arena.used_bytes();
    std::byte* const sums = allocate_sums(ex, *device_, of.gate, /*gated=*/true);
    // With sums, every division of the rows needs the same: plans try a few only.
    const bool put_aside = ex.arena.used_bytes() > before;
    const int64_t spare = put_aside ? results : generated;
    const Tensor gated = ex.arena.allocate(DType::kF32, {spare, n});
    const Tensor other = ex.arena.allocate(DType::kF32, {spare, n});
    // The scale of a row needs all of it.
    const bool scaled = wants_row_scales(wants);
    const Tensor rounded = ex.arena.allocate(DType::kBF16, {scaled ? prompt : 0, n});
    if (ex.planning()) return input;
    const auto bytes_of = [&](int64_t rows) {
        // At most so many matrices are read.
        const int64_t matrices = std::min<int64_t>(rows, of.gate.experts);
        return static_cast<double>(matrices * matrix_bytes(format, n, x.cols));
    };
    if (generated > 0) {
        for (const auto& [weight, out] : {std::pair(&of.gate, &gated), std::pair(&of.up, &other)}) {
            const Timed timed(*this, product_label(name, format),
                              2.0 * static_cast<double>(generated * n * x.cols),
                              bytes_of(generated));
            const Tensor to = work == nullptr ? *out : behind(*out, prompt);
            ProductCall call{.x = x,
                             .weight = *weight,
                             .bias = Tensor{},
                             .out = to,
                             .kind = RowKind::kGenerated,
                             .rows = x.rows - prompt_rows};
            if (work != nullptr) {
                call.work = work;
                call.first_row = prompt_rows;
                call.first_pair = prompt;
                call.pairs = generated;
            }
            launch_product(*device_, call);
        }
        GemmInput rest{.rows = generated,
                       .cols = n,
                       .prompt = {},
                       .generated = input.generated,
                       .nvfp4 = wants.nvfp4};
        const auto elements = static_cast<double>(generated * n);
        const Timed timed(*this, "glu_input", 8 * elements, 10 * elements);
        store_glu(*device_, gated.slice_rows(0, generated), other.slice_rows(0, generated), of.kind,
                  rest, 0);
    }
    const double elements = static_cast<double>(prompt * n);
    {
        const std::string_view kernel = takes_packed(of.gate)      ? "fp4"
                                        : wants_fp8(of.gate.wants) ? "fp8"
                                                                   : "";
        const Timed timed(
            *this, product_label(text(name, "_glu"), format, kernel),
            4 * elements * static_cast<double>(x.cols),
            2 * bytes_of(prompt) + 2 * (elements + static_cast<double>(prompt_rows * x.cols)));
        const ActView& view = input.prompt[0];
        ProductCall call{.x = x,
                         .weight = of.gate,
                         .bias = Tensor{},
                         .out = Tensor{},
                         .rows = prompt_rows,
                         .sums = sums};
        call.work = work;
        call.pairs = prompt;
        run_prompt(*device_, call, of.up, of.kind,
                   {.data = scaled ? rounded.data : view.values.data,
                    .pairs = !scaled && view.transposed_pairs});
    }
    if (scaled) {
        const Timed timed(*this, "prepare[bf16]", elements, 3 * elements);
        store_rounded(*device_, rounded, input);
    }
    return input;
}

GemmInput CudaOps::linear_glu(
    Exec& ex, const GemmInput& x, const Weight& gate, const Weight& up, Glu kind, ActWants wants) {
    check(gate.rows == up.rows && gate.cols == up.cols && x.cols == gate.cols &&
              gate.experts == 1 && up.experts == 1,
          "linear_glu: shapes");
    // Nothing of this differs between plan and run.
    if (ex.prompt_rows == 0 || x.rows == 0 || !may_be_one(gate, up, kind, wants) ||
        !takes_gated(*device_, x, gate))
        return Ops::linear_glu(ex, x, gate, up, kind, wants);
    return gated_product(ex, {.x = x, .work = nullptr, .gate = gate, .up = up, .kind = kind},
                         wants);
}

GemmInput CudaOps::linear_experts_glu(Exec& ex,
                                      const GemmInput& x,
                                      const ExpertWork& work,
                                      const Weight& gate,
                                      const Weight& up,
                                      Glu kind,
                                      ActWants wants) {
    check(gate.rows == up.rows && gate.cols == up.cols && x.cols == gate.cols &&
              gate.experts == up.experts,
          "linear_experts_glu: shapes");
    if (ex.prompt_rows == 0 || x.rows == 0 || !may_be_one(gate, up, kind, wants) ||
        !takes_packed(gate))
        return Ops::linear_experts_glu(ex, x, work, gate, up, kind, wants);
    return gated_product(ex, {.x = x, .work = &work, .gate = gate, .up = up, .kind = kind}, wants);
}

}  // namespace tessera::cuda
