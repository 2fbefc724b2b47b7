// The probes of the FP4 instruction for all cards, and a product through the ops.
#include <algorithm>
#include <cmath>
#include <utility>

#include "backends/cuda/linear/fp4_self_test.cuh"
#include "core/codec.h"

namespace tessera::cuda {
namespace {

/// Numbers of E2M1 times 1 or 2 a block of 32, which all roundings leave as they are but for a bit
/// of f32. Each block of 16 has the largest number.
std::vector<float> exact_values(int64_t count, uint32_t seed) {
    constexpr float kMagnitudes[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    std::vector<float> values(static_cast<size_t>(count));
    uint32_t state = seed;
    for (int64_t i = 0; i < count; ++i) {
        state = state * 1664525u + 1013904223u;
        const float magnitude = i % 16 == i / 16 % 16 ? 6.0f : kMagnitudes[state >> 29];
        const float block = i / 32 % 3 == 0 ? 2.0f : 1.0f;
        values[static_cast<size_t>(i)] = ((state >> 28 & 1u) != 0 ? -magnitude : magnitude) * block;
    }
    return values;
}

/// With one matrix, or with two experts a token, which are not always two, nor all asked for.
std::vector<std::string> check_product(CudaOps& ops, DType format, int32_t experts) {
    constexpr int64_t kFeatures = 272, kColumns = 192;
    constexpr int32_t kTokens = 77;
    const int32_t choices = experts == 1 ? 1 : 2, pairs = kTokens * choices;
    std::vector<int32_t> ids;
    for (int32_t t = 0; t < kTokens; ++t)
        for (int32_t j = 0; j < choices; ++j) ids.push_back((t * t + j) % experts);
    const std::vector<float> w = exact_values(experts * kFeatures * kColumns, 1);
    const std::vector<float> x = exact_values(kTokens * kColumns, 2);
    const auto row_bytes = static_cast<size_t>(dtype_bytes(format, kColumns));
    std::vector<std::byte> encoded(static_cast<size_t>(experts * kFeatures) * row_bytes);
    for (int64_t n = 0; n < experts * kFeatures; ++n)
        quantize_row(format, w.data() + n * kColumns, kColumns,
                     encoded.data() + static_cast<size_t>(n) * row_bytes, Nvfp4Policy::kAmax6);
    const Weight weight = ops.upload({.name = "self-test",
                                      .format = format,
                                      .rows = kFeatures,
                                      .cols = kColumns,
                                      .experts = experts,
                                      .data = encoded.data(),
                                      .scales = {}});
    const auto place = [&](int64_t rows, int64_t cols) {
        return make_tensor(ops.allocate(static_cast<size_t>(rows * cols) * sizeof(float)),
                           DType::kF32, {rows, cols});
    };
    const Tensor rows = place(kTokens, kColumns), out = place(pairs, kFeatures);
    const Tensor chosen =
        make_tensor(ops.allocate(ids.size() * sizeof(int32_t)), DType::kI32, {kTokens, choices});
    ops.copy_to_device(rows.data, x.data(), x.size() * sizeof(float));
    ops.copy_to_device(chosen.data, ids.data(), ids.size() * sizeof(int32_t));
    const auto multiply = [&](Arena& arena) {
        Exec ex{arena, kTokens};
        const GemmInput input = ops.prepare(ex, rows, weight.wants);
        if (experts == 1) return ops.linear(ex, input, weight, Tensor{}, out, Accumulate::kNo);
        ops.linear_experts(ex, input, ops.group_experts(ex, chosen, experts), weight, out);
    };
    Arena plan(nullptr, 0);
    multiply(plan);
    Arena arena(ops.allocate(plan.peak_bytes()), plan.peak_bytes());
    multiply(arena);
    std::vector<float> got(static_cast<size_t>(pairs * kFeatures));
    ops.copy_to_host(got.data(), out.data, got.size() * sizeof(float));
    int64_t wrong = 0;
    std::string first;
    for (int64_t p = 0; p < pairs; ++p) {
        const int64_t t = p / choices, before = ids[static_cast<size_t>(p)] * kFeatures;
        for (int64_t n = 0; n < kFeatures; ++n) {
            double sum = 0.0, size = 0.0;
            for (int64_t k = 0; k < kColumns; ++k) {
                const double term = double{x[static_cast<size_t>(t * kColumns + k)]} *
                                    w[static_cast<size_t>((before + n) * kColumns + k)];
                sum += term;
                size += std::abs(term);
            }
            const float value = got[static_cast<size_t>(p * kFeatures + n)];
            if (std::abs(value - sum) <= 1e-6 * size) continue;
            if (wrong++ == 0)
                first = text("; token ", t, ", feature ", n, " is ", value, " instead of ", sum);
        }
    }
    if (wrong == 0) return {};
    const std::string which = experts == 1 ? "" : text(", 2 of ", experts, " experts a token,");
    return {text(wrong, " of ", got.size(), " results of a product of ", kTokens, " tokens with ",
                 kFeatures, "x", kColumns, " of ", dtype_info(format).name, which, " are wrong",
                 first)};
}

}  // namespace

std::vector<std::string> check_fp4_instruction(Device& device) {
    return fp4_probe::check<NativeFp4Mma>(device);
}

std::vector<std::string> check_fp4_product(CudaOps& ops) {
    std::vector<std::string> faults;
    for (const DType format : {DType::kNVFP4, DType::kMXFP4})
        for (const int32_t experts : {1, 5})
            for (std::string& fault : check_product(ops, format, experts))
                faults.push_back(std::move(fault));
    return faults;
}

}  // namespace tessera::cuda
