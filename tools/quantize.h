#pragma once
// `tessera quantize`: a model in another number format.

#include "engine/quantize.h"

namespace tessera {

/// Returns the exit code; failures are UserErrors.
int run_quantize(const QuantizeOptions& options);

}  // namespace tessera
