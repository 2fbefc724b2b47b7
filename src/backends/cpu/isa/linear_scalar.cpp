// Products on the base architecture: a unit is decoded by plain loops once for all rows of
// activations, 16 weight rows wide, which compilers turn into SSE2 or NEON. Correct everywhere,
// fast nowhere.
#include <vector>

#include "backends/cpu/cpu_linear_pack.h"
#include "backends/cpu/isa/linear_rows.h"

namespace tessera::cpu {
namespace {

void clear(const BlockTask& task) {
    for (int64_t i = 0; i < task.tokens * kBlockRows; ++i) task.sums[i] = 0.0f;
}

template <DType kFormat>
void plain_f32(const BlockTask& task) {
    clear(task);
    for (int64_t u = 0; u < task.units; ++u) {
        UnitRows unit;
        unpack_unit(kFormat, task.codes, task.scales, u, unit);
        for (int64_t t = 0; t < task.tokens; ++t) {
            const float* x = static_cast<const float*>(task.x) + t * task.x_stride + u * kUnitCols;
            float* sums = task.sums + t * kBlockRows;
            for (int half = 0; half < 2; ++half) {
                float part[kBlockRows] = {};
                for (int k = 16 * half; k < 16 * half + 16; ++k)
                    for (int r = 0; r < kBlockRows; ++r) part[r] += unit.codes[k][r] * x[k];
                for (int r = 0; r < kBlockRows; ++r) sums[r] += part[r] * unit.scale[half][r];
            }
            if constexpr (has_minimum(kFormat)) {
                const float sum = task.x_sums[t * task.units + u];
                for (int r = 0; r < kBlockRows; ++r) sums[r] += unit.minimum[r] * sum;
            }
        }
    }
}

/// Codes and sums of a group are integers below 2^24 (halves for E2M1), so f32 sums are exact.
template <DType kFormat>
void plain_bytes(const BlockTask& task) {
    clear(task);
    for (int64_t u = 0; u < task.units; ++u) {
        UnitRows unit;
        unpack_unit(kFormat, task.codes, task.scales, u, unit);
        for (int64_t t = 0; t < task.tokens; ++t) {
            const int8_t* x =
                static_cast<const int8_t*>(task.x) + t * task.x_stride + u * kUnitCols;
            float* sums = task.sums + t * kBlockRows;
            float scaled[kBlockRows] = {};
            for (int half = 0; half < 2; ++half) {
                float part[kBlockRows] = {};
                for (int i = 0; i < 16; ++i) {
                    const int k = 16 * half + i / 8 * 8 + kByteOrder[i % 8];
                    const float value = static_cast<float>(x[16 * half + i]);
                    for (int r = 0; r < kBlockRows; ++r) part[r] += unit.codes[k][r] * value;
                }
                for (int r = 0; r < kBlockRows; ++r) scaled[r] += part[r] * unit.scale[half][r];
            }
            const float scale = task.x_scales[t * task.units + u];
            for (int r = 0; r < kBlockRows; ++r) sums[r] += scaled[r] * scale;
            if constexpr (has_minimum(kFormat)) {
                const float sum = task.x_sums[t * task.units + u];
                for (int r = 0; r < kBlockRows; ++r) sums[r] += unit.minimum[r] * sum;
            }
        }
    }
}

struct PlainBlocks {
    template <DType kFormat>
    static constexpr BlockKernel kF32 = plain_f32<kFormat>;
    template <DType kFormat>
    static constexpr BlockKernel kBytes = plain_bytes<kFormat>;
};

}  // namespace

const LinearKernels& linear_kernels_scalar() {
    static const LinearKernels kKernels = make_kernels<Plain, PlainBlocks>();
    return kKernels;
}

}  // namespace tessera::cpu
