// rms_norm, l2_norm and the norms that write matrix inputs: launches of norm.cuh.

#include <limits>

#include "backends/cuda/rows/gated_norm.cuh"
#include "backends/cuda/rows/input.h"
#include "backends/cuda/rows/norm.cuh"
#include "backends/cuda/rows/row_map.h"
#include "ops/checks.h"

namespace tessera::cuda {
namespace {

using rows::NormArguments;
using rows::NormKind;

template <NormKind kKind>
void launch_norm(Device& device, std::string_view name, const NormArguments& arguments) {
    if (arguments.cols <= rows::kWarpCols) {
        const auto blocks =
            static_cast<uint32_t>(ceil_div(int64_t{arguments.rows}, rows::kWarpsPerBlock));
        device.launch(name, rows::norm_kernel<kKind, true>, dim3(blocks),
                      dim3(32 * rows::kWarpsPerBlock), 0, arguments);
        return;
    }
    const int64_t threads = ceil_div(ceil_div(arguments.cols, 4), 32 * rows::kBlockHeld) * 32;
    device.launch(name, rows::norm_kernel<kKind, false>, dim3(arguments.rows),
                  dim3(static_cast<uint32_t>(std::min<int64_t>(threads, rows::kMaxThreads))), 0,
                  arguments);
}

/// Heads of at most 128 columns, those of a token side by side in a block.
void launch_gated(Device& device, int64_t tokens, const NormArguments& arguments) {
    const int64_t heads = arguments.heads;
    const int64_t passes = ceil_div(heads, rows::kGatedHeads * rows::kGatedWarps);
    const int64_t warps = ceil_div(heads, rows::kGatedHeads * passes);
    // Few tokens are spread over more blocks; the results are the same.
    const bool many = tokens >= device.multiprocessors();
    const int64_t shares = many ? 1 : std::min<int64_t>(ceil_div(heads, warps), rows::kGatedHeads);
    device.launch("gated_rms_norm_input", rows::gated_norm_kernel,
                  dim3(static_cast<uint32_t>(tokens), static_cast<uint32_t>(shares)),
                  dim3(static_cast<uint32_t>(32 * warps)), 0, arguments);
}

NormArguments norm_arguments(const Tensor& x, const Tensor& gain, float eps) {
    NormArguments arguments;
    arguments.x = rows::row_map<const float>(x);
    arguments.gain = gain.absent() ? nullptr : gain.as<float>();
    arguments.eps = eps;
    check(x.cols() <= std::numeric_limits<int32_t>::max() / 2, "norms: row too long");
    arguments.cols = static_cast<int32_t>(x.cols());
    arguments.rows = rows::row_count(x);
    arguments.vector = rows::aligned(x) && rows::aligned(gain) && x.cols() % 4 == 0;
    return arguments;
}

}  // namespace

void CudaOps::rms_norm(
    Exec& ex, const Tensor& x, const Tensor& gain, float eps, const Tensor& out) {
    check_rms_norm(x, gain, out);
    NormArguments arguments = norm_arguments(x, gain, eps);
    if (ex.planning() || x.elements() == 0) return;
    const auto elements = static_cast<double>(x.elements());
    const Timed timed(*this, "rms_norm", 4 * elements, 8 * elements);
    arguments.out = rows::row_map<float>(out);
    arguments.vector = arguments.vector && rows::aligned(out);
    launch_norm<NormKind::kRms>(*device_, "rms_norm", arguments);
}

void CudaOps::l2_norm(Exec& ex, const Tensor& x, float eps) {
    check_l2_norm(x);
    NormArguments arguments = norm_arguments(x, Tensor{}, eps);
    if (ex.planning() || x.elements() == 0) return;
    const auto elements = static_cast<double>(x.elements());
    const Timed timed(*this, "l2_norm", 3 * elements, 8 * elements);
    arguments.out = rows::row_map<float>(x);
    launch_norm<NormKind::kL2>(*device_, "l2_norm", arguments);
}

GemmInput CudaOps::rms_norm_input(
    Exec& ex, const Tensor& x, const Tensor& gain, float eps, ActWants wants) {
    check_rms_norm_input(x, gain);
    NormArguments arguments = norm_arguments(x, gain, eps);
    const GemmInput input = allocate_input(ex, x.rows(), x.cols(), wants);
    if (ex.planning() || x.elements() == 0) return input;
    const auto elements = static_cast<double>(x.elements());
    const Timed timed(*this, "rms_norm_input", 4 * elements, 6 * elements);
    if (wants_row_scales(wants)) {
        store_scaled_norm(*device_, {x, gain, eps, Tensor{}}, input, ex.prompt_rows);
        return input;
    }
    arguments.sink = rows::sink_of(input, ex.prompt_rows);
    launch_norm<NormKind::kRmsInput>(*device_, "rms_norm_input", arguments);
    return input;
}

GemmInput CudaOps::gated_rms_norm_input(
    Exec& ex, const Tensor& x, const Tensor& gain, float eps, const Tensor& z, ActWants wants) {
    check_gated_rms_norm_input(x, gain, z);
    if (wants_row_scales(wants) && !scaled_gated_norm_fits(x))
        return Ops::gated_rms_norm_input(ex, x, gain, eps, z, wants);
    NormArguments arguments = norm_arguments(x, gain, eps);
    const int64_t heads = x.shape[1];
    const GemmInput input = allocate_input(ex, x.rows(), heads * x.cols(), wants);
    if (ex.planning() || x.elements() == 0) return input;
    const auto elements = static_cast<double>(x.elements());
    const Timed timed(*this, "gated_rms_norm_input", 12 * elements, 10 * elements);
    if (wants_row_scales(wants)) {
        store_scaled_norm(*device_, {x, gain, eps, z}, input, ex.prompt_rows);
        return input;
    }
    if (store_gated_norm(*device_, {x, gain, eps, z}, input, ex.prompt_rows)) return input;
    arguments.z = rows::row_map<const float>(z);
    arguments.sink = rows::sink_of(input, ex.prompt_rows);
    arguments.heads = static_cast<uint32_t>(heads);
    arguments.vector = arguments.vector && rows::aligned(z);
    if (x.cols() <= rows::kGatedCols && arguments.vector)
        launch_gated(*device_, x.rows(), arguments);
    else
        launch_norm<NormKind::kGatedInput>(*device_, "gated_rms_norm_input", arguments);
    return input;
}

}  // namespace tessera::cuda
