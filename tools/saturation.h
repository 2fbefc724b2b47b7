#pragma once
// What to do about operands that a format could not hold.

#include <span>
#include <string>

#include "engine/engine.h"

namespace tessera {

/// One line of advice when operands of the gated delta rule saturated or were NaN: one counter has
/// both. Empty otherwise.
std::string saturation_note(std::span<const OpCount> counts, bool delta_bf16);

/// The same on stderr, for what the engine computed since its counters were last reset.
void note_saturation(Engine& engine);

}  // namespace tessera
