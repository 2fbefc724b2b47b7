// Launches of prompt_sm90.cuh.
#include <algorithm>

#include "backends/cuda/attention/attention_call.h"
#include "backends/cuda/attention/prompt_sm90.cuh"
#include "backends/cuda/attention/prompt_sm90.h"
#include "backends/cuda/tensor_map.h"

namespace tessera::cuda {
namespace {

template <class Form>
CUtensorMap map_of(const Pages& pages, const PromptArgs& args, int64_t page_count) {
    constexpr uint32_t kWidth = Form::kCoded ? CodeTile<Form::kHeadSize>::kWidth : 64;  // of a box
    constexpr bool kNarrow = Form::kCoded && kWidth == 64;                              // 64 bytes
    return tensor_map(
        {.type = Form::kCoded  ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                 : Form::kHalf ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                               : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
         .swizzle = kNarrow ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
         .data = pages.data,
         .axes = 4,
         .shape = {static_cast<uint64_t>(args.head_size), kPageTokens,
                   static_cast<uint64_t>(args.kv_heads), static_cast<uint64_t>(page_count)},
         .stride_bytes = {static_cast<uint64_t>(pages.row_bytes),
                          static_cast<uint64_t>(pages.head_bytes),
                          static_cast<uint64_t>(pages.page_bytes)},
         .box = {kWidth, kPageTokens, 1, 1}});
}

template <class Form>
void launch_form(Device& device, const PromptArgs& args, int64_t page_count) {
    const int64_t tiles =
        ceil_div(int64_t{args.prompt_rows} * args.group, kWideColumns) + args.batch.sequences;
    const dim3 grid(
        static_cast<uint32_t>(std::min<int64_t>(device.multiprocessors(), tiles * args.kv_heads)));
    constexpr size_t kSharedBytes = sizeof(WideShared<Form>) + 1024;  // room to align it
    static_assert(kSharedBytes <= 227 * 1024, "a block's shared memory on sm_90");
    device.launch_hopper("attend_wide_tiles", attend_wide_tiles<Form>, grid, dim3(kWideThreads),
                         kSharedBytes, args, map_of<Form>(args.keys, args, page_count),
                         map_of<Form>(args.values, args, page_count));
}

}  // namespace

bool attend_wide(Device& device, const PromptArgs& args, int64_t page_count) {
    const auto whole = [](const void* data, int64_t floats) {
        return (reinterpret_cast<uintptr_t>(data) / 4 | static_cast<uintptr_t>(floats)) % 4 == 0;
    };
    const auto copied = [](const Pages& pages) {
        const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(pages.data));
        return (address | pages.page_bytes | pages.head_bytes | pages.row_bytes) % 16 == 0;
    };
    const PageFormat format = args.keys.format;
    const bool fits =
        device.hopper_kernels() &&
        (format == PageFormat::kBF16 || format == PageFormat::kF16 || format == PageFormat::kF8) &&
        args.values.format == format && copied(args.keys) && copied(args.values) &&
        (args.head_size == 64 || args.head_size == 128 || args.head_size == 256) &&
        args.scale > 0.0f && whole(args.q, args.q_row_stride | args.q_head_stride) &&
        whole(args.out, args.out_stride);
    if (!fits) return false;
    const auto launch = [&]<PageFormat kFormat>() {
        if (args.head_size == 64)
            launch_form<WideForm<64, 128, 3, 6, kFormat, true>>(device, args, page_count);
        else if (args.head_size == 128)
            launch_form<WideForm<128, 128, 2, 4, kFormat, true>>(device, args, page_count);
        else
            launch_form<WideForm<256, 64, 2, 2, kFormat, false>>(device, args, page_count);
    };
    if (format == PageFormat::kF16)
        launch.operator()<PageFormat::kF16>();
    else if (format == PageFormat::kBF16)
        launch.operator()<PageFormat::kBF16>();
    else
        launch.operator()<PageFormat::kF8>();
    return true;
}

}  // namespace tessera::cuda
