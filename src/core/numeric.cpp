#include "core/numeric.h"

namespace tessera {

uint8_t e2m1_from_f32(float value) {
    if (std::isnan(value)) return 7;
    const float magnitude = std::fabs(value);
    // Each midpoint that is passed raises the code by one; a midpoint itself belongs to the even
    // code beside it, hence the alternation of > and >=.
    const int code = int{magnitude > 0.25f} + int{magnitude >= 0.75f} + int{magnitude > 1.25f} +
                     int{magnitude >= 1.75f} + int{magnitude > 2.5f} + int{magnitude >= 3.5f} +
                     int{magnitude > 5.0f};
    return static_cast<uint8_t>(code | (std::signbit(value) ? 8 : 0));
}

float f32_from_ue4m3(uint8_t code) {
    const uint32_t magnitude = code & 0x7fu;
    if (magnitude == 0x7fu) return 0.0f;
    if (magnitude < 8) return static_cast<float>(magnitude) * 0x1p-9f;
    return std::bit_cast<float>((magnitude << 20) + (120u << 23));
}

uint8_t ue4m3_from_f32(float value) {
    if (!(value > 0.0f)) return 0;
    if (value >= 448.0f) return 0x7e;
    // Below the smallest normal number 2^-6 codes count steps of 2^-9. Adding 2^14 makes the adder
    // round to such a step (the sum's last place is 2^-9), to nearest even.
    if (value < 0x1p-6f)
        return static_cast<uint8_t>(std::bit_cast<uint32_t>(value + 0x1p14f) & 0xffu);
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = bits + 0x7ffffu + ((bits >> 20) & 1u);
    return static_cast<uint8_t>((rounded >> 20) - (120u << 3));
}

}  // namespace tessera
