// Key/value pages and causal attention over them: scores, softmax and the weighted sum are three
// separate passes over all visible keys, in f64 and in the order of absolute positions.
#include <algorithm>
#include <cmath>

#include "backends/reference/reference_class.h"

namespace tessera::reference {
namespace {

/// Address of the row of `head` at `position` of sequence `s` in keys or values.
std::byte* cache_row(
    const Tensor& cache, const Batch& batch, int64_t s, int64_t head, int32_t position) {
    const int32_t page = batch.page_table.row<int32_t>(s)[position / kPageTokens];
    check(page >= 0 && page < cache.shape[0], "page table: no such page");
    return address(cache, page * cache.stride[0] + head * cache.stride[1] +
                              position % kPageTokens * cache.stride[2]);
}

void check_cache(const Tensor& cache, int64_t heads, int64_t head_size) {
    check(cache.rank == 4 && cache.shape[1] == heads && cache.shape[2] == kPageTokens &&
              cache.shape[3] == head_size,
          "key/value cache: shape");
    check(cache.dtype == DType::kF32 || cache.dtype == DType::kF16 || cache.dtype == DType::kBF16 ||
              cache.dtype == DType::kF8_E4M3 || cache.dtype == DType::kQ8_0,
          "key/value cache: dtype");
}

void store_rows(const Tensor& rows, const Batch& batch, const Tensor& cache) {
    for (int64_t s = 0; s < batch.sequence_count(); ++s) {
        const int32_t* start = batch.seq_start.as<int32_t>();
        for (int32_t t = start[s]; t < start[s + 1]; ++t)
            for (int64_t head = 0; head < rows.shape[1]; ++head)
                quantize_row(cache.dtype, rows.row<float>(t) + head * rows.stride[1], rows.cols(),
                             cache_row(cache, batch, s, head, batch.positions.as<int32_t>()[t]),
                             Nvfp4Policy::kAmax6);
    }
}

/// The decoded keys and values [visible, d] of one kv head of one sequence.
struct Decoded {
    const float* keys;
    const float* values;
    int64_t head_size;
};

/// One head of one row, both of size d. A sink of -inf is none.
struct HeadRow {
    const float* q;
    double sink;
    float* out;
};

HeadRow head_row(
    const Tensor& q, const Tensor& sinks, const Tensor& out, int64_t row, int64_t head) {
    return {.q = q.row<float>(row) + head * q.stride[1],
            .sink = sinks.absent() ? -INFINITY : static_cast<double>(sinks.as<float>()[head]),
            .out = out.row<float>(row) + head * q.cols()};
}

/// The row against positions [begin, end).
void attend(const HeadRow& row,
            const Decoded& decoded,
            Tensor scores,
            std::array<int32_t, 2> range,
            const AttentionParams& params) {
    const int64_t d = decoded.head_size;
    auto* score = scores.as<double>();
    double largest = row.sink;
    for (int32_t p = range[0]; p < range[1]; ++p) {
        double sum = 0.0;
        for (int64_t i = 0; i < d; ++i)
            sum += static_cast<double>(row.q[i]) * static_cast<double>(decoded.keys[p * d + i]);
        sum *= static_cast<double>(params.scale);
        const double cap = static_cast<double>(params.softcap);
        score[p] = params.softcap > 0.0f ? cap * std::tanh(sum / cap) : sum;
        largest = std::max(largest, score[p]);
    }
    double total = std::exp(row.sink - largest);
    for (int32_t p = range[0]; p < range[1]; ++p) {
        score[p] = std::exp(score[p] - largest);
        total += score[p];
    }
    for (int64_t i = 0; i < d; ++i) {
        double sum = 0.0;
        for (int32_t p = range[0]; p < range[1]; ++p)
            sum += score[p] * static_cast<double>(decoded.values[p * d + i]);
        row.out[i] = static_cast<float>(sum / total);
    }
}

}  // namespace

void ReferenceOps::kv_store(
    Exec& ex, const Tensor& k, const Tensor& v, const Batch& batch, const KvView& cache) {
    check(k.rank == 3 && v.rank == 3 && k.rows() == batch.row_count() && v.rows() == k.rows(),
          "kv_store: shapes");
    check_cache(cache.keys, k.shape[1], k.cols());
    check_cache(cache.values, v.shape[1], v.cols());
    if (ex.planning()) return;
    const Counted counted(*this, "kv_store", 0.0,
                          4.0 * static_cast<double>(k.elements() + v.elements()));
    store_rows(k, batch, cache.keys);
    store_rows(v, batch, cache.values);
}

void ReferenceOps::attention(Exec& ex,
                             const Tensor& q,
                             const Batch& batch,
                             const KvView& cache,
                             const AttentionParams& params,
                             const Tensor& out) {
    const int64_t d = q.cols();
    const int64_t kv_heads = cache.keys.shape[1];
    check(q.rank == 3 && q.rows() == batch.row_count() && q.shape[1] % kv_heads == 0 &&
              out.rows() == q.rows() && out.cols() == q.shape[1] * d &&
              (params.sinks.absent() || params.sinks.elements() == q.shape[1]),
          "attention: shapes");
    check_cache(cache.keys, kv_heads, d);
    check_cache(cache.values, kv_heads, d);
    const Scope scope(ex.arena);
    const Tensor keys = ex.arena.allocate(DType::kF32, {batch.max_visible, d});
    const Tensor values = ex.arena.allocate(DType::kF32, {batch.max_visible, d});
    const Tensor scores = ex.arena.allocate(DType::kF64, {batch.max_visible});
    if (ex.planning()) return;
    const int64_t group = q.shape[1] / kv_heads;
    const Counted counted(
        *this, "attention", 4.0 * static_cast<double>(q.elements()) * batch.max_visible,
        2.0 * static_cast<double>(kv_heads * dtype_bytes(cache.keys.dtype, d)) * batch.max_visible);
    const int32_t* start = batch.seq_start.as<int32_t>();
    const int32_t* positions = batch.positions.as<int32_t>();
    for (int64_t s = 0; s < batch.sequence_count(); ++s) {
        int32_t visible = 0;
        for (int32_t t = start[s]; t < start[s + 1]; ++t)
            visible = std::max(visible, positions[t] + 1);
        check(visible <= batch.max_visible, "attention: max_visible is too small");
        for (int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
            for (int32_t p = 0; p < visible; ++p) {
                dequantize_row(cache.keys.dtype, cache_row(cache.keys, batch, s, kv_head, p), d,
                               keys.row<float>(p));
                dequantize_row(cache.values.dtype, cache_row(cache.values, batch, s, kv_head, p), d,
                               values.row<float>(p));
            }
            const Decoded decoded{keys.as<float>(), values.as<float>(), d};
            for (int32_t t = start[s]; t < start[s + 1]; ++t) {
                const int32_t end = positions[t] + 1;
                const int32_t begin = params.window > 0 ? std::max(0, end - params.window) : 0;
                for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h)
                    attend(head_row(q, params.sinks, out, t, h), decoded, scores, {begin, end},
                           params);
            }
        }
    }
}

}  // namespace tessera::reference
