// The products for Hopper whose rows of x are e4m3.
#include "backends/cuda/linear/gemm_sm90_fp8.cuh"

namespace tessera::cuda {

void run_gemm_sm90_fp8(Device& device, const Product& product, DType format) {
    const auto p = sm90_fp8::operands_of(device, product, format, hopper::kOwnFeatures<false>);
    hopper::Maps maps{};
    maps.x = hopper::x_map<1>(product);
    maps.weights = hopper::weight_map(product, product.codes, hopper::kOwnFeatures<false>);
    // All tiles give the same bits.
    if (p.tile == 256) return sm90_fp8::launch<256, false>(device, maps, p);
    return sm90_fp8::launch<128, false>(device, maps, p);
}

bool gated_sm90_fp8(DType format, int64_t columns) {
    return sm90_fp8::chunk_of(format, columns) >= ceil_div(columns, hopper::kStageColumns);
}

void run_glu_sm90_fp8(Device& device, const Product& gate, const GluProduct& with, DType format) {
    auto p = sm90_fp8::operands_of(device, gate, format, hopper::kOwnFeatures<true>);
    hopper::add_up(p, gate, with);
    p.up_row_factors = with.row_factors;
    hopper::Maps maps{};
    maps.x = hopper::x_map<1>(gate);
    maps.weights = hopper::weight_map(gate, gate.codes, hopper::kOwnFeatures<true>);
    maps.up = hopper::weight_map(gate, with.codes, hopper::kOwnFeatures<true>);
    maps.out = hopper::out_map(gate, with.out);
    sm90_fp8::launch<256, true>(device, maps, p);
}

template <DType F>
void find_row_factors(
    Device& device, const uint8_t* scales, int64_t rows, int64_t units, float* out) {
    constexpr int kThreads = 256;
    device.launch_hopper("row_factors", sm90_fp8::row_factors<F>,
                         dim3(static_cast<unsigned>(ceil_div(rows, kThreads / 32))), dim3(kThreads),
                         0, scales, rows, units * layout_of(F).group_bytes, out);
}
template void find_row_factors<DType::kNVFP4>(Device&, const uint8_t*, int64_t, int64_t, float*);
template void find_row_factors<DType::kMXFP4>(Device&, const uint8_t*, int64_t, int64_t, float*);

}  // namespace tessera::cuda
