// Attention over key/value pages: prompt rows in tiles on tensor cores (prompt.cuh), generated rows
// in splits of the keys (generated.cuh). Heads too large for the tiles take the second way also as
// prompt rows; that follows from the model alone, so it does not depend on the batch.
#include <algorithm>

#include "backends/cuda/attention/attention_call.h"
#include "backends/cuda/attention/pages.cuh"
#include "backends/cuda/device.cuh"

namespace tessera::cuda {

void CudaOps::attention(Exec& ex,
                        const Tensor& q,
                        const Batch& batch,
                        const KvView& cache,
                        const AttentionParams& params,
                        const Tensor& out) {
    check(q.rank == 3 && q.rows() == batch.row_count() && cache.keys.rank == 4 &&
              q.shape[1] % cache.keys.shape[1] == 0 && out.rank == 2 && out.rows() == q.rows() &&
              out.cols() == q.shape[1] * q.shape[2] &&
              (params.sinks.absent() || params.sinks.elements() == q.shape[1]),
          "attention: shapes");
    check_pages(cache.keys, cache.keys.shape[1], q.shape[2]);
    check_pages(cache.values, cache.keys.shape[1], q.shape[2]);
    if (q.rows() == 0) return;
    const AttentionCall call{q, batch, cache, params, out};
    const auto rows = static_cast<int32_t>(q.rows());
    // Tiles round their operands, which f32 activations were chosen to avoid.
    const bool tiles = q.shape[2] <= kLargestPromptHead && options_.act_prompt != ActFormat::kF32;
    const int32_t tiled = tiles ? std::min(ex.prompt_rows, rows) : 0;
    // Half of the keys, on average, for prompts; this only feeds the counters.
    const double row_flops = 4.0 * static_cast<double>(q.shape[1] * q.shape[2]) * batch.max_visible;
    const double row_bytes = 8.0 * static_cast<double>(q.shape[1] * q.shape[2]);
    if (tiled > 0 && !ex.planning()) {
        const Timed timed(*this, "attention[prompt]", row_flops / 2 * tiled, row_bytes * tiled);
        attend_prompt(*device_, call, tiled);
    }
    if (tiled < rows) {
        const Scope scope(ex.arena);
        const SplitScratch scratch = allocate_splits(ex.arena, call, rows - tiled);
        if (ex.planning()) return;
        const double kv_bytes = static_cast<double>(cache.keys.shape[1] *
                                                    (dtype_bytes(cache.keys.dtype, q.shape[2]) +
                                                     dtype_bytes(cache.values.dtype, q.shape[2])));
        const Timed timed(*this, "attention[generated]", row_flops * (rows - tiled),
                          (row_bytes + kv_bytes * batch.max_visible) * (rows - tiled));
        if (tiled < std::min(ex.prompt_rows, rows))
            device_->note_fallback("f32 activations or heads over 256: prompt rows one by one");
        attend_generated(*device_, call, tiled, scratch);
    }
}

}  // namespace tessera::cuda
