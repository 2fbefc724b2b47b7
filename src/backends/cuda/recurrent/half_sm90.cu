// The launches of the scans of the gated delta rule with 16-bit operands on Hopper.
#include "backends/cuda/recurrent/half_narrow.cuh"
#include "backends/cuda/recurrent/half_scan.cuh"

namespace tessera::cuda {
namespace {

/// The narrow form where all its blocks fit on the card at once: a chunk takes it less time, but
/// twice as many blocks. Both give the same bits, so that the choice may depend on what comes
/// together and where.
template <bool kBf16>
void launch_scan(Device& device, const HalfArgs& args) {
    const DeltaArgs& delta = args.delta;
    // Empty sequences may stand between those with prompt rows.
    const int64_t rows = int64_t{delta.batch.sequences} * delta.heads * delta.size;
    if (rows / kNarrowRows <= device.multiprocessors())
        device.launch_hopper("half_narrow", half_narrow<kBf16>,
                             dim3(static_cast<unsigned>(rows / kNarrowRows)), dim3(kNarrowThreads),
                             sizeof(NarrowShared), args);
    else
        device.launch_hopper("half_scan", half_scan<kBf16>,
                             dim3(static_cast<unsigned>(rows / kHalfValueRows)),
                             dim3(kHalfScanThreads), sizeof(HalfScanShared<kHalfValueRows>), args);
}

}  // namespace

void scan_half_sm90(Device& device, const HalfArgs& args, DType operands) {
    const auto launch = operands == DType::kBF16 ? launch_scan<true> : launch_scan<false>;
    launch(device, args);
}

}  // namespace tessera::cuda
