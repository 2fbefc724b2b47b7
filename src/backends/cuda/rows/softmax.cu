// softmax: the launch of softmax.cuh.

#include <algorithm>

#include "backends/cuda/rows/row_map.h"
#include "backends/cuda/rows/softmax.cuh"
#include "ops/checks.h"

namespace tessera::cuda {

void CudaOps::softmax(
    Exec& ex, const Tensor& x, const Tensor& visible, float scale, const Tensor& out) {
    check_softmax(x, visible, out);
    if (ex.planning() || x.elements() == 0) return;
    const auto elements = static_cast<double>(x.elements());
    const Timed timed(*this, "softmax", 8 * elements, 8 * elements);
    rows::SoftmaxArguments arguments;
    arguments.x = rows::row_map<const float>(x);
    arguments.out = rows::row_map<float>(out);
    arguments.visible = visible.absent() ? nullptr : visible.as<int32_t>();
    arguments.scale = scale;
    arguments.cols = x.cols();
    arguments.vector = rows::aligned(x) && rows::aligned(out);
    const int64_t threads = std::min<int64_t>(ceil_div(ceil_div(x.cols(), 4), 32) * 32, 1024);
    device_->launch("softmax", rows::softmax_kernel, dim3(rows::row_count(x)),
                    dim3(static_cast<uint32_t>(threads)), 0, arguments);
}

}  // namespace tessera::cuda
