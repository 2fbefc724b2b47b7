// Peak of AMX for bf16; what our kernels multiply in f32 and int8 on such machines is AVX-512.
#if defined(__x86_64__)

#    include "backends/cpu/isa/peak_kernels.h"
#    include "backends/cpu/isa/tiles_amx.h"

namespace tessera::cpu {
namespace {

constexpr int32_t kRounds = 1 << 16;

double bf16_loop(float* sink) {
    alignas(64) uint32_t operands[16 * 16];
    alignas(64) float sums[16 * 16];
    // Random numbers, of magnitudes in [0.5, 1): idle data gave a quarter more than any model sees.
    uint32_t bits = 1;
    for (uint32_t& pair : operands) {
        bits = bits * 1664525u + 1013904223u;
        pair = ((bits ^ bits >> 16) & 0x807f807f) | 0x3f003f00;
    }
    settle_memory();
    enter_tiles();
    // Four tiles of sums, two left and two right operands: the shape of the kernels' inner loop.
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, operands, 64);
    _tile_loadd(5, operands, 64);
    _tile_loadd(6, operands, 64);
    _tile_loadd(7, operands, 64);
    for (int32_t round = 0; round < kRounds; ++round) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, 64);
    leave_tiles();
    settle_memory();
    *sink += sums[0];
    return 2.0 * 16 * 16 * 32 * 4 * kRounds;
}

}  // namespace

const PeakKernels& peak_kernels_amx() {
    static const PeakKernels kKernels = [] {
        PeakKernels kernels = peak_kernels_avx512();
        kernels.bf16 = bf16_loop;
        return kernels;
    }();
    return kKernels;
}

}  // namespace tessera::cpu

#endif
