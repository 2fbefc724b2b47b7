#pragma once
// Whether FP4 tensor cores multiply what gemm_nvfp4_sm120.cuh takes them to: asked of a card before
// it is trusted with products, as the kernels were written without one.

#include <string>
#include <vector>

#include "backends/cuda/device.cuh"

namespace tessera::cuda {

/// One number at a time in each place of A, with its own scales, against all of B, for every choice
/// of scale lanes, those that are not chosen poisoned: 8192 products of 16 x 8 x 64, exact. What
/// differs from the definition, a line each; a few milliseconds. For cards with the instruction.
std::vector<std::string> check_fp4_instruction(Device& device);

/// Products of packed rows with a matrix and with experts, of NVFP4 and of MXFP4, that have tiles
/// which are not full, against sums in f64: what differs, a line each. For ops whose prompt rows
/// are kFp4 before such matrices.
std::vector<std::string> check_fp4_product(CudaOps& ops);

}  // namespace tessera::cuda
