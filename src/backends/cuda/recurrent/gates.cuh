#pragma once
// Gates of the delta rule: a thread per element. Bound: 16 bytes an element.

#include <cuda_runtime.h>

#include <cstdint>

namespace tessera::cuda {

constexpr int32_t kGateThreads = 128;

struct GateArgs {
    const float* a = nullptr;
    const float* b = nullptr;
    const float* bias = nullptr;
    const float* rate = nullptr;
    float* log_decay = nullptr;  ///< may be a
    float* beta = nullptr;       ///< may be b
    int64_t a_stride = 0, b_stride = 0, log_decay_stride = 0, beta_stride = 0;
    int64_t elements = 0;
    int64_t heads = 0;
};

__device__ __forceinline__ void delta_gate(const GateArgs& args, int64_t index) {
    if (index >= args.elements) return;
    const int64_t t = index / args.heads, h = index % args.heads;
    const float x = args.a[t * args.a_stride + h] + args.bias[h];
    const float gate = args.b[t * args.b_stride + h];
    const float softplus = x > 20.0f ? x : log1pf(expf(x));
    const float rate = args.rate[h];
    const bool undefined = (softplus == 0.0f && isinf(rate)) || (isinf(softplus) && rate == 0.0f);
    args.log_decay[t * args.log_decay_stride + h] = undefined ? 0.0f : __fmul_rn(softplus, rate);
    args.beta[t * args.beta_stride + h] = __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-gate)));
}

}  // namespace tessera::cuda
