#pragma once
// Where the producers of matrix inputs put their rows: shared by rows/, linear/ and experts/.

#include <cstdint>

#include "core/weight.h"
#include "ops/exec.h"
#include "ops/ops.h"

namespace tessera::cuda {

/// An input of `rows` rows in every format of `wants`, in ex.arena, rows contiguous and not yet
/// written: f32 before bf16 before others, prompt rows before generated rows. Formats other than
/// kF32, kBF16 and, for prompt rows, one of kFp8, kNvfp4 and kFp4, are bugs. Planning allocates the
/// same.
GemmInput allocate_input(Exec& ex, int64_t rows, int64_t cols, ActWants wants);

inline bool wanted(uint8_t wants, ActFormat format) {
    return ((wants >> static_cast<unsigned>(format)) & 1u) != 0;
}
inline bool wants_fp8(ActWants wants) {
    return wanted(wants.prompt, ActFormat::kFp8);
}
inline bool wants_fp4(ActWants wants) {
    return wanted(wants.prompt, ActFormat::kFp4);
}
/// Whether rows have scales. Their kernels follow from the wanted formats alone, whatever kinds of
/// rows there are.
inline bool wants_row_scales(ActWants wants) {
    return wants_fp8(wants) || wants_fp4(wants) || wanted(wants.prompt, ActFormat::kNvfp4);
}

class Device;

/// Queues act(gate) * up for the views of `input` that are there, none of which has scales.
void store_glu(Device& device,
               const Tensor& gate,
               const Tensor& up,
               Glu kind,
               const GemmInput& input,
               int64_t prompt_rows);

// Queue what their namesakes without "scaled" are, for rows with scales: scaled_rows.cu.

struct ScaledStore {
    int64_t prompt_rows = 0;
    bool f32_is_x = false;  ///< the f32 view is x itself
};
void store_scaled(Device& device, const Tensor& x, const GemmInput& input, ScaledStore how);

/// Prompt rows of bf16, all of those of `input` in order, for its views with scales: e4m3 with
/// transposed quads, nvfp4 or fp4.
void store_rounded(Device& device, const Tensor& x, const GemmInput& input);

/// Columns of gate are a multiple of 4.
void store_scaled_glu(Device& device,
                      const Tensor& gate,
                      const Tensor& up,
                      Glu kind,
                      const GemmInput& input,
                      int64_t prompt_rows);

struct ScaledNormOperands {
    const Tensor& x;
    const Tensor& gain;
    float eps;
    const Tensor& z;  ///< absent: rms_norm_input, else gated_rms_norm_input
};
void store_scaled_norm(Device& device,
                       const ScaledNormOperands& of,
                       const GemmInput& input,
                       int64_t prompt_rows);
bool scaled_gated_norm_fits(const Tensor& x);
/// gated_rms_norm_input for views without scales, where many rows of a shape that suits are; false:
/// nothing was queued.
bool store_gated_norm(Device& device,
                      const ScaledNormOperands& of,
                      const GemmInput& input,
                      int64_t prompt_rows);

}  // namespace tessera::cuda
