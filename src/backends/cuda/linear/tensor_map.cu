// The function comes from the driver by name, so that nothing links against it.
#include "backends/cuda/device.cuh"
#include "backends/cuda/linear/tensor_map.h"

namespace tessera::cuda {
namespace {

using Encode = CUresult (*)(CUtensorMap*,
                            CUtensorMapDataType,
                            cuuint32_t,
                            void*,
                            const cuuint64_t*,
                            const cuuint64_t*,
                            const cuuint32_t*,
                            const cuuint32_t*,
                            CUtensorMapInterleave,
                            CUtensorMapSwizzle,
                            CUtensorMapL2promotion,
                            CUtensorMapFloatOOBfill);

Encode find_encode() {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    constexpr unsigned kVersion = 12000;
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kVersion,
                                                cudaEnableDefault, &result),
               "looking for the driver's tensor maps");
    if (result != cudaDriverEntryPointSuccess || function == nullptr)
        check_cuda(cudaErrorInsufficientDriver, "looking for the driver's tensor maps");
    return reinterpret_cast<Encode>(function);
}

}  // namespace

CUtensorMap tensor_map(const MatrixMap& matrix) {
    static const Encode encode = find_encode();
    CUtensorMap map;
    const cuuint64_t shape[2] = {static_cast<cuuint64_t>(matrix.cols),
                                 static_cast<cuuint64_t>(matrix.rows)};
    const cuuint64_t stride[1] = {static_cast<cuuint64_t>(matrix.stride)};
    const cuuint32_t box[2] = {static_cast<cuuint32_t>(matrix.box_cols),
                               static_cast<cuuint32_t>(matrix.box_rows)};
    const cuuint32_t elements[2] = {1, 1};
    const CUresult status =
        encode(&map, matrix.type, 2, const_cast<void*>(matrix.base), shape, stride, box, elements,
               CU_TENSOR_MAP_INTERLEAVE_NONE, matrix.swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (status != CUDA_SUCCESS) check_cuda(cudaErrorInvalidValue, "describing a matrix");
    return map;
}

}  // namespace tessera::cuda
