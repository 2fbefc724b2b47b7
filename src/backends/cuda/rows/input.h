#pragma once
// Where the producers of matrix inputs put their rows: shared by rows/, linear/ and experts/.

#include <cstdint>

#include "core/weight.h"
#include "ops/exec.h"
#include "ops/ops.h"

namespace tessera::cuda {

/// An input of `rows` rows in every format of `wants`, in ex.arena, rows contiguous and not yet
/// written: f32 before bf16, prompt rows before generated rows. Formats other than kF32 and kBF16
/// are bugs. Planning allocates the same.
GemmInput allocate_input(Exec& ex, int64_t rows, int64_t cols, ActWants wants);

class Device;

/// Queues act(gate) * up for the views of `input` that are there.
void store_glu(Device& device,
               const Tensor& gate,
               const Tensor& up,
               Glu kind,
               const GemmInput& input,
               int64_t prompt_rows);

}  // namespace tessera::cuda
