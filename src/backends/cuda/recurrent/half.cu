// The launches of the gated delta rule with 16-bit operands.
#include <algorithm>

#include "backends/cuda/recurrent/half_prepare.cuh"
#include "backends/cuda/recurrent/half_rows.cuh"

namespace tessera::cuda {
namespace {

template <class T>
bool in_vectors(const HeadRows<T>& rows) {
    return reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.row_stride % 4 == 0 &&
           rows.head_stride % 4 == 0;
}

template <bool kBf16, int kGroups>
void launch_prepare(Device& device, const HalfArgs& args, int64_t blocks) {
    device.launch("half_prepare", half_prepare<kBf16, kGroups>, dim3(static_cast<unsigned>(blocks)),
                  dim3(kGroupThreads * kGroups), sizeof(PrepareShared<kGroups>), args);
}

template <bool kBf16>
void launch_scan(Device& device, const HalfArgs& args) {
#if TESSERA_SM90A
    if (device.hopper_kernels())
        return scan_half_sm90(device, args, kBf16 ? DType::kBF16 : DType::kF16);
#endif
    const DeltaArgs& delta = args.delta;
    // Empty sequences may stand between those with prompt rows.
    const int64_t rows = int64_t{delta.batch.sequences} * delta.heads * delta.size;
    device.launch("half_rows", half_rows<kBf16>, dim3(static_cast<unsigned>(rows / kHalfValueRows)),
                  dim3(kHalfRowsThreads), sizeof(HalfRowsShared), args);
}

template <bool kBf16>
void run(Device& device, const DeltaArgs& delta, HalfScratch scratch, int64_t chunks) {
    const int32_t heads = delta.heads / delta.key_heads;
    const int32_t groups = prepare_groups(heads);
    const auto prepare = groups == 1   ? launch_prepare<kBf16, 1>
                         : groups == 2 ? launch_prepare<kBf16, 2>
                                       : launch_prepare<kBf16, 3>;
    const int32_t window = scratch.count;
    for (int64_t first = 0; first < chunks; first += window) {
        scratch.first = static_cast<int32_t>(first);
        scratch.count = static_cast<int32_t>(std::min<int64_t>(window, chunks - first));
        const HalfArgs args{.delta = delta,
                            .scratch = scratch,
                            .vectors = in_vectors(delta.q) && in_vectors(delta.k) &&
                                       in_vectors(delta.v) && in_vectors(delta.out)};
        prepare(device, args, int64_t{scratch.count} * delta.key_heads * prepare_turns(heads));
        launch_scan<kBf16>(device, args);
    }
}

}  // namespace

void run_half(
    Device& device, const DeltaArgs& delta, HalfScratch scratch, int64_t chunks, DType operands) {
    const auto with = operands == DType::kBF16 ? run<true> : run<false>;
    with(device, delta, scratch, chunks);
}

}  // namespace tessera::cuda
