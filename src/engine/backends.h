#pragma once
// What the engine asks about backends beside their ops; the factory itself is make_ops().

#include <cstdint>
#include <span>

#include "ops/ops.h"

namespace tessera {

/// Memory of the device that an engine takes beside blocks of these sizes, allocated in this order:
/// 0 on the host.
int64_t bytes_beside(const Ops& ops, std::span<const int64_t> blocks);

}  // namespace tessera
