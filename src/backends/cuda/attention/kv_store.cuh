#pragma once
// Kernel of kv_store.

#include "backends/cuda/attention/store_head.cuh"

namespace tessera::cuda {

constexpr int32_t kStoreThreads = 256;

struct StoreArgs {
    StoreSource sources[2];  ///< keys, values
    BatchView batch;
    int32_t kv_heads;
};

/// Grid: rows.
__global__ void __launch_bounds__(kStoreThreads)
    store_pages(const __grid_constant__ StoreArgs args) {
    const auto row = static_cast<int32_t>(blockIdx.x);
    const int32_t sequence = find_sequence(args.batch, row);
    const int32_t position = args.batch.positions[row];
    const int64_t page = args.batch.table(sequence)[position / kPageTokens];
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    for (int32_t item = static_cast<int32_t>(threadIdx.x / 32); item < 2 * args.kv_heads;
         item += kStoreThreads / 32) {
        const StoreSource& source = args.sources[item / args.kv_heads];
        const int64_t head = item % args.kv_heads;
        store_head(source, source.head(row, head), lane,
                   source.pages.head(page, head) + position % kPageTokens * source.pages.row_bytes);
    }
}

}  // namespace tessera::cuda
