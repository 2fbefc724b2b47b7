#include "tools/saturation.h"

#include <fmt/format.h>

#include "tools/terminal.h"

namespace tessera {

std::string saturation_note(std::span<const OpCount> counts, bool delta_bf16) {
    for (const OpCount& count : counts)
        if (count.name == kDeltaSaturated && count.calls > 0 && !delta_bf16)
            return fmt::format(
                "{} operands of the gated delta rule were beyond 65504, to which f16 clamps them, "
                "or no numbers: --delta-bf16 has the range, unless the model itself makes numbers "
                "that are none",
                count.calls);
    return "";
}

void note_saturation(Engine& engine) {
    const std::string note =
        saturation_note(engine.ops().op_counts(), engine.options().backend.delta_bf16);
    if (!note.empty()) print_note(note);
}

}  // namespace tessera
