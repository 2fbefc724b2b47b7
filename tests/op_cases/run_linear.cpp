// Runs of products and of the fused ops around them.
#include <cmath>

#include "op_cases/case_run.h"

namespace tessera::op_cases {
namespace {

using Role = Guarded::Role;

/// Three weights of different height, one with a bias, one with an outer scale.
void run_many(const FusedCase& shape, const Request& request, const Guarded& x, Outputs& outputs) {
    Ops& ops = request.subject.ops;
    Random random(request.seed + 1);
    const int64_t small = (shape.n + 2) / 3;
    const Weight q = request.subject.weight(shape.weight, shape.n, shape.k, 1.0f, 0);
    const Weight k = request.subject.weight(shape.weight, small, shape.k, 0.37f, 1);
    const Weight v =
        request.subject.weight(shape.last.value_or(shape.weight), small, shape.k, 1.0f, 2);
    outputs.wants = q.wants | v.wants;
    Guarded bias("bias", DType::kF32, {small}, 0, Role::kInput);
    bias.fill(random, -1.0f, 1.0f);
    bias.seal();
    Guarded out_q("q", DType::kF32, {shape.t, shape.n}, 3, Role::kOutput);
    Guarded out_k("k", DType::kF32, {shape.t, small}, 0, Role::kOutput);
    Guarded out_v("v", DType::kF32, {shape.t, small}, 5, Role::kOutput);
    drive(
        request, {shape.t, shape.prompt_rows},
        [&](Exec& ex, int32_t begin, int32_t count) {
            const Weight* weights[] = {&q, &k, &v};
            const Tensor biases[] = {Tensor{}, bias.tensor(), Tensor{}};
            const Tensor outs[] = {out_q.tensor().slice_rows(begin, count),
                                   out_k.tensor().slice_rows(begin, count),
                                   out_v.tensor().slice_rows(begin, count)};
            const GemmInput input =
                ops.prepare(ex, x.tensor().slice_rows(begin, count), outputs.wants);
            if (request.body == Body::kDefault)
                ops.Ops::linear_many(ex, input, weights, biases, outs);
            else
                ops.linear_many(ex, input, weights, biases, outs);
        },
        outputs);
    for (const Guarded* out : {&out_q, &out_k, &out_v}) {
        out->read(outputs.values);
        out->verify(outputs.faults);
    }
    bias.verify(outputs.faults);
}

struct RowRange {
    int32_t begin = 0;
    int32_t count = 0;
};

/// Operands of the fused ops, the first two with a row per token.
struct FusedOperands {
    const Guarded& x;
    const Guarded& z;
    const Guarded& gain;
};

/// Blocks of 16 from as they are down to 2^-21 of that: block scales of NVFP4 from the largest over
/// e4m3's numbers below 2^-6 to 0. Every fifth block consists of multiples of a quarter of its
/// largest value, with ties between candidates for its scale and between codes.
void spread_blocks(const Tensor& x) {
    for (int64_t t = 0; t < x.rows(); ++t)
        for (int64_t k = 0; k < x.cols(); ++k) {
            float& value = x.row<float>(t)[k];
            const int64_t block = k / 16;
            if (block % 5 == 4) value = std::nearbyint(value * 8.0f) * 0.25f;
            value = std::ldexp(value, -static_cast<int>((t * 5 + block * 3) % 22));
        }
}

/// The op of `shape.kind` on some rows, as a GemmInput.
GemmInput make_input(const FusedCase& shape,
                     const Request& request,
                     Exec& ex,
                     const FusedOperands& operands,
                     const RowRange& part,
                     ActWants wants) {
    constexpr float kEps = 1e-5f;
    Ops& ops = request.subject.ops;
    const bool composed = request.body == Body::kDefault;
    const Tensor x = operands.x.tensor().slice_rows(part.begin, part.count);
    const Tensor z = operands.z.tensor().slice_rows(part.begin, part.count);
    Tensor gain = operands.gain.tensor();
    if (shape.kind == FusedKind::kGluInput || shape.kind == FusedKind::kGatedRmsNormInput) {
        const Tensor heads = x.reshape({part.count, shape.k / shape.head, shape.head});
        const Tensor others = z.reshape({part.count, shape.k / shape.head, shape.head});
        if (shape.kind == FusedKind::kGluInput)
            return composed ? ops.Ops::glu_input(ex, heads, others, shape.glu, wants)
                            : ops.glu_input(ex, heads, others, shape.glu, wants);
        gain = gain.slice_rows(0, shape.head);
        return composed ? ops.Ops::gated_rms_norm_input(ex, heads, gain, kEps, others, wants)
                        : ops.gated_rms_norm_input(ex, heads, gain, kEps, others, wants);
    }
    if (shape.kind == FusedKind::kPrepare) return ops.prepare(ex, x, wants);
    if (shape.kind == FusedKind::kRmsNormInput)
        return composed ? ops.Ops::rms_norm_input(ex, x, gain, kEps, wants)
                        : ops.rms_norm_input(ex, x, gain, kEps, wants);
    const Weight& gate = request.subject.weight(shape.weight, shape.n, shape.k, 1.0f, 0);
    const Weight& up = request.subject.weight(shape.weight, shape.n, shape.k, 0.37f, 1);
    const GemmInput input = ops.prepare(ex, x, gate.wants | up.wants);
    return composed ? ops.Ops::linear_glu(ex, input, gate, up, shape.glu, wants)
                    : ops.linear_glu(ex, input, gate, up, shape.glu, wants);
}

}  // namespace

Outputs execute(const LinearCase& shape, const Request& request) {
    Outputs outputs;
    Random random(request.seed);
    const Weight weight = request.subject.weight(shape.weight, shape.n, shape.k, shape.outer_scale,
                                                 shape.spread ? WeightBank::kSpread : 0);
    outputs.wants = weight.wants;
    if (weight.wants != request.subject.ops.wants(shape.weight, 1))
        outputs.faults.push_back("upload and wants() name different activation formats");
    Guarded x("x", DType::kF32, {shape.t, shape.k}, 0, Role::kInput);
    x.fill(random, -shape.magnitude, shape.magnitude);
    x.seal();
    Guarded bias("bias", DType::kF32, {shape.n}, 0, Role::kInput);
    bias.fill(random, -shape.magnitude, shape.magnitude);
    bias.seal();
    Guarded out("out", DType::kF32, {shape.t, shape.n}, shape.padding, Role::kOutput);
    if (shape.add) out.fill(random, -shape.magnitude, shape.magnitude);
    drive(
        request, {shape.t, shape.prompt_rows},
        [&](Exec& ex, int32_t begin, int32_t count) {
            Ops& ops = request.subject.ops;
            const GemmInput input =
                ops.prepare(ex, x.tensor().slice_rows(begin, count), weight.wants);
            ops.linear(ex, input, weight, shape.bias ? bias.tensor() : Tensor{},
                       out.tensor().slice_rows(begin, count),
                       shape.add ? Accumulate::kAdd : Accumulate::kNo);
        },
        outputs);
    out.read(outputs.values);
    for (const Guarded* operand : {&x, &bias, &out}) operand->verify(outputs.faults);
    return outputs;
}

Outputs execute(const FusedCase& shape, const Request& request) {
    Outputs outputs;
    Random random(request.seed);
    Guarded x("x", DType::kF32, {shape.t, shape.k}, 0, Role::kInput);
    x.fill(random, -shape.magnitude, shape.magnitude);
    if (shape.spread) spread_blocks(x.tensor());
    x.seal();
    Guarded gain("gain", DType::kF32, {shape.k}, 0, Role::kInput);
    gain.fill(random, 0.5f, 1.5f);
    gain.seal();
    Guarded z("z", DType::kF32, {shape.t, shape.k}, 0, Role::kInput);
    z.fill(random, -shape.magnitude, shape.magnitude);
    z.seal();
    if (shape.kind == FusedKind::kLinearMany) {
        run_many(shape, request, x, outputs);
    } else {
        outputs.wants = request.subject.ops.wants(shape.weight, 1);
        drive(
            request, {shape.t, shape.prompt_rows},
            [&](Exec& ex, int32_t begin, int32_t count) {
                const GemmInput input =
                    make_input(shape, request, ex, {x, z, gain}, {begin, count}, outputs.wants);
                if (!ex.planning() && request.repeats == 0) read_input(input, outputs.values);
            },
            outputs);
    }
    for (const Guarded* operand : {&x, &z, &gain}) operand->verify(outputs.faults);
    return outputs;
}

}  // namespace tessera::op_cases
