#pragma once
// The parts that dense products (cpu_linear_product.cpp) and expert products (cpu_experts.cpp)
// share.

#include <array>
#include <cstdint>

#include "backends/cpu/cpu_work.h"
#include "backends/cpu/isa/linear_kernels.h"
#include "core/weight.h"
#include "ops/exec.h"

namespace tessera::cpu {

/// Multiply-adds below which one thread is faster than waking another.
inline constexpr int64_t kSerialWork = 48 << 10;
/// Activations that should stay in the second-level cache while weights pass by.
inline constexpr int64_t kActBytes = 1 << 20;

/// One family of rows of a product, or of two products with a gate between them.
struct Product {
    const LinearKernels& kernels;
    ThreadPool& pool;
    PackedView weights[2];
    int64_t units;
    int64_t cols;
    int64_t blocks;  ///< row blocks of each weight
    const ActView& view;
    int64_t rows;
    bool prompt;
    Sink sink;

    int count() const { return sink.gated ? 2 : 1; }
    /// Multiply-adds of one weight with `pairs` rows.
    double work(int64_t pairs) const { return static_cast<double>(pairs * weights[0].rows * cols); }
};

/// The two families of the rows of a call: prompt rows, then generated rows.
struct Family {
    bool prompt;
    int64_t first;
    int64_t rows;
};
/// `prompt`: prompt rows among the `rows`.
std::array<Family, 2> families(int64_t prompt, int64_t rows);

/// Expert `expert` of a weight.
PackedView view_of(const Weight& weight, int64_t expert);
/// Bytes of one expert.
double packed_bytes(const Weight& weight);

/// A product of expert 0 of `weight` (and of `up`, or null) with one family of the rows of `x`; its
/// sink is empty.
Product product_of(const LinearKernels& kernels,
                   ThreadPool& pool,
                   const GemmInput& x,
                   const Weight& weight,
                   const Weight* up,
                   const Family& family);

/// Whether the tile kernel takes this product; otherwise the block kernels do.
bool uses_panels(const Product& product);

/// Whether gated results of the rows of x can be written in the formats of `wants` directly.
bool writes_directly(const std::array<Family, 2>& rows, ActWants wants);
/// Points the sink of a gated product of `rows` rows at the view of its result that its consumer
/// wants, padding zeroed.
void aim_at_view(int64_t rows, int64_t cols, const ActView& target, Sink& sink);

/// Activations as block kernels read them.
struct BlockInput {
    const void* x = nullptr;
    int64_t x_stride = 0;
    const float* x_scales = nullptr;
    int32_t* zeros[2] = {};
    float* sums = nullptr;
};

/// Memory for BlockInput, allocated while planning as well.
struct BlockScratch {
    Tensor values, zeros[2], sums;
};
BlockScratch allocate_scratch(Exec& ex, const Product& product);
/// All rows of the activations, on all threads where there are many.
BlockInput prepare_blocks(const Product& product, const BlockScratch& scratch);

/// Rows of activations that the block kernels take at once: they stay in the cache while the
/// weights pass by.
int64_t block_range_rows(int64_t units, int64_t rows);
/// Row blocks [blocks.begin, blocks.end) of all rows of the product, in ranges of `range_rows`;
/// `sums` holds 2 * range_rows * kBlockRows floats.
void run_blocks(
    const Product& product, const BlockInput& input, Range blocks, int64_t range_rows, float* sums);

}  // namespace tessera::cpu
