// Names and costs of cases.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "op_cases/op_case.h"

namespace tessera::op_cases {
namespace {

std::string_view dtype_name(DType dtype) {
    return dtype_info(dtype).name;
}

std::string_view glu_name(Glu kind) {
    constexpr std::string_view kNames[] = {"swiglu", "geglu", "reglu", "sigmoid"};
    return kNames[static_cast<size_t>(kind)];
}

std::string_view logits_name(Logits kind) {
    constexpr std::string_view kNames[] = {"random", "ties",     "nan_rows", "all_nan",
                                           "masked", "constant", "peaked"};
    return kNames[static_cast<size_t>(kind)];
}

std::string_view poison_name(Poison kind) {
    constexpr std::string_view kNames[] = {"none", "inf", "nan"};
    return kNames[static_cast<size_t>(kind)];
}

std::string extents(const std::vector<int64_t>& shape) {
    return fmt::format("[{}]", fmt::join(shape, ","));
}

double elements(const std::vector<int64_t>& shape) {
    double product = 1.0;
    for (const int64_t extent : shape) product *= static_cast<double>(extent);
    return product;
}

std::string rope_text(const RopeParams& params) {
    std::string text =
        fmt::format("rotary={},pairs={},base={},freq_scale={},magnitude={},yarn={}", params.rotary,
                    params.pairs == RopePairs::kAdjacent ? "adjacent" : "halves", params.base,
                    params.freq_scale, params.magnitude, int{params.yarn});
    if (params.sections[0] > 0)
        text += fmt::format(",sections=[{}]", fmt::join(params.sections, ","));
    return text;
}

std::string runs_text(const std::vector<Run>& runs) {
    std::vector<std::string> texts;
    for (const Run& run : runs) texts.push_back(fmt::format("{}+{}", run.first, run.count));
    return fmt::format("{}", fmt::join(texts, ","));
}

std::string memory_text(const MemoryCase& c) {
    std::string text = fmt::format("runs=[{}],prompts={}", runs_text(c.runs), c.prompt_runs);
    if (!c.saves.empty()) text += fmt::format(",saves=[{}]", fmt::join(c.saves, ","));
    if (!c.accept.empty()) text += fmt::format(",accept=[{}]", fmt::join(c.accept, ","));
    return text;
}

std::string params_of(const LinearCase& c) {
    return fmt::format(
        "type={},m={},n={},k={},prompt={},bias={},add={},padding={},scale={},magnitude={}{}",
        dtype_name(c.weight), c.n, c.t, c.k, c.prompt_rows, int{c.bias}, int{c.add}, c.padding,
        c.outer_scale, c.magnitude, c.spread ? ",spread=1" : "");
}
std::string params_of(const FusedCase& c) {
    std::string text =
        fmt::format("type={},m={},n={},k={},prompt={},glu={},magnitude={}", dtype_name(c.weight),
                    c.n, c.t, c.k, c.prompt_rows, glu_name(c.glu), c.magnitude);
    if (c.kind == FusedKind::kGluInput || c.kind == FusedKind::kGatedRmsNormInput)
        text += fmt::format(",head={}", c.head);
    if (c.last) text += fmt::format(",last={}", dtype_name(*c.last));
    if (c.spread) text += ",spread=1";
    return text;
}
std::string params_of(const NormCase& c) {
    return fmt::format("ne={},padding={},eps={},gain={},inplace={}", extents(c.shape), c.padding,
                       c.eps, int{c.gain}, static_cast<int>(c.in_place));
}
std::string params_of(const AddCase& c) {
    return fmt::format("ne={},padding={},inplace={}", extents(c.shape), c.padding,
                       static_cast<int>(c.in_place));
}
std::string params_of(const GluCase& c) {
    std::string text =
        fmt::format("op={},n={},cols={},padding={},inplace={},magnitude={}", glu_name(c.kind), c.t,
                    c.n, c.padding, static_cast<int>(c.in_place), c.magnitude);
    if (c.heads > 0) text += fmt::format(",heads={}", c.heads);
    return text;
}
std::string params_of(const SoftmaxCase& c) {
    return fmt::format("n={},cols={},padding={},visible={},scale={},inplace={},magnitude={}", c.t,
                       c.n, c.padding, int{c.visible}, c.scale, static_cast<int>(c.in_place),
                       c.magnitude);
}
std::string params_of(const RopeCase& c) {
    return fmt::format("n={},heads={},hs={},padding={},{},factors={},pos={}{}", c.t, c.heads,
                       c.head_size, c.padding, rope_text(c.params), int{c.factors},
                       c.first_position, c.axes ? ",axes=3" : "");
}
std::string params_of(const CopyCase& c) {
    return fmt::format("type_src={},type_dst={},ne={},padding_src={},padding_dst={}",
                       dtype_name(c.from), dtype_name(c.to), extents(c.shape), c.from_padding,
                       c.to_padding);
}
std::string params_of(const ConcatCase& c) {
    return fmt::format("type={},ne={},axis={},extra={},padding={}", dtype_name(c.dtype),
                       extents(c.shape), c.axis, c.extra, c.padding);
}
std::string params_of(const GatherCase& c) {
    return fmt::format("type={},embed={},rows={},cols={},n={},padding={},scale={}",
                       dtype_name(c.table), int{c.embed}, c.rows, c.cols, c.t, c.padding,
                       c.outer_scale);
}
std::string params_of(const PagedCase& c) {
    std::string text = fmt::format("hs={},nh={},nkv={},type_k={},type_v={},runs=[{}],prompts={}",
                                   c.head_size, c.heads, c.kv_heads, dtype_name(c.type_k),
                                   dtype_name(c.type_v), runs_text(c.runs), c.prompt_runs);
    if (c.kind == PagedKind::kAttention)
        text += fmt::format(",window={},softcap={},padding={},inplace={}", c.window, c.softcap,
                            c.padding, int{c.in_place});
    if (c.sinks) text += ",sinks=1";
    if (c.poison_k != Poison::kNone || c.poison_v != Poison::kNone)
        text += fmt::format(",bad_k={},bad_v={},at={}", poison_name(c.poison_k),
                            poison_name(c.poison_v), c.poison_at);
    if (c.kind == PagedKind::kQkNormRopeStore)
        text += fmt::format(",norm={},{}", int{c.norm}, rope_text(c.rope));
    return text;
}
std::string params_of(const ConvCase& c) {
    return fmt::format("channels={},taps={},{},padding={}", c.channels, c.taps,
                       memory_text(c.memory), c.padding);
}
std::string params_of(const DeltaInputCase& c) {
    return fmt::format("nk={},nv={},hs_k={},hs_v={},taps={},{},padding={},magnitude={}",
                       c.key_heads, c.heads, c.key_size, c.size, c.taps, memory_text(c.memory),
                       c.padding, c.magnitude);
}
std::string params_of(const L2NormCase& c) {
    return fmt::format("ne={},padding={},eps={},magnitude={}", extents(c.shape), c.padding, c.eps,
                       c.magnitude);
}
std::string params_of(const GatesCase& c) {
    return fmt::format("n={},heads={},padding={},magnitude={},a_log={}", c.t, c.heads, c.padding,
                       c.magnitude, c.largest_a_log);
}
std::string params_of(const DeltaCase& c) {
    constexpr std::string_view kDecays[] = {"weak",       "none", "strong", "vanishing",
                                            "beyond_exp", "wide", "mixed"};
    constexpr std::string_view kBetas[] = {"uniform", "0", "1"};
    constexpr std::string_view kKeys[] = {"random",    "same",  "nearly_same",
                                          "zero_rows", "alike", "turning"};
    return fmt::format("nk={},nv={},hs_k={},hs_v={},{},decay={},beta={},keys={},padding={}",
                       c.key_heads, c.heads, c.key_size, c.size, memory_text(c.memory),
                       kDecays[static_cast<size_t>(c.decay)], kBetas[static_cast<size_t>(c.beta)],
                       kKeys[static_cast<size_t>(c.keys)], c.padding);
}
std::string params_of(const ExpertCase& c) {
    constexpr std::string_view kIds[] = {"distinct", "repeated", "one", "evens"};
    std::string text = fmt::format(
        "type={},n_mats={},n_used={},b={},m={},n={},k={},prompt={},ids={},scales={},padding={},"
        "magnitude={}",
        dtype_name(c.weight), c.experts, c.choices, int{!c.per_pair}, c.n, c.t, c.k, c.prompt_rows,
        kIds[static_cast<size_t>(c.ids)], int{c.scales}, c.padding, c.magnitude);
    if (c.gated) text += fmt::format(",glu={}", glu_name(c.glu));
    return text;
}
std::string params_of(const RouteCase& c) {
    return fmt::format(
        "n={},n_mats={},n_used={},func={},norm={},bias={},scale={},logits={},padding={}", c.t,
        c.experts, c.choices, c.sigmoid ? "sigmoid" : "softmax", int{c.normalize}, int{c.bias},
        c.scale, logits_name(c.logits), c.padding);
}
std::string params_of(const CombineCase& c) {
    return fmt::format("n={},n_used={},m={},add={},padding={}", c.t, c.choices, c.n, int{c.add},
                       c.padding);
}
std::string params_of(const ArgmaxCase& c) {
    return fmt::format("n={},vocab={},logits={},padding={}", c.t, c.vocabulary,
                       logits_name(c.logits), c.padding);
}
std::string params_of(const SampleCase& c) {
    const SampleParams& p = c.params;
    return fmt::format(
        "n={},vocab={},logits={},temp={},top_k={},top_p={},min_p={},repeat={},freq={},presence={},"
        "history={},mixed={}",
        c.t, c.vocabulary, logits_name(c.logits), p.temperature, p.top_k, p.top_p, p.min_p,
        p.repeat_penalty, p.frequency_penalty, p.presence_penalty, c.history, int{c.mixed});
}

std::string_view name_of(const LinearCase&) {
    return "MUL_MAT";
}
std::string_view name_of(const FusedCase& c) {
    constexpr std::string_view kNames[] = {"LINEAR_GLU", "LINEAR_MANY", "RMS_NORM_INPUT",
                                           "PREPARE",    "GLU_INPUT",   "GATED_RMS_NORM_INPUT"};
    return kNames[static_cast<size_t>(c.kind)];
}
std::string_view name_of(const NormCase&) {
    return "RMS_NORM";
}
std::string_view name_of(const AddCase&) {
    return "ADD";
}
std::string_view name_of(const GluCase&) {
    return "GLU";
}
std::string_view name_of(const SoftmaxCase&) {
    return "SOFT_MAX";
}
std::string_view name_of(const RopeCase&) {
    return "ROPE";
}
std::string_view name_of(const CopyCase&) {
    return "CPY";
}
std::string_view name_of(const ConcatCase&) {
    return "CONCAT";
}
std::string_view name_of(const GatherCase&) {
    return "GET_ROWS";
}
std::string_view name_of(const PagedCase& c) {
    constexpr std::string_view kNames[] = {"KV_STORE", "QK_NORM_ROPE_STORE", "FLASH_ATTN"};
    return kNames[static_cast<size_t>(c.kind)];
}
std::string_view name_of(const ConvCase&) {
    return "SSM_CONV";
}
std::string_view name_of(const DeltaInputCase&) {
    return "DELTA_NET_INPUT";
}
std::string_view name_of(const L2NormCase&) {
    return "L2_NORM";
}
std::string_view name_of(const GatesCase&) {
    return "DELTA_GATES";
}
std::string_view name_of(const DeltaCase&) {
    return "GATED_DELTA_NET";
}
std::string_view name_of(const ExpertCase& c) {
    return c.gated ? "MUL_MAT_ID_GLU" : "MUL_MAT_ID";
}
std::string_view name_of(const RouteCase&) {
    return "TOPK_MOE";
}
std::string_view name_of(const CombineCase&) {
    return "MOE_COMBINE";
}
std::string_view name_of(const ArgmaxCase&) {
    return "ARGMAX";
}
std::string_view name_of(const SampleCase&) {
    return "SAMPLE";
}

double weight_bytes(DType format, int64_t n, int64_t k) {
    return static_cast<double>(n * dtype_bytes(format, k));
}

Cost cost_of(const LinearCase& c) {
    const double t = c.t;
    const auto n = static_cast<double>(c.n);
    const auto k = static_cast<double>(c.k);
    return {2.0 * t * n * k, weight_bytes(c.weight, c.n, c.k) + 4.0 * t * (n + k)};
}
Cost cost_of(const FusedCase& c) {
    const double t = c.t;
    const auto n = static_cast<double>(c.n);
    const auto k = static_cast<double>(c.k);
    const double third = static_cast<double>((c.n + 2) / 3);
    const double input_bytes = c.weight == DType::kF32 ? 4.0 : 2.0;  // an element of the result
    switch (c.kind) {
        case FusedKind::kLinearGlu:
            return {4.0 * t * n * k, 2.0 * weight_bytes(c.weight, c.n, c.k) + 4.0 * t * (n + k)};
        case FusedKind::kLinearMany:
            return {2.0 * t * (n + 2.0 * third) * k,
                    weight_bytes(c.weight, c.n + 2 * ((c.n + 2) / 3), c.k) +
                        4.0 * t * (n + 2.0 * third + k)};
        case FusedKind::kRmsNormInput:
        case FusedKind::kPrepare:
            return {0.0, (4.0 + input_bytes) * t * k};
        case FusedKind::kGluInput:
        case FusedKind::kGatedRmsNormInput:
            break;
    }
    return {0.0, (8.0 + input_bytes) * t * k};
}
Cost cost_of(const NormCase& c) {
    return {0.0, 8.0 * elements(c.shape)};
}
Cost cost_of(const AddCase& c) {
    return {elements(c.shape), 12.0 * elements(c.shape)};
}
Cost cost_of(const GluCase& c) {
    return {0.0, 12.0 * c.t * std::max(c.heads, 1) * static_cast<double>(c.n)};
}
Cost cost_of(const SoftmaxCase& c) {
    return {0.0, 8.0 * c.t * static_cast<double>(c.n)};
}
Cost cost_of(const RopeCase& c) {
    return {0.0, 8.0 * c.t * c.heads * static_cast<double>(c.head_size)};
}
Cost cost_of(const CopyCase& c) {
    const double rows = elements(c.shape) / static_cast<double>(c.shape.back());
    return {0.0, rows * static_cast<double>(dtype_bytes(c.from, c.shape.back()) +
                                            dtype_bytes(c.to, c.shape.back()))};
}
Cost cost_of(const ConcatCase& c) {
    const double extent = static_cast<double>(c.shape[static_cast<size_t>(c.axis)]);
    const double grown = elements(c.shape) / extent * (extent + static_cast<double>(c.extra));
    return {0.0, 2.0 * grown * static_cast<double>(dtype_bytes(c.dtype, 1))};
}
Cost cost_of(const GatherCase& c) {
    const DType type = c.embed ? c.table : DType::kF32;
    return {0.0, c.t * (static_cast<double>(dtype_bytes(type, c.cols)) +
                        4.0 * static_cast<double>(c.cols))};
}
Cost cost_of(const PagedCase& c) {
    Cost cost;
    const auto d = static_cast<double>(c.head_size);
    const auto token_bytes = static_cast<double>(
        c.kv_heads * (dtype_bytes(c.type_k, c.head_size) + dtype_bytes(c.type_v, c.head_size)));
    for (const Run& run : c.runs) {
        const double rows = run.count;
        const double visible = run.first + 0.5 * (run.count + 1);
        if (c.kind == PagedKind::kAttention) {
            cost.flops += 4.0 * rows * visible * c.heads * d;
            cost.bytes += (run.first + rows) * token_bytes + 8.0 * rows * c.heads * d;
        } else {
            cost.bytes += rows * (token_bytes + 8.0 * c.kv_heads * d);
        }
    }
    return cost;
}
double rows_of(const MemoryCase& c) {
    double rows = 0.0;
    for (const Run& run : c.runs) rows += run.count;
    return rows;
}
Cost cost_of(const ConvCase& c) {
    const double elements = rows_of(c.memory) * static_cast<double>(c.channels);
    return {2.0 * elements * c.taps, 8.0 * elements};
}
Cost cost_of(const DeltaInputCase& c) {
    const double rows = rows_of(c.memory);
    const double elements = rows * static_cast<double>(c.channels());
    return {2.0 * elements * c.taps, 8.0 * elements + 16.0 * rows * static_cast<double>(c.heads)};
}
Cost cost_of(const L2NormCase& c) {
    return {0.0, 8.0 * elements(c.shape)};
}
Cost cost_of(const GatesCase& c) {
    return {0.0, 16.0 * c.t * static_cast<double>(c.heads)};
}
Cost cost_of(const DeltaCase& c) {
    const double rows = rows_of(c.memory);
    const auto state = static_cast<double>(c.heads * c.size * c.key_size);
    const auto row_floats =
        static_cast<double>(2 * c.key_heads * c.key_size + 2 * c.heads * c.size);
    return {7.0 * rows * state,
            8.0 * static_cast<double>(c.memory.runs.size()) * state + 4.0 * rows * row_floats};
}
/// Bytes: of the experts that t rows of distinct random choices meet on average.
Cost cost_of(const ExpertCase& c) {
    const double mats = c.gated ? 2.0 : 1.0;
    const double pairs = static_cast<double>(c.t) * c.choices;
    const double met = c.experts * (1.0 - std::pow(1.0 - static_cast<double>(c.choices) / c.experts,
                                                   static_cast<double>(c.t)));
    const auto n = static_cast<double>(c.n);
    const auto k = static_cast<double>(c.k);
    const double x_rows = c.per_pair ? pairs : c.t;
    return {2.0 * mats * pairs * n * k,
            mats * met * weight_bytes(c.weight, c.n, c.k) + 4.0 * (pairs * n + x_rows * k)};
}
Cost cost_of(const RouteCase& c) {
    return {0.0, 4.0 * c.t * (c.experts + 2.0 * c.choices)};
}
Cost cost_of(const CombineCase& c) {
    const auto elements = static_cast<double>(c.t) * static_cast<double>(c.n);
    return {2.0 * elements * c.choices, 4.0 * elements * (c.choices + (c.add ? 2.0 : 1.0))};
}
Cost cost_of(const ArgmaxCase& c) {
    return {0.0, 4.0 * c.t * static_cast<double>(c.vocabulary)};
}
Cost cost_of(const SampleCase& c) {
    return {0.0, 4.0 * c.t * static_cast<double>(c.vocabulary)};
}

}  // namespace

std::string_view op_name(const OpCase& op_case) {
    return std::visit([](const auto& shape) { return name_of(shape); }, op_case.shape);
}

std::string case_name(const OpCase& op_case) {
    return std::visit(
        [](const auto& shape) { return fmt::format("{}({})", name_of(shape), params_of(shape)); },
        op_case.shape);
}

void append(std::vector<OpCase>& cases, Shape shape) {
    cases.push_back({std::move(shape), 0x9000 + cases.size()});
}

Cost case_cost(const OpCase& op_case) {
    return std::visit([](const auto& shape) { return cost_of(shape); }, op_case.shape);
}

}  // namespace tessera::op_cases
