#pragma once
// Products as linear/ and experts/ ask for them: shapes on the host, kernels behind.

#include "backends/cuda/cuda_ops.h"

namespace tessera::cuda {

struct Product;  // product.cuh

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

/// Whether rows of this view meet a weight of this format in the product for Hopper.
bool on_hopper(const Device& device, DType format, const ActView& view);

/// Memory that products of prompt rows with such a weight take, from ex.arena; also when planning.
std::byte* allocate_sums(Exec& ex, const Device& device, const Weight& weight);

/// A product of the rows of a view.
Product product_of(const ProductCall& call, const ActView& view);

/// The view that a weight wants.
const ActView& view_of(const std::array<ActView, 2>& views, uint8_t wants);

/// The label under which products with a weight are counted: "linear[nvfp4]".
std::string product_label(std::string_view op, DType format);

/// Bytes that the device keeps of one matrix.
int64_t matrix_bytes(DType format, int64_t rows, int64_t cols);

}  // namespace tessera::cuda
