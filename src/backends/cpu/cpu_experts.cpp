// Mixtures of experts on the CPU. The rows of an expert are gathered beside each other per thread
// and go through the kernels of dense products (tiles for prompt rows, blocks for generated ones);
// results go straight to the rows of their pairs. Work is dealt out in pieces of (expert, range of
// weight rows), the experts with most rows first, so that many small experts and a single large one
// both keep all threads busy. An expert without rows is never looked at. A row's sum does not
// depend on the rows that its expert got beside it.
//
// Rejected: one gather of all pairs ahead of the products (needs k times the memory of the
// activations and a pass over it on its own).
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>

#include "backends/cpu/cpu_linear.h"
#include "backends/cpu/cpu_linear_product.h"
#include "core/error.h"
#include "ops/checks.h"

namespace tessera::cpu {
namespace {

/// Pieces of work for each thread: more balance better, fewer gather and start less often.
constexpr int64_t kPieces = 4;

/// Products of one family of pairs with their experts.
struct ExpertCall {
    Product product;  ///< of expert 0; its rows are those of x
    std::array<const Weight*, 2> weights;
    const ExpertWork& work;
    bool per_pair;       ///< x has a row per pair, not per token
    int64_t first_row;   ///< row of x that is row 0 of the product's view
    int64_t first_pair;  ///< the family is the pairs [first_pair, first_pair + pairs)
    int64_t pairs;
    int64_t sink_pair;  ///< pair that is row 0 of the sink

    /// What is dealt out: column tiles of the tile kernel or row blocks.
    int64_t columns() const {
        if (!uses_panels(product) || product.sink.gated) return product.blocks;
        return (product.blocks + 1) / 2;
    }
    /// Rows that are gathered at once.
    int64_t range_rows() const {
        if (uses_panels(product)) return std::min(pairs, pass_tokens(product.units));
        return block_range_rows(product.units, pairs);
    }
};

/// An expert with rows of the family: pairs[begin .. begin + count).
struct ExpertItem {
    int32_t expert;
    int32_t begin;
    int32_t count;
    int32_t pieces;
    int64_t piece_end;  ///< pieces of this item and those before
};

/// One thread's share of the scratch.
struct Gathered {
    int32_t* sources;
    int32_t* targets;
    float* row_scales;
    std::byte* x;
    float* x_scales;
    int32_t* zeros[2];
    float* sums;
    float* results;
    std::byte* panels;
};

struct ExpertScratch {
    ExpertItem* items;
    BlockScratch blocks;
    Tensor rows, row_scales, x, x_scales, zeros[2], sums, results;
    std::byte* panels;
    int64_t panel_bytes = 0;

    Gathered of(int32_t thread) const {
        const auto at = [thread](const Tensor& tensor) {
            return tensor.absent() ? nullptr : tensor.as<float>() + thread * tensor.stride[0];
        };
        const auto integers = [thread](const Tensor& tensor) {
            return tensor.absent() ? nullptr : tensor.row<int32_t>(thread);
        };
        return {.sources = integers(rows),
                .targets = integers(rows) + rows.cols() / 2,
                .row_scales = at(row_scales),
                .x = x.as<std::byte>() + thread * x.stride[0],
                .x_scales = at(x_scales),
                .zeros = {integers(zeros[0]), integers(zeros[1])},
                .sums = at(sums),
                .results = at(results),
                .panels = panels + thread * panel_bytes};
    }
};

/// Bytes of a row as kernels read it.
int64_t x_row_bytes(const Product& product) {
    if (uses_panels(product)) return product.view.values.stride[0] * 2;
    return product.units * kUnitCols * (product.view.format == ActFormat::kInt8 ? 1 : 4);
}

ExpertScratch allocate_scratch(Exec& ex, const ExpertCall& call) {
    const Product& product = call.product;
    const int64_t threads = product.pool.size(), rows = call.range_rows(), units = product.units;
    const auto floats = [&](int64_t count) {
        return ex.arena.allocate(DType::kF32, {threads, round_up(count, 16)});
    };
    ExpertScratch scratch{};
    scratch.items = reinterpret_cast<ExpertItem*>(ex.arena.allocate_bytes(
        static_cast<size_t>(call.weights[0]->experts) * sizeof(ExpertItem)));
    scratch.rows = ex.arena.allocate(DType::kI32, {threads, 2 * round_up(rows, 16)});
    scratch.row_scales = floats(rows);
    scratch.x = ex.arena.allocate(DType::kI8, {threads, round_up(rows * x_row_bytes(product), 64)});
    if (uses_panels(product)) {
        scratch.panel_bytes = round_up(panel_scratch_bytes(units, call.columns(), rows), 64);
        scratch.panels =
            ex.arena.allocate_bytes(static_cast<size_t>(scratch.panel_bytes * threads));
        return scratch;
    }
    scratch.blocks = allocate_scratch(ex, product);
    if (product.view.format == ActFormat::kInt8) {
        scratch.x_scales = floats(rows * units);
        for (int side = 0; side < product.count(); ++side)
            scratch.zeros[side] =
                ex.arena.allocate(DType::kI32, {threads, round_up(rows * units * 2, 16)});
    }
    if (!scratch.blocks.sums.absent()) scratch.sums = floats(rows * units);
    scratch.results = floats(2 * rows * kBlockRows);
    return scratch;
}

struct Items {
    const ExpertItem* items;
    int64_t count = 0;
    int64_t pieces = 0;
};

/// The experts that have rows of the family, those with most first.
Items list_items(const ExpertCall& call, ExpertItem* items) {
    const int32_t* pairs = call.work.pairs.as<int32_t>();
    const int32_t* starts = call.work.starts.as<int32_t>();
    const auto border = static_cast<int32_t>(call.product.prompt ? call.pairs : call.first_pair);
    Items list{.items = items};
    for (int32_t e = 0; e < call.weights[0]->experts; ++e) {
        if (starts[e] == starts[e + 1]) continue;
        const auto middle = static_cast<int32_t>(
            std::lower_bound(pairs + starts[e], pairs + starts[e + 1], border) - pairs);
        const int32_t begin = call.product.prompt ? starts[e] : middle;
        const int32_t end = call.product.prompt ? middle : starts[e + 1];
        if (begin < end) items[list.count++] = {e, begin, end - begin, 1, 0};
    }
    const int32_t threads = call.product.pool.size();
    if (threads > 1)
        std::sort(items, items + list.count, [](const ExpertItem& a, const ExpertItem& b) {
            return a.count != b.count ? a.count > b.count : a.expert < b.expert;
        });
    // A tile block decodes its weights once for 32 rows; a row block is read once for all.
    const auto cost = [&](const ExpertItem& item) {
        return uses_panels(call.product) ? 1 + (item.count + 31) / 32 : 2 + item.count;
    };
    int64_t total = 0;
    for (int64_t i = 0; i < list.count; ++i) total += cost(items[i]);
    const int64_t columns = call.columns();
    const int64_t wanted = threads == 1 ? 1 : threads * kPieces;
    for (int64_t i = 0; i < list.count; ++i) {
        const int64_t pieces = (cost(items[i]) * wanted + total - 1) / total;
        items[i].pieces = static_cast<int32_t>(threads == 1 ? 1 : std::min(pieces, columns));
        list.pieces += items[i].pieces;
        items[i].piece_end = list.pieces;
    }
    return list;
}

bool side_by_side(const int32_t* rows, int64_t count) {
    for (int64_t i = 1; i < count; ++i)
        if (rows[i] != rows[0] + i) return false;
    return true;
}

/// Copies rows of `bytes` bytes.
void gather_rows(const void* from, int64_t bytes, const int32_t* rows, int64_t count, void* to) {
    for (int64_t i = 0; i < count; ++i)
        std::memcpy(static_cast<std::byte*>(to) + i * bytes,
                    static_cast<const std::byte*>(from) + rows[i] * bytes,
                    static_cast<size_t>(bytes));
}

/// Rows `to.sources` of the block input; where they lie beside each other no copy is made.
BlockInput gather_blocks(const Product& product,
                         const BlockInput& from,
                         int64_t count,
                         const Gathered& to) {
    const int64_t units = product.units;
    const int64_t element = product.view.format == ActFormat::kInt8 ? 1 : 4;
    const int64_t first = to.sources[0];
    BlockInput out = from;
    const bool in_place = side_by_side(to.sources, count);
    if (in_place) {
        out.x = static_cast<const std::byte*>(from.x) + first * from.x_stride * element;
        if (from.x_scales != nullptr) out.x_scales += first * units;
        for (int32_t*& zeros : out.zeros)
            if (zeros != nullptr) zeros += first * units * 2;
        if (from.sums != nullptr) out.sums += first * units;
        return out;
    }
    const int64_t row_bytes = x_row_bytes(product);
    out.x = to.x;
    out.x_stride = units * kUnitCols;
    for (int64_t i = 0; i < count; ++i)
        std::memcpy(to.x + i * row_bytes,
                    static_cast<const std::byte*>(from.x) + to.sources[i] * from.x_stride * element,
                    static_cast<size_t>(row_bytes));
    if (from.x_scales != nullptr) {
        gather_rows(from.x_scales, units * 4, to.sources, count, to.x_scales);
        out.x_scales = to.x_scales;
    }
    for (int side = 0; side < 2; ++side) {
        if (from.zeros[side] == nullptr) continue;
        gather_rows(from.zeros[side], units * 8, to.sources, count, to.zeros[side]);
        out.zeros[side] = to.zeros[side];
    }
    if (from.sums != nullptr) {
        gather_rows(from.sums, units * 4, to.sources, count, to.sums);
        out.sums = to.sums;
    }
    return out;
}

void run_gathered_panels(const Product& product, Range tiles, const Gathered& to) {
    const Tensor& values = product.view.values;
    PanelTask task{.weights = {product.weights[0], product.weights[1]},
                   .units = product.units,
                   .first = tiles.begin,
                   .last = tiles.end,
                   .x = values.row<uint16_t>(to.sources[0]),
                   .x_stride = values.stride[0],
                   .tokens = product.rows,
                   .sink = product.sink};
    if (!side_by_side(to.sources, product.rows)) {
        gather_rows(values.data, values.stride[0] * 2, to.sources, product.rows, to.x);
        task.x = reinterpret_cast<const uint16_t*>(to.x);
    }
    product.kernels.panels(task, to.panels);
}

/// Columns `columns` of all rows of an expert.
void run_item(const ExpertCall& call,
              const ExpertItem& item,
              Range columns,
              const BlockInput& input,
              const Gathered& to) {
    const int32_t* pairs = call.work.pairs.as<int32_t>() + item.begin;
    const int64_t range = call.range_rows();
    Product mine = call.product;
    for (int side = 0; side < mine.count(); ++side)
        mine.weights[side] = view_of(*call.weights[static_cast<size_t>(side)], item.expert);
    const float* row_scales = mine.sink.row_scales;
    mine.sink.rows = to.targets;
    if (row_scales != nullptr) mine.sink.row_scales = to.row_scales;
    for (int64_t done = 0; done < item.count; done += range) {
        mine.rows = std::min(range, item.count - done);
        for (int64_t i = 0; i < mine.rows; ++i) {
            const int64_t pair = pairs[done + i];
            const int64_t row = call.per_pair ? pair : pair / call.work.choices;
            to.sources[i] = static_cast<int32_t>(row - call.first_row);
            to.targets[i] = static_cast<int32_t>(pair - call.sink_pair);
            if (row_scales != nullptr) to.row_scales[i] = row_scales[to.sources[i]];
        }
        if (uses_panels(mine))
            run_gathered_panels(mine, columns, to);
        else
            run_blocks(mine, gather_blocks(mine, input, mine.rows, to), columns, mine.rows,
                       to.results);
    }
}

void run_items(const ExpertCall& call, const Items& list, const ExpertScratch& scratch) {
    const Product& product = call.product;
    const BlockInput input =
        uses_panels(product) ? BlockInput{} : prepare_blocks(product, scratch.blocks);
    const int64_t columns = call.columns();
    std::atomic<int64_t> next{0};
    const auto work = [&](int32_t thread) {
        const Gathered to = scratch.of(thread);
        const ExpertItem* item = list.items;
        for (;;) {
            const int64_t piece = next.fetch_add(1, std::memory_order_relaxed);
            if (piece >= list.pieces) return;
            while (item->piece_end <= piece) ++item;
            const int64_t part = piece - (item->piece_end - item->pieces);
            run_item(call, *item,
                     {columns * part / item->pieces, columns * (part + 1) / item->pieces}, input,
                     to);
        }
    };
    if (call.pairs * product.units * kUnitCols * product.blocks * kBlockRows < kSerialWork)
        work(0);
    else
        product.pool.run(work);
}

/// The two families of a call, as rows of x and as pairs.
struct PairFamilies {
    bool per_pair;
    std::array<Family, 2> rows;
    std::array<Family, 2> pairs;
};

PairFamilies pair_families(const Exec& ex, const GemmInput& x, const ExpertWork& work) {
    const int64_t pairs = work.pairs.rows(), choices = work.choices;
    const bool per_pair = x.rows == pairs;
    check(per_pair || x.rows * choices == pairs, "experts: a row per token or per pair");
    const int64_t prompt = ex.prompt_rows * choices;
    return {.per_pair = per_pair,
            .rows = families(per_pair ? prompt : ex.prompt_rows, x.rows),
            .pairs = families(prompt, pairs)};
}

void check_weight(const GemmInput& x, const ExpertWork& work, const Weight& weight) {
    check(x.cols == weight.cols && work.starts.rows() == weight.experts + 1, "experts: shapes");
}

// ---- choice and combination ----

/// As in the reference: sums of weights below the smallest normal f16 are taken for it.
constexpr double kLeastSum = 0x1p-14;

/// NaN stands for minus infinity. A row of nothing else is uniform.
void probabilities(const float* logits, int64_t experts, bool sigmoid, double* p) {
    double largest = -INFINITY;
    for (int64_t e = 0; e < experts; ++e) {
        p[e] = std::isnan(logits[e]) ? -INFINITY : static_cast<double>(logits[e]);
        largest = std::max(largest, p[e]);
    }
    if (sigmoid) {
        for (int64_t e = 0; e < experts; ++e) p[e] = 1.0 / (1.0 + std::exp(-p[e]));
        return;
    }
    double sum = 0.0;
    for (int64_t e = 0; e < experts; ++e) {
        p[e] = p[e] == largest ? 1.0 : std::exp(p[e] - largest);
        sum += p[e];
    }
    for (int64_t e = 0; e < experts; ++e) p[e] /= sum;
}

/// The `choices` largest keys in falling order, the lower id first among equals. Both functions
/// rise with the logit, so without a bias the logits are the keys.
void choose(const float* logits,
            const double* p,
            const float* bias,
            int64_t experts,
            int64_t choices,
            double* best,
            int32_t* ids) {
    int64_t held = 0;
    for (int64_t e = 0; e < experts; ++e) {
        double key =
            bias == nullptr ? static_cast<double>(logits[e]) : p[e] + static_cast<double>(bias[e]);
        if (std::isnan(key)) key = -INFINITY;
        if (held == choices && !(key > best[choices - 1])) continue;
        int64_t at = held == choices ? choices - 1 : held++;
        for (; at > 0 && key > best[at - 1]; --at) {
            best[at] = best[at - 1];
            ids[at] = ids[at - 1];
        }
        best[at] = key;
        ids[at] = static_cast<int32_t>(e);
    }
}

/// out (+)= sum_j weights[j] y[j], rows of y `stride` apart.
void combine_row(const float* y,
                 int64_t stride,
                 const float* weights,
                 int64_t choices,
                 Accumulate accumulate,
                 int64_t cols,
                 float* out) {
    constexpr int64_t kPart = 256;
    for (int64_t begin = 0; begin < cols; begin += kPart) {
        const int64_t count = std::min(kPart, cols - begin);
        float sums[kPart];
        for (int64_t i = 0; i < count; ++i) sums[i] = weights[0] * y[begin + i];
        for (int64_t j = 1; j < choices; ++j)
            for (int64_t i = 0; i < count; ++i) sums[i] += weights[j] * y[j * stride + begin + i];
        if (accumulate == Accumulate::kAdd)
            for (int64_t i = 0; i < count; ++i) out[begin + i] += sums[i];
        else
            std::copy_n(sums, count, out + begin);
    }
}

}  // namespace

void CpuOps::route(Exec& ex,
                   const Tensor& logits,
                   const Tensor& bias,
                   const RouteParams& params,
                   const Tensor& ids,
                   const Tensor& weights) {
    const int64_t rows = logits.rows(), experts = logits.cols(), choices = ids.cols();
    check_route(logits, bias, ids, weights);
    const Scope scope(ex.arena);
    const Tensor space = ex.arena.allocate(DType::kF64, {pool_.size(), experts + choices});
    if (ex.planning() || rows == 0) return;
    const double elements = static_cast<double>(logits.elements());
    const Timed timed(*this, "route", 8 * elements, 4 * elements);
    const auto route_rows = [&](int32_t thread, int64_t begin, int64_t end) {
        double* p = space.row<double>(thread);
        for (int64_t t = begin; t < end; ++t) {
            int32_t* chosen = ids.row<int32_t>(t);
            probabilities(logits.row<float>(t), experts, params.sigmoid, p);
            choose(logits.row<float>(t), p, bias.as<float>(), experts, choices, p + experts,
                   chosen);
            double sum = 0.0;
            for (int64_t j = 0; j < choices; ++j) sum += p[chosen[j]];
            const double divisor = params.normalize ? std::max(sum, kLeastSum) : 1.0;
            for (int64_t j = 0; j < choices; ++j)
                weights.row<float>(t)[j] =
                    static_cast<float>(p[chosen[j]] / divisor * static_cast<double>(params.scale));
        }
    };
    // An exponential takes a few nanoseconds, waking a thread some microseconds.
    if (logits.elements() < 4096) return route_rows(0, 0, rows);
    pool_.run([&](int32_t thread) {
        const Range range = share(rows, 1, thread, pool_.size());
        route_rows(thread, range.begin, range.end);
    });
}

ExpertWork CpuOps::group_experts(Exec& ex, const Tensor& ids, int32_t experts) {
    check(ids.rank == 2 && ids.dtype == DType::kI32, "group_experts: ids are I32 [T, k]");
    const int64_t choices = ids.cols();
    const ExpertWork work{
        .pairs = ex.arena.allocate(DType::kI32, {ids.elements()}),
        .starts = ex.arena.allocate(DType::kI32, {experts + 1}),
        .choices = static_cast<int32_t>(choices),
    };
    if (ex.planning()) return work;
    const Timed timed(*this, "group_experts", 0, 8 * static_cast<double>(ids.elements()));
    int32_t* starts = work.starts.as<int32_t>();
    std::fill_n(starts, experts + 1, 0);
    for (int64_t t = 0; t < ids.rows(); ++t) {
        for (int64_t j = 0; j < choices; ++j) {
            const int32_t id = ids.row<int32_t>(t)[j];
            if (id < 0 || id >= experts)
                throw UserError(ExitCode::kFailure, "row " + std::to_string(t) +
                                                        " asks for expert " + std::to_string(id) +
                                                        " of " + std::to_string(experts));
            ++starts[id];
        }
    }
    // Ends of the experts, which become their starts while the pairs are placed from the back.
    for (int32_t e = 1; e <= experts; ++e) starts[e] += starts[e - 1];
    for (int64_t p = ids.elements() - 1; p >= 0; --p) {
        const int32_t id = ids.row<int32_t>(p / choices)[p % choices];
        work.pairs.as<int32_t>()[--starts[id]] = static_cast<int32_t>(p);
    }
    return work;
}

void CpuOps::linear_experts(
    Exec& ex, const GemmInput& x, const ExpertWork& work, const Weight& weight, const Tensor& out) {
    check_weight(x, work, weight);
    check(out.rank == 2 && out.rows() == work.pairs.rows() && out.cols() == weight.rows,
          "linear_experts: out");
    const PairFamilies both = pair_families(ex, x, work);
    for (size_t i = 0; i < 2; ++i) {
        const Family& rows = both.rows[i];
        if (rows.rows == 0) continue;
        ExpertCall call{.product = product_of(*linear_->kernels, pool_, x, weight, nullptr, rows),
                        .weights = {&weight, nullptr},
                        .work = work,
                        .per_pair = both.per_pair,
                        .first_row = rows.first,
                        .first_pair = both.pairs[i].first,
                        .pairs = both.pairs[i].rows,
                        .sink_pair = 0};
        call.product.sink.out = out.as<float>();
        call.product.sink.out_stride = out.stride[0];
        const Scope scope(ex.arena);
        const ExpertScratch scratch = allocate_scratch(ex, call);
        if (ex.planning()) continue;
        const Items list = list_items(call, scratch.items);
        const double act = static_cast<double>(rows.rows * x.cols + call.pairs * weight.rows);
        const Timed timed(*this, linear_->expert_label(weight.format, rows.prompt),
                          2 * call.product.work(call.pairs),
                          static_cast<double>(list.count) * packed_bytes(weight) + 4 * act,
                          linear_->operands(weight.format, rows.prompt), {});
        run_items(call, list, scratch);
    }
}

GemmInput CpuOps::linear_experts_glu(Exec& ex,
                                     const GemmInput& x,
                                     const ExpertWork& work,
                                     const Weight& gate,
                                     const Weight& up,
                                     Glu kind,
                                     ActWants wants) {
    // One kernel call serves both weights.
    if (gate.format != up.format) {
        note_composed(ex, "linear_experts_glu", "gate and up of different formats: two products");
        return Ops::linear_experts_glu(ex, x, work, gate, up, kind, wants);
    }
    check_weight(x, work, gate);
    check_weight(x, work, up);
    check(gate.rows == up.rows, "linear_experts_glu: shapes");
    const PairFamilies both = pair_families(ex, x, work);
    const int64_t pairs = work.pairs.rows();
    Exec pair_rows{.arena = ex.arena, .prompt_rows = ex.prompt_rows * work.choices};
    const bool direct = writes_directly(both.pairs, wants);
    GemmInput input;
    Tensor gated;
    if (direct)
        input = allocate_input(pair_rows, pairs, gate.rows, wants);
    else
        gated = ex.arena.allocate(DType::kF32, {pairs, gate.rows});
    for (size_t i = 0; i < 2; ++i) {
        const Family& rows = both.rows[i];
        if (rows.rows == 0) continue;
        ExpertCall call{.product = product_of(*linear_->kernels, pool_, x, gate, &up, rows),
                        .weights = {&gate, &up},
                        .work = work,
                        .per_pair = both.per_pair,
                        .first_row = rows.first,
                        .first_pair = both.pairs[i].first,
                        .pairs = both.pairs[i].rows,
                        .sink_pair = direct ? both.pairs[i].first : 0};
        Sink& sink = call.product.sink;
        sink.gated = true;
        sink.kind = kind;
        if (direct) {
            aim_at_view(call.pairs, gate.rows, rows.prompt ? input.prompt[0] : input.generated[0],
                        sink);
        } else {
            sink.out = gated.as<float>();
            sink.out_stride = gate.rows;
        }
        const Scope scope(ex.arena);
        const ExpertScratch scratch = allocate_scratch(ex, call);
        if (ex.planning()) continue;
        const Items list = list_items(call, scratch.items);
        const double act = static_cast<double>(rows.rows * x.cols + call.pairs * gate.rows);
        const Timed timed(
            *this, linear_->expert_label(gate.format, rows.prompt),
            4 * call.product.work(call.pairs),
            static_cast<double>(list.count) * (packed_bytes(gate) + packed_bytes(up)) + 4 * act,
            linear_->operands(gate.format, rows.prompt), {});
        run_items(call, list, scratch);
    }
    if (direct) return input;
    round_gated(pair_rows, gated, wants);
    return prepare(pair_rows, gated, wants);
}

void CpuOps::combine(
    Exec& ex, const Tensor& y, const Tensor& weights, const Tensor& out, Accumulate accumulate) {
    const int64_t rows = weights.rows(), choices = weights.cols(), cols = y.cols();
    check_combine(y, weights, out);
    if (ex.planning() || rows == 0) return;
    const double elements = static_cast<double>(y.elements());
    const Timed timed(*this, "combine", 2 * elements,
                      4 * elements + 4 * static_cast<double>(out.elements()));
    parallel_rows(pool_, rows, y.elements() >= 1 << 15, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t)
            combine_row(y.row<float>(t * choices), y.stride[0], weights.row<float>(t), choices,
                        accumulate, cols, out.row<float>(t));
    });
}

}  // namespace tessera::cpu
