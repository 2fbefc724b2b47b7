// Choice of experts and their products in plain loops.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "backends/reference/reference_class.h"
#include "backends/reference/reference_linear.h"
#include "ops/checks.h"

namespace tessera::reference {
namespace {

/// Sums of weights below this are taken for it: the smallest normal f16, so that experts that all
/// but vanish are not blown up.
constexpr double kLeastSum = 0x1p-14;

/// NaN stands for minus infinity. A row of nothing else is uniform.
std::vector<double> probabilities(const float* logits, int64_t experts, bool sigmoid) {
    std::vector<double> p(static_cast<size_t>(experts));
    for (size_t e = 0; e < p.size(); ++e)
        p[e] = std::isnan(logits[e]) ? -INFINITY : static_cast<double>(logits[e]);
    if (sigmoid) {
        for (double& value : p) value = 1.0 / (1.0 + std::exp(-value));
        return p;
    }
    const double largest = *std::ranges::max_element(p);
    double sum = 0.0;
    for (double& value : p) {
        // Equal infinities have no difference.
        value = value == largest ? 1.0 : std::exp(value - largest);
        sum += value;
    }
    for (double& value : p) value /= sum;
    return p;
}

/// What the choice compares. Both functions rise with the logit, so without a bias the logits
/// decide: that sees differences that p has rounded away.
std::vector<double> choice_keys(const float* logits,
                                const std::vector<double>& p,
                                const float* bias) {
    std::vector<double> keys(p.size());
    for (size_t e = 0; e < keys.size(); ++e) {
        keys[e] = static_cast<double>(logits[e]);
        if (bias != nullptr) keys[e] = p[e] + static_cast<double>(bias[e]);
        if (std::isnan(keys[e])) keys[e] = -INFINITY;
    }
    return keys;
}

}  // namespace

void ReferenceOps::route(Exec& ex,
                         const Tensor& logits,
                         const Tensor& bias,
                         const RouteParams& params,
                         const Tensor& ids,
                         const Tensor& weights) {
    const int64_t rows = logits.rows(), experts = logits.cols(), choices = ids.cols();
    check_route(logits, bias, ids, weights);
    if (ex.planning()) return;
    const Counted counted(*this, "route", 0.0,
                          4.0 * static_cast<double>(logits.elements() + 2 * ids.elements()));
    for (int64_t t = 0; t < rows; ++t) {
        const float* row = logits.row<float>(t);
        const std::vector<double> p = probabilities(row, experts, params.sigmoid);
        const std::vector<double> keys = choice_keys(row, p, bias.as<float>());
        std::vector<int32_t> order(p.size());
        std::iota(order.begin(), order.end(), 0);
        std::ranges::stable_sort(order, [&](int32_t a, int32_t b) {
            return keys[static_cast<size_t>(a)] > keys[static_cast<size_t>(b)];
        });
        double sum = 0.0;
        for (int64_t j = 0; j < choices; ++j)
            sum += p[static_cast<size_t>(order[static_cast<size_t>(j)])];
        const double divisor = params.normalize ? std::max(sum, kLeastSum) : 1.0;
        for (int64_t j = 0; j < choices; ++j) {
            const int32_t id = order[static_cast<size_t>(j)];
            ids.row<int32_t>(t)[j] = id;
            weights.row<float>(t)[j] = static_cast<float>(p[static_cast<size_t>(id)] / divisor *
                                                          static_cast<double>(params.scale));
        }
    }
}

ExpertWork ReferenceOps::group_experts(Exec& ex, const Tensor& ids, int32_t experts) {
    check(ids.rank == 2 && ids.dtype == DType::kI32, "group_experts: ids are I32 [T, k]");
    const int64_t choices = ids.cols();
    const ExpertWork work{
        .pairs = ex.arena.allocate(DType::kI32, {ids.elements()}),
        .starts = ex.arena.allocate(DType::kI32, {experts + 1}),
        .choices = static_cast<int32_t>(choices),
    };
    if (ex.planning()) return work;
    for (int64_t t = 0; t < ids.rows(); ++t)
        for (int64_t j = 0; j < choices; ++j)
            if (const int32_t id = ids.row<int32_t>(t)[j]; id < 0 || id >= experts)
                throw UserError(ExitCode::kFailure, "row " + std::to_string(t) +
                                                        " asks for expert " + std::to_string(id) +
                                                        " of " + std::to_string(experts));
    int32_t count = 0;
    for (int32_t expert = 0; expert < experts; ++expert) {
        work.starts.as<int32_t>()[expert] = count;
        for (int64_t p = 0; p < ids.elements(); ++p)
            if (ids.row<int32_t>(p / choices)[p % choices] == expert)
                work.pairs.as<int32_t>()[count++] = static_cast<int32_t>(p);
    }
    work.starts.as<int32_t>()[experts] = count;
    return work;
}

void ReferenceOps::linear_experts(
    Exec& ex, const GemmInput& x, const ExpertWork& work, const Weight& weight, const Tensor& out) {
    const int64_t pairs = work.pairs.rows(), choices = work.choices, cols = weight.cols;
    const bool per_pair = x.rows == pairs;
    check_linear_experts(x, work, weight, out);
    const Scope scope(ex.arena);
    const Tensor weight_row = ex.arena.allocate(DType::kF32, {cols});
    const Tensor values = ex.arena.allocate(DType::kF32, {x.rows, cols});
    if (ex.planning()) return;
    const int64_t row_bytes = dtype_bytes(weight.format, cols);
    const Counted counted(*this, "linear_experts",
                          2.0 * static_cast<double>(pairs * weight.rows * cols),
                          4.0 * static_cast<double>(x.rows * cols + pairs * weight.rows));
    const int64_t prompt = std::min<int64_t>(ex.prompt_rows * (per_pair ? choices : 1), x.rows);
    const ActView* prompt_view = find_view(x.prompt, weight.wants.prompt);
    const ActView* generated_view = find_view(x.generated, weight.wants.generated);
    check(
        (prompt == 0 || prompt_view != nullptr) && (prompt == x.rows || generated_view != nullptr),
        "linear_experts: rows lack the wanted format");
    for (int64_t r = 0; r < x.rows; ++r)
        decode_act(r < prompt ? *prompt_view : *generated_view, r < prompt ? r : r - prompt, cols,
                   values.row<float>(r));
    const int32_t* starts = work.starts.as<int32_t>();
    for (int32_t e = 0; e < weight.experts; ++e) {
        if (starts[e] == starts[e + 1]) continue;
        const double outer = static_cast<double>(weight.outer_scale[e]);
        for (int64_t n = 0; n < weight.rows; ++n) {
            dequantize_row(weight.format, weight.codes + (e * weight.rows + n) * row_bytes, cols,
                           weight_row.as<float>());
            for (int32_t i = starts[e]; i < starts[e + 1]; ++i) {
                const int32_t p = work.pairs.as<int32_t>()[i];
                const int64_t r = per_pair ? p : p / choices;
                const double product = act_dot(r < prompt ? *prompt_view : *generated_view,
                                               r < prompt ? r : r - prompt, values.row<float>(r),
                                               weight_row.as<float>(), cols);
                out.row<float>(p)[n] = static_cast<float>(product * outer);
            }
        }
    }
}

void ReferenceOps::combine(
    Exec& ex, const Tensor& y, const Tensor& weights, const Tensor& out, Accumulate accumulate) {
    const int64_t rows = weights.rows(), choices = weights.cols(), cols = y.cols();
    check_combine(y, weights, out);
    if (ex.planning()) return;
    const Counted counted(*this, "combine", 2.0 * static_cast<double>(y.elements()),
                          4.0 * static_cast<double>(y.elements() + out.elements()));
    for (int64_t t = 0; t < rows; ++t)
        for (int64_t n = 0; n < cols; ++n) {
            double sum = 0.0;
            for (int64_t j = 0; j < choices; ++j)
                sum += static_cast<double>(weights.row<float>(t)[j]) *
                       static_cast<double>(y.row<float>(t * choices + j)[n]);
            float& target = out.row<float>(t)[n];
            if (accumulate == Accumulate::kAdd) sum += static_cast<double>(target);
            target = static_cast<float>(sum);
        }
}

}  // namespace tessera::reference
