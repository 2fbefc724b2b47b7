// delta_gates: a thread per element. Bound: 16 bytes an element.
#include "backends/cuda/device.cuh"
#include "ops/checks.h"

namespace tessera::cuda {
namespace {

constexpr int32_t kGateThreads = 128;

struct GateArgs {
    const float* a = nullptr;
    const float* b = nullptr;
    const float* bias = nullptr;
    const float* rate = nullptr;
    float* log_decay = nullptr;
    float* beta = nullptr;
    int64_t a_stride = 0, b_stride = 0, log_decay_stride = 0, beta_stride = 0;
    int64_t elements = 0;
    int64_t heads = 0;
};

__global__ void __launch_bounds__(kGateThreads)
    delta_gates_kernel(const __grid_constant__ GateArgs args) {
    const int64_t index = static_cast<int64_t>(blockIdx.x) * kGateThreads + threadIdx.x;
    if (index >= args.elements) return;
    const int64_t t = index / args.heads, h = index % args.heads;
    const float x = args.a[t * args.a_stride + h] + args.bias[h];
    const float gate = args.b[t * args.b_stride + h];
    const float softplus = x > 20.0f ? x : log1pf(expf(x));
    const float rate = args.rate[h];
    const bool undefined = (softplus == 0.0f && isinf(rate)) || (isinf(softplus) && rate == 0.0f);
    args.log_decay[t * args.log_decay_stride + h] = undefined ? 0.0f : softplus * rate;
    args.beta[t * args.beta_stride + h] = 1.0f / (1.0f + expf(-gate));
}

}  // namespace

void CudaOps::delta_gates(Exec& ex,
                          const Tensor& a,
                          const Tensor& b,
                          const Tensor& bias,
                          const Tensor& rate,
                          const Tensor& log_decay,
                          const Tensor& beta) {
    const int64_t heads = a.cols();
    check_delta_gates(a, b, bias, rate, log_decay, beta);
    if (ex.planning() || a.elements() == 0) return;
    const double elements = static_cast<double>(a.elements());
    const Timed timed(*this, "delta_gates", 10 * elements, 16 * elements);
    const GateArgs args{.a = a.as<float>(),
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
                        .heads = heads};
    device_->launch("delta_gates", delta_gates_kernel,
                    static_cast<unsigned>(ceil_div(a.elements(), kGateThreads)), kGateThreads, 0,
                    args);
}

}  // namespace tessera::cuda
