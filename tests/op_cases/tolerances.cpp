// The one table of tolerances. Reasons, for a backend that sums in f32 what the reference sums in
// f64, both from the same rounded operands:
// - a sum of K products in f32 has an NMSE of about K (2^-24)^2 / 6, 2e-12 at K = 2880; a case with
//   a single output may by chance be a hundred times below the typical output. Products of FP4 with
//   FP4 sum 16 exact products at a time: K / 16 roundings, within the same bound;
// - weights that bf16 cannot hold (all but BF16, MXFP4, NVFP4) may be rounded to it where the
//   activations are bf16 or nvfp4: (2^-9)^2 / 3 = 1.3e-6;
// - a producer whose f32 arithmetic differs in the last bit flips a rounding to bf16 once in 2^16,
//   to int8 once in 2^17, to nvfp4 and fp8 once in 2^20, by one step of that format;
// - before fp8 activations a weight may be rounded to e4m3, by up to 2^-4 of itself: 2^-8 of the
//   power where every weight is as far off as can be. MXFP4 weights are e4m3 as they are, but for
//   those below 2^-15 of their row's largest. Tensor cores cut off sums of e4m3 at some 14 bits,
//   which may cost a tenth of what rounding the activations does, 2.7e-2: an NMSE of 7e-6, and a
//   hundred times that where there are a few outputs only.
#include <algorithm>

#include "op_cases/runner.h"

namespace tessera::op_cases {
namespace {

// MUL_MAT and LINEAR_MANY.
constexpr double kProduct = 1e-11;
constexpr double kProductRoundedWeights = 2e-5;
constexpr double kProductFp8 = 0x1p-8;
constexpr double kProductFp8Exact = 7e-6;
constexpr double kProductFp8ExactFew = 7e-4;
constexpr int64_t kFewOutputs = 16;
// LINEAR_GLU and RMS_NORM_INPUT, by the format of their result.
constexpr double kResultF32 = 1e-11;
constexpr double kResultBf16 = 1e-7;
constexpr double kResultInt8 = 1e-6;
constexpr double kResultNvfp4 = 1e-3;
constexpr double kResultFp8 = 1e-3;
// One f32 rounding per element.
constexpr double kRowwise = 1e-13;
constexpr double kSoftmax = 1e-12;
// Angles whose frequency is an f32: position * 2^-25 radians off.
constexpr double kRopeNear = 1e-11;  ///< positions below 4096
constexpr double kRopeFar = 1e-5;    ///< positions up to 2^17
// Generated rows are summed in f32. Prompt rows may take tiles whose operands (q, k, v and the
// probabilities) are rounded to bf16: 5e-6 was measured over 66 keys, 2.7e-5 over 4103, where the
// values nearly average out.
constexpr double kAttention = 1e-11;
constexpr double kAttentionPrompt = 1e-4;
// Keys rounded to the cache's type after an f32 rotation: a flip is one step of that type.
constexpr double kStoredF32 = 1e-11;
constexpr double kStored16 = 1e-7;
constexpr double kStoredQ8 = 1e-6;
constexpr double kStoredF8 = 1e-4;

// SSM_CONV: sums of at most 8 f32 products; states pass unchanged.
constexpr double kConv = 1e-12;
// GATED_DELTA_NET: f32 states that live for hundreds of tokens, against f64 within a token. Prompt
// rows may split operands into two bf16 numbers: the contract's 1e-5 of the norm.
constexpr double kDelta = 1e-11;
constexpr double kDeltaPrompt = 1e-10;
// The same with operands in f16 (10 bits: 3e-4 a rounding): errors up to 5e-4 of the norm were
// seen, 3e-3 where keys repeat, whose errors add up in the same direction of the state.
constexpr double kDeltaHalf = 1e-6;
constexpr double kDeltaHalfSame = 2.5e-5;
// With operands in bf16 (7 bits) all of that eightfold: 6.5e-3 of the norm was seen, 2.6e-2 where
// keys repeat.
constexpr double kDeltaBf16 = 64 * kDeltaHalf;
constexpr double kDeltaBf16Same = 64 * kDeltaHalfSame;

// MOE_COMBINE: f32 sums of at most 16 products, which may nearly cancel where there are few.
constexpr double kCombine = 1e-11;

bool wants(ActWants wanted, ActFormat format, int32_t t, int32_t prompt_rows) {
    const auto bit = static_cast<uint8_t>(1u << static_cast<unsigned>(format));
    return (prompt_rows > 0 && (wanted.prompt & bit) != 0) ||
           (prompt_rows < t && (wanted.generated & bit) != 0);
}

bool exact_in_bf16(DType format) {
    return format == DType::kBF16 || format == DType::kMXFP4 || format == DType::kNVFP4;
}

double product_bound(DType weight, ActWants wanted, int32_t t, int32_t prompt_rows) {
    if (wants(wanted, ActFormat::kFp8, t, prompt_rows))
        return weight == DType::kMXFP4 ? kProductFp8Exact : kProductFp8;
    const bool rounds = wants(wanted, ActFormat::kBF16, t, prompt_rows) ||
                        wants(wanted, ActFormat::kNvfp4, t, prompt_rows);
    return rounds && !exact_in_bf16(weight) ? kProductRoundedWeights : kProduct;
}

double result_bound(ActWants wanted, int32_t t, int32_t prompt_rows) {
    // Packed or not, they are the same numbers.
    if (wants(wanted, ActFormat::kNvfp4, t, prompt_rows) ||
        wants(wanted, ActFormat::kFp4, t, prompt_rows))
        return kResultNvfp4;
    if (wants(wanted, ActFormat::kFp8, t, prompt_rows)) return kResultFp8;
    if (wants(wanted, ActFormat::kInt8, t, prompt_rows)) return kResultInt8;
    return wants(wanted, ActFormat::kBF16, t, prompt_rows) ? kResultBf16 : kResultF32;
}

double bound_of(const LinearCase& shape, ActWants wanted) {
    const double bound = product_bound(shape.weight, wanted, shape.t, shape.prompt_rows);
    const bool exact = bound == kProductFp8Exact;
    return exact && shape.n * shape.t < kFewOutputs ? kProductFp8ExactFew : bound;
}

double bound_of(const FusedCase& shape, ActWants wanted) {
    const double product = product_bound(shape.weight, wanted, shape.t, shape.prompt_rows);
    const double result = result_bound(wanted, shape.t, shape.prompt_rows);
    switch (shape.kind) {
        case FusedKind::kLinearMany:
            return product;
        case FusedKind::kPrepare:
            return 0.0;
        case FusedKind::kRmsNormInput:
        case FusedKind::kGluInput:
        case FusedKind::kGatedRmsNormInput:
            return result;
        case FusedKind::kLinearGlu:
            break;
    }
    return std::max(product, result);
}

double bound_of(const NormCase&, ActWants) {
    return kRowwise;
}
double bound_of(const AddCase&, ActWants) {
    return 0.0;
}
double bound_of(const GluCase&, ActWants) {
    return kRowwise;
}
double bound_of(const SoftmaxCase&, ActWants) {
    return kSoftmax;
}
double bound_of(const RopeCase& shape, ActWants) {
    return shape.first_position + shape.t <= 4096 ? kRopeNear : kRopeFar;
}
double bound_of(const CopyCase&, ActWants) {
    return kRowwise;
}
double bound_of(const ConcatCase&, ActWants) {
    return 0.0;
}
double bound_of(const GatherCase&, ActWants) {
    return kRowwise;
}
double bound_of(const PagedCase& shape, ActWants) {
    if (shape.kind == PagedKind::kAttention)
        return shape.prompt_runs > 0 ? kAttentionPrompt : kAttention;
    if (shape.type_k == DType::kF32) return kStoredF32;
    if (shape.type_k == DType::kF8_E4M3) return kStoredF8;
    return shape.type_k == DType::kQ8_0 ? kStoredQ8 : kStored16;
}
double bound_of(const ConvCase&, ActWants) {
    return kConv;
}
double bound_of(const DeltaInputCase&, ActWants) {
    return kConv;
}
double bound_of(const L2NormCase&, ActWants) {
    return kRowwise;
}
double bound_of(const GatesCase&, ActWants) {
    return kRowwise;
}
double bound_of(const DeltaCase& shape, ActWants wanted) {
    if (shape.memory.prompt_runs == 0) return kDelta;
    // kBF16 stands for operands of that format, kFp8 for f16.
    const bool bf16 = wants(wanted, ActFormat::kBF16, 1, 1);
    if (!bf16 && !wants(wanted, ActFormat::kFp8, 1, 1)) return kDeltaPrompt;
    const bool repeating = shape.keys == Keys::kSame || shape.keys == Keys::kNearlySame ||
                           shape.keys == Keys::kTurning;
    if (bf16) return repeating ? kDeltaBf16Same : kDeltaBf16;
    return repeating ? kDeltaHalfSame : kDeltaHalf;
}
double bound_of(const ExpertCase& shape, ActWants wanted) {
    const double product = product_bound(shape.weight, wanted, shape.t, shape.prompt_rows);
    if (!shape.gated) return product;
    return std::max(product, result_bound(wanted, shape.t, shape.prompt_rows));
}
double bound_of(const RouteCase&, ActWants) {
    return kRowwise;
}
double bound_of(const CombineCase&, ActWants) {
    return kCombine;
}
double bound_of(const ArgmaxCase&, ActWants) {
    return 0.0;
}
double bound_of(const SampleCase&, ActWants) {
    return 0.0;
}

}  // namespace

double tolerance(const OpCase& op_case, ActWants wanted) {
    return std::visit([&](const auto& shape) { return bound_of(shape, wanted); }, op_case.shape);
}

}  // namespace tessera::op_cases
