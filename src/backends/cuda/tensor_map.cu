#include "backends/cuda/device.cuh"
#include "backends/cuda/tensor_map.h"

namespace tessera::cuda {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

/// The driver's function, without a link to the driver's library.
EncodeTiled encoder() {
    static const EncodeTiled found = [] {
        void* function = nullptr;
        cudaDriverEntryPointQueryResult result{};
        check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                    cudaEnableDefault, &result),
                   "cuTensorMapEncodeTiled");
        if (result != cudaDriverEntryPointSuccess || function == nullptr)
            throw UserError(ExitCode::kDevice, "the driver has no cuTensorMapEncodeTiled");
        return reinterpret_cast<EncodeTiled>(function);
    }();
    return found;
}

}  // namespace

CUtensorMap tensor_map(const BoxedTensor& tensor) {
    constexpr std::array<uint32_t, 4> kEvery{1, 1, 1, 1};
    CUtensorMap map;
    const CUresult status = encoder()(
        &map, tensor.type, tensor.axes, const_cast<void*>(tensor.data), tensor.shape.data(),
        tensor.stride_bytes.data(), tensor.box.data(), kEvery.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
        tensor.swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (status != CUDA_SUCCESS)
        throw UserError(ExitCode::kDevice,
                        text("cuTensorMapEncodeTiled: error ", static_cast<int>(status)));
    return map;
}

}  // namespace tessera::cuda
