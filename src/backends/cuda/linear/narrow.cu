// Products of prompt rows with weights of few features: those of one input and one format share a
// launch.
#include <algorithm>
#include <array>
#include <vector>

#include "backends/cuda/linear/by_format.h"
#include "backends/cuda/linear/product.cuh"
#include "ops/checks.h"

namespace tessera::cuda {

void launch_narrow(Device& device, DType format, std::span<const Product> products) {
    device.note_operands(Operands::k16Bits);
    using Run = void (*)(Device&, std::span<const Product>);
    const Run run = by_format(format, []<DType F>() -> Run { return run_narrow<F>; });
    check(run != nullptr, "narrow: no kernel for a weight of this format");
    run(device, products);
}

namespace {

/// The operands of a linear_many.
struct Many {
    const GemmInput& x;
    std::span<const Weight* const> weights;
    std::span<const Tensor> biases;
    std::span<const Tensor> outs;

    ProductCall call(size_t i, RowKind kind, int64_t first_row, int64_t rows) const {
        ProductCall call{.x = x, .weight = *weights[i], .bias = biases[i], .out = outs[i]};
        call.kind = kind;
        call.first_row = first_row;
        call.rows = rows;
        return call;
    }
};

/// Queues the products `chosen`, whose weights are narrow and of one format.
void launch_together(Device& device,
                     const Many& many,
                     std::span<const size_t> chosen,
                     int64_t prompt) {
    const int64_t generated = many.x.rows - prompt;
    std::array<Product, kMostNarrow> products;
    for (size_t i = 0; i < chosen.size(); ++i)
        products[i] = product_of(many.call(chosen[i], RowKind::kPrompt, 0, prompt));
    launch_narrow(device, many.weights[chosen[0]]->format, {products.data(), chosen.size()});
    if (generated == 0) return;
    for (const size_t i : chosen)
        launch_product(device, many.call(i, RowKind::kGenerated, prompt, generated));
}

}  // namespace

void CudaOps::linear_many(Exec& ex,
                          const GemmInput& x,
                          std::span<const Weight* const> weights,
                          std::span<const Tensor> biases,
                          std::span<const Tensor> outs) {
    check(weights.size() == outs.size() && weights.size() == biases.size(),
          "linear_many: operand counts");
    const int64_t prompt = std::min<int64_t>(ex.prompt_rows, x.rows);
    const auto narrow = [&](size_t i) { return prompt > 0 && is_narrow(*device_, *weights[i]); };
    std::vector<bool> done(weights.size());
    for (size_t first = 0; first < weights.size(); ++first) {
        if (done[first]) continue;
        std::array<size_t, kMostNarrow> chosen{first};
        size_t count = 1;
        ProductCost cost = product_cost(x.rows, *weights[first]);
        for (size_t i = first + 1; i < weights.size() && count < kMostNarrow; ++i) {
            if (done[i] || weights[i]->format != weights[first]->format) continue;
            if (!narrow(first) || !narrow(i)) continue;
            chosen[count++] = i;
            done[i] = true;
            const ProductCost more = product_cost(x.rows, *weights[i]);
            cost = {cost.flops + more.flops, cost.bytes + more.bytes};
        }
        if (ex.planning() || count == 1) {
            for (const size_t i : std::span(chosen.data(), count))
                linear(ex, x, *weights[i], biases[i], outs[i], Accumulate::kNo);
            continue;
        }
        const Timed timed(*this, product_label("linear_many", weights[first]->format, "narrow"),
                          cost.flops, cost.bytes);
        for (const size_t i : std::span(chosen.data(), count))
            check_linear(x, *weights[i], biases[i], outs[i]);
        launch_together(*device_, {x, weights, biases, outs}, {chosen.data(), count}, prompt);
    }
}

}  // namespace tessera::cuda
