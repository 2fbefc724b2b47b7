#pragma once
// A value that the compiler knows nothing about any more: what is computed from it is computed anew
// instead of being kept in registers since the last time.

#include <cstdint>

namespace tessera::cuda {

__device__ __forceinline__ void make_opaque(float& value) {
    asm volatile("" : "+f"(value));
}
__device__ __forceinline__ void make_opaque(int32_t& value) {
    asm volatile("" : "+r"(value));
}
__device__ __forceinline__ void make_opaque(uint32_t& value) {
    asm volatile("" : "+r"(value));
}
template <class T>
__device__ __forceinline__ void make_opaque(T*& pointer) {
    asm volatile("" : "+l"(pointer));
}

}  // namespace tessera::cuda
