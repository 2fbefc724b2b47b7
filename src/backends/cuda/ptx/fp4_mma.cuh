#pragma once
// Products of E2M1 numbers with ue4m3 scales for every 16 columns: the instruction of sm_120, and
// the same out of shuffles and integer products for other cards. Which lane holds what:
// linear/fp4_places.h. All 32 lanes of a warp call these together.

#include <cstdint>

#include "backends/cuda/ptx/cvt_e2m1.cuh"
#include "backends/cuda/ptx/permute.cuh"

namespace tessera::cuda {

/// mma.m16n8k64 of sm_120f.
struct NativeFp4Mma {
    /// Whether this machine code can have the kernel.
    static constexpr bool kAvailable = TESSERA_NATIVE_FP4 == 1;
    /// What a test may do where roles wait for each other.
    static __device__ __forceinline__ void pause(uint32_t) {}

    /// c[0..3] += a b; selectors 0 or 1 for a, 0 to 3 for b.
    template <int ASelector, int BSelector>
    static __device__ __forceinline__ void run(float* c,
                                               const uint32_t (&a)[4],
                                               const uint32_t (&b)[2],
                                               uint32_t a_scales,
                                               uint32_t b_scales) {
#if TESSERA_NATIVE_FP4
        asm volatile(
            "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X"
            ".f32.e2m1.e2m1.f32.ue4m3 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3}, %10, {0, %12}, %11, {0, %13};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(a_scales),
              "r"(b_scales), "n"(ASelector), "n"(BSelector));
#endif
    }
};

/// Bits of `a` where `mask` has ones, of `b` elsewhere; in one instruction, which the compiler
/// would rather split.
__device__ __forceinline__ uint32_t choose_bits(uint32_t mask, uint32_t a, uint32_t b) {
    uint32_t out;
    asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(out) : "r"(mask), "r"(a), "r"(b));
    return out;
}

/// Four E2M1 codes (16 bits), doubled, as signed bytes.
__device__ __forceinline__ uint32_t doubled_e2m1(uint32_t codes) {
    const uint32_t magnitudes = pick_bytes(0x03020100u, 0x0c080604u, codes & 0x7777u);
    const uint32_t signs = (codes & 0x8u) << 4 | (codes & 0x80u) << 8 | (codes & 0x800u) << 12 |
                           (codes & 0x8000u) << 16;
    const uint32_t mask = (signs >> 7) * 255u;
    return __vsub4(magnitudes ^ mask, mask);
}
/// Four times the sum of the products of eight codes.
__device__ __forceinline__ int dot_e2m1(uint32_t a, uint32_t b, int sum) {
    sum = __dp4a(static_cast<int>(doubled_e2m1(a)), static_cast<int>(doubled_e2m1(b)), sum);
    return __dp4a(static_cast<int>(doubled_e2m1(a >> 16)), static_cast<int>(doubled_e2m1(b >> 16)),
                  sum);
}
/// Byte `index` of a word of ue4m3 numbers.
__device__ __forceinline__ float ue4m3_of(uint32_t scales, int index) {
    const uint32_t code = scales >> (8 * index) & 0x7fu;
    return code == 0x7fu ? __uint_as_float(0x7fffffffu) : __uint_as_float(code << 20) * 0x1p120f;
}

/// What NativeFp4Mma::run does, sums of 16 products exact and added to c in order. Not inlined: a
/// tile of them in one piece finds no registers.
static __device__ __noinline__ float4
emulate_fp4_mma(float4 c, uint4 a, uint2 b, uint32_t a_scales, uint32_t b_scales, int selectors) {
    constexpr unsigned kAll = 0xffffffffu;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int quad = lane / 4 * 4, t = lane % 4;
    int dots[4][4] = {};  // [of c][of 16 columns]
#pragma unroll
    for (int from = 0; from < 4; ++from) {
        const int block = from / 2;
        const uint32_t rows[4] = {
            __shfl_sync(kAll, a.x, quad + from), __shfl_sync(kAll, a.y, quad + from),
            __shfl_sync(kAll, a.z, quad + from), __shfl_sync(kAll, a.w, quad + from)};
#pragma unroll
        for (int column = 0; column < 2; ++column) {
            const int source = 8 * t + 4 * column + from;
            const uint32_t low = __shfl_sync(kAll, b.x, source);
            const uint32_t high = __shfl_sync(kAll, b.y, source);
#pragma unroll
            for (int row = 0; row < 2; ++row) {
                int(&own)[4] = dots[2 * row + column];
                own[block] = dot_e2m1(rows[row], low, own[block]);
                own[2 + block] = dot_e2m1(rows[2 + row], high, own[2 + block]);
            }
        }
    }
    const int a_lane = quad + 2 * (selectors & 1), b_lane = 8 * t + (selectors >> 1);
    const uint32_t of_rows[2] = {__shfl_sync(kAll, a_scales, a_lane),
                                 __shfl_sync(kAll, a_scales, a_lane + 1)};
    const uint32_t of_columns[2] = {__shfl_sync(kAll, b_scales, b_lane),
                                    __shfl_sync(kAll, b_scales, b_lane + 4)};
    float sums[4] = {c.x, c.y, c.z, c.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int block = 0; block < 4; ++block) {
            // Exact: at most 12 bits times 4 bits times 4 bits.
            const float term =
                0.25f * static_cast<float>(dots[i][block]) * ue4m3_of(of_rows[i / 2], block);
            sums[i] = fmaf(term, ue4m3_of(of_columns[i % 2], block), sums[i]);
        }
    }
    return {sums[0], sums[1], sums[2], sums[3]};
}

/// The same for every card: to show that kernels around it are right, not how fast they are.
struct EmulatedFp4Mma {
    static constexpr bool kAvailable = true;
    static __device__ __forceinline__ void pause(uint32_t) {}

    template <int ASelector, int BSelector>
    static __device__ __forceinline__ void run(float* c,
                                               const uint32_t (&a)[4],
                                               const uint32_t (&b)[2],
                                               uint32_t a_scales,
                                               uint32_t b_scales) {
        const float4 sums =
            emulate_fp4_mma({c[0], c[1], c[2], c[3]}, {a[0], a[1], a[2], a[3]}, {b[0], b[1]},
                            a_scales, b_scales, ASelector + 2 * BSelector);
        c[0] = sums.x;
        c[1] = sums.y;
        c[2] = sums.z;
        c[3] = sums.w;
    }
};

}  // namespace tessera::cuda
