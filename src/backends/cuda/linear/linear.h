#pragma once
// Products as linear/ and experts/ ask for them: shapes on the host, kernels behind.

#include "backends/cuda/cuda_ops.h"

namespace tessera::cuda {

/// Which rows of an input a product takes, by their kind.
enum class RowKind : uint8_t { kPrompt, kGenerated };

/// One product of rows of one kind.
struct ProductCall {
    const GemmInput& x;
    const Weight& weight;
    const Tensor& bias;  ///< F32 [N] or absent
    const Tensor& out;   ///< [rows, N]; grouped: [all pairs, N]; absent for gated products
    Accumulate accumulate = Accumulate::kNo;
    RowKind kind = RowKind::kPrompt;
    int64_t first_row = 0;      ///< of x, where this kind's rows start
    int64_t rows = 0;           ///< of x
    std::byte* sums = nullptr;  ///< what allocate_sums() gave

    // Grouped by experts when `work` is set: its pairs [first_pair, first_pair + pairs).
    const ExpertWork* work = nullptr;
    int64_t first_pair = 0;
    int64_t pairs = 0;
};

/// Queues the product: tensor cores for bf16 prompt rows, f32 sums of exact weights for everything
/// else.
void launch_product(Device& device, const ProductCall& call);

/// The label under which products with a weight are counted: "linear[nvfp4]", with a special kernel
/// "linear[q8_0,narrow]".
std::string product_label(std::string_view op, DType format, std::string_view kernel = {});

/// Flops of a product, and its bytes with 16-bit activations.
struct ProductCost {
    double flops, bytes;
};
ProductCost product_cost(int64_t rows, const Weight& weight);

/// Whether prompt rows meet the weight in narrow.cuh: it has few features, a K of whole units, and
/// wants bf16 activations.
bool is_narrow(const Device& device, const Weight& weight);

/// Whether prompt rows come packed (ActFormat::kFp4) to the weight. A matrix with other columns
/// than ActView has of them takes the same numbers in bf16.
bool takes_packed(const Weight& weight);

/// Whether prompt rows of x meet such a weight, and another of its shape, in one gated product.
bool takes_gated(const Device& device, const GemmInput& x, const Weight& weight);

/// Memory that products of prompt rows with such a weight take, from ex.arena; also when planning.
std::byte* allocate_sums(Exec& ex, const Device& device, const Weight& weight, bool gated);

/// Bytes that the device keeps of one matrix.
int64_t matrix_bytes(DType format, int64_t rows, int64_t cols);

}  // namespace tessera::cuda
