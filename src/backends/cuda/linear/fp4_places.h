#pragma once
// Where the operands of the FP4 product of gemm_nvfp4_sm120.cuh stand: shared by the kernel and by
// the emulator of lanes in the tests, so plain C++.
//
// An instruction multiplies 16 rows of the weight (A) by 8 tokens (B) over 64 columns. With
// g = lane / 4 and t = lane % 4 its lane wants, eight codes a word,
//   A: a[0] = row g, columns 8t..; a[1] = row g + 8; a[2], a[3] = the same rows, columns 32 + 8t..
//   B: b[0] = token g, columns 8t..; b[1] = columns 32 + 8t..
// (PTX ISA, mma.m16n8k64 with .kind::mxf4nvf4). Word t of a unit of 32 codes is what lane t wants,
// so that rows of whole units in shared memory are the 8 x 8 matrices of ldmatrix.
//
// A byte of the four in a lane's scale register scales 16 columns. Of the scale registers only
// those of chosen lanes are read: row m of A has its scales in lane 4 (m % 8) + 2 s + m / 8, s = 0
// or 1, token n in lane 4 n + s, s = 0 to 3. Other selectors read other lanes, so that one register
// of all lanes serves several instructions: the halves of a stage, and two groups of tokens.

#include <cstdint>

namespace tessera::cuda::sm120 {

inline constexpr int kStageColumns = 128;
inline constexpr int kRowBytes = kStageColumns / 2;        ///< codes of a row in a stage
inline constexpr int kRowScaleBytes = kStageColumns / 16;  ///< block scales of a row in a stage
inline constexpr int kHalves = 2;                          ///< of a stage, an instruction long each
inline constexpr int kHalfUnits = 2;
inline constexpr int kUnitBytes = 16;
inline constexpr int kScaleGroup = 64;  ///< tokens whose scales a lane loads at a time
/// Warps that multiply have 16 rows of the weight out of every so many of the tile, a fragment
/// each. In gated products the first ones are gate's and the second ones up's: a thread has both.
inline constexpr int kFragmentRows = 128;

/// Byte of unit 0 to 3 of a row in a stage, as copies with a 64-byte swizzle put it: eight rows of
/// one unit lie in different banks. Sixteen rows further is sixteen rows of bytes further.
constexpr uint32_t unit_place(uint32_t row, uint32_t unit) {
    return row * kRowBytes + ((unit ^ (row >> 1 & 3u)) * kUnitBytes);
}

/// The row and the unit of a half that a lane points ldmatrix at, for 16 rows of the weight.
constexpr uint32_t weight_lane_row(uint32_t lane) {
    return lane % 16;
}
constexpr uint32_t weight_lane_unit(uint32_t lane) {
    return lane / 16;
}
/// The same for 16 tokens: out[0], out[1] are b of the first eight, out[2], out[3] of the others.
constexpr uint32_t token_lane_row(uint32_t lane) {
    return lane % 8 + lane / 16 * 8;
}
constexpr uint32_t token_lane_unit(uint32_t lane) {
    return lane / 8 % 2;
}

/// Byte of the four scales of a half of a row of the weight. Warps have `words` fragments (1 or 2)
/// and load that many words a lane, one for each.
constexpr uint32_t weight_scale_place(uint32_t row, uint32_t half, uint32_t words) {
    const uint32_t warp = row % kFragmentRows / 16, inside = row % 16;
    const uint32_t lane = 4 * (inside % 8) + 2 * half + inside / 8;
    return ((warp * 32 + lane) * words + row / kFragmentRows) * 4;
}
/// The selector that reads them.
constexpr int weight_selector(int half) {
    return half;
}

/// Byte of the four scales of a half of a token. A lane loads 16 bytes for every 64 tokens: word
/// i is that of fragments (of eight tokens) i and i + 4.
constexpr uint32_t token_scale_place(uint32_t token, uint32_t half) {
    const uint32_t group = token / kScaleGroup, inside = token % kScaleGroup;
    const uint32_t lane = 4 * (inside % 8) + 2 * half + inside / 32;
    return (group * 32 + lane) * 16 + inside / 8 % 4 * 4;
}
/// Word and selector of fragment 0 to 7 of a group.
constexpr int token_scale_word(int fragment) {
    return fragment % 4;
}
constexpr int token_selector(int half, int fragment) {
    return 2 * half + fragment / 4 % 2;
}

/// Where a warp of the products reads: bytes from the start of a stage's weights, tokens, and of
/// their scales.
template <int Fragments>
struct Places {
    uint32_t weights, tokens, weight_scales, token_scales;

    constexpr Places(uint32_t warp, uint32_t lane)
        : weights(unit_place(warp * 16 + weight_lane_row(lane), weight_lane_unit(lane))),
          tokens(unit_place(token_lane_row(lane), token_lane_unit(lane))),
          weight_scales((warp * 32 + lane) * Fragments * 4),
          token_scales(lane * 16) {}

    /// Of a fragment of the weight, or of tokens from a multiple of 16 on, in one half. Two units
    /// further is another bit of a unit's place.
    constexpr uint32_t weights_of(uint32_t fragment, uint32_t half) const {
        return (weights ^ half * (kHalfUnits * kUnitBytes)) + fragment * kFragmentRows * kRowBytes;
    }
    constexpr uint32_t tokens_of(uint32_t token, uint32_t half) const {
        return (tokens ^ half * (kHalfUnits * kUnitBytes)) + token * kRowBytes;
    }
    /// Of the scales of a group of tokens.
    constexpr uint32_t token_scales_of(uint32_t group) const { return token_scales + group * 512; }
};

/// Eight E2M1 codes, code i in bits 4i to 4i + 3, from a word of a resident weight, whose
/// magnitudes stand there but whose signs stand where its decoders want them (formats.cuh): that of
/// value i < 4 in bit 8i + 7, that of i >= 4 in bit 8 (i - 4) + 3. `bits` has pick_bytes() and
/// choose_bits() (ptx/permute.cuh, ptx/fp4_mma.cuh). Five instructions.
template <class Bits>
constexpr uint32_t whole_codes(uint32_t word, const Bits& bits) {
    const uint32_t later = word >> 4;
    // The signs of the even values, which stand in bits 3, and of the odd ones, in bits 7.
    const uint32_t even = bits.pick_bytes(later, word, 0x6420u);
    const uint32_t odd = bits.pick_bytes(later, word, 0x2075u);
    return bits.choose_bits(0x80808080u, odd, bits.choose_bits(0x77777777u, word, even));
}

/// MXFP4 weights: the scale 2^(code - 127) of 32 columns becomes two equal ue4m3 numbers, as powers
/// of two from 2^-9 to 2^8 are, once the row is divided by a power of two that makes the largest of
/// its blocks with numbers 2^8 (or less where f32 has no such power). This is that power's exponent
/// as f32 has it.
constexpr int32_t row_exponent(int32_t largest) {
    return largest > 9 ? largest - 8 : 1;
}
/// The ue4m3 number of a block's scale. Below 2^-9, of blocks 2^-18 times the largest and less, it
/// is 0; above 2^8, which blocks of zeros may be, 2^8.
constexpr uint32_t power_scale(uint32_t code, int32_t exponent) {
    const int32_t power = static_cast<int32_t>(code) - exponent + 7;
    if (power > 0) return static_cast<uint32_t>(power < 15 ? power : 15) * 8;
    return power < -2 ? 0 : 8u >> (1 - power);
}
/// The four scales of a half from the two codes of its units.
constexpr uint32_t power_scales(uint32_t codes, int32_t exponent) {
    return (power_scale(codes & 0xffu, exponent) | power_scale(codes >> 8 & 0xffu, exponent)
                                                       << 16) *
           0x101u;
}

}  // namespace tessera::cuda::sm120
