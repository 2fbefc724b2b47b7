#pragma once
// Choice of bytes (PTX ISA, prmt).

#include <cstdint>

namespace tessera::cuda {

/// Byte i of the result is byte `selector >> 4i & 7` of {high, low}; bit 3 of a nibble must be 0,
/// the upper 16 bits do not matter. Unlike __byte_perm, which masks its selectors.
__device__ __forceinline__ uint32_t pick_bytes(uint32_t low, uint32_t high, uint32_t selector) {
    uint32_t out;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(low), "r"(high), "r"(selector));
    return out;
}

}  // namespace tessera::cuda
