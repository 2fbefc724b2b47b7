// The products for Hopper alone.
#include "backends/cuda/linear/gemm_sm90.cuh"

namespace tessera::cuda {

void run_gemm_sm90(Device& device, const Product& product, DType format) {
    const sm90::Operands p = sm90::operands_of<false>(product, format, device);
    sm90::Maps maps{};
    maps.x = hopper::x_map<2>(product);
    maps.weights = hopper::weight_map(product, product.codes, hopper::kOwnFeatures<false>);
    sm90::launch<false>(device, maps, p);
}

void run_glu_sm90(Device& device, const Product& gate, const GluProduct& with, DType format) {
    sm90::Operands p = sm90::operands_of<true>(gate, format, device);
    hopper::add_up(p, gate, with);
    sm90::Maps maps{};
    maps.x = hopper::x_map<2>(gate);
    maps.weights = hopper::weight_map(gate, gate.codes, hopper::kOwnFeatures<true>);
    maps.up = hopper::weight_map(gate, with.codes, hopper::kOwnFeatures<true>);
    maps.out = hopper::out_map(gate, with.out);
    sm90::launch<true>(device, maps, p);
}

size_t sums_bytes_sm90(int64_t rows, int64_t columns) {
    const int64_t tiles = ceil_div(rows, int64_t{hopper::kOwnFeatures<false>} * sm90::kBlocks);
    return sm90::chunks_of(columns, tiles).count > 1 ? sm90::kSumsBytes : 0;
}

}  // namespace tessera::cuda
