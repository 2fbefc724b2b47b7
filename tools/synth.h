#pragma once
// `tessera synth`: a valid random model of a given shape.

#include <string>

#include "models/synth.h"

namespace tessera {

struct SynthOptions {
    SynthSpec spec;
    std::string output;
};

/// Returns the exit code; failures are UserErrors.
int run_synth(const SynthOptions& options);

}  // namespace tessera
