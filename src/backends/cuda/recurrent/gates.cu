// delta_gates: the launch of gates.cuh.
#include "backends/cuda/device.cuh"
#include "backends/cuda/recurrent/calls.h"
#include "backends/cuda/recurrent/gates.cuh"
#include "ops/checks.h"

namespace tessera::cuda {
namespace {

__global__ void __launch_bounds__(kGateThreads)
    delta_gates_kernel(const __grid_constant__ GateArgs args) {
    delta_gate(args, static_cast<int64_t>(blockIdx.x) * kGateThreads + threadIdx.x);
}

}  // namespace

GateArgs gate_args(const Tensor& a,
                   const Tensor& b,
                   const Tensor& bias,
                   const Tensor& rate,
                   const Tensor& log_decay,
                   const Tensor& beta) {
    return {.a = a.as<float>(),
            .b = b.as<float>(),
            .bias = bias.as<float>(),
            .rate = rate.as<float>(),
            .log_decay = log_decay.as<float>(),
            .beta = beta.as<float>(),
            .a_stride = a.stride[0],
            .b_stride = b.stride[0],
            .log_decay_stride = log_decay.stride[0],
            .beta_stride = beta.stride[0],
            .elements = a.elements(),
            .heads = a.cols()};
}

void CudaOps::delta_gates(Exec& ex,
                          const Tensor& a,
                          const Tensor& b,
                          const Tensor& bias,
                          const Tensor& rate,
                          const Tensor& log_decay,
                          const Tensor& beta) {
    check_delta_gates(a, b, bias, rate, log_decay, beta);
    if (ex.planning() || a.elements() == 0) return;
    const double elements = static_cast<double>(a.elements());
    const Timed timed(*this, "delta_gates", 10 * elements, 16 * elements);
    device_->launch("delta_gates", delta_gates_kernel,
                    static_cast<unsigned>(ceil_div(a.elements(), kGateThreads)), kGateThreads, 0,
                    gate_args(a, b, bias, rate, log_decay, beta));
}

}  // namespace tessera::cuda
