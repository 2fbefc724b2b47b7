// Products with the matrices of experts: the kernels of linear/, whose blocks find their expert and
// their rows in the grouping on the device. The host knows only bounds: prompt pairs and generated
// pairs run apart, each over all groups, and skip the pairs of the other kind.
#include <algorithm>

#include "backends/cuda/device.cuh"
#include "backends/cuda/linear/linear.h"
#include "backends/cuda/rows/input.h"
#include "ops/checks.h"

namespace tessera::cuda {

namespace {

/// Prompt rows of e4m3 before a stack of one matrix, which is a matrix like any other: every row
/// meets it once for each of its choices. No other stack takes them.
void multiply_one_expert(Device& device,
                         const GemmInput& x,
                         const Weight& weight,
                         int64_t rows,
                         int64_t pairs_per_row,
                         const Tensor& out) {
    const Tensor no_bias;
    for (int64_t choice = 0; choice < pairs_per_row; ++choice) {
        Tensor of_choice = out;
        of_choice.data = out.as<float>() + choice * out.stride[0];
        of_choice.stride[0] = pairs_per_row * out.stride[0];
        launch_product(device,
                       {.x = x, .weight = weight, .bias = no_bias, .out = of_choice, .rows = rows});
    }
}

}  // namespace

void CudaOps::linear_experts(
    Exec& ex, const GemmInput& x, const ExpertWork& work, const Weight& weight, const Tensor& out) {
    const int64_t pairs = work.pairs.rows(), choices = work.choices;
    const bool per_pair = x.rows == pairs;
    check_linear_experts(x, work, weight, out);
    if (ex.planning() || pairs == 0) return;
    const int64_t prompt_pairs = std::min(ex.prompt_rows * choices, pairs);
    const int64_t prompt_rows = per_pair ? prompt_pairs : prompt_pairs / choices;
    const double products = static_cast<double>(pairs) * static_cast<double>(weight.rows);
    // At most so many matrices are read.
    const double matrices = static_cast<double>(std::min<int64_t>(pairs, weight.experts));
    const bool fp4 = prompt_pairs > 0 && takes_packed(weight);
    const Timed timed(
        *this, product_label("linear_experts", weight.format, fp4 ? "fp4" : ""),
        2 * products * static_cast<double>(x.cols),
        matrices * static_cast<double>(matrix_bytes(weight.format, weight.rows, weight.cols)) +
            4 * products + 2 * static_cast<double>(x.rows * x.cols));
    const Tensor no_bias;
    ProductCall call{.x = x, .weight = weight, .bias = no_bias, .out = out};
    call.work = &work;
    if (prompt_pairs > 0 && wants_fp8(weight.wants)) {
        multiply_one_expert(*device_, x, weight, prompt_rows, per_pair ? 1 : choices, out);
    } else if (prompt_pairs > 0) {
        call.kind = RowKind::kPrompt;
        call.rows = prompt_rows;
        call.pairs = prompt_pairs;
        launch_product(*device_, call);
    }
    if (prompt_pairs < pairs) {
        call.kind = RowKind::kGenerated;
        call.first_row = prompt_rows;
        call.rows = x.rows - prompt_rows;
        call.first_pair = prompt_pairs;
        call.pairs = pairs - prompt_pairs;
        launch_product(*device_, call);
    }
}

}  // namespace tessera::cuda
