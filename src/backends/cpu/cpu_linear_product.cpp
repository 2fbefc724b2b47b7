// Matrix products of the CPU backend. A product of one family of rows (prompt or generated) is
// planned here, its activations brought into the order that the kernels want, and its weight rows
// dealt out to the threads: sums are never split, so threads do not change results.
#include "backends/cpu/cpu_linear_product.h"

#include <algorithm>
#include <atomic>
#include <source_location>

#include "backends/cpu/cpu_linear.h"
#include "core/error.h"
#include "ops/checks.h"

namespace tessera::cpu {
namespace {

/// Pieces of a weight that a thread takes one after the other.
constexpr int64_t kPieces = 8;
/// Weights below this size go to each thread in one piece.
constexpr int64_t kLargeBytes = 1 << 20;

bool holds_bf16(ActFormat format) {
    return format == ActFormat::kBF16 || format == ActFormat::kNvfp4;
}

/// Tile kernels: column tiles, and where these are few also ranges of tokens, dealt out in order.
void run_panels(Exec& ex, const Product& product) {
    const int32_t threads = product.pool.size();
    const int64_t tiles = product.sink.gated ? product.blocks : (product.blocks + 1) / 2;
    int64_t parts = 1;
    while (tiles * parts < 4 * threads && product.rows / (parts + 1) >= 64) ++parts;
    const int64_t part_rows = round_up((product.rows + parts - 1) / parts, 32);
    const int64_t items = tiles * parts;
    const int64_t most_tiles = std::min(tiles, items / threads + 1);
    const int64_t scratch_bytes =
        round_up(panel_scratch_bytes(product.units, most_tiles, part_rows), 64);
    const Scope scope(ex.arena);
    std::byte* scratch = ex.arena.allocate_bytes(static_cast<size_t>(scratch_bytes * threads));
    if (ex.planning()) return;
    const auto work = [&](int32_t thread) {
        const Range range = share(items, 1, thread, threads);
        for (int64_t item = range.begin; item < range.end;) {
            const int64_t part = item / tiles, first = item % tiles;
            const int64_t last = std::min(tiles, first + range.end - item);
            const int64_t token = part * part_rows;
            item += last - first;
            if (token >= product.rows) return;
            PanelTask task{.weights = {product.weights[0], product.weights[1]},
                           .units = product.units,
                           .first = first,
                           .last = last,
                           .x = product.view.values.row<uint16_t>(token),
                           .x_stride = product.view.values.stride[0],
                           .tokens = std::min(part_rows, product.rows - token),
                           .sink = product.sink};
            Sink& sink = task.sink;
            if (sink.row_scales != nullptr) sink.row_scales += token;
            if (sink.out != nullptr) sink.out += token * sink.out_stride;
            if (sink.out_bf16 != nullptr) sink.out_bf16 += token * sink.bf16_stride;
            product.kernels.panels(task, scratch + thread * scratch_bytes);
        }
    };
    product.pool.run(work);
}

bool needs_copy(const Product& product) {
    return product.view.format != ActFormat::kF32 || product.cols % kUnitCols != 0;
}

/// Rows [begin, end) of the activations.
void fill_scratch(const Product& product, const BlockScratch& scratch, int64_t begin, int64_t end) {
    const int64_t units = product.units;
    const ActView& view = product.view;
    if (view.format == ActFormat::kInt8) {
        for (int i = 0; i < product.count(); ++i)
            product.kernels.permute_bytes(
                {.codes = view.values.row<int8_t>(begin),
                 .stride = view.values.stride[0],
                 .scales = view.block_scales.row<float>(begin),
                 .rows = end - begin,
                 .units = units,
                 .offset = byte_offset(product.weights[i].format),
                 .permuted = scratch.values.row<int8_t>(begin),
                 .zeros = scratch.zeros[i].row<int32_t>(begin),
                 .sums = scratch.sums.absent() ? nullptr : scratch.sums.row<float>(begin)});
        return;
    }
    for (int64_t t = begin; t < end; ++t) {
        const float* x = nullptr;
        if (needs_copy(product)) {
            float* out = scratch.values.row<float>(t);
            if (holds_bf16(view.format))
                product.kernels.widen_bf16(view.values.row<uint16_t>(t), product.cols, out);
            else
                std::copy_n(view.values.row<float>(t), product.cols, out);
            std::fill(out + product.cols, out + units * kUnitCols, 0.0f);
            x = out;
        } else {
            x = view.values.row<float>(t);
        }
        if (!scratch.sums.absent()) product.kernels.sum_units(x, units, scratch.sums.row<float>(t));
    }
}

BlockInput input_of(const Product& product, const BlockScratch& scratch) {
    BlockInput input;
    const bool copied = needs_copy(product);
    input.x = copied ? scratch.values.data : product.view.values.data;
    input.x_stride = copied ? product.units * kUnitCols : product.view.values.stride[0];
    const bool bytes = product.view.format == ActFormat::kInt8;
    if (bytes) input.x_scales = product.view.block_scales.as<float>();
    for (int i = 0; i < 2; ++i) input.zeros[i] = scratch.zeros[i].as<int32_t>();
    input.sums = scratch.sums.as<float>();
    return input;
}

/// Sums [count][16] of row block `block` to the outputs of the rows from `token` on.
void finish_linear(
    const Product& product, int64_t block, int64_t token, int64_t count, const float* sums) {
    const Sink& sink = product.sink;
    const PackedView& weight = product.weights[0];
    const int64_t column = block * kBlockRows;
    const int64_t width = std::min(kBlockRows, weight.rows - column);
    for (int64_t t = 0; t < count; ++t, sums += kBlockRows) {
        float values[kBlockRows];
        for (int64_t i = 0; i < kBlockRows; ++i) values[i] = sums[i] * weight.outer;
        if (sink.row_scales != nullptr)
            for (float& value : values) value *= sink.row_scales[token + t];
        float* out = sink.out + sink.out_row(token + t) * sink.out_stride + column;
        if (sink.bias != nullptr)
            for (int64_t i = 0; i < width; ++i) values[i] += sink.bias[column + i];
        if (sink.add)
            for (int64_t i = 0; i < width; ++i) values[i] += out[i];
        std::copy_n(values, width, out);
    }
}

void finish_gated(
    const Product& product, int64_t block, int64_t token, int64_t count, const float* sums[2]) {
    const Sink& sink = product.sink;
    const int64_t column = block * kBlockRows;
    const int64_t width = std::min(kBlockRows, product.weights[0].rows - column);
    for (int64_t t = 0; t < count; ++t) {
        float values[2][kBlockRows];
        for (int side = 0; side < 2; ++side) {
            const float* from = sums[side] + t * kBlockRows;
            for (int64_t i = 0; i < kBlockRows; ++i)
                values[side][i] = from[i] * product.weights[side].outer;
            if (sink.row_scales != nullptr)
                for (float& value : values[side]) value *= sink.row_scales[token + t];
        }
        product.kernels.glu(values[0], values[1], kBlockRows, sink.kind, values[0]);
        if (sink.out != nullptr)
            std::copy_n(values[0], width,
                        sink.out + sink.out_row(token + t) * sink.out_stride + column);
        if (sink.out_bf16 != nullptr)
            product.kernels.round_bf16(
                values[0], width,
                sink.out_bf16 + sink.out_row(token + t) * sink.bf16_stride + column);
    }
}

void run_rows(Exec& ex, const Product& product) {
    const int32_t threads = product.pool.size();
    const int64_t range_rows = block_range_rows(product.units, product.rows);
    const int64_t sums_floats = 2 * range_rows * kBlockRows;
    const Scope scope(ex.arena);
    const BlockScratch scratch = allocate_scratch(ex, product);
    const Tensor sums = ex.arena.allocate(DType::kF32, {threads, sums_floats});
    if (ex.planning()) return;
    const BlockInput input = prepare_blocks(product, scratch);
    const int64_t elements = product.rows * product.units * kUnitCols;
    if (elements * product.blocks * kBlockRows < kSerialWork)
        return run_blocks(product, input, {0, product.blocks}, range_rows, sums.row<float>(0));
    // Dealt out as threads come: a core that is held up for a moment delays one piece, not a half.
    const bool large = product.blocks * product.weights[0].code_step >= kLargeBytes;
    const int64_t piece =
        std::max<int64_t>(1, (product.blocks + threads - 1) / threads / (large ? kPieces : 1));
    std::atomic<int64_t> next{0};
    product.pool.run([&](int32_t thread) {
        for (;;) {
            const int64_t begin = next.fetch_add(piece, std::memory_order_relaxed);
            if (begin >= product.blocks) return;
            run_blocks(product, input, {begin, std::min(begin + piece, product.blocks)}, range_rows,
                       sums.row<float>(thread));
        }
    });
}

const ActView& find_view(const ActViews& views, uint8_t wants) {
    for (const ActView& view : views)
        if (!view.values.absent() && (wants >> static_cast<unsigned>(view.format) & 1u) != 0)
            return view;
    fail_check("linear: the input lacks the format that the weight wants",
               std::source_location::current());
}

void run(Exec& ex, const Product& product) {
    if (uses_panels(product))
        run_panels(ex, product);
    else
        run_rows(ex, product);
}

double act_bytes(const Product& product) {
    return 4 * static_cast<double>(product.rows * (product.weights[0].rows + product.cols));
}

}  // namespace

PackedView view_of(const Weight& weight, int64_t expert) {
    const PackedShape shape = packed_shape(weight.format, weight.rows, weight.cols);
    return {.format = weight.format,
            .codes = weight.codes + expert * shape.matrix_code_bytes(),
            .scales = weight.scales + expert * shape.matrix_scale_bytes(),
            .code_step = shape.block_code_bytes(),
            .scale_step = shape.block_scale_bytes(),
            .rows = weight.rows,
            .outer = weight.outer_scale == nullptr ? 1.0f : weight.outer_scale[expert]};
}

double packed_bytes(const Weight& weight) {
    const PackedShape shape = packed_shape(weight.format, weight.rows, weight.cols);
    return static_cast<double>(shape.code_bytes() + shape.scale_bytes());
}

std::array<Family, 2> families(int64_t prompt, int64_t rows) {
    prompt = std::min(prompt, rows);
    return {Family{true, 0, prompt}, Family{false, prompt, rows - prompt}};
}

Product product_of(const LinearKernels& kernels,
                   ThreadPool& pool,
                   const GemmInput& x,
                   const Weight& weight,
                   const Weight* up,
                   const Family& family) {
    const ActView& view = family.prompt ? find_view(x.prompt, weight.wants.prompt)
                                        : find_view(x.generated, weight.wants.generated);
    Product product{.kernels = kernels,
                    .pool = pool,
                    .weights = {view_of(weight, 0), up == nullptr ? PackedView{} : view_of(*up, 0)},
                    .units = (weight.cols + kUnitCols - 1) / kUnitCols,
                    .cols = weight.cols,
                    .blocks = (weight.rows + kBlockRows - 1) / kBlockRows,
                    .view = view,
                    .rows = family.rows,
                    .prompt = family.prompt,
                    .sink = {}};
    product.sink.row_scales = view.row_scales.as<float>();
    return product;
}

bool uses_panels(const Product& product) {
    return product.prompt && product.kernels.panels != nullptr &&
           product.weights[0].format != DType::kF32 && holds_bf16(product.view.format);
}

bool writes_directly(const std::array<Family, 2>& rows, ActWants wants) {
    constexpr uint8_t kF32 = 1u << static_cast<unsigned>(ActFormat::kF32);
    constexpr uint8_t kBF16 = 1u << static_cast<unsigned>(ActFormat::kBF16);
    for (const Family& family : rows) {
        const uint8_t wanted = family.prompt ? wants.prompt : wants.generated;
        if (family.rows > 0 && wanted != kF32 && wanted != kBF16) return false;
    }
    return true;
}

void aim_at_view(int64_t rows, int64_t cols, const ActView& target, Sink& sink) {
    if (target.format == ActFormat::kF32) {
        sink.out = target.values.as<float>();
        sink.out_stride = target.values.stride[0];
        return;
    }
    sink.out_bf16 = target.values.as<uint16_t>();
    sink.bf16_stride = target.values.stride[0];
    if (sink.out_bf16 == nullptr) return;  // planning
    for (int64_t t = 0; t < rows; ++t)
        std::fill(sink.out_bf16 + t * sink.bf16_stride + cols,
                  sink.out_bf16 + (t + 1) * sink.bf16_stride, uint16_t{0});
}

BlockScratch allocate_scratch(Exec& ex, const Product& product) {
    BlockScratch scratch;
    const bool bytes = product.view.format == ActFormat::kInt8;
    const int64_t rows = product.rows, units = product.units;
    bool minimum = false;
    for (int i = 0; i < product.count(); ++i) {
        minimum = minimum || has_minimum(product.weights[i].format);
        if (bytes) scratch.zeros[i] = ex.arena.allocate(DType::kI32, {rows, units, 2});
    }
    if (needs_copy(product))
        scratch.values =
            ex.arena.allocate(bytes ? DType::kI8 : DType::kF32, {rows, units * kUnitCols});
    if (minimum) scratch.sums = ex.arena.allocate(DType::kF32, {rows, units});
    return scratch;
}

BlockInput prepare_blocks(const Product& product, const BlockScratch& scratch) {
    const int32_t threads = product.pool.size();
    if (product.rows * product.units * kUnitCols < 1 << 16) {
        fill_scratch(product, scratch, 0, product.rows);
    } else {
        product.pool.run([&](int32_t thread) {
            const Range range = share(product.rows, 1, thread, threads);
            if (range.begin < range.end) fill_scratch(product, scratch, range.begin, range.end);
        });
    }
    return input_of(product, scratch);
}

int64_t block_range_rows(int64_t units, int64_t rows) {
    return std::min(rows, std::clamp<int64_t>(kActBytes / (units * 128) / 8 * 8, 8, 256));
}

void run_blocks(const Product& product,
                const BlockInput& input,
                Range blocks,
                int64_t range_rows,
                float* sums) {
    const bool bytes = product.view.format == ActFormat::kInt8;
    const int64_t element_bytes = bytes ? 1 : 4;
    for (int64_t token = 0; token < product.rows; token += range_rows) {
        const int64_t count = std::min(range_rows, product.rows - token);
        for (int64_t block = blocks.begin; block < blocks.end; ++block) {
            const float* results[2] = {sums, sums + range_rows * kBlockRows};
            for (int side = 0; side < product.count(); ++side) {
                const PackedView& weight = product.weights[side];
                const auto format = static_cast<size_t>(weight.format);
                const int64_t units = product.units;
                const BlockTask task{
                    .codes = weight.codes + block * weight.code_step,
                    .scales = weight.scales + block * weight.scale_step,
                    .units = units,
                    .x = static_cast<const std::byte*>(input.x) +
                         token * input.x_stride * element_bytes,
                    .x_stride = input.x_stride,
                    .x_scales = bytes ? input.x_scales + token * units : nullptr,
                    .x_zeros = bytes ? input.zeros[side] + token * units * 2 : nullptr,
                    .x_sums = input.sums == nullptr ? nullptr : input.sums + token * units,
                    .tokens = count,
                    .sums = sums + side * range_rows * kBlockRows};
                (bytes ? product.kernels.bytes : product.kernels.f32)[format](task);
            }
            if (product.sink.gated)
                finish_gated(product, block, token, count, results);
            else
                finish_linear(product, block, token, count, results[0]);
        }
    }
}

void CpuOps::linear(Exec& ex,
                    const GemmInput& x,
                    const Weight& weight,
                    const Tensor& bias,
                    const Tensor& out,
                    Accumulate accumulate) {
    check_linear(x, weight, bias, out);
    for (const Family& family : families(ex.prompt_rows, x.rows)) {
        if (family.rows == 0) continue;
        Product product = product_of(*linear_->kernels, pool_, x, weight, nullptr, family);
        product.sink.bias = bias.as<float>();
        product.sink.out_stride = out.stride[0];
        product.sink.add = accumulate == Accumulate::kAdd;
        if (ex.planning()) {
            run(ex, product);
            continue;
        }
        product.sink.out = out.row<float>(family.first);
        const Timed timed(*this, linear_->label(weight.format, family.prompt),
                          2 * product.work(family.rows), packed_bytes(weight) + act_bytes(product),
                          linear_->operands(weight.format, family.prompt), {});
        run(ex, product);
    }
}

GemmInput CpuOps::linear_glu(
    Exec& ex, const GemmInput& x, const Weight& gate, const Weight& up, Glu kind, ActWants wants) {
    // One kernel call serves both weights.
    if (gate.format != up.format) {
        note_composed(ex, "linear_glu", "gate and up of different formats: two products");
        return Ops::linear_glu(ex, x, gate, up, kind, wants);
    }
    check(gate.rows == up.rows && gate.cols == up.cols && gate.experts == 1 && up.experts == 1 &&
              x.cols == gate.cols,
          "linear_glu: shapes");
    const bool direct = writes_directly(families(ex.prompt_rows, x.rows), wants);
    GemmInput input;
    Tensor gated;
    if (direct)
        input = allocate_input(ex, x.rows, gate.rows, wants);
    else
        gated = ex.arena.allocate(DType::kF32, {x.rows, gate.rows});
    for (const Family& family : families(ex.prompt_rows, x.rows)) {
        if (family.rows == 0) continue;
        Product product = product_of(*linear_->kernels, pool_, x, gate, &up, family);
        product.sink.gated = true;
        product.sink.kind = kind;
        if (direct) {
            const ActView& view = family.prompt ? input.prompt[0] : input.generated[0];
            aim_at_view(family.rows, gate.rows, view, product.sink);
        } else {
            if (!ex.planning()) product.sink.out = gated.row<float>(family.first);
            product.sink.out_stride = gate.rows;
        }
        if (ex.planning()) {
            run(ex, product);
            continue;
        }
        const Timed timed(*this, linear_->label(gate.format, family.prompt),
                          4 * product.work(family.rows),
                          packed_bytes(gate) + packed_bytes(up) + act_bytes(product),
                          linear_->operands(gate.format, family.prompt), {});
        run(ex, product);
    }
    if (direct) return input;
    round_gated(ex, gated, wants);
    return prepare(ex, gated, wants);
}

}  // namespace tessera::cpu
