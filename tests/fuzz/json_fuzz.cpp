// Arbitrary JSON text: what is taken must survive being written and read again, the rest is refused
// with a UserError.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "text/json_limits.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    nlohmann::ordered_json value;
    try {
        value = tessera::parse_json(text, "fuzz");
    } catch (const tessera::UserError&) {
        return 0;
    }
    if (tessera::parse_json(value.dump(), "fuzz") != value) std::abort();
    return 0;
}
