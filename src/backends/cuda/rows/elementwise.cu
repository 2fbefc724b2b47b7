// add, glu, glu_input, prepare and gather_rows: launches of elementwise.cuh.

#include <limits>

#include "backends/cuda/rows/elementwise.cuh"
#include "backends/cuda/rows/input.h"
#include "backends/cuda/rows/row_map.h"
#include "ops/checks.h"

namespace tessera::cuda {
namespace {

/// `vector`: rows of operands and results start at multiples of 16 bytes.
template <class Work>
void launch_by_fours(
    Device& device, std::string_view name, const Work& work, const Tensor& shape, bool vector) {
    const int64_t cols = shape.cols();
    const int64_t per_row = ceil_div(cols, 4);
    rows::Fours fours{.count = rows::row_count(shape) * per_row, .per_row = per_row, .divider = {}};
    if (per_row <= std::numeric_limits<int32_t>::max())
        fours.divider = rows::Divider(static_cast<uint32_t>(per_row));
    device.launch(name, rows::by_fours_kernel<Work>,
                  dim3(static_cast<uint32_t>(ceil_div(fours.count, rows::kThreads))),
                  dim3(rows::kThreads), 0, work, fours, vector && cols % 4 == 0);
}

/// Dense operands as a single row: every thread then has four elements, however short the rows.
void flatten(std::initializer_list<Tensor*> operands) {
    for (const Tensor* operand : operands)
        if (!operand->contiguous()) return;
    for (Tensor* operand : operands) *operand = operand->reshape({operand->elements()});
}

rows::GluOperands glu_operands(const Tensor& gate, const Tensor& up, Glu kind) {
    rows::GluOperands operands;
    operands.gate = rows::row_map<const float>(gate);
    operands.up = rows::row_map<const float>(up);
    operands.kind = kind;
    operands.cols = gate.cols();
    return operands;
}

void check_formats(ActWants wants) {
    constexpr unsigned kKnown = 1u << static_cast<unsigned>(ActFormat::kF32) |
                                1u << static_cast<unsigned>(ActFormat::kBF16);
    constexpr unsigned kOfPrompts = kKnown | 1u << static_cast<unsigned>(ActFormat::kFp8) |
                                    1u << static_cast<unsigned>(ActFormat::kNvfp4) |
                                    1u << static_cast<unsigned>(ActFormat::kFp4);
    check((wants.prompt & ~kOfPrompts) == 0 && (wants.generated & ~kKnown) == 0,
          "matrix inputs: f32, bf16, and e4m3, nvfp4 or fp4 for prompt rows");
    check(!wanted(wants.prompt, ActFormat::kNvfp4) || !wanted(wants.prompt, ActFormat::kFp4),
          "matrix inputs: nvfp4 packed or not");
}

enum class Rows : uint8_t { kPrompt, kGenerated };

/// Prompt rows go to tensor cores, those of Hopper among them.
ActView rounded_view(Exec& ex, Rows kind, int64_t rows, int64_t cols) {
    return {.format = ActFormat::kBF16,
            .values = ex.arena.allocate(DType::kBF16, {rows, cols}),
            .block_scales = {},
            .row_scales = {},
            .transposed_pairs = TESSERA_SM90A && kind == Rows::kPrompt && cols % 32 == 0};
}

ActView nvfp4_view(Exec& ex, int64_t rows, int64_t cols) {
    ActView view = rounded_view(ex, Rows::kPrompt, rows, cols);
    view.format = ActFormat::kNvfp4;
    view.row_scales = ex.arena.allocate(DType::kF32, {rows});
    return view;
}

ActView fp4_view(Exec& ex, int64_t rows, int64_t cols) {
    return {.format = ActFormat::kFp4,
            .values = ex.arena.allocate(DType::kI8, {rows, cols / 2}),
            .block_scales = ex.arena.allocate(DType::kF8_E4M3, {rows, cols / 16}),
            .row_scales = ex.arena.allocate(DType::kF32, {rows})};
}

ActView e4m3_view(Exec& ex, int64_t rows, int64_t cols) {
    return {.format = ActFormat::kFp8,
            .values = ex.arena.allocate(DType::kF8_E4M3, {rows, cols}),
            .block_scales = {},
            .row_scales = ex.arena.allocate(DType::kF32, {rows}),
            .transposed_pairs = false,
            .transposed_quads = cols % 32 == 0};
}

/// The views that are not f32; that one's place is the first where it is wanted.
void allocate_rounded(
    Exec& ex, Rows kind, int64_t rows, int64_t cols, uint8_t wants, ActViews& views) {
    size_t count = wanted(wants, ActFormat::kF32) ? 1 : 0;
    if (wanted(wants, ActFormat::kBF16)) views[count++] = rounded_view(ex, kind, rows, cols);
    const bool fp4 = wanted(wants, ActFormat::kFp4), packed = fp4 && cols % 64 == 0;
    if (packed) views[count++] = fp4_view(ex, rows, cols);
    if (wanted(wants, ActFormat::kNvfp4) || (fp4 && !packed))
        views[count++] = nvfp4_view(ex, rows, cols);
    if (wanted(wants, ActFormat::kFp8)) views[count++] = e4m3_view(ex, rows, cols);
}

void allocate_views(
    Exec& ex, Rows kind, int64_t rows, int64_t cols, uint8_t wants, ActViews& views) {
    if (wanted(wants, ActFormat::kF32))
        views[0] = {ActFormat::kF32, ex.arena.allocate(DType::kF32, {rows, cols}), {}, {}};
    allocate_rounded(ex, kind, rows, cols, wants, views);
}

/// The f32 view of dense rows are the rows themselves, others come from the arena. Returns whether
/// there is anything to store.
bool alias_views(Exec& ex, Rows kind, const Tensor& x, uint8_t wants, ActViews& views) {
    if (wanted(wants, ActFormat::kF32)) views[0] = {ActFormat::kF32, x, {}, {}};
    allocate_rounded(ex, kind, x.rows(), x.cols(), wants, views);
    return (wants & ~(1u << static_cast<unsigned>(ActFormat::kF32))) != 0 && x.rows() > 0;
}

}  // namespace

GemmInput allocate_input(Exec& ex, int64_t rows, int64_t cols, ActWants wants) {
    check_formats(wants);
    GemmInput input{
        .rows = rows, .cols = cols, .prompt = {}, .generated = {}, .nvfp4 = wants.nvfp4};
    const int64_t prompt = std::min<int64_t>(ex.prompt_rows, rows);
    allocate_views(ex, Rows::kPrompt, prompt, cols, wants.prompt, input.prompt);
    allocate_views(ex, Rows::kGenerated, rows - prompt, cols, wants.generated, input.generated);
    return input;
}

GemmInput CudaOps::prepare(Exec& ex, const Tensor& x, ActWants wants) {
    check(x.rank == 2 && x.dtype == DType::kF32, "prepare: x is F32 [T, K]");
    GemmInput input{
        .rows = x.rows(), .cols = x.cols(), .prompt = {}, .generated = {}, .nvfp4 = wants.nvfp4};
    bool store = true;
    const bool dense = x.contiguous();
    if (dense) {
        check_formats(wants);
        const int64_t prompt = std::min<int64_t>(ex.prompt_rows, x.rows());
        const Tensor first = x.slice_rows(0, prompt);
        const Tensor rest = x.slice_rows(prompt, x.rows() - prompt);
        const bool store_first = alias_views(ex, Rows::kPrompt, first, wants.prompt, input.prompt);
        const bool store_rest =
            alias_views(ex, Rows::kGenerated, rest, wants.generated, input.generated);
        store = store_first || store_rest;
    } else {
        input = allocate_input(ex, x.rows(), x.cols(), wants);
    }
    if (ex.planning() || x.elements() == 0) return input;
    const auto elements = static_cast<double>(x.elements());
    const Timed timed(*this, "prepare", elements, store ? 6 * elements : 0.0);
    if (!store) return input;
    if (wants_row_scales(wants)) {
        store_scaled(*device_, x, input, {.prompt_rows = ex.prompt_rows, .f32_is_x = dense});
        return input;
    }
    rows::PrepareWork work;
    work.x = rows::row_map<const float>(x);
    work.sink = rows::sink_of(input, ex.prompt_rows);
    if (dense) work.sink.f32[0] = work.sink.f32[1] = nullptr;
    launch_by_fours(*device_, "prepare", work, x, rows::aligned(x));
    return input;
}

void CudaOps::add(Exec& ex, const Tensor& a, const Tensor& b, const Tensor& out) {
    check_add(a, b, out);
    if (ex.planning() || a.elements() == 0) return;
    const auto elements = static_cast<double>(a.elements());
    const Timed timed(*this, "add", elements, 12 * elements);
    Tensor left = a, right = b, sum = out;
    flatten({&left, &right, &sum});
    rows::AddWork work;
    work.a = rows::row_map<const float>(left);
    work.b = rows::row_map<const float>(right);
    work.out = rows::row_map<float>(sum);
    work.cols = left.cols();
    launch_by_fours(*device_, "add", work, left,
                    rows::aligned(left) && rows::aligned(right) && rows::aligned(sum));
}

void CudaOps::glu(Exec& ex, const Tensor& gate, const Tensor& up, Glu kind, const Tensor& out) {
    check_glu(gate, up, out);
    if (ex.planning() || gate.elements() == 0) return;
    const auto elements = static_cast<double>(gate.elements());
    const Timed timed(*this, "glu", 8 * elements, 12 * elements);
    Tensor gates = gate, others = up, result = out;
    flatten({&gates, &others, &result});
    rows::GluWork work;
    work.operands = glu_operands(gates, others, kind);
    work.out = rows::row_map<float>(result);
    launch_by_fours(*device_, "glu", work, gates,
                    rows::aligned(gates) && rows::aligned(others) && rows::aligned(result));
}

void store_glu(Device& device,
               const Tensor& gate,
               const Tensor& up,
               Glu kind,
               const GemmInput& input,
               int64_t prompt_rows) {
    rows::GluInputWork work;
    work.operands = glu_operands(gate, up, kind);
    work.sink = rows::sink_of(input, prompt_rows);
    work.heads = rows::Divider(static_cast<uint32_t>(input.cols / gate.cols()));
    launch_by_fours(device, "glu_input", work, gate, rows::aligned(gate) && rows::aligned(up));
}

GemmInput CudaOps::glu_input(
    Exec& ex, const Tensor& gate, const Tensor& up, Glu kind, ActWants wants) {
    check_glu_input(gate, up);
    const bool scaled = wants_row_scales(wants);
    // Four columns then lie in one head.
    if (scaled && gate.cols() % 4 != 0) return Ops::glu_input(ex, gate, up, kind, wants);
    const int64_t heads = gate.rank == 3 ? gate.shape[1] : 1;
    const GemmInput input = allocate_input(ex, gate.rows(), heads * gate.cols(), wants);
    if (ex.planning() || gate.elements() == 0) return input;
    const auto elements = static_cast<double>(gate.elements());
    const Timed timed(*this, "glu_input", 8 * elements, 10 * elements);
    if (scaled) {
        store_scaled_glu(*device_, gate, up, kind, input, ex.prompt_rows);
        return input;
    }
    store_glu(*device_, gate, up, kind, input, ex.prompt_rows);
    return input;
}

void CudaOps::gather_rows(Exec& ex, const Tensor& x, const Tensor& ids, const Tensor& out) {
    check_gather_rows(x, ids, out);
    if (ex.planning() || out.elements() == 0) return;
    const Timed timed(*this, "gather_rows", 0, 2 * rows::bytes_of(out));
    rows::GatherWork work;
    work.x = rows::row_map<const float>(x);
    work.out = rows::row_map<float>(out);
    work.ids = ids.as<int32_t>();
    work.rows = rows::row_count(x);
    work.cols = x.cols();
    launch_by_fours(*device_, "gather_rows", work, out, rows::aligned(x) && rows::aligned(out));
}

}  // namespace tessera::cuda
