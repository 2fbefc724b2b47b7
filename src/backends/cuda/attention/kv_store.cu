// Keys and values of new tokens to their pages. One block a row; a warp takes a head of the keys or
// of the values. Moves each element once, 4 bytes in and 1 to 4 bytes out.
#include "backends/cuda/attention/kv_store.cuh"

namespace tessera::cuda {

void CudaOps::kv_store(
    Exec& ex, const Tensor& k, const Tensor& v, const Batch& batch, const KvView& cache) {
    check(k.rank == 3 && v.rank == 3 && k.rows() == batch.row_count() && v.rows() == k.rows() &&
              v.shape[1] == k.shape[1],
          "kv_store: shapes");
    check_pages(cache.keys, k.shape[1], k.shape[2]);
    check_pages(cache.values, v.shape[1], v.shape[2]);
    if (ex.planning() || k.elements() + v.elements() == 0) return;
    const Timed timed(*this, "kv_store", 0, 6.0 * static_cast<double>(k.elements() + v.elements()));
    const auto source = [](const Tensor& rows, const Tensor& pages) {
        return StoreSource{.data = rows.as<float>(),
                           .row_stride = rows.stride[0],
                           .head_stride = rows.stride[1],
                           .head_size = static_cast<int32_t>(rows.shape[2]),
                           .pages = pages_of(pages)};
    };
    const StoreArgs args{.sources = {source(k, cache.keys), source(v, cache.values)},
                         .batch = BatchView(batch),
                         .kv_heads = static_cast<int32_t>(k.shape[1])};
    device_->launch("kv_store", store_pages, dim3(static_cast<uint32_t>(k.rows())),
                    dim3(kStoreThreads), 0, args);
}

}  // namespace tessera::cuda
