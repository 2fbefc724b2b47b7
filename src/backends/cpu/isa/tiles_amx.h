#pragma once
// What every AMX kernel needs around its tile instructions. Only included by *_amx.cpp; internal
// linkage throughout, see isa/vector.h.

#include <immintrin.h>

#include <cstdint>

namespace tessera::cpu {
namespace {

/// Palette 1, eight tiles of 16 rows x 64 bytes unless set otherwise.
struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64, "the layout that LDTILECFG reads");
/// A constant object: the compiler's intrinsic reads all 64 bytes but tells the optimiser of 8, so
/// stores to a local one may vanish.
[[maybe_unused]] constexpr TileConfig kWholeTiles;

/// Around the tile instructions of a thread that uses whole tiles.
[[maybe_unused]] void enter_tiles() {
    _tile_loadconfig(&kWholeTiles);
}
[[maybe_unused]] void leave_tiles() {
    _tile_release();
}

/// The compiler's tile loads do not say that they read memory: nothing may be moved across them.
inline void settle_memory() {
    asm volatile("" ::: "memory");
}

}  // namespace
}  // namespace tessera::cpu
