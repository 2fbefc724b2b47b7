#pragma once
// Host side of rope_turn.cuh.

#include "backends/cuda/rows/rope_turn.cuh"
#include "ops/ops.h"

namespace tessera::cuda::rows {

/// What `rope` is asked for; all that does not depend on the token is worked out here.
RopeAngles rope_angles(const Tensor& positions,
                       const Tensor& freq_factors,
                       const RopeParams& params);

}  // namespace tessera::cuda::rows
