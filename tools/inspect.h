#pragma once
// `tessera inspect`: keys, tensors and memory of a model file.

#include "engine/engine.h"

namespace tessera {

struct InspectOptions {
    EngineOptions engine;  ///< model, and what the memory estimate depends on
    bool json = false;
    bool tensors = true;
    bool ops = false;  ///< list the fused ops that the backend overrides
};

/// Returns the exit code; failures are UserErrors.
int run_inspect(const InspectOptions& options);

}  // namespace tessera
