#pragma once
// What this machine offers: cores and memory.

#include <cstdint>
#include <string>

namespace tessera {

/// Physical cores that this process may run on (hyper-threads of one core count once); at least 1.
int32_t physical_cores();

/// Bytes that can be taken without swapping: MemAvailable, capped by the limit of the control
/// group; 0 if unknown.
int64_t available_memory_bytes();

/// What the control group (version 2) of that folder still allows, cached files counted as free;
/// -1: no limit, or not known. Part of available_memory_bytes().
int64_t cgroup_available_bytes(const std::string& folder);

/// Hands heap memory that was freed back to the machine, where the C library can.
void release_free_heap();

}  // namespace tessera
