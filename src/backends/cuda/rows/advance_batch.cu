// The batch of the next generated token out of the last one: a few numbers, one small launch.
#include "backends/cuda/device.cuh"
#include "ops/checks.h"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 64;

__global__ void __launch_bounds__(kThreads)
    advance_kernel(const int32_t* ids, int32_t* tokens, int32_t* positions, int32_t rows) {
    const int32_t row =
        static_cast<int32_t>(blockIdx.x) * kThreads + static_cast<int32_t>(threadIdx.x);
    if (row >= rows) return;
    tokens[row] = ids[row];
    ++positions[row];
}

}  // namespace

void CudaOps::advance_batch(Exec& ex, const Tensor& ids, const Batch& batch) {
    check_advance_batch(ids, batch);
    const int32_t rows = batch.row_count();
    if (ex.planning() || rows == 0) return;
    const Timed timed(*this, "advance_batch", 0, 16.0 * rows);
    device_->launch("advance_batch", advance_kernel,
                    dim3(static_cast<unsigned>(ceil_div(rows, kThreads))), dim3(kThreads), 0,
                    ids.as<int32_t>(), batch.tokens.as<int32_t>(), batch.positions.as<int32_t>(),
                    rows);
}

}  // namespace tessera::cuda
