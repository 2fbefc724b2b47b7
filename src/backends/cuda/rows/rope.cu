// rope: the launch of rope.cuh, and what does not depend on the token.

#include <algorithm>
#include <cmath>
#include <numbers>

#include "backends/cuda/device.cuh"
#include "backends/cuda/rows/rope.cuh"
#include "backends/cuda/rows/rope_angles.h"
#include "ops/checks.h"

namespace tessera::cuda {

rows::RopeAngles rows::rope_angles(const Tensor& positions,
                                   const Tensor& freq_factors,
                                   const RopeParams& params) {
    RopeAngles a;
    const double rotary = params.rotary;
    const double base = static_cast<double>(params.base);
    a.positions = positions.as<int32_t>();
    a.axes = positions.rank == 1 ? 1 : 3;
    a.freq_factors = freq_factors.absent() ? nullptr : freq_factors.as<float>();
    a.half = params.rotary / 2;
    a.adjacent = params.pairs == RopePairs::kAdjacent;
    a.step = std::log2(base) * 2.0 / rotary;
    a.freq_scale = static_cast<double>(params.freq_scale);
    a.magnitude = params.magnitude;
    for (size_t axis = 0; axis < 3; ++axis) a.sections[axis] = params.sections[axis];
    a.yarn = params.yarn;
    if (!params.yarn) return a;
    const auto corner = [&](float beta) {
        const double turns = 2.0 * std::numbers::pi * static_cast<double>(beta);
        return rotary * std::log(params.original_context / turns) / (2.0 * std::log(base));
    };
    a.low = std::max(0.0, std::floor(corner(params.beta_fast)));
    const double high = std::min(rotary - 1.0, std::ceil(corner(params.beta_slow)));
    a.width = std::max(0.001, high - a.low);
    return a;
}

void CudaOps::rope(Exec& ex,
                   const Tensor& x,
                   const Tensor& positions,
                   const Tensor& freq_factors,
                   const RopeParams& params) {
    check_rope(x, positions, freq_factors, params);
    if (ex.planning() || x.elements() == 0 || params.rotary == 0) return;
    const auto elements = static_cast<double>(x.elements());
    const Timed timed(*this, "rope", 3 * elements, 8 * elements);
    rows::RopeArguments arguments;
    arguments.angles = rows::rope_angles(positions, freq_factors, params);
    arguments.x = x.as<float>();
    arguments.token_stride = x.stride[0];
    arguments.head_stride = x.stride[1];
    arguments.heads = static_cast<int32_t>(x.shape[1]);
    // Few tokens are spread over more blocks; the results are the same.
    constexpr int32_t kThreads = 256;
    const bool many = x.rows() >= device_->multiprocessors();
    const int32_t pairs = many ? 16 * kThreads : kThreads;
    arguments.heads_per_block = std::clamp(pairs / arguments.angles.half, 1, arguments.heads);
    const auto parts = static_cast<uint32_t>(ceil_div(arguments.heads, arguments.heads_per_block));
    device_->launch("rope", rows::rope_kernel, dim3(static_cast<uint32_t>(x.rows()), parts),
                    dim3(kThreads), static_cast<size_t>(arguments.angles.half) * sizeof(float2),
                    arguments);
}

}  // namespace tessera::cuda
