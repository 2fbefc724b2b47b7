// Runs of the expert ops: choice, products with grouped rows, combination.
#include <algorithm>
#include <numeric>

#include "op_cases/case_run.h"

namespace tessera::op_cases {
namespace {

using Role = Guarded::Role;

/// Experts that differ: the scale of one is never that of another.
std::vector<float> expert_scales(const ExpertCase& shape) {
    std::vector<float> scales(shape.scales ? static_cast<size_t>(shape.experts) : 0);
    for (size_t e = 0; e < scales.size(); ++e) scales[e] = 0.3f + 0.01f * static_cast<float>(e);
    return scales;
}

/// `choices` ids of one token.
void append_ids(const ExpertCase& shape, Random& random, std::vector<int32_t>& ids) {
    const int32_t step = shape.ids == Ids::kEvens ? 2 : 1;
    const int32_t some = (shape.experts + step - 1) / step;
    std::vector<int32_t> deck(static_cast<size_t>(some));
    std::iota(deck.begin(), deck.end(), 0);
    for (int32_t j = 0; j < shape.choices; ++j) {
        int32_t id = random.below(some);
        if (shape.ids == Ids::kOne) id = some - 1;
        // A repeated id comes twice in a row at least once per token of several choices.
        if (shape.ids == Ids::kRepeated && j == 1) id = ids.back();
        if (shape.ids == Ids::kDistinct || shape.ids == Ids::kEvens) {
            const int32_t place = j + random.below(some - j);
            std::swap(deck[static_cast<size_t>(j)], deck[static_cast<size_t>(place)]);
            id = deck[static_cast<size_t>(j)] * step;
        }
        ids.push_back(id);
    }
}

Guarded make_ids(const ExpertCase& shape, Random& random) {
    Guarded ids("ids", DType::kI32, {shape.t, shape.choices}, 0, Role::kInput);
    std::vector<int32_t> values;
    for (int32_t t = 0; t < shape.t; ++t) append_ids(shape, random, values);
    ids.set(std::span<const int32_t>(values));
    ids.seal();
    return ids;
}

}  // namespace

Outputs execute(const ExpertCase& shape, const Request& request) {
    Outputs outputs;
    Ops& ops = request.subject.ops;
    Random random(request.seed);
    const std::vector<float> scales = expert_scales(shape);
    const auto weight = [&](uint32_t which) {
        return request.subject.experts(shape.weight, shape.n, shape.k, shape.experts, scales,
                                       which);
    };
    const Weight first = weight(0);
    const Weight second = shape.gated ? weight(1) : Weight{};
    outputs.wants = first.wants;
    const int32_t each = shape.per_pair ? shape.choices : 1;
    Guarded x("x", DType::kF32, {shape.t * each, shape.k}, 0, Role::kInput);
    x.fill(random, -shape.magnitude, shape.magnitude);
    x.seal();
    const Guarded ids = make_ids(shape, random);
    Guarded out("out", DType::kF32, {int64_t{shape.t} * shape.choices, shape.n}, shape.padding,
                Role::kOutput);
    drive(
        request, {shape.t, shape.prompt_rows},
        [&](Exec& ex, int32_t begin, int32_t count) {
            Exec x_rows{.arena = ex.arena, .prompt_rows = ex.prompt_rows * each};
            const GemmInput input =
                ops.prepare(x_rows, x.tensor().slice_rows(begin * each, count * each), first.wants);
            const ExpertWork work =
                ops.group_experts(ex, ids.tensor().slice_rows(begin, count), shape.experts);
            if (!shape.gated) {
                ops.linear_experts(
                    ex, input, work, first,
                    out.tensor().slice_rows(begin * shape.choices, count * shape.choices));
                return;
            }
            const GemmInput gated =
                request.body == Body::kDefault
                    ? ops.Ops::linear_experts_glu(ex, input, work, first, second, shape.glu,
                                                  first.wants)
                    : ops.linear_experts_glu(ex, input, work, first, second, shape.glu,
                                             first.wants);
            if (!ex.planning() && request.repeats == 0) read_input(gated, outputs.values);
        },
        outputs);
    if (!shape.gated) out.read(outputs.values);
    for (const Guarded* operand : std::initializer_list<const Guarded*>{&x, &ids, &out})
        operand->verify(outputs.faults);
    return outputs;
}

Outputs execute(const RouteCase& shape, const Request& request) {
    Outputs outputs;
    Random random(request.seed);
    Guarded logits("logits", DType::kF32, {shape.t, shape.experts}, shape.padding, Role::kInput);
    fill_logits(logits, shape.logits, shape.t, shape.experts, random);
    Guarded bias("bias", DType::kF32, {shape.experts}, 0, Role::kInput);
    bias.fill(random, -0.5f, 0.5f);
    bias.seal();
    Guarded ids("ids", DType::kI32, {shape.t, shape.choices}, 0, Role::kOutput);
    Guarded weights("weights", DType::kF32, {shape.t, shape.choices}, 0, Role::kOutput);
    drive(
        request, {shape.t, 0},
        [&](Exec& ex, int32_t begin, int32_t count) {
            request.subject.ops.route(
                ex, logits.tensor().slice_rows(begin, count), shape.bias ? bias.tensor() : Tensor{},
                {.sigmoid = shape.sigmoid, .normalize = shape.normalize, .scale = shape.scale},
                ids.tensor().slice_rows(begin, count), weights.tensor().slice_rows(begin, count));
        },
        outputs);
    ids.read_bytes(outputs.exact);
    weights.read(outputs.values);
    for (const Guarded* operand : {&logits, &bias, &ids, &weights}) operand->verify(outputs.faults);
    return outputs;
}

Outputs execute(const CombineCase& shape, const Request& request) {
    Outputs outputs;
    Random random(request.seed);
    Guarded y("y", DType::kF32, {int64_t{shape.t} * shape.choices, shape.n}, shape.padding,
              Role::kInput);
    y.fill(random, -1.0f, 1.0f);
    y.seal();
    Guarded weights("weights", DType::kF32, {shape.t, shape.choices}, 0, Role::kInput);
    weights.fill(random, 0.0f, 1.0f);
    weights.seal();
    Guarded out("out", DType::kF32, {shape.t, shape.n}, shape.padding, Role::kOutput);
    if (shape.add) out.fill(random, -1.0f, 1.0f);
    drive(
        request, {shape.t, 0},
        [&](Exec& ex, int32_t begin, int32_t count) {
            request.subject.ops.combine(
                ex, y.tensor().slice_rows(begin * shape.choices, count * shape.choices),
                weights.tensor().slice_rows(begin, count), out.tensor().slice_rows(begin, count),
                shape.add ? Accumulate::kAdd : Accumulate::kNo);
        },
        outputs);
    out.read(outputs.values);
    for (const Guarded* operand : {&y, &weights, &out}) operand->verify(outputs.faults);
    return outputs;
}

}  // namespace tessera::op_cases
