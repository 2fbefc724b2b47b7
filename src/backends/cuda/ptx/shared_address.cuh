#pragma once

#include <cstdint>

namespace tessera::cuda {

/// The address of shared memory as instructions for that memory alone take it.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

}  // namespace tessera::cuda
