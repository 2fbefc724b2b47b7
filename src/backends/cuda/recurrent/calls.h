#pragma once
// Operands as the kernels of recurrent/ take them, where several launches need the same.

#include "backends/cuda/recurrent/conv.cuh"
#include "backends/cuda/recurrent/gates.cuh"
#include "ops/ops.h"

namespace tessera::cuda {

ConvArgs conv_args(const Tensor& u,
                   const Tensor& taps,
                   const Batch& batch,
                   const RecurrentView& memory,
                   const Tensor& out);

GateArgs gate_args(const Tensor& a,
                   const Tensor& b,
                   const Tensor& bias,
                   const Tensor& rate,
                   const Tensor& log_decay,
                   const Tensor& beta);

}  // namespace tessera::cuda
