#pragma once
// The oracle: every op in plain loops, f64 accumulation, one formula per loop, no threads. Slow on
// purpose.

#include <memory>

#include "ops/ops.h"

namespace tessera {

struct ReferenceOptions {
    ActFormat act_prompt =
        ActFormat::kF32;  ///< rounding of activations, so that a backend under test can be
    ActFormat act_generated =
        ActFormat::kF32;  ///< compared with an oracle that starts from the same values
    Nvfp4Policy nvfp4 = Nvfp4Policy::kAmax6;  ///< of kNvfp4 rows
};

std::unique_ptr<Ops> make_reference_ops(const ReferenceOptions& options);

}  // namespace tessera
