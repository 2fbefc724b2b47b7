#pragma once
// From a file's blocks to the layout of formats.cuh. Runs once per weight; byte loads will do, the
// bus is slower.

#include <cstdint>

#include "backends/cuda/linear/formats.cuh"

namespace tessera::cuda {

/// The values of a unit before scaling, four bits each, and where their scales lie in the block.
struct Nibbles {
    uint8_t of[kUnit];
};

/// Byte j holds value j and, above it, value j + `half`; values in runs of 2 * half.
__device__ __forceinline__ Nibbles split_nibbles(const uint8_t* packed, int half) {
    Nibbles nibbles;
    for (int i = 0; i < kUnit; ++i) {
        const int run = i / (2 * half), within = i % (2 * half);
        const uint8_t byte = packed[run * half + within % half];
        nibbles.of[i] = static_cast<uint8_t>(within < half ? byte & 15 : byte >> 4);
    }
    return nibbles;
}

/// Values from the lower (`shift` 0) or upper (4) halves of 32 bytes.
__device__ __forceinline__ Nibbles one_half(const uint8_t* packed, int shift) {
    Nibbles nibbles;
    for (int i = 0; i < kUnit; ++i) nibbles.of[i] = static_cast<uint8_t>((packed[i] >> shift) & 15);
    return nibbles;
}

__device__ __forceinline__ uint4 pack_integers(const Nibbles& nibbles) {
    uint32_t words[4] = {};
    for (int i = 0; i < kUnit; ++i) words[i / 8] |= uint32_t{nibbles.of[i]} << (4 * (i % 8));
    return {words[0], words[1], words[2], words[3]};
}

__device__ __forceinline__ uint4 pack_e2m1(const Nibbles& nibbles) {
    uint32_t words[4] = {};
    for (int i = 0; i < kUnit; ++i) {
        const int place = i % 8;
        const int sign = place < 4 ? 8 * place + 7 : 8 * (place - 4) + 3;
        words[i / 8] |= (uint32_t{nibbles.of[i]} & 7u) << (4 * place);
        words[i / 8] |= (uint32_t{nibbles.of[i]} >> 3) << sign;
    }
    return {words[0], words[1], words[2], words[3]};
}

__device__ __forceinline__ void copy_bytes(uint8_t* to, const uint8_t* from, int count) {
    for (int i = 0; i < count; ++i) to[i] = from[i];
}

/// Six-bit scale and minimum j of Q4_K and Q5_K: sub-blocks 0 to 3 keep theirs in bytes j and
/// j + 4, the others have four bits in byte j + 4 and two more above those of j - 4 and j.
__device__ __forceinline__ void pack_scale_minimum(const uint8_t* packed, int j, uint8_t* to) {
    if (j < 4) {
        to[0] = packed[j] & 63;
        to[1] = packed[j + 4] & 63;
        return;
    }
    to[0] = static_cast<uint8_t>((packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4));
    to[1] = static_cast<uint8_t>((packed[j + 4] >> 4) | ((packed[j] >> 6) << 4));
}

/// Bit `j` of each of 32 bytes.
__device__ __forceinline__ uint32_t bit_plane(const uint8_t* bytes, int j) {
    uint32_t plane = 0;
    for (int i = 0; i < kUnit; ++i) plane |= ((uint32_t{bytes[i]} >> j) & 1u) << i;
    return plane;
}

/// Unit `unit` of a row, which is unit `sub` of `block`. `codes` and `scales` are the row's.
struct PackUnit {
    const uint8_t* block;
    int sub;
    uint8_t* codes;
    uint8_t* scales;
    int64_t unit;
    int64_t units;

    __device__ void put(const uint4& words) const {
        *reinterpret_cast<uint4*>(codes + unit * kPieceBytes) = words;
    }

    /// Formats with one scale (and minimum) in front of 32 values.
    __device__ void simple(DType format) const {
        if (format == DType::kQ4_0 || format == DType::kQ4_1) {
            const int bytes = format == DType::kQ4_0 ? 2 : 4;
            put(pack_integers(split_nibbles(block + bytes, 16)));
            copy_bytes(scales + unit * bytes, block, bytes);
            return;
        }
        uint8_t* scale = scales + unit * 8;
        const int bytes = format == DType::kQ5_0 ? 2 : 4;
        put(pack_integers(split_nibbles(block + bytes + 4, 16)));
        copy_bytes(scale, block + bytes, 4);
        copy_bytes(scale + 4, block, bytes);
        if (bytes == 2) scale[6] = scale[7] = 0;
    }

    __device__ void q8_0() const {
        for (int piece = 0; piece < 2; ++piece)
            copy_bytes(codes + piece_offset(2, units, unit, piece), block + 2 + 16 * piece, 16);
        copy_bytes(scales + unit * 2, block, 2);
    }

    __device__ void fp4(DType format) const {
        if (format == DType::kMXFP4) {
            put(pack_e2m1(split_nibbles(block + 1, 16)));
            scales[unit] = block[0];
            return;
        }
        put(pack_e2m1(split_nibbles(block + 4 + 16 * sub, 8)));
        copy_bytes(scales + unit * 2, block + 2 * sub, 2);
    }

    __device__ void q4_k_or_q5_k(bool fifth) const {
        uint8_t* group = scales + unit / 8 * (fifth ? 52 : 20);
        if (sub == 0) copy_bytes(group, block, 4);
        pack_scale_minimum(block + 4, sub, group + 4 + 2 * sub);
        const uint8_t* nibbles = block + (fifth ? 48 : 16) + sub / 2 * 32;
        put(pack_integers(one_half(nibbles, sub % 2 * 4)));
        if (!fifth) return;
        const uint32_t plane = bit_plane(block + 16, sub);
        *reinterpret_cast<uint32_t*>(group + 20 + 4 * sub) = plane;
    }

    /// A half of 128 values has its low four bits in 64 bytes (quarters 0 and 1 in the lower
    /// halves, 2 and 3 in the upper ones) and its upper two bits in 32 bytes, a quarter after the
    /// other.
    __device__ void q6_k() const {
        uint8_t* group = scales + unit / 8 * 84;
        const int half = sub / 4, quarter = sub % 4;
        if (sub == 0) {
            copy_bytes(group, block + 208, 2);
            group[2] = group[3] = 0;
        }
        copy_bytes(group + 4 + 2 * sub, block + 192 + 2 * sub, 2);
        put(pack_integers(one_half(block + 64 * half + quarter % 2 * 32, quarter / 2 * 4)));
        const uint8_t* high = block + 128 + 32 * half;
        uint32_t words[2] = {};
        for (int i = 0; i < kUnit; ++i)
            words[i / 16] |= ((uint32_t{high[i]} >> (2 * quarter)) & 3u) << (2 * (i % 16));
        auto* target = reinterpret_cast<uint32_t*>(group + 20 + 8 * sub);
        target[0] = words[0];
        target[1] = words[1];
    }

    __device__ void run(DType format) const {
        switch (format) {
            case DType::kQ8_0:
                return q8_0();
            case DType::kQ4_K:
            case DType::kQ5_K:
                return q4_k_or_q5_k(format == DType::kQ5_K);
            case DType::kQ6_K:
                return q6_k();
            case DType::kMXFP4:
            case DType::kNVFP4:
                return fp4(format);
            default:
                return simple(format);
        }
    }
};

}  // namespace tessera::cuda
