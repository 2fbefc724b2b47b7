#pragma once
// What dense and expert products of the reference share: activations decoded row by row, sums in
// f64.

#include <array>
#include <cstdint>

#include "core/weight.h"

namespace tessera::reference {

/// The view that a weight wants, or null.
const ActView* find_view(const ActViews& views, uint8_t wants);

/// Row `t` of an activation as the f32 numbers that enter the sum, without the row scale of NVFP4
/// and the block scales of int8 (codes times scale would be rounded to f32 here).
void decode_act(const ActView& view, int64_t t, int64_t cols, float* out);

/// Sum of the products of row `t`, decoded to `x`, and a decoded row of a weight.
double act_dot(const ActView& view, int64_t t, const float* x, const float* w, int64_t cols);

}  // namespace tessera::reference
