// Launches of prompt.cuh.
#include "backends/cuda/attention/attention_call.h"
#include "backends/cuda/attention/prompt.cuh"
#include "backends/cuda/attention/prompt_sm90.h"

namespace tessera::cuda {
namespace {

template <int32_t kHeadSize>
void launch_tiles(Device& device, const PromptArgs& args) {
    const int64_t tiles =
        ceil_div(int64_t{args.prompt_rows} * args.group, kTileColumns) + args.batch.sequences;
    const dim3 grid(static_cast<uint32_t>(tiles * args.kv_heads));
    const auto launch = [&](auto* kernel) {
        device.launch("attend_tile", kernel, grid, dim3(kPromptThreads),
                      sizeof(PromptShared<kHeadSize>), args);
    };
    const auto both = [&](PageFormat format) {
        return args.keys.format == format && args.values.format == format && args.keys.aligned &&
               args.values.aligned;
    };
    if (both(PageFormat::kF16))
        launch(attend_tile<kHeadSize, TileOperands::kF16>);
    else if (both(PageFormat::kBF16))
        launch(attend_tile<kHeadSize, TileOperands::kBF16>);
    else
        launch(attend_tile<kHeadSize, TileOperands::kConverted>);
}

bool aligned_to(const Tensor& tensor, int64_t floats) {
    const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor.data)) / 4;
    return (address | tensor.stride[0] | tensor.stride[1]) % floats == 0;
}

}  // namespace

void attend_prompt(Device& device, const AttentionCall& call, int32_t prompt_rows) {
    const int32_t head_size = call.head_size();
    device.note_operands(Operands::k16Bits);
    const PromptArgs args{.q = call.q.as<float>(),
                          .q_row_stride = call.q.stride[0],
                          .q_head_stride = call.q.stride[1],
                          .q_aligned = head_size % 8 == 0 && aligned_to(call.q, 4),
                          .batch = BatchView(call.batch),
                          .keys = pages_of(call.cache.keys),
                          .values = pages_of(call.cache.values),
                          .prompt_rows = prompt_rows,
                          .kv_heads = call.kv_heads(),
                          .group = call.group(),
                          .head_size = head_size,
                          .window = call.params.window,
                          .scale = call.params.scale,
                          .softcap = call.params.softcap,
                          .sinks = call.sinks(),
                          .out = call.out.as<float>(),
                          .out_stride = call.out.stride[0],
                          .out_aligned = head_size % 2 == 0 && call.out.stride[0] % 2 == 0 &&
                                         reinterpret_cast<uintptr_t>(call.out.data) % 8 == 0};
#if TESSERA_SM90A
    if (attend_wide(device, args, call.cache.keys.shape[0])) return;
    if (device.hopper_kernels())
        device.note_fallback("pages, head size or strides without a Hopper kernel: general tiles");
#endif
    if (head_size <= 64)
        launch_tiles<64>(device, args);
    else if (head_size <= 128)
        launch_tiles<128>(device, args);
    else
        launch_tiles<256>(device, args);
}

}  // namespace tessera::cuda
