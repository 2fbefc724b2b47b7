// Launches of prompt.cuh.
#include <algorithm>
#include <cmath>

#include "backends/cuda/attention/attention_call.h"
#include "backends/cuda/attention/prompt.cuh"
#include "backends/cuda/attention/prompt_sm90.h"

namespace tessera::cuda {
namespace {

/// What half a tile takes of a whole one's time: 0.55 to 0.65 by bench/model, as a quarter of a
/// multiprocessor has one warp less to hide what is not products.
constexpr double kHalfTile = 0.6;

/// The time, in tiles, of `whole` tiles and then `halves` on so many places, all of one length.
double time_of(int64_t whole, int64_t halves, int64_t places) {
    const int64_t rounds = whole / places, later = whole % places;  // these places take one more
    const auto begin = static_cast<double>(rounds), end = begin + (later > 0 ? 1.0 : 0.0);
    const auto fit = [](double time) {
        return static_cast<int64_t>(std::max(0.0, time) / kHalfTile + 1e-6);
    };
    double least = INFINITY;
    // The last half ends on a place that took `rounds` tiles before, or one more.
    for (const double start : {begin, begin + 1.0})
        for (int64_t more = 0;; ++more) {
            const double time = std::max(end, start + static_cast<double>(more) * kHalfTile);
            const int64_t fitting =
                later * fit(time - begin - 1.0) + (places - later) * fit(time - begin);
            if (fitting < halves) continue;
            least = std::min(least, time);
            break;
        }
    return least;
}

/// The cut with which the last round of blocks leaves the fewest multiprocessors idle. Rounds of a
/// prompt behind many keys take equally long; of several sequences nobody knows here.
PromptCut cut_for(const PromptArgs& args, int64_t places, bool may_halve) {
    const int64_t tiles =
        ceil_div(int64_t{args.prompt_rows} * args.group, kTileColumns) + args.batch.sequences - 1;
    PromptCut best{.tiles = static_cast<int32_t>(tiles)};
    if (args.batch.sequences > 1 || !may_halve) return best;
    double least = time_of(tiles * args.kv_heads, 0, places);
    for (int64_t halved = 1; halved <= std::min(tiles, places); ++halved) {
        const double time =
            time_of((tiles - halved) * args.kv_heads, 2 * halved * args.kv_heads, places);
        if (time >= least - 1e-6) continue;
        least = time;
        best.halved = static_cast<int32_t>(halved);
    }
    return best;
}

template <int32_t kHeadSize>
void launch_tiles(Device& device, PromptArgs args) {
    const auto launch = [&]<TileOperands kOperands>() {
        args.cut =
            cut_for(args, int64_t{device.multiprocessors()} * kTileBlocks<kHeadSize, kOperands>,
                    kHalvesTiles<kHeadSize, kOperands>);
        const dim3 grid(static_cast<uint32_t>(args.cut.blocks() * args.kv_heads));
        device.launch("attend_tile", attend_tile<kHeadSize, kOperands>, grid, dim3(kPromptThreads),
                      sizeof(PromptShared<kHeadSize>), args);
    };
    const auto both = [&](PageFormat format) {
        return args.keys.format == format && args.values.format == format && args.keys.aligned &&
               args.values.aligned;
    };
    if (both(PageFormat::kF16))
        launch.template operator()<TileOperands::kF16>();
    else if (both(PageFormat::kBF16))
        launch.template operator()<TileOperands::kBF16>();
    else
        launch.template operator()<TileOperands::kConverted>();
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
                          .cut = {},  // launch_tiles() knows
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
