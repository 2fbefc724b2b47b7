#pragma once
// Whether FP4 tensor cores multiply what gemm_nvfp4_sm120.cuh takes them to: asked of a card before
// it is trusted with products, as the kernels were written without one.

#include <string>
#include <vector>

#include "backends/cuda/device.cuh"

namespace tessera::cuda {

/// One number at a time in each place of A, with its own scales, against all of B, for every choice
/// of scale lanes, those that are not chosen poisoned: 8192 products of 16 x 8 x 64, exact. What
/// differs from the definition, a line. Then the conversions to and from E2M1 beside what stands
/// for them on other cards, under every scale: at every tie, beside it and elsewhere. A few
/// milliseconds. For cards with these instructions.
std::vector<std::string> check_fp4_instruction(Device& device);

/// Products of packed rows with matrices of NVFP4 and MXFP4 in tiles of every size, some of them
/// not full, the largest more than there are multiprocessors, and with experts, against sums in
/// f64: what differs, a line each. For ops whose prompt rows are kFp4 before such weights; takes up
/// to 256 MiB of their memory, and a few tenths of a second.
std::vector<std::string> check_fp4_product(CudaOps& ops, int32_t multiprocessors);

}  // namespace tessera::cuda
