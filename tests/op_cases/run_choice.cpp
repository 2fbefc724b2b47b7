// Runs of argmax and sample on rows of logits with known oddities.
#include <algorithm>
#include <cmath>
#include <limits>

#include "op_cases/case_run.h"

namespace tessera::op_cases {
namespace {

using Role = Guarded::Role;

std::vector<float> make_row(Logits kind, int32_t row, int64_t vocabulary, Random& random) {
    std::vector<float> logits(static_cast<size_t>(vocabulary));
    for (float& logit : logits) logit = random.uniform(-8.0f, 8.0f);
    const auto somewhere = static_cast<size_t>(random.below(static_cast<int32_t>(vocabulary)));
    const bool odd = row % 2 == 1;
    switch (kind) {
        case Logits::kRandom:
            break;
        case Logits::kTies:
            for (float& logit : logits) logit = std::round(logit / 4.0f);
            break;
        case Logits::kNanRows:
            if (odd) logits[somewhere] = std::numeric_limits<float>::quiet_NaN();
            break;
        case Logits::kAllNan:
            if (odd) std::ranges::fill(logits, std::numeric_limits<float>::quiet_NaN());
            break;
        case Logits::kMasked:
            for (size_t i = 0; i < logits.size(); ++i)
                if (i != somewhere && i % 7 != 3)
                    logits[i] = -std::numeric_limits<float>::infinity();
            break;
        case Logits::kConstant:
            std::ranges::fill(logits, -2.5f);
            break;
        case Logits::kPeaked:
            logits[somewhere] = 100.0f;
            break;
    }
    return logits;
}

/// Half of the history are the row's likeliest tokens (repeated), half random ones.
std::vector<int32_t> make_history(const Guarded& logits,
                                  int32_t row,
                                  int32_t length,
                                  Random& random) {
    const int64_t vocabulary = logits.tensor().cols();
    const float* values = logits.tensor().row<float>(row);
    std::vector<int32_t> likely;
    for (int32_t i = 0; i < vocabulary; ++i)
        if (values[i] > 6.0f) likely.push_back(i);
    std::vector<int32_t> history;
    for (int32_t i = 0; i < length; ++i) {
        const bool use_likely = i % 2 == 0 && !likely.empty();
        history.push_back(
            use_likely
                ? likely[static_cast<size_t>(random.below(static_cast<int32_t>(likely.size())))]
                : random.below(static_cast<int32_t>(vocabulary)));
    }
    return history;
}

SampleParams mixed_params(const SampleParams& base, int32_t row) {
    SampleParams params = base;
    if (row % 4 == 0) params.temperature = 0.0f;
    if (row % 4 == 1) params.top_k = 3;
    if (row % 4 == 2) params.repeat_penalty = 1.3f;
    return params;
}

}  // namespace

void fill_logits(Guarded& tensor, Logits kind, int32_t t, int64_t vocabulary, Random& random) {
    std::vector<float> all;
    for (int32_t row = 0; row < t; ++row) {
        const std::vector<float> logits = make_row(kind, row, vocabulary, random);
        all.insert(all.end(), logits.begin(), logits.end());
    }
    tensor.set(std::span<const float>(all));
    tensor.seal();
}

Outputs execute(const ArgmaxCase& shape, const Request& request) {
    Outputs outputs;
    Random random(request.seed);
    Guarded logits("logits", DType::kF32, {shape.t, shape.vocabulary}, shape.padding, Role::kInput);
    fill_logits(logits, shape.logits, shape.t, shape.vocabulary, random);
    Guarded ids("ids", DType::kI32, {shape.t}, 0, Role::kOutput);
    drive(
        request, {shape.t, 0},
        [&](Exec& ex, int32_t begin, int32_t count) {
            request.subject.ops.argmax(ex, logits.tensor().slice_rows(begin, count),
                                       ids.tensor().slice_rows(begin, count));
        },
        outputs);
    ids.read_bytes(outputs.exact);
    logits.verify(outputs.faults);
    ids.verify(outputs.faults);
    return outputs;
}

Outputs execute(const SampleCase& shape, const Request& request) {
    Outputs outputs;
    Random random(request.seed);
    Guarded logits("logits", DType::kF32, {shape.t, shape.vocabulary}, 0, Role::kInput);
    fill_logits(logits, shape.logits, shape.t, shape.vocabulary, random);
    std::vector<std::vector<int32_t>> recent;
    std::vector<std::span<const int32_t>> history;
    std::vector<SampleParams> params;
    std::vector<float> uniforms;
    for (int32_t row = 0; row < shape.t; ++row) {
        recent.push_back(make_history(logits, row, shape.history, random));
        params.push_back(shape.mixed ? mixed_params(shape.params, row) : shape.params);
        uniforms.push_back(row == 0   ? 0.0f
                           : row == 1 ? 0x1.fffffep-1f
                                      : random.uniform(0.0f, 1.0f));
    }
    for (const std::vector<int32_t>& tokens : recent) history.emplace_back(tokens);
    Guarded ids("ids", DType::kI32, {shape.t}, 0, Role::kOutput);
    drive(
        request, {shape.t, 0},
        [&](Exec& ex, int32_t begin, int32_t count) {
            const auto first = static_cast<size_t>(begin);
            const auto rows = static_cast<size_t>(count);
            request.subject.ops.sample(
                ex, logits.tensor().slice_rows(begin, count),
                std::span(params).subspan(first, rows), std::span(history).subspan(first, rows),
                std::span(uniforms).subspan(first, rows), ids.tensor().slice_rows(begin, count));
        },
        outputs);
    ids.read_bytes(outputs.exact);
    logits.verify(outputs.faults);
    ids.verify(outputs.faults);
    return outputs;
}

}  // namespace tessera::op_cases
