#pragma once
// Descriptions of tensors for the copy engine (sm_90 and later).

#include <cuda.h>

#include <array>
#include <cstdint>

namespace tessera::cuda {

/// A tensor of which copies bring boxes to shared memory. The innermost axis comes first; its
/// elements lie together, the others have strides in bytes, multiples of 16. The base is aligned to
/// 16 bytes. Swizzled boxes are as wide as the swizzle.
struct BoxedTensor {
    CUtensorMapDataType type;
    CUtensorMapSwizzle swizzle;
    const void* data;
    uint32_t axes;  ///< 2 to 4
    std::array<uint64_t, 4> shape;
    std::array<uint64_t, 3> stride_bytes;  ///< of axis 1 and so on
    std::array<uint32_t, 4> box;
};

/// UserError(kDevice) where the driver does not know such maps or refuses this one.
CUtensorMap tensor_map(const BoxedTensor& tensor);

}  // namespace tessera::cuda
