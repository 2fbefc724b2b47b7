// Runs of the ops on key/value pages: several sequences with shuffled pages, cut at any row.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/numeric.h"
#include "op_cases/case_run.h"

namespace tessera::op_cases {
namespace {

using Role = Guarded::Role;

/// Physical pages of every sequence, in shuffled order, and one page that belongs to nobody.
struct Pages {
    int64_t count = 0;
    int64_t per_sequence = 0;
    std::vector<int32_t> table;  ///< [sequences, per_sequence]
};

Pages shuffle_pages(const PagedCase& shape, Random& random) {
    Pages pages;
    for (const Run& run : shape.runs) {
        const int64_t needed = (run.first + run.count + kPageTokens - 1) / kPageTokens;
        pages.per_sequence = std::max(pages.per_sequence, needed);
        pages.count += needed;
    }
    pages.count += 1;
    std::vector<int32_t> order(static_cast<size_t>(pages.count));
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size(); i > 1; --i)
        std::swap(order[i - 1], order[static_cast<size_t>(random.below(static_cast<int32_t>(i)))]);
    size_t next = 0;
    // Entries past the end of a sequence hold a page number that no op may use.
    pages.table.assign(shape.runs.size() * static_cast<size_t>(pages.per_sequence), 1 << 30);
    for (size_t s = 0; s < shape.runs.size(); ++s) {
        const Run& run = shape.runs[s];
        const int64_t needed = (run.first + run.count + kPageTokens - 1) / kPageTokens;
        for (int64_t i = 0; i < needed; ++i)
            pages.table[s * static_cast<size_t>(pages.per_sequence) + static_cast<size_t>(i)] =
                order[next++];
    }
    return pages;
}

/// A batch of the rows [begin, begin + count) of the case, and the memory behind it.
class CutBatch {
  public:
    CutBatch(const PagedCase& shape, const Pages& pages, int32_t begin, int32_t count) {
        int32_t row = 0;
        starts_.push_back(0);
        for (size_t s = 0; s < shape.runs.size(); ++s) {
            const Run& run = shape.runs[s];
            const size_t before = positions_.size();
            for (int32_t i = 0; i < run.count; ++i, ++row) {
                if (row < begin || row >= begin + count) continue;
                positions_.push_back(run.first + i);
                max_visible_ = std::max(max_visible_, run.first + i + 1);
                if (s < static_cast<size_t>(shape.prompt_runs)) ++prompt_rows_;
            }
            if (positions_.size() == before && run.count > 0) continue;
            starts_.push_back(static_cast<int32_t>(positions_.size()));
            const auto entry = pages.table.begin() + static_cast<int64_t>(s) * pages.per_sequence;
            table_.insert(table_.end(), entry, entry + pages.per_sequence);
        }
        tokens_.assign(positions_.size(), 0);
    }
    Batch view(const Pages& pages) {
        const auto rows = static_cast<int64_t>(positions_.size());
        const auto sequences = static_cast<int64_t>(starts_.size()) - 1;
        Batch batch;
        batch.tokens = make_tensor(tokens_.data(), DType::kI32, {rows});
        batch.positions = make_tensor(positions_.data(), DType::kI32, {rows});
        batch.seq_start = make_tensor(starts_.data(), DType::kI32, {sequences + 1});
        batch.page_table = make_tensor(table_.data(), DType::kI32, {sequences, pages.per_sequence});
        batch.prompt_rows = prompt_rows_;
        batch.max_visible = max_visible_;
        return batch;
    }

  private:
    std::vector<int32_t> tokens_, positions_, starts_, table_;
    int32_t prompt_rows_ = 0;
    int32_t max_visible_ = 0;
};

Rows rows_of(const PagedCase& shape) {
    Rows rows;
    for (size_t s = 0; s < shape.runs.size(); ++s) {
        rows.count += shape.runs[s].count;
        if (s < static_cast<size_t>(shape.prompt_runs)) rows.prompt += shape.runs[s].count;
    }
    return rows;
}

/// Fills keys or values of every token that a sequence holds; all other places stay NaN.
void fill_cache(const PagedCase& shape, const Pages& pages, Random& random, const Tensor& cache) {
    std::vector<float> values(static_cast<size_t>(shape.head_size));
    for (size_t s = 0; s < shape.runs.size(); ++s) {
        for (int32_t p = 0; p < shape.runs[s].first + shape.runs[s].count; ++p) {
            const int64_t page = pages.table[s * static_cast<size_t>(pages.per_sequence) +
                                             static_cast<size_t>(p / kPageTokens)];
            for (int64_t head = 0; head < shape.kv_heads; ++head) {
                for (float& value : values) value = random.uniform(-1.0f, 1.0f);
                const int64_t offset = page * cache.stride[0] + head * cache.stride[1] +
                                       p % kPageTokens * cache.stride[2];
                quantize_row(cache.dtype, values.data(), shape.head_size,
                             cache.as<std::byte>() + dtype_bytes(cache.dtype, offset),
                             Nvfp4Policy::kAmax6);
            }
        }
    }
}

/// Every third element +infinity, every third -infinity, or every third NaN; of keys only the first
/// one, so that products are not all NaN. Blocks of Q8_0 get such a scale.
void poison_row(Poison kind, DType dtype, int64_t count, std::byte* row) {
    const auto put = [&](int64_t element, double value) {
        const auto single = static_cast<float>(value);
        if (dtype == DType::kF32) std::memcpy(row + 4 * element, &single, 4);
        const uint16_t half = dtype == DType::kBF16 ? bf16_from_f32(single) : f16_from_f32(single);
        if (dtype == DType::kF16 || dtype == DType::kBF16) std::memcpy(row + 2 * element, &half, 2);
        if (dtype == DType::kF8_E4M3) row[element] = std::byte{0x7f};
        if (dtype == DType::kQ8_0) std::memcpy(row + element / 32 * 34, &half, 2);
    };
    for (int64_t element = 0; element < count; element += 3) {
        put(element, kind == Poison::kNan ? NAN : INFINITY);
        if (kind == Poison::kInfinity && element + 1 < count) put(element + 1, -INFINITY);
    }
}

void poison_cache(const PagedCase& shape,
                  const Pages& pages,
                  Poison kind,
                  int64_t elements,
                  const Tensor& cache) {
    if (kind == Poison::kNone) return;
    const int64_t page = pages.table[static_cast<size_t>(shape.poison_at / kPageTokens)];
    for (int64_t head = 0; head < std::max(shape.kv_heads - 1, 1); ++head) {
        const int64_t offset = page * cache.stride[0] + head * cache.stride[1] +
                               shape.poison_at % kPageTokens * cache.stride[2];
        poison_row(kind, cache.dtype, elements,
                   cache.as<std::byte>() + dtype_bytes(cache.dtype, offset));
    }
}

/// What is not finite is judged by what it is, not by its bits.
void classify(Outputs& outputs) {
    for (float& value : outputs.values) {
        const uint8_t kind = std::isnan(value) ? 3 : !std::isinf(value) ? 0 : value > 0 ? 1 : 2;
        outputs.exact.push_back(std::byte{kind});
        if (kind != 0) value = 0.0f;
    }
}

std::vector<int64_t> cache_shape(const PagedCase& shape, const Pages& pages) {
    return {pages.count, shape.kv_heads, kPageTokens, shape.head_size};
}

Outputs run_attention(const PagedCase& shape, const Request& request) {
    Outputs outputs;
    Random random(request.seed);
    const Rows rows = rows_of(shape);
    const Pages pages = shuffle_pages(shape, random);
    Guarded keys("keys", shape.type_k, cache_shape(shape, pages), 0, Role::kInput);
    keys.fill_bytes(0xff);
    fill_cache(shape, pages, random, keys.tensor());
    poison_cache(shape, pages, shape.poison_k, 1, keys.tensor());
    keys.seal();
    Guarded values("values", shape.type_v, cache_shape(shape, pages), 0, Role::kInput);
    values.fill_bytes(0xff);
    fill_cache(shape, pages, random, values.tensor());
    poison_cache(shape, pages, shape.poison_v, shape.head_size, values.tensor());
    values.seal();
    Guarded q("q", DType::kF32, {rows.count, shape.heads, shape.head_size}, 0, Role::kInput);
    q.fill(random, -4.0f, 4.0f);
    q.seal();
    // From far below the scores, which are about 1, to far above them.
    Guarded sinks("sinks", DType::kF32, {shape.heads}, 0, Role::kInput);
    if (shape.sinks) sinks.fill(random, -8.0f, 8.0f);
    sinks.seal();
    Guarded out("out", DType::kF32, {rows.count, shape.heads * shape.head_size}, shape.padding,
                Role::kOutput);
    const AttentionParams params{.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_size)),
                                 .softcap = shape.softcap,
                                 .window = shape.window,
                                 .sinks = shape.sinks ? sinks.tensor() : Tensor{}};
    drive(
        request, rows,
        [&](Exec& ex, int32_t begin, int32_t count) {
            CutBatch cut(shape, pages, begin, count);
            Tensor queries = q.tensor().slice_rows(begin, count);
            const Tensor result = out.tensor().slice_rows(begin, count);
            if (shape.in_place) {
                std::copy_n(queries.as<float>(), queries.elements(), result.as<float>());
                queries = result.reshape({count, shape.heads, shape.head_size});
            }
            request.subject.ops.attention(ex, queries, cut.view(pages),
                                          {keys.tensor(), values.tensor()}, params, result);
        },
        outputs);
    out.read(outputs.values);
    if (shape.poison_k != Poison::kNone || shape.poison_v != Poison::kNone) classify(outputs);
    for (const Guarded* operand : {&keys, &values, &q, &sinks, &out})
        operand->verify(outputs.faults);
    return outputs;
}

Outputs run_store(const PagedCase& shape, const Request& request) {
    Outputs outputs;
    Random random(request.seed);
    const Rows rows = rows_of(shape);
    const Pages pages = shuffle_pages(shape, random);
    Guarded keys("keys", shape.type_k, cache_shape(shape, pages), 0, Role::kOutput);
    keys.fill_bytes(0);
    Guarded values("values", shape.type_v, cache_shape(shape, pages), 0, Role::kOutput);
    values.fill_bytes(0);
    const std::vector<int64_t> kv_extents = {rows.count, shape.kv_heads, shape.head_size};
    const bool fused = shape.kind == PagedKind::kQkNormRopeStore;
    Guarded q("q", DType::kF32, {rows.count, shape.heads, shape.head_size}, shape.padding,
              Role::kOutput);
    q.fill(random, -1.0f, 1.0f);
    Guarded k("k", DType::kF32, kv_extents, shape.padding, fused ? Role::kOutput : Role::kInput);
    k.fill(random, -1.0f, 1.0f);
    k.seal();
    Guarded v("v", DType::kF32, kv_extents, 0, Role::kInput);
    v.fill(random, -1.0f, 1.0f);
    v.seal();
    Guarded gain("gain", DType::kF32, {shape.head_size}, 0, Role::kInput);
    gain.fill(random, 0.5f, 2.0f);
    gain.seal();
    const Tensor q_gain = shape.norm ? gain.tensor() : Tensor{};
    const Ops::QkvRope how{
        .q_gain = q_gain, .k_gain = q_gain, .eps = 1e-6f, .rope = shape.rope, .freq_factors = {}};
    drive(
        request, rows,
        [&](Exec& ex, int32_t begin, int32_t count) {
            CutBatch cut(shape, pages, begin, count);
            Ops& ops = request.subject.ops;
            const Batch batch = cut.view(pages);
            const KvView cache{keys.tensor(), values.tensor()};
            const Tensor part_q = q.tensor().slice_rows(begin, count);
            const Tensor part_k = k.tensor().slice_rows(begin, count);
            const Tensor part_v = v.tensor().slice_rows(begin, count);
            if (!fused)
                ops.kv_store(ex, part_k, part_v, batch, cache);
            else if (request.body == Body::kDefault)
                ops.Ops::qk_norm_rope_store(ex, part_q, part_k, part_v, how, batch, cache);
            else
                ops.qk_norm_rope_store(ex, part_q, part_k, part_v, how, batch, cache);
        },
        outputs);
    if (fused) {
        q.read(outputs.values);
        keys.read(outputs.values);
    } else {
        keys.read_bytes(outputs.exact);
    }
    values.read_bytes(outputs.exact);
    for (const Guarded* operand : {&keys, &values, &q, &k, &v, &gain})
        operand->verify(outputs.faults);
    return outputs;
}

}  // namespace

Outputs execute(const PagedCase& shape, const Request& request) {
    return shape.kind == PagedKind::kAttention ? run_attention(shape, request)
                                               : run_store(shape, request);
}

}  // namespace tessera::op_cases
