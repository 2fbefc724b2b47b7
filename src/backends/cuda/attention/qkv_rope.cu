// qk_norm_rope_store: the launch of qkv_rope.cuh.
#include "backends/cuda/attention/qkv_rope.cuh"
#include "backends/cuda/rows/rope_angles.h"
#include "backends/cuda/rows/row_map.h"
#include "ops/checks.h"

namespace tessera::cuda {

void CudaOps::qk_norm_rope_store(Exec& ex,
                                 const Tensor& q,
                                 const Tensor& k,
                                 const Tensor& v,
                                 const QkvRope& how,
                                 const Batch& batch,
                                 const KvView& cache) {
    // Longer heads would take more than a warp's registers.
    if (q.cols() > rows::kWarpCols) {
        note_composed(ex, "qk_norm_rope_store", "long heads: norm, rope, store");
        return Ops::qk_norm_rope_store(ex, q, k, v, how, batch, cache);
    }
    check_rope(q, batch.positions, how.freq_factors, how.rope);
    check_rope(k, batch.positions, how.freq_factors, how.rope);
    check(q.cols() == k.cols() && same_shape(k, v) && k.rows() == q.rows() &&
              k.rows() == batch.row_count(),
          "qk_norm_rope_store: shapes");
    check_pages(cache.keys, k.shape[1], k.shape[2]);
    check_pages(cache.values, v.shape[1], v.shape[2]);
    if (!how.q_gain.absent()) check_rms_norm(q, how.q_gain, q);
    if (!how.k_gain.absent()) check_rms_norm(k, how.k_gain, k);
    if (ex.planning() || q.elements() + k.elements() == 0) return;
    const auto elements = static_cast<double>(q.elements() + k.elements());
    const double pages = static_cast<double>(k.rows() * k.shape[1]) *
                         static_cast<double>(dtype_bytes(cache.keys.dtype, k.cols()) +
                                             dtype_bytes(cache.values.dtype, v.cols()));
    const Timed timed(*this, "qk_norm_rope_store", 7 * elements,
                      8.0 * static_cast<double>(q.elements() + k.elements()) + pages);
    const auto gain = [](const Tensor& x) { return x.absent() ? nullptr : x.as<float>(); };
    const auto source = [](const Tensor& x, const Tensor& to) {
        return StoreSource{.data = x.as<float>(),
                           .row_stride = x.stride[0],
                           .head_stride = x.stride[1],
                           .head_size = static_cast<int32_t>(x.cols()),
                           .pages = pages_of(to)};
    };
    const QkvRopeArgs args{.q = q.as<float>(),
                           .q_row_stride = q.stride[0],
                           .q_head_stride = q.stride[1],
                           .sources = {source(k, cache.keys), source(v, cache.values)},
                           .gains = {gain(how.q_gain), gain(how.k_gain)},
                           .eps = how.eps,
                           .angles = rows::rope_angles(batch.positions, how.freq_factors, how.rope),
                           .batch = BatchView(batch),
                           .heads = static_cast<int32_t>(q.shape[1]),
                           .kv_heads = static_cast<int32_t>(k.shape[1]),
                           .head_size = static_cast<int32_t>(q.cols()),
                           .vector = rows::aligned(q) && rows::aligned(k) &&
                                     rows::aligned(how.q_gain) && rows::aligned(how.k_gain)};
    // Few tokens are spread over more blocks; the results are the same.
    const int64_t items = q.shape[1] + 2 * k.shape[1];
    const bool many = q.rows() >= device_->multiprocessors();
    const auto shares = static_cast<uint32_t>(many ? 1 : ceil_div(items, kQkvWarps));
    const size_t shared =
        static_cast<size_t>(args.angles.half + 1) / 2 * 2 * sizeof(float2) +
        sizeof(float) * kQkvWarps * static_cast<size_t>(qkv_row_floats(args.head_size));
    device_->launch("qk_norm_rope_store", qkv_rope_kernel,
                    dim3(static_cast<uint32_t>(q.rows()), shares), dim3(32 * kQkvWarps), shared,
                    args);
}

}  // namespace tessera::cuda
