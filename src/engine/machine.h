#pragma once
// What this machine offers: cores and memory.

#include <cstdint>

namespace tessera {

/// Physical cores that this process may run on (hyper-threads of one core count once); at least 1.
int32_t physical_cores();

/// Bytes that can be taken without swapping: MemAvailable, capped by the limit of the control
/// group; 0 if unknown.
int64_t available_memory_bytes();

/// Hands heap memory that was freed back to the machine, where the C library can.
void release_free_heap();

}  // namespace tessera
