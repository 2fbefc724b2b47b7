// Runs of the ops that work row by row, and of those that move data.
#include <algorithm>
#include <limits>

#include "op_cases/case_run.h"

namespace tessera::op_cases {
namespace {

using Role = Guarded::Role;

/// An operand that is an output when the op works in place.
Role operand_role(bool in_place) {
    return in_place ? Role::kOutput : Role::kInput;
}

std::vector<float> random_values(Random& random, int64_t count, float low, float high) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = random.uniform(low, high);
    return values;
}

Rows rows_of(const std::vector<int64_t>& shape) {
    return {static_cast<int32_t>(shape.front()), 0};
}

}  // namespace

Outputs execute(const NormCase& shape, const Request& request) {
    Outputs outputs;
    Random random(request.seed);
    const bool in_place = shape.in_place != InPlace::kNo;
    Guarded x("x", DType::kF32, shape.shape, shape.padding, operand_role(in_place));
    x.fill(random, -10.0f, 10.0f);
    x.seal();
    Guarded gain("gain", DType::kF32, {shape.shape.back()}, 0, Role::kInput);
    gain.fill(random, -2.0f, 2.0f);
    gain.seal();
    Guarded out("out", DType::kF32, shape.shape, shape.padding * 2, Role::kOutput);
    const Tensor target = in_place ? x.tensor() : out.tensor();
    drive(
        request, rows_of(shape.shape),
        [&](Exec& ex, int32_t begin, int32_t count) {
            request.subject.ops.rms_norm(ex, x.tensor().slice_rows(begin, count),
                                         shape.gain ? gain.tensor() : Tensor{}, shape.eps,
                                         target.slice_rows(begin, count));
        },
        outputs);
    (in_place ? x : out).read(outputs.values);
    for (const Guarded* operand : {&x, &gain, &out}) operand->verify(outputs.faults);
    return outputs;
}

Outputs execute(const AddCase& shape, const Request& request) {
    Outputs outputs;
    Random random(request.seed);
    Guarded a("a", DType::kF32, shape.shape, shape.padding,
              operand_role(shape.in_place == InPlace::kFirst));
    a.fill(random, -1.0f, 1.0f);
    a.seal();
    Guarded b("b", DType::kF32, shape.shape, 0, operand_role(shape.in_place == InPlace::kSecond));
    b.fill(random, -1.0f, 1.0f);
    b.seal();
    Guarded out("out", DType::kF32, shape.shape, shape.padding * 2, Role::kOutput);
    Guarded& target = shape.in_place == InPlace::kFirst    ? a
                      : shape.in_place == InPlace::kSecond ? b
                                                           : out;
    drive(
        request, rows_of(shape.shape),
        [&](Exec& ex, int32_t begin, int32_t count) {
            request.subject.ops.add(ex, a.tensor().slice_rows(begin, count),
                                    b.tensor().slice_rows(begin, count),
                                    target.tensor().slice_rows(begin, count));
        },
        outputs);
    target.read_bytes(outputs.exact);
    for (const Guarded* operand : {&a, &b, &out}) operand->verify(outputs.faults);
    return outputs;
}

Outputs execute(const GluCase& shape, const Request& request) {
    Outputs outputs;
    Random random(request.seed);
    std::vector<int64_t> extents = {shape.t, shape.n};
    if (shape.heads > 0) extents.insert(extents.begin() + 1, shape.heads);
    Guarded gate("gate", DType::kF32, extents, shape.padding,
                 operand_role(shape.in_place == InPlace::kFirst));
    gate.fill(random, -shape.magnitude, shape.magnitude);
    gate.seal();
    Guarded up("up", DType::kF32, extents, 0, operand_role(shape.in_place == InPlace::kSecond));
    up.fill(random, -shape.magnitude, shape.magnitude);
    up.seal();
    Guarded out("out", DType::kF32, extents, shape.padding * 2, Role::kOutput);
    Guarded& target = shape.in_place == InPlace::kFirst    ? gate
                      : shape.in_place == InPlace::kSecond ? up
                                                           : out;
    drive(
        request, {shape.t, 0},
        [&](Exec& ex, int32_t begin, int32_t count) {
            request.subject.ops.glu(ex, gate.tensor().slice_rows(begin, count),
                                    up.tensor().slice_rows(begin, count), shape.kind,
                                    target.tensor().slice_rows(begin, count));
        },
        outputs);
    target.read(outputs.values);
    for (const Guarded* operand : {&gate, &up, &out}) operand->verify(outputs.faults);
    return outputs;
}

Outputs execute(const SoftmaxCase& shape, const Request& request) {
    Outputs outputs;
    Random random(request.seed);
    const bool in_place = shape.in_place != InPlace::kNo;
    const std::vector<int64_t> extents = {shape.t, shape.n};
    std::vector<int32_t> seen(static_cast<size_t>(shape.t));
    for (int32_t& count : seen) count = 1 + random.below(static_cast<int32_t>(shape.n));
    Guarded visible("visible", DType::kI32, {shape.t}, 0, Role::kInput);
    visible.set(std::span<const int32_t>(seen));
    visible.seal();
    // Columns beyond the visible ones are NaN: they may not even be looked at.
    std::vector<float> values =
        random_values(random, shape.t * shape.n, -shape.magnitude, shape.magnitude);
    for (int64_t t = 0; shape.visible && t < shape.t; ++t)
        for (int64_t i = seen[static_cast<size_t>(t)]; i < shape.n; ++i)
            values[static_cast<size_t>(t * shape.n + i)] = std::numeric_limits<float>::quiet_NaN();
    Guarded x("x", DType::kF32, extents, shape.padding, operand_role(in_place));
    x.set(std::span<const float>(values));
    x.seal();
    Guarded out("out", DType::kF32, extents, shape.padding * 2, Role::kOutput);
    const Tensor target = in_place ? x.tensor() : out.tensor();
    drive(
        request, {shape.t, 0},
        [&](Exec& ex, int32_t begin, int32_t count) {
            request.subject.ops.softmax(
                ex, x.tensor().slice_rows(begin, count),
                shape.visible ? visible.tensor().slice_rows(begin, count) : Tensor{}, shape.scale,
                target.slice_rows(begin, count));
        },
        outputs);
    (in_place ? x : out).read(outputs.values);
    for (const Guarded* operand : {&x, &visible, &out}) operand->verify(outputs.faults);
    return outputs;
}

Outputs execute(const RopeCase& shape, const Request& request) {
    Outputs outputs;
    Random random(request.seed);
    const int32_t axes = shape.axes ? 3 : 1;
    std::vector<int32_t> where(static_cast<size_t>(shape.t * axes));
    for (int32_t t = 0; t < shape.t; ++t)
        for (int32_t axis = 0; axis < axes; ++axis)
            where[static_cast<size_t>(t * axes + axis)] =
                shape.first_position + t + (axis == 0 ? 0 : random.below(500));
    std::vector<int64_t> extents = {shape.t};
    if (shape.axes) extents.push_back(axes);
    Guarded positions("positions", DType::kI32, extents, 0, Role::kInput);
    positions.set(std::span<const int32_t>(where));
    positions.seal();
    Guarded factors("freq_factors", DType::kF32, {shape.params.rotary / 2}, 0, Role::kInput);
    factors.fill(random, 1.0f, 8.0f);
    factors.seal();
    Guarded x("x", DType::kF32, {shape.t, shape.heads, shape.head_size}, shape.padding,
              Role::kOutput);
    x.fill(random, -1.0f, 1.0f);
    drive(
        request, {shape.t, 0},
        [&](Exec& ex, int32_t begin, int32_t count) {
            request.subject.ops.rope(ex, x.tensor().slice_rows(begin, count),
                                     positions.tensor().slice_rows(begin, count),
                                     shape.factors ? factors.tensor() : Tensor{}, shape.params);
        },
        outputs);
    x.read(outputs.values);
    for (const Guarded* operand : {&x, &positions, &factors}) operand->verify(outputs.faults);
    return outputs;
}

Outputs execute(const CopyCase& shape, const Request& request) {
    Outputs outputs;
    Random random(request.seed);
    Guarded from("from", shape.from, shape.shape, shape.from_padding, Role::kInput);
    from.fill(random, -100.0f, 100.0f);
    from.seal();
    Guarded to("to", shape.to, shape.shape, shape.to_padding, Role::kOutput);
    drive(
        request, rows_of(shape.shape),
        [&](Exec& ex, int32_t begin, int32_t count) {
            request.subject.ops.copy(ex, from.tensor().slice_rows(begin, count),
                                     to.tensor().slice_rows(begin, count));
        },
        outputs);
    // Only decoding a block format leaves room for the order of f32 operations.
    if (is_block_format(shape.from) && !is_block_format(shape.to))
        to.read(outputs.values);
    else
        to.read_bytes(outputs.exact);
    from.verify(outputs.faults);
    to.verify(outputs.faults);
    return outputs;
}

Outputs execute(const ConcatCase& shape, const Request& request) {
    Outputs outputs;
    Random random(request.seed);
    const auto axis = static_cast<size_t>(shape.axis);
    std::vector<int64_t> other = shape.shape;
    other[axis] = shape.extra;
    std::vector<int64_t> joined = shape.shape;
    joined[axis] += shape.extra;
    Guarded a("a", shape.dtype, shape.shape, shape.padding, Role::kInput);
    a.fill(random, -100.0f, 100.0f);
    a.seal();
    Guarded b("b", shape.dtype, other, 0, Role::kInput);
    b.fill(random, -100.0f, 100.0f);
    b.seal();
    Guarded out("out", shape.dtype, joined, shape.padding * 2, Role::kOutput);
    const Request whole{.subject = request.subject,
                        .seed = request.seed,
                        .cut = 0,
                        .body = request.body,
                        .poison = request.poison,
                        .repeats = request.repeats};
    drive(
        whole, {1, 0},
        [&](Exec& ex, int32_t, int32_t) {
            request.subject.ops.concat(ex, a.tensor(), b.tensor(), shape.axis, out.tensor());
        },
        outputs);
    out.read_bytes(outputs.exact);
    for (const Guarded* operand : {&a, &b, &out}) operand->verify(outputs.faults);
    return outputs;
}

Outputs execute(const GatherCase& shape, const Request& request) {
    Outputs outputs;
    Random random(request.seed);
    Ops& ops = request.subject.ops;
    std::vector<int32_t> wanted(static_cast<size_t>(shape.t));
    for (int32_t& id : wanted) id = random.below(static_cast<int32_t>(shape.rows));
    wanted.front() = static_cast<int32_t>(shape.rows) - 1;
    Guarded ids("ids", DType::kI32, {shape.t}, 0, Role::kInput);
    ids.set(std::span<const int32_t>(wanted));
    ids.seal();
    Guarded x("x", DType::kF32, {shape.embed ? 1 : shape.rows, shape.cols}, shape.padding,
              Role::kInput);
    x.fill(random, -1.0f, 1.0f);
    x.seal();
    Guarded out("out", DType::kF32, {shape.t, shape.cols}, shape.padding * 2, Role::kOutput);
    Weight table;
    if (shape.embed)
        table = request.subject.weight(shape.table, shape.rows, shape.cols, shape.outer_scale, 0);
    drive(
        request, {shape.t, 0},
        [&](Exec& ex, int32_t begin, int32_t count) {
            const Tensor part = ids.tensor().slice_rows(begin, count);
            const Tensor target = out.tensor().slice_rows(begin, count);
            if (shape.embed)
                ops.embed(ex, part, table, target);
            else
                ops.gather_rows(ex, x.tensor(), part, target);
        },
        outputs);
    if (shape.embed)
        out.read(outputs.values);
    else
        out.read_bytes(outputs.exact);
    for (const Guarded* operand : {&ids, &x, &out}) operand->verify(outputs.faults);
    return outputs;
}

}  // namespace tessera::op_cases
