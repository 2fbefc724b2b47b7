#pragma once
// Probes of the FP4 instruction: a warp makes the operands of each, multiplies, and compares every
// sum with its definition. A template, so that tests see it find an instruction that is wrong.

#include <cstdint>

#include "backends/cuda/linear/fp4_self_test.h"
#include "backends/cuda/ptx/fp4_mma.cuh"

namespace tessera::cuda {
namespace fp4_probe {

inline constexpr int kRows = 16, kTokens = 8, kColumns = 64;
inline constexpr int kRowSelectors = 2, kTokenSelectors = 4;
inline constexpr uint32_t kPoison = 0x7f7f7f7fu;  ///< scales that are no numbers

/// A sum that is wrong.
struct Finding {
    int32_t row, column;  ///< of the number in A
    int32_t sum_row, sum_token;
    int32_t row_selector, token_selector;
    float got, expected;
};
struct Findings {
    int32_t wrong;  ///< sums; -1: this machine code has no such instruction
    Finding first;
};

__device__ inline uint32_t mixed(uint32_t x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}
/// The number in A and those in B: E2M1 codes.
__device__ inline uint32_t a_code(int row, int column) {
    return 1 + static_cast<uint32_t>(row * kColumns + column) % 15;
}
__device__ inline uint32_t b_code(int token, int column) {
    return mixed(static_cast<uint32_t>(token * kColumns + column)) & 15u;
}
/// Scales from 0.5 to 3.75: sums of their products with small integers are exact.
__device__ inline uint32_t scale_code(uint32_t of, int block) {
    return 0x30u + mixed(of * 4 + static_cast<uint32_t>(block) + 0x10000u) % 0x18u;
}
__device__ inline uint32_t a_scale(int row, int block) {
    return scale_code(static_cast<uint32_t>(row), block);
}
__device__ inline uint32_t b_scale(int token, int block) {
    return scale_code(static_cast<uint32_t>(kRows + token), block);
}
__device__ inline float e2m1(uint32_t code) {
    const uint32_t exponent = code >> 1 & 3u, fraction = code & 1u;
    const float magnitude = exponent == 0 ? 0.5f * static_cast<float>(fraction)
                                          : static_cast<float>((2u + fraction) << exponent) * 0.25f;
    return (code & 8u) != 0 ? -magnitude : magnitude;
}
/// Of normal numbers.
__device__ inline float ue4m3(uint32_t code) {
    return ldexpf(static_cast<float>(8u + (code & 7u)), static_cast<int>(code >> 3) - 10);
}

/// Blocks of a warp: one number in A each.
template <class Mma>
__global__ void probe(Findings* findings) {
    if constexpr (Mma::kAvailable) {
        const int row = static_cast<int>(blockIdx.x) / kColumns;
        const int column = static_cast<int>(blockIdx.x) % kColumns;
        const int lane = static_cast<int>(threadIdx.x), group = lane / 4, t = lane % 4;
        uint32_t a[4] = {}, b[2] = {};
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (group == row % 8 && t == column % 32 / 8 && i == row / 8 + column / 32 * 2)
                a[i] = a_code(row, column) << (column % 8 * 4);
#pragma unroll
        for (int i = 0; i < 2; ++i)
            for (int j = 0; j < 8; ++j) b[i] |= b_code(group, 32 * i + 8 * t + j) << (4 * j);
        const auto check = [&]<int kA, int kB>() {
            uint32_t a_scales = kPoison, b_scales = kPoison;
            if (t / 2 == kA) a_scales = 0;
            if (t == kB) b_scales = 0;
            for (int block = 0; block < 4; ++block) {
                if (t / 2 == kA) a_scales |= a_scale(group + t % 2 * 8, block) << (8 * block);
                if (t == kB) b_scales |= b_scale(group, block) << (8 * block);
            }
            float sums[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[i] = static_cast<float>((lane + 3 * i) % 11 - 5);
            Mma::template run<kA, kB>(sums, a, b, a_scales, b_scales);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int sum_row = group + i / 2 * 8, token = 2 * t + i % 2;
                float expected = static_cast<float>((lane + 3 * i) % 11 - 5);
                if (sum_row == row)
                    expected += e2m1(a_code(row, column)) * ue4m3(a_scale(row, column / 16)) *
                                e2m1(b_code(token, column)) * ue4m3(b_scale(token, column / 16));
                if (sums[i] == expected || atomicAdd(&findings->wrong, 1) > 0) continue;
                findings->first = {row, column, sum_row, token, kA, kB, sums[i], expected};
            }
        };
        check.template operator()<0, 0>();
        check.template operator()<0, 1>();
        check.template operator()<0, 2>();
        check.template operator()<0, 3>();
        check.template operator()<1, 0>();
        check.template operator()<1, 1>();
        check.template operator()<1, 2>();
        check.template operator()<1, 3>();
    } else {
        if (blockIdx.x == 0 && threadIdx.x == 0) findings->wrong = -1;
    }
}

template <class Mma>
std::vector<std::string> check(Device& device) {
    auto* const memory = reinterpret_cast<Findings*>(device.allocate(sizeof(Findings)));
    Findings found{};
    device.send(memory, &found, sizeof(found));
    device.launch("probe_fp4", probe<Mma>, dim3(kRows * kColumns), dim3(32), 0, memory);
    device.synchronize();
    check_cuda(cudaMemcpy(&found, memory, sizeof(found), cudaMemcpyDeviceToHost),
               "reading the results of probes");
    if (found.wrong == 0) return {};
    if (found.wrong < 0) return {"this build has no FP4 instruction for this card"};
    const int sums = kRows * kColumns * kRowSelectors * kTokenSelectors * kRows * kTokens;
    const Finding& first = found.first;
    return {text(found.wrong, " of ", sums, " sums are wrong; the number in row ", first.row,
                 ", column ", first.column, ", with scale lanes ", first.row_selector, " and ",
                 first.token_selector, ", gave row ", first.sum_row, ", token ", first.sum_token,
                 " the sum ", first.got, " instead of ", first.expected)};
}

}  // namespace fp4_probe
}  // namespace tessera::cuda
