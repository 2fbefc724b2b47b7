// Instances of the products with few features for some formats; several files, so that they compile
// side by side.
#include "backends/cuda/linear/narrow.cuh"

namespace tessera::cuda {

template void run_narrow<DType::kQ4_K>(Device&, std::span<const Product>);
template void run_narrow<DType::kQ5_K>(Device&, std::span<const Product>);
template void run_narrow<DType::kQ6_K>(Device&, std::span<const Product>);

}  // namespace tessera::cuda
