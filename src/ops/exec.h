#pragma once
// What an op needs to run besides its operands.

#include <cstdint>

#include "core/arena.h"

namespace tessera {

/// Rows [0, prompt_rows) of every token-major tensor are prompt rows, the others are generated rows
/// (drafts and their verification included). A row's kernel family and activation format follow
/// from that alone, never from how many rows share the batch: this is what keeps greedy output
/// independent of -ub and of the neighbours in a batch.
struct Exec {
    Arena& arena;
    int32_t prompt_rows = 0;
    bool planning() const { return arena.planning(); }
};

}  // namespace tessera
