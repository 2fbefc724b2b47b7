#pragma once
// Products of a warpgroup as in wgmma.cuh for f16 or bf16 operands, with sums as [tiles of 8
// columns][4]. After a wait for them, settle(sums) before they are read; before they are opened,
// settle() of what ordinary code wrote.

#include <cstdint>

namespace tessera::cuda {

/// Keeps what reads or writes the sums from moving across this place.
template <int kCount>
__device__ __forceinline__ void settle(float (&sums)[kCount][4]) {
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i)
        asm volatile("" : "+f"(sums[i][0]), "+f"(sums[i][1]), "+f"(sums[i][2]), "+f"(sums[i][3]));
}
/// The same for left operands.
template <int kCount>
__device__ __forceinline__ void settle(uint32_t (&left)[kCount][4]) {
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i)
        asm volatile("" : "+r"(left[i][0]), "+r"(left[i][1]), "+r"(left[i][2]), "+r"(left[i][3]));
}

/// wgmma_rows_128 for a matrix whose rows are the depth of the product: parts of 64 columns lie
/// `step` bytes apart; a step of 16 rows adds 128.
__device__ __forceinline__ uint64_t wgmma_columns_128(uint32_t address, uint32_t step) {
    constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
    constexpr uint64_t kGroupStride = uint64_t{1024 >> 4} << 32;
    return kSwizzle128 | kGroupStride | static_cast<uint64_t>(step >> 4) << 16 |
           ((address & 0x3ffffu) >> 4);
}

#define TESSERA_SUMS_4(x) "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3])
#define TESSERA_SUMS_32(x, i)                                                         \
    TESSERA_SUMS_4(x[i]), TESSERA_SUMS_4(x[i + 1]), TESSERA_SUMS_4(x[i + 2]),         \
        TESSERA_SUMS_4(x[i + 3]), TESSERA_SUMS_4(x[i + 4]), TESSERA_SUMS_4(x[i + 5]), \
        TESSERA_SUMS_4(x[i + 6]), TESSERA_SUMS_4(x[i + 7])
#define TESSERA_WGMMA_64(type)                                                 \
    "{ .reg .pred add; setp.ne.b32 add, %37, 0;\n"                             \
    "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                \
    " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, "                                                               \
    "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "  \
    "{%32, %33, %34, %35}, %36, add, 1, 1, 0; }"
#define TESSERA_WGMMA_128(type)                                                \
    "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type               \
    " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, "                                                               \
    "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "   \
    "%32, %33, "                                                               \
    "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "   \
    "%48, %49, "                                                               \
    "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "  \
    "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;"

/// sums (64 x 64) = left (64 x 16) right, added to what they hold if `add`.
/// Right: 64 rows (the columns of the product) of contiguous depth.
template <bool kBf16>
__device__ __forceinline__ void multiply_group(float (&sums)[8][4],
                                               const uint32_t (&left)[4],
                                               uint64_t right,
                                               bool add) {
    if constexpr (kBf16)
        asm volatile(TESSERA_WGMMA_64("bf16")
                     : TESSERA_SUMS_32(sums, 0)
                     : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right),
                       "r"(static_cast<int32_t>(add)));
    else
        asm volatile(TESSERA_WGMMA_64("f16")
                     : TESSERA_SUMS_32(sums, 0)
                     : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right),
                       "r"(static_cast<int32_t>(add)));
}

/// sums (64 x 128) += left (64 x 16) right. Right: 16 rows (the depth) of
/// contiguous columns.
template <bool kBf16>
__device__ __forceinline__ void multiply_group_columns(float (&sums)[16][4],
                                                       const uint32_t (&left)[4],
                                                       uint64_t right) {
    if constexpr (kBf16)
        asm volatile(TESSERA_WGMMA_128("bf16")
                     : TESSERA_SUMS_32(sums, 0), TESSERA_SUMS_32(sums, 8)
                     : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));
    else
        asm volatile(TESSERA_WGMMA_128("f16")
                     : TESSERA_SUMS_32(sums, 0), TESSERA_SUMS_32(sums, 8)
                     : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));
}

#undef TESSERA_SUMS_4
#undef TESSERA_SUMS_32
#undef TESSERA_WGMMA_64
#undef TESSERA_WGMMA_128

}  // namespace tessera::cuda
