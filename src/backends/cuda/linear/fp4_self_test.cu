// The probes of the FP4 instructions for all cards, and products through the ops.
#include <algorithm>
#include <cmath>

#include "backends/cuda/linear/fp4_self_test.cuh"
#include "backends/cuda/linear/gemm_nvfp4_sm120.cuh"
#include "core/codec.h"

namespace tessera::cuda {
namespace {

constexpr DType kFormats[] = {DType::kNVFP4, DType::kMXFP4};  ///< of weights that packed rows meet
constexpr int64_t kColumns = 17 * 64;  ///< the last stage of the product is half full
/// Rows of the weight and of tokens repeat after so many, no multiples of which are tiles apart:
/// what lands in another tile's place is seen, and the host needs few sums.
constexpr int64_t kFeatures = 61, kTokens = 53;

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

/// `rows` rows, those of `from` over and over.
template <class T>
std::vector<T> repeated(const std::vector<T>& from, int64_t rows, size_t row_size) {
    std::vector<T> out(static_cast<size_t>(rows) * row_size);
    for (size_t done = 0; done < out.size(); done += from.size())
        std::copy_n(from.begin(), std::min(from.size(), out.size() - done), out.data() + done);
    return out;
}

/// Operands, and the sums of their rows by the definition.
struct RepeatedOperands {
    std::vector<float> w = exact_values(kFeatures * kColumns, 1);
    std::vector<float> x = exact_values(kTokens * kColumns, 2);
    std::vector<double> sums, sizes;  ///< [kTokens][kFeatures]; sums of magnitudes

    RepeatedOperands() {
        for (int64_t t = 0; t < kTokens; ++t) {
            for (int64_t n = 0; n < kFeatures; ++n) {
                double sum = 0.0, size = 0.0;
                for (int64_t k = 0; k < kColumns; ++k) {
                    const double term = double{x[static_cast<size_t>(t * kColumns + k)]} *
                                        w[static_cast<size_t>(n * kColumns + k)];
                    sum += term;
                    size += std::abs(term);
                }
                sums.push_back(sum);
                sizes.push_back(size);
            }
        }
    }
};

struct Shape {
    int64_t features;
    int32_t tokens;
    int32_t experts = 1;  ///< 5: two of them a token
    int32_t choices = 1;

    int64_t results() const { return int64_t{tokens} * choices; }
    /// The expert of a row of the results. Not always the same two, nor all of them.
    int32_t expert_of(int64_t result) const {
        const int64_t token = result / choices;
        return static_cast<int32_t>((token * token + result % choices) % experts);
    }
};

/// A product that takes these tiles, the last of which are not full: where the choice allows it
/// more of them than the card has multiprocessors, so that blocks take a second one. None: no
/// tokens.
Shape shape_for(const sm120::TileChoice& tile, int32_t multiprocessors) {
    for (const int32_t quarters : {7, 5, 3, 1}) {
        for (const int32_t token_tiles : {8, 3, 1}) {
            const int64_t feature_tiles = ceil_div(quarters * multiprocessors, 4 * token_tiles);
            const Shape shape{feature_tiles * tile.features - 19, token_tiles * tile.tokens - 11};
            const sm120::TileChoice chosen =
                sm120::choose_tile(shape.features, shape.tokens, multiprocessors);
            if (chosen.features == tile.features && chosen.tokens == tile.tokens) return shape;
        }
    }
    return {};
}

/// The product as the engine runs it.
std::vector<float> multiply(CudaOps& ops,
                            const RepeatedOperands& operands,
                            DType format,
                            const Shape& shape) {
    const auto row_bytes = static_cast<size_t>(dtype_bytes(format, kColumns));
    std::vector<std::byte> rows_of_weight(kFeatures * row_bytes);
    for (int64_t n = 0; n < kFeatures; ++n)
        quantize_row(format, operands.w.data() + n * kColumns, kColumns,
                     rows_of_weight.data() + static_cast<size_t>(n) * row_bytes,
                     Nvfp4Policy::kAmax6);
    const std::vector<std::byte> encoded =
        repeated(rows_of_weight, shape.experts * shape.features, row_bytes);
    const std::vector<float> x = repeated(operands.x, shape.tokens, kColumns);
    const Weight weight = ops.upload({.name = "self-test",
                                      .format = format,
                                      .rows = shape.features,
                                      .cols = kColumns,
                                      .experts = shape.experts,
                                      .data = encoded.data(),
                                      .scales = {}});
    const auto place = [&](DType type, int64_t count, int64_t cols) {
        return make_tensor(ops.allocate(static_cast<size_t>(count * cols) * 4), type,
                           {count, cols});
    };
    const Tensor rows = place(DType::kF32, shape.tokens, kColumns);
    const Tensor out = place(DType::kF32, shape.results(), shape.features);
    const Tensor ids = place(DType::kI32, shape.tokens, shape.choices);
    std::vector<int32_t> experts;
    for (int64_t i = 0; i < shape.results(); ++i) experts.push_back(shape.expert_of(i));
    ops.copy_to_device(rows.data, x.data(), x.size() * sizeof(float));
    ops.copy_to_device(ids.data, experts.data(), experts.size() * sizeof(int32_t));
    const auto run = [&](Arena& arena) {
        Exec ex{arena, shape.tokens};
        const GemmInput input = ops.prepare(ex, rows, weight.wants);
        if (shape.experts == 1)
            return ops.linear(ex, input, weight, Tensor{}, out, Accumulate::kNo);
        ops.linear_experts(ex, input, ops.group_experts(ex, ids, shape.experts), weight, out);
    };
    Arena plan(nullptr, 0);
    run(plan);
    Arena arena(ops.allocate(plan.peak_bytes()), plan.peak_bytes());
    run(arena);
    std::vector<float> got(static_cast<size_t>(shape.results() * shape.features));
    ops.copy_to_host(got.data(), out.data, got.size() * sizeof(float));
    return got;
}

/// What is wrong with the results; nothing where they are right.
std::string compare(const std::vector<float>& got,
                    const RepeatedOperands& operands,
                    const Shape& shape) {
    int64_t wrong = 0;
    std::string first;
    for (int64_t i = 0; i < shape.results(); ++i) {
        const int64_t t = i / shape.choices, before = shape.expert_of(i) * shape.features;
        for (int64_t n = 0; n < shape.features; ++n) {
            const auto of = static_cast<size_t>(t % kTokens * kFeatures + (before + n) % kFeatures);
            const float value = got[static_cast<size_t>(i * shape.features + n)];
            if (std::abs(value - operands.sums[of]) <= 1e-6 * operands.sizes[of]) continue;
            if (wrong++ == 0)
                first = text("; token ", t, ", feature ", n, " is ", value, " instead of ",
                             operands.sums[of]);
        }
    }
    return wrong == 0 ? "" : text(wrong, " of ", got.size(), " results are wrong", first);
}

}  // namespace

std::vector<std::string> check_fp4_instruction(Device& device) {
    std::vector<std::string> faults = fp4_probe::check<NativeFp4Mma>(device);
    if (faults.empty()) faults = fp4_probe::check_rounding<rows::NativeE2m1>(device);
    return faults;
}

std::vector<std::string> check_fp4_product(CudaOps& ops, int32_t multiprocessors) {
    const RepeatedOperands operands;
    std::vector<std::string> faults;
    const auto check_one = [&](const Shape& shape, const std::string& how) {
        for (const DType format : kFormats) {
            const std::string wrong =
                compare(multiply(ops, operands, format, shape), operands, shape);
            if (!wrong.empty())
                faults.push_back(text("in a product of ", shape.tokens, " tokens with ",
                                      shape.features, "x", kColumns, " of ",
                                      dtype_info(format).name, how, " ", wrong));
        }
    };
    for (const sm120::TileChoice& tile : sm120::kTiles) {
        const Shape shape = shape_for(tile, multiprocessors);
        const std::string tiles = text("tiles of ", tile.features, " x ", tile.tokens);
        if (shape.tokens > 0)
            check_one(shape, text(" in ", tiles));
        else
            faults.push_back(text("no product was found that takes ", tiles));
    }
    // Groups of some 30 and some 300 rows, which take tiles of other sizes.
    for (const int32_t tokens : {77, 771})
        check_one({300, tokens, 5, 2}, ", 2 of 5 experts a token,");
    return faults;
}

}  // namespace tessera::cuda
