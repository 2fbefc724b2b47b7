// Instances of the products with few features for some formats; several files, so that they compile
// side by side.
#include "backends/cuda/linear/narrow.cuh"

namespace tessera::cuda {

template void run_narrow<DType::kF16>(Device&, std::span<const Product>);
template void run_narrow<DType::kBF16>(Device&, std::span<const Product>);

}  // namespace tessera::cuda
