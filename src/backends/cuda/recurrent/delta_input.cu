// delta_net_input: the launch of delta_input.cuh by width of the convolution.
#include <limits>

#include "backends/cuda/device.cuh"
#include "backends/cuda/recurrent/calls.h"
#include "backends/cuda/recurrent/delta_input.cuh"
#include "ops/checks.h"

namespace tessera::cuda {
namespace {

/// Few rows are spread over more warps; the results are the same.
constexpr int32_t kLongSegment = 32, kShortSegment = 8, kManyRows = 1024;

template <int W>
void launch_input(Device& device, const DeltaInputArgs& args, uint32_t blocks, bool vector) {
    device.launch("delta_net_input",
                  vector ? delta_input_kernel<W, true> : delta_input_kernel<W, false>, dim3(blocks),
                  dim3(32 * kPieceWarps), 0, args);
}

/// Whether all that a piece reads and writes four elements at a time is aligned.
bool aligned_pieces(const DeltaInputArgs& args) {
    const ConvArgs& conv = args.conv;
    uintptr_t addresses = 0;
    for (const float* start :
         {conv.u, conv.taps, static_cast<const float*>(conv.out),
          static_cast<const float*>(conv.memory), static_cast<const float*>(conv.log)})
        addresses |= reinterpret_cast<uintptr_t>(start);
    const int64_t counts = conv.u_stride | conv.out_stride | conv.memory_stride | conv.log_stride |
                           conv.channels | args.key_size;
    return addresses % 16 == 0 && counts % 4 == 0;
}

/// How the work is cut into pieces and blocks.
uint32_t cut_into_blocks(DeltaInputArgs& args, int32_t rows) {
    const int32_t key_cols = args.key_pieces * args.key_size;
    args.pieces =
        args.key_pieces + static_cast<int32_t>(ceil_div(args.conv.channels - key_cols, kPieceCols));
    args.piece_blocks = static_cast<int32_t>(ceil_div(args.pieces, kPieceWarps));
    const BatchArgs& batch = args.conv.batch;
    args.segment_rows = batch.prompt_rows >= kManyRows ? kLongSegment : kShortSegment;
    const int64_t prompts = ceil_div(batch.prompt_rows, args.segment_rows) * args.piece_blocks;
    const int64_t generated =
        batch.prompt_rows < rows ? int64_t{batch.sequences} * args.piece_blocks : 0;
    args.prompt_blocks = static_cast<int32_t>(prompts);
    args.generated_blocks = static_cast<int32_t>(generated);
    const int64_t blocks = prompts + generated + ceil_div(args.gates.elements, kGateThreads);
    check(blocks <= std::numeric_limits<int32_t>::max(), "delta_net_input: too many rows");
    return static_cast<uint32_t>(blocks);
}

}  // namespace

void CudaOps::delta_net_input(Exec& ex,
                              const Tensor& u,
                              const Tensor& a,
                              const Tensor& b,
                              const DeltaNetInput& how,
                              const Batch& batch,
                              const RecurrentView& memory,
                              const Tensor& qkv) {
    // Longer heads would take more than a warp's columns.
    if (how.key_size > kPieceCols) {
        note_composed(ex, "delta_net_input", "long heads: convolution, norms, gates");
        return Ops::delta_net_input(ex, u, a, b, how, batch, memory, qkv);
    }
    check_causal_conv(u, how.taps, memory, qkv);
    check_delta_gates(a, b, how.bias, how.rate, a, b);
    check_delta_net_input(u, a, how);
    check(!batch.tentative || dense_slots(memory.conv_log), "delta_net_input: log");
    check_recurrent_batch(batch, u.rows());
    if (ex.planning() || u.rows() == 0) return;
    const double elements = static_cast<double>(u.elements());
    const double gates = static_cast<double>(a.elements());
    const auto width = static_cast<double>(how.taps.cols());
    const Timed timed(*this, "delta_net_input", (2 * width + 3) * elements + 10 * gates,
                      8 * elements + 16 * gates);
    DeltaInputArgs args{.conv = conv_args(u, how.taps, batch, memory, qkv),
                        .gates = gate_args(a, b, how.bias, how.rate, a, b),
                        .eps = how.eps,
                        .key_pieces = static_cast<int32_t>(2 * how.key_heads),
                        .key_size = static_cast<int32_t>(how.key_size)};
    const uint32_t blocks = cut_into_blocks(args, static_cast<int32_t>(u.rows()));
    using Launch = void (*)(Device&, const DeltaInputArgs&, uint32_t, bool);
    constexpr Launch kLaunches[] = {launch_input<2>, launch_input<3>, launch_input<4>,
                                    launch_input<5>, launch_input<6>, launch_input<7>,
                                    launch_input<8>};
    kLaunches[how.taps.cols() - 2](*device_, args, blocks, aligned_pieces(args));
}

}  // namespace tessera::cuda
