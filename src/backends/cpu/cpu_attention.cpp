// Key/value pages and attention over them. Prompt rows: per sequence, the pages of each kv head are
// packed once into the kernel's layout, a segment of the keys at a time so that scratch stays
// bounded, then blocks of query columns run over them. Generated rows: every (row, kv head, split
// of 128 keys) is one item, whose partial sums are combined in order afterwards. Items are handed
// out by a counter; which thread takes one does not matter, because no result depends on it.
#include <algorithm>
#include <atomic>

#include "backends/cpu/cpu_work.h"
#include "backends/cpu/isa/attention_kernels.h"
#include "backends/cpu/isa/rows_kernels.h"
#include "core/codec.h"

namespace tessera::cpu {
namespace {

/// Pages that are packed at once: 4096 keys.
constexpr int32_t kSegmentPages = 64;
/// Memory for the partial sums of generated rows, unless one row needs more.
constexpr int64_t kPartialBytes = int64_t{4} << 20;

/// Items of consecutive phases, separated by barriers. Every thread asks once in vain at the end of
/// each phase, so the next phase starts `threads` numbers later.
class Dispenser {
  public:
    Dispenser(ThreadPool& pool, bool whole_team) : pool_(pool), whole_team_(whole_team) {}

    /// Per thread: where its current phase starts.
    struct Cursor {
        int64_t base = 0;
    };
    template <class Body>
    void phase(Cursor& cursor, int64_t items, const Body& body) {
        for (;;) {
            const int64_t item = next_.fetch_add(1, std::memory_order_relaxed) - cursor.base;
            if (item >= items) break;
            body(item);
        }
        cursor.base += items + (whole_team_ ? pool_.size() : 1);
        if (whole_team_) pool_.barrier();
    }

  private:
    ThreadPool& pool_;
    bool whole_team_;
    std::atomic<int64_t> next_{0};
};

PageRows page_rows(const Tensor& pages, int64_t page, int64_t kv_head) {
    const int64_t offset = page * pages.stride[0] + kv_head * pages.stride[1];
    return {pages.as<std::byte>() + dtype_bytes(pages.dtype, offset), pages.dtype,
            dtype_bytes(pages.dtype, pages.stride[2])};
}

/// Which sequence a row belongs to; rows are asked for in rising order.
class SequenceFinder {
  public:
    explicit SequenceFinder(const Batch& batch) : starts_(batch.seq_start.as<int32_t>()) {}
    int64_t of(int64_t row) {
        while (starts_[sequence_ + 1] <= row) ++sequence_;
        return sequence_;
    }

  private:
    const int32_t* starts_;
    int64_t sequence_ = 0;
};

void store_row(
    const RowKernels& kernels, const float* values, int64_t count, DType dtype, std::byte* target) {
    switch (dtype) {
        case DType::kF32:
            std::copy_n(values, count, reinterpret_cast<float*>(target));
            return;
        case DType::kF16:
            return kernels.f16_from_f32(values, count, reinterpret_cast<uint16_t*>(target));
        case DType::kBF16:
            return kernels.bf16_from_f32(values, count, reinterpret_cast<uint16_t*>(target));
        default:
            quantize_row(dtype, values, count, target, Nvfp4Policy::kAmax6);
    }
}

/// The kv heads of one row to their page.
void store_kv_row(const RowKernels& kernels,
                  const Tensor& source,
                  int64_t row,
                  int64_t page,
                  int64_t slot,
                  const Tensor& pages) {
    for (int64_t head = 0; head < source.shape[1]; ++head) {
        const PageRows rows = page_rows(pages, page, head);
        auto* target = const_cast<std::byte*>(rows.base) + slot * rows.row_bytes;
        store_row(kernels, source.row<float>(row) + head * source.stride[1], source.shape[2],
                  pages.dtype, target);
    }
}

void check_cache(const Tensor& rows, const Tensor& pages) {
    check(rows.rank == 3 && pages.rank == 4 && rows.shape[2] == pages.shape[3] &&
              pages.shape[2] == kPageTokens,
          "key/value pages: shapes");
    check(pages.dtype == DType::kF32 || pages.dtype == DType::kF16 || pages.dtype == DType::kBF16 ||
              pages.dtype == DType::kF8_E4M3 || pages.dtype == DType::kQ8_0,
          "key/value pages: format");
}

struct PageSlot {
    int64_t page, slot;
};
PageSlot slot_of(const Batch& batch, int64_t sequence, int32_t position) {
    return {batch.page_table.row<int32_t>(sequence)[position / kPageTokens],
            position % kPageTokens};
}

/// Everything that the two families share in one call.
struct Call {
    const Tensor& q;
    const Batch& batch;
    const KvView& cache;
    const AttentionParams& params;
    const Tensor& out;
    AttentionShape shape;
    int64_t kv_heads;
    int32_t max_pages;  // bound by the host
};

/// Sinks of `head` and the ones behind it; null: none.
const float* sinks_from(const Call& call, int64_t head) {
    return call.params.sinks.absent() ? nullptr : call.params.sinks.as<float>() + head;
}

// ---- prompt rows ----

struct PromptScratch {
    std::byte* packed;   // [kv_heads][segment_pages] packed pages
    float* states;       // [kv_heads][blocks] state between segments; one segment: none
    std::byte* threads;  // per thread: kernel scratch, then one state
    int64_t packed_bytes, state_bytes, kernel_bytes, thread_bytes;
    int32_t segment_pages;
};

PromptScratch prompt_scratch(
    Exec& ex, const Call& call, const PromptKernels& kernels, int64_t rows, int32_t threads) {
    const int32_t head_size = call.shape.head_size;
    PromptScratch out{};
    out.packed_bytes = kernels.packed_bytes(head_size);
    out.state_bytes = kernels.state_floats(head_size) * 4;
    out.kernel_bytes = (kernels.scratch_bytes(head_size) + 63) / 64 * 64;
    out.thread_bytes = out.kernel_bytes + (out.state_bytes + 63) / 64 * 64;
    out.segment_pages = std::min(kSegmentPages, call.max_pages);
    out.packed = ex.arena.allocate_bytes(
        static_cast<size_t>(call.kv_heads * out.segment_pages * out.packed_bytes));
    if (call.max_pages > out.segment_pages) {
        const int64_t blocks = ceil_div(rows * call.shape.group, kernels.block_columns);
        out.states = reinterpret_cast<float*>(
            ex.arena.allocate_bytes(static_cast<size_t>(call.kv_heads * blocks * out.state_bytes)));
    }
    out.threads = ex.arena.allocate_bytes(static_cast<size_t>(threads * out.thread_bytes));
    return out;
}

/// One sequence of prompt rows.
struct PromptSequence {
    int64_t index, begin, rows;
    int32_t first_page, last_page;  // [first, last) over all its rows
    int32_t live;                   // keys that this call may see
    int32_t blocks;
};

PromptSequence prompt_sequence(const Call& call, const PromptKernels& kernels, int64_t index) {
    const auto* starts = call.batch.seq_start.as<int32_t>();
    const int64_t begin = starts[index], rows = starts[index + 1] - begin;
    const auto* positions = call.batch.positions.as<int32_t>() + begin;
    const auto [lowest, highest] = std::minmax_element(positions, positions + rows);
    const int32_t oldest = call.shape.window > 0 ? std::max(0, *lowest - call.shape.window + 1) : 0;
    return {
        .index = index,
        .begin = begin,
        .rows = rows,
        .first_page = oldest / kPageTokens,
        .last_page = *highest / kPageTokens + 1,
        .live = *highest + 1,
        .blocks = static_cast<int32_t>(ceil_div(rows * call.shape.group, kernels.block_columns))};
}

/// A segment of a sequence's keys and all that works on it.
struct PromptSegment {
    const Call& call;
    const PromptKernels& kernels;
    const PromptScratch& scratch;
    const PromptSequence& sequence;
    int32_t first_page, last_page;
};

void pack_item(const PromptSegment& segment, int64_t kv_head, int32_t page) {
    const Call& call = segment.call;
    const int64_t physical = call.batch.page_table.row<int32_t>(segment.sequence.index)[page];
    const int64_t place = kv_head * segment.scratch.segment_pages + page - segment.first_page;
    segment.kernels.pack_page(page_rows(call.cache.keys, physical, kv_head),
                              page_rows(call.cache.values, physical, kv_head), call.shape.head_size,
                              std::min(kPageTokens, segment.sequence.live - page * kPageTokens),
                              segment.scratch.packed + place * segment.scratch.packed_bytes);
}

void attend_item(const PromptSegment& segment, int64_t item, int32_t thread) {
    const Call& call = segment.call;
    const PromptScratch& scratch = segment.scratch;
    const PromptSequence& sequence = segment.sequence;
    // The last blocks see the most keys: they start first, so that no thread ends with one.
    const int64_t kv_head = item % call.kv_heads;
    const int64_t block_index = sequence.blocks - 1 - item / call.kv_heads;
    const int64_t first_column = block_index * segment.kernels.block_columns;
    const int64_t first_head = kv_head * call.shape.group;
    const int64_t columns_left = sequence.rows * call.shape.group - first_column;
    std::byte* own = scratch.threads + thread * scratch.thread_bytes;
    float* state = reinterpret_cast<float*>(own + scratch.kernel_bytes);
    if (scratch.states != nullptr)
        state =
            scratch.states + (kv_head * sequence.blocks + block_index) * (scratch.state_bytes / 4);
    const PromptBlock block{
        .shape = call.shape,
        .queries = call.q.row<float>(sequence.begin) + first_head * call.q.stride[1],
        .token_stride = call.q.stride[0],
        .head_stride = call.q.stride[1],
        .positions = call.batch.positions.as<int32_t>() + sequence.begin,
        .first_column = static_cast<int32_t>(first_column),
        .columns =
            static_cast<int32_t>(std::min<int64_t>(segment.kernels.block_columns, columns_left)),
        .packed = scratch.packed + kv_head * scratch.segment_pages * scratch.packed_bytes,
        .first_page = segment.first_page,
        .last_page = segment.last_page,
        .opens = segment.first_page == sequence.first_page,
        .closes = segment.last_page == sequence.last_page,
        .state = state,
        .sinks = sinks_from(call, first_head),
        .out = call.out.row<float>(sequence.begin) + first_head * call.shape.head_size,
        .out_stride = call.out.stride[0]};
    segment.kernels.attend(block, own);
}

void attend_prompts(const Call& call,
                    const PromptKernels& kernels,
                    const PromptScratch& scratch,
                    int64_t prompt_rows,
                    ThreadPool& pool) {
    const auto* starts = call.batch.seq_start.as<int32_t>();
    const int64_t products =
        prompt_rows * call.batch.max_visible * call.q.shape[1] * call.shape.head_size;
    const bool whole_team = pool.size() > 1 && products >= kWorthProducts;
    Dispenser dispenser(pool, whole_team);
    run_team(pool, whole_team, [&](int32_t thread) {
        Dispenser::Cursor cursor;
        if (kernels.enter != nullptr) kernels.enter();
        for (int64_t index = 0; index < call.batch.sequence_count(); ++index) {
            if (starts[index] >= prompt_rows) break;
            if (starts[index] == starts[index + 1]) continue;
            const PromptSequence sequence = prompt_sequence(call, kernels, index);
            for (int32_t first = sequence.first_page; first < sequence.last_page;) {
                // Segments end at absolute multiples, as the batches of pages in a kernel do.
                const int32_t border = (first / kSegmentPages + 1) * kSegmentPages;
                const int32_t last = std::min(border, sequence.last_page);
                const PromptSegment segment{call, kernels, scratch, sequence, first, last};
                const int64_t pages = last - first;
                dispenser.phase(cursor, call.kv_heads * pages, [&](int64_t item) {
                    pack_item(segment, item / pages, first + static_cast<int32_t>(item % pages));
                });
                dispenser.phase(cursor, call.kv_heads * sequence.blocks,
                                [&](int64_t item) { attend_item(segment, item, thread); });
                first = last;
            }
        }
        if (kernels.leave != nullptr) kernels.leave();
    });
}

// ---- generated rows ----

struct SplitScratch {
    float* partials;     // [rows of a pass][kv_heads][splits][group] partials
    float* scores;       // per thread [group][kSplitKeys]
    int32_t* sequences;  // of each generated row
    int64_t rows_a_pass, splits, head_floats;
};

SplitScratch split_scratch(Exec& ex, const Call& call, int64_t rows, int32_t threads) {
    SplitScratch out{};
    out.splits = ceil_div(int64_t{call.max_pages} * kPageTokens, kSplitKeys);
    out.head_floats = partial_floats(call.shape.head_size);
    const int64_t row_bytes = call.q.shape[1] * out.splits * out.head_floats * 4;
    out.rows_a_pass = std::clamp<int64_t>(kPartialBytes / row_bytes, 1, rows);
    const auto floats = [&](int64_t count) {
        return reinterpret_cast<float*>(ex.arena.allocate_bytes(static_cast<size_t>(count) * 4));
    };
    // Not rows_a_pass * row_bytes: rounding down, a shorter context than the planned one could need
    // more than the plan.
    out.partials = floats(std::min(rows * row_bytes, std::max(kPartialBytes, row_bytes)) / 4);
    out.scores = floats(int64_t{threads} * call.shape.group * kSplitKeys);
    out.sequences = reinterpret_cast<int32_t*>(floats(rows));
    return out;
}

/// The splits that a row sees: [first, last).
struct SplitSpan {
    int32_t oldest, position, first, last;
};
SplitSpan split_span(const Call& call, int64_t row) {
    const int32_t position = call.batch.positions.as<int32_t>()[row];
    const int32_t oldest =
        call.shape.window > 0 ? std::max(0, position - call.shape.window + 1) : 0;
    return {oldest, position, oldest / kSplitKeys, position / kSplitKeys + 1};
}

struct SplitItem {
    int64_t row, sequence, kv_head, split;
    float* partial;
};

void split_item(const Call& call,
                const SplitKernels& kernels,
                const SplitItem& item,
                float* scores) {
    const SplitSpan span = split_span(call, item.row);
    if (item.split < span.first || item.split >= span.last) return;
    const auto start = static_cast<int32_t>(item.split * kSplitKeys);
    SplitBlock block;
    block.shape = call.shape;
    block.queries =
        call.q.row<float>(item.row) + item.kv_head * call.shape.group * call.q.stride[1];
    block.head_stride = call.q.stride[1];
    block.begin = std::max(span.oldest - start, 0);
    block.end = std::min(span.position + 1 - start, kSplitKeys);
    block.partial = item.partial;
    const auto* table = call.batch.page_table.row<int32_t>(item.sequence);
    for (int32_t page = block.begin / kPageTokens; page * kPageTokens < block.end; ++page) {
        const int64_t physical = table[start / kPageTokens + page];
        block.keys[page] = page_rows(call.cache.keys, physical, item.kv_head);
        block.values[page] = page_rows(call.cache.values, physical, item.kv_head);
    }
    kernels.attend(block, scores);
}

void attend_generated(const Call& call,
                      const SplitKernels& kernels,
                      const SplitScratch& scratch,
                      int64_t first_row,
                      ThreadPool& pool) {
    const int64_t rows = call.q.rows() - first_row, heads = call.q.shape[1];
    const int64_t group = call.shape.group, head_size = call.shape.head_size;
    SequenceFinder finder(call.batch);
    for (int64_t row = 0; row < rows; ++row)
        scratch.sequences[row] = static_cast<int32_t>(finder.of(first_row + row));
    const int64_t products = rows * call.batch.max_visible * heads * head_size;
    const bool whole_team = pool.size() > 1 && products >= kWorthProducts;
    const int64_t split_floats = group * scratch.head_floats;
    Dispenser dispenser(pool, whole_team);
    run_team(pool, whole_team, [&](int32_t thread) {
        Dispenser::Cursor cursor;
        float* scores = scratch.scores + thread * group * kSplitKeys;
        for (int64_t pass = 0; pass < rows; pass += scratch.rows_a_pass) {
            const int64_t count = std::min(scratch.rows_a_pass, rows - pass);
            const int64_t row_items = call.kv_heads * scratch.splits;
            dispenser.phase(cursor, count * row_items, [&](int64_t item) {
                const int64_t row = pass + item / row_items;
                const SplitItem split{.row = first_row + row,
                                      .sequence = scratch.sequences[row],
                                      .kv_head = item % row_items / scratch.splits,
                                      .split = item % scratch.splits,
                                      .partial = scratch.partials + item * split_floats};
                split_item(call, kernels, split, scores);
            });
            dispenser.phase(cursor, count * heads, [&](int64_t item) {
                const int64_t row = item / heads, head = item % heads;
                const SplitSpan span = split_span(call, first_row + pass + row);
                const int64_t first =
                    (row * call.kv_heads + head / group) * scratch.splits + span.first;
                kernels.combine(
                    scratch.partials + first * split_floats + head % group * scratch.head_floats,
                    {span.last - span.first, split_floats}, call.shape.head_size,
                    sinks_from(call, head),
                    call.out.row<float>(first_row + pass + row) + head * head_size);
            });
        }
    });
}

}  // namespace

void CpuOps::kv_store(
    Exec& ex, const Tensor& k, const Tensor& v, const Batch& batch, const KvView& cache) {
    check_cache(k, cache.keys);
    check_cache(v, cache.values);
    if (ex.planning() || k.elements() == 0) return;
    const double elements = static_cast<double>(k.elements() + v.elements());
    const Timed timed(*this, "kv_store", 0, 6 * elements);
    const int64_t rows = k.rows();
    const bool worth = rows * k.shape[1] * k.shape[2] >= 8192;
    parallel_rows(pool_, rows, worth, [&](int64_t begin, int64_t end) {
        SequenceFinder finder(batch);
        for (int64_t row = begin; row < end; ++row) {
            const PageSlot place =
                slot_of(batch, finder.of(row), batch.positions.as<int32_t>()[row]);
            store_kv_row(*rows_->kernels, k, row, place.page, place.slot, cache.keys);
            store_kv_row(*rows_->kernels, v, row, place.page, place.slot, cache.values);
        }
    });
}

void CpuOps::qk_norm_rope_store(Exec& ex,
                                const Tensor& q,
                                const Tensor& k,
                                const Tensor& v,
                                const QkvRope& how,
                                const Batch& batch,
                                const KvView& cache) {
    check_cache(k, cache.keys);
    check_cache(v, cache.values);
    check(q.rank == 3 && q.rows() == k.rows() && batch.positions.rows() == q.rows(),
          "qk_norm_rope_store: rows");
    const float* turns = rows_->turns(pool_, batch.positions, how.freq_factors, how.rope);
    if (ex.planning() || q.elements() == 0) return;
    const double elements = static_cast<double>(q.elements() + k.elements());
    const Timed timed(*this, "qk_norm_rope_store", 6 * elements, 10 * elements);
    const RowKernels& kernels = *rows_->kernels;
    const int32_t rotary = how.rope.rotary;
    const auto turn_heads = [&](const Tensor& x, const Tensor& gain, int64_t row) {
        for (int64_t head = 0; head < x.shape[1]; ++head) {
            float* values = x.row<float>(row) + head * x.stride[1];
            if (!gain.absent())
                kernels.rms_norm(values, gain.as<float>(), how.eps, x.shape[2], values);
            kernels.rope(turns + row * 2 * rotary, how.rope.pairs, rotary, values);
        }
    };
    const bool worth = q.elements() + k.elements() >= 8192;
    parallel_rows(pool_, q.rows(), worth, [&](int64_t begin, int64_t end) {
        SequenceFinder finder(batch);
        for (int64_t row = begin; row < end; ++row) {
            const PageSlot place =
                slot_of(batch, finder.of(row), batch.positions.as<int32_t>()[row]);
            turn_heads(q, how.q_gain, row);
            turn_heads(k, how.k_gain, row);
            store_kv_row(kernels, k, row, place.page, place.slot, cache.keys);
            store_kv_row(kernels, v, row, place.page, place.slot, cache.values);
        }
    });
}

void CpuOps::attention(Exec& ex,
                       const Tensor& q,
                       const Batch& batch,
                       const KvView& cache,
                       const AttentionParams& params,
                       const Tensor& out) {
    check_cache(q, cache.keys);
    check_cache(q, cache.values);
    const int64_t kv_heads = cache.keys.shape[1];
    check(q.shape[1] % kv_heads == 0 && out.rank == 2 && out.rows() == q.rows() &&
              out.cols() == q.shape[1] * q.shape[2] &&
              (params.sinks.absent() || params.sinks.elements() == q.shape[1]),
          "attention: shapes");
    if (q.rows() == 0) return;
    const Call call{.q = q,
                    .batch = batch,
                    .cache = cache,
                    .params = params,
                    .out = out,
                    .shape = {.head_size = static_cast<int32_t>(q.shape[2]),
                              .group = static_cast<int32_t>(q.shape[1] / kv_heads),
                              .window = params.window,
                              .scale = params.scale,
                              .softcap = params.softcap},
                    .kv_heads = kv_heads,
                    .max_pages = static_cast<int32_t>(ceil_div(batch.max_visible, kPageTokens))};
    const int64_t prompt_rows = std::min<int64_t>(ex.prompt_rows, q.rows());
    // Half of the keys, on average, for prompts; this only feeds the counters.
    const auto elements = static_cast<double>(q.elements());
    const double work = 4.0 * elements * batch.max_visible;
    if (prompt_rows > 0) {
        const Scope scope(ex.arena);
        const PromptKernels& kernels = rows_->prompt(call.shape.head_size);
        const PromptScratch scratch = prompt_scratch(ex, call, kernels, prompt_rows, pool_.size());
        if (!ex.planning()) {
            const bool tiles = rows_->prompt_operands != Operands::kF32;
            const bool whole = q.cols() % 32 == 0;  // what a tile's row holds
            const Timed timed(*this, "attention[prompt]", work / 2, 8 * elements,
                              whole ? rows_->prompt_operands : Operands::kF32,
                              tiles && !whole ? "head size not of whole tiles: vectors" : "");
            attend_prompts(call, kernels, scratch, prompt_rows, pool_);
        }
    }
    if (prompt_rows < q.rows()) {
        const Scope scope(ex.arena);
        const SplitScratch scratch = split_scratch(ex, call, q.rows() - prompt_rows, pool_.size());
        if (!ex.planning()) {
            const Timed timed(*this, "attention[generated]", work, 8 * elements);
            attend_generated(call, rows_->split(call.shape.head_size), scratch, prompt_rows, pool_);
        }
    }
}

}  // namespace tessera::cpu
