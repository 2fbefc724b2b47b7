// The launches of the gated delta rule with 16-bit operands on Hopper.

#include <algorithm>

#include "backends/cuda/recurrent/half_prepare.cuh"
#include "backends/cuda/recurrent/half_scan.cuh"

namespace tessera::cuda {
namespace {

template <class T>
bool in_vectors(const HeadRows<T>& rows) {
    return reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.row_stride % 4 == 0 &&
           rows.head_stride % 4 == 0;
}

template <int kGroups>
void launch_prepare(Device& device, const HalfArgs& args, int64_t blocks) {
    device.launch("half_prepare", half_prepare<kGroups>, dim3(static_cast<unsigned>(blocks)),
                  dim3(kGroupThreads * kGroups), prepare_shared_bytes(kGroups), args);
}

}  // namespace

void run_half_sm90(Device& device, const DeltaArgs& delta, HalfScratch scratch, int64_t chunks) {
    const int32_t heads = delta.heads / delta.key_heads;
    const int32_t groups = prepare_groups(heads);
    const auto launch = groups == 1   ? launch_prepare<1>
                        : groups == 2 ? launch_prepare<2>
                                      : launch_prepare<3>;
    const int64_t sequences = delta.batch.sequences;  // empty ones may stand between them
    const int64_t slices = delta.size / kHalfValueRows;
    const int32_t window = scratch.count;
    for (int64_t first = 0; first < chunks; first += window) {
        scratch.first = static_cast<int32_t>(first);
        scratch.count = static_cast<int32_t>(std::min<int64_t>(window, chunks - first));
        const HalfArgs args{.delta = delta,
                            .scratch = scratch,
                            .vectors = in_vectors(delta.q) && in_vectors(delta.k) &&
                                       in_vectors(delta.v) && in_vectors(delta.out)};
        launch(device, args, int64_t{scratch.count} * delta.key_heads * prepare_turns(heads));
        device.launch("half_scan", half_scan,
                      dim3(static_cast<unsigned>(sequences * delta.heads * slices)),
                      dim3(kHalfScanThreads), sizeof(HalfScanShared), args);
    }
}

}  // namespace tessera::cuda
