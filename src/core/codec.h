#pragma once
// Rows of numbers to and from every storage format, in plain loops: the oracle of all backends and
// the engine of `quantize`. Layouts: `ggml:src/ggml-common.h`; described byte by byte in
// docs/formats.md.

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace tessera {

/// How the scale of a 16-element NVFP4 block is chosen.
enum class Nvfp4Policy : uint8_t {
    kAmax6,    ///< e4m3(amax / 6): the usual rule; amax lands on the largest code
    kFourSix,  ///< the better (least squared error) of amax/6 and amax/4 (arXiv 2512.02010, "Four
               ///< Over Six")
    kSearch    ///< least squared error among the codes amax6 - 2 .. amax6 + 2 and amax/4's
};

/// Decodes `count` values. `count` is a multiple of the block size. F64 and integer formats convert
/// by value.
void dequantize_row(DType format, const std::byte* source, int64_t count, float* values);

/// Encodes `count` finite values, a multiple of the block size. Deterministic; `policy` matters for
/// NVFP4 only. K-quants: weighted least squares over scale and minimum as `ggml:src/ggml-quants.c`
/// without importance matrix.
void quantize_row(
    DType format, const float* values, int64_t count, std::byte* target, Nvfp4Policy policy);

/// The fp32 second-level scale that brings a whole matrix into range: largest |value| / (6 * 448),
/// or 1 for zeros. NVFP4 block scales are then taken of value / scale; GGUF stores the scale as
/// `<tensor>.scale`.
float nvfp4_tensor_scale(const float* values, int64_t count);

}  // namespace tessera
