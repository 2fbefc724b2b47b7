// causal_conv: launches of conv.cuh by width. Prompt rows and generated rows take kernels of their
// own, which give a row the same bits.
#include "backends/cuda/device.cuh"
#include "backends/cuda/recurrent/calls.h"
#include "ops/checks.h"

namespace tessera::cuda {
namespace {

template <int W>
void launch_conv(Device& device, const ConvArgs& args, int32_t rows) {
    const auto blocks = static_cast<unsigned>(args.channel_blocks);
    const auto sequences = static_cast<unsigned>(args.batch.sequences) * blocks;
    if (args.batch.prompt_rows > 0) {
        const auto segments = static_cast<unsigned>(ceil_div(args.batch.prompt_rows, kConvRows));
        device.launch("conv_prompt", conv_prompt<W>, segments * blocks, kConvThreads, 0, args);
        device.launch("conv_prompt_memory", conv_prompt_memory<W>, sequences, kConvThreads, 0,
                      args);
    }
    if (args.batch.prompt_rows < rows)
        device.launch("conv_generated", conv_generated<W>, sequences, kConvThreads, 0, args);
}

}  // namespace

ConvArgs conv_args(const Tensor& u,
                   const Tensor& taps,
                   const Batch& batch,
                   const RecurrentView& memory,
                   const Tensor& out) {
    ConvArgs args{.u = u.as<float>(),
                  .u_stride = u.stride[0],
                  .taps = taps.as<float>(),
                  .out = out.as<float>(),
                  .out_stride = out.stride[0],
                  .memory = memory.conv.as<float>(),
                  .memory_stride = memory.conv.stride[0],
                  .channels = static_cast<int32_t>(u.cols()),
                  .channel_blocks = static_cast<int32_t>(ceil_div(u.cols(), kConvThreads)),
                  .tentative = batch.tentative,
                  .batch = batch_args(batch)};
    if (batch.tentative) {
        args.log = memory.conv_log.as<float>();
        args.log_stride = memory.conv_log.stride[0];
        args.log_rows = static_cast<int32_t>(memory.conv_log.shape[1]);
    }
    return args;
}

void CudaOps::causal_conv(Exec& ex,
                          const Tensor& u,
                          const Tensor& taps,
                          const Batch& batch,
                          const RecurrentView& memory,
                          const Tensor& out) {
    const int64_t width = taps.cols();
    check_causal_conv(u, taps, memory, out);
    check(!batch.tentative || dense_slots(memory.conv_log), "causal_conv: log");
    check_recurrent_batch(batch, u.rows());
    if (ex.planning() || u.rows() == 0) return;
    const double elements = static_cast<double>(u.elements());
    const Timed timed(*this, "causal_conv", 2 * elements * static_cast<double>(width),
                      8 * elements);
    using Launch = void (*)(Device&, const ConvArgs&, int32_t);
    constexpr Launch kLaunches[] = {launch_conv<2>, launch_conv<3>, launch_conv<4>, launch_conv<5>,
                                    launch_conv<6>, launch_conv<7>, launch_conv<8>};
    kLaunches[width - 2](*device_, conv_args(u, taps, batch, memory, out),
                         static_cast<int32_t>(u.rows()));
}

}  // namespace tessera::cuda
