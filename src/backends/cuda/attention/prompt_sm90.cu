// Launches of prompt_sm90.cuh.
#include <algorithm>

#include "backends/cuda/attention/attention_call.h"
#include "backends/cuda/attention/prompt_sm90.cuh"
#include "backends/cuda/attention/prompt_sm90.h"
#include "backends/cuda/tensor_map.h"

namespace tessera::cuda {
namespace {

CUtensorMap map_of(const Pages& pages, const PromptArgs& args, int64_t page_count) {
    return tensor_map(
        {.type = pages.format == PageFormat::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                  : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
         .swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
         .data = pages.data,
         .axes = 4,
         .shape = {static_cast<uint64_t>(args.head_size), kPageTokens,
                   static_cast<uint64_t>(args.kv_heads), static_cast<uint64_t>(page_count)},
         .stride_bytes = {static_cast<uint64_t>(pages.row_bytes),
                          static_cast<uint64_t>(pages.head_bytes),
                          static_cast<uint64_t>(pages.page_bytes)},
         .box = {64, kPageTokens, 1, 1}});
}

template <class Form>
void launch_form(Device& device, const PromptArgs& args, int64_t page_count) {
    const int64_t tiles =
        ceil_div(int64_t{args.prompt_rows} * args.group, kWideColumns) + args.batch.sequences;
    const dim3 grid(
        static_cast<uint32_t>(std::min<int64_t>(device.multiprocessors(), tiles * args.kv_heads)));
    constexpr size_t kSharedBytes = sizeof(WideShared<Form>) + 1024;  // room to align it
    static_assert(kSharedBytes <= 227 * 1024, "a block's shared memory on sm_90");
    device.launch("attend_wide_tiles", attend_wide_tiles<Form>, grid, dim3(kWideThreads),
                  kSharedBytes, args, map_of(args.keys, args, page_count),
                  map_of(args.values, args, page_count));
}

}  // namespace

bool attend_wide(Device& device, const PromptArgs& args, int64_t page_count) {
    const auto whole = [](const void* data, int64_t floats) {
        return (reinterpret_cast<uintptr_t>(data) / 4 | static_cast<uintptr_t>(floats)) % 4 == 0;
    };
    const PageFormat format = args.keys.format;
    const bool fits = device.properties().major == 9 && device.properties().minor == 0 &&
                      (format == PageFormat::kBF16 || format == PageFormat::kF16) &&
                      args.values.format == format && args.keys.aligned && args.values.aligned &&
                      (args.head_size == 64 || args.head_size == 128 || args.head_size == 256) &&
                      args.scale > 0.0f && whole(args.q, args.q_row_stride | args.q_head_stride) &&
                      whole(args.out, args.out_stride);
    if (!fits) return false;
    const auto launch = [&]<bool kHalf>() {
        if (args.head_size == 64)
            launch_form<WideForm<64, 128, 3, 6, kHalf, true>>(device, args, page_count);
        else if (args.head_size == 128)
            launch_form<WideForm<128, 128, 2, 4, kHalf, true>>(device, args, page_count);
        else
            launch_form<WideForm<256, 64, 2, 2, kHalf, false>>(device, args, page_count);
    };
    if (format == PageFormat::kF16)
        launch.operator()<true>();
    else
        launch.operator()<false>();
    return true;
}

}  // namespace tessera::cuda
