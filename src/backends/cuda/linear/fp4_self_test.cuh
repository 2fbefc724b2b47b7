#pragma once
// Probes of the FP4 instructions: a warp makes the operands of each, multiplies, and compares every
// sum with its definition; or rounds numbers in two ways. Templates, so that tests see them find an
// instruction that is wrong.

#include <cstdint>

#include "backends/cuda/linear/fp4_self_test.h"
#include "backends/cuda/ptx/fp4_mma.cuh"
#include "backends/cuda/rows/nearest_e2m1.cuh"

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

/// Numbers under a scale: 63 at the ties between two numbers of E2M1 and beside them, others.
inline constexpr int kRounded = 256, kScales = 127;

/// A number that is rounded wrongly.
struct Misrounding {
    float number;
    int32_t scale;          ///< its code
    int32_t got, expected;  ///< codes, where they differ: else what is wrong is the squared error
};
struct Misroundings {
    int32_t wrong;  ///< numbers; -1: this machine code has no such instruction
    Misrounding first;
};

__device__ inline float rounded_number(int index, uint32_t scale_code) {
    constexpr uint64_t kTies = 0x140e0a07050301u;  // four times each, a byte
    constexpr int kBeside = 9;
    const float scale = rows::ue4m3_value(scale_code);
    const uint32_t random = mixed(scale_code * kRounded + static_cast<uint32_t>(index));
    if (index < kBeside * 7) {
        const auto tie = static_cast<float>(kTies >> (index / kBeside * 8) & 0xffu) * 0.25f;
        return __int_as_float(__float_as_int(tie * scale) + index % kBeside - kBeside / 2);
    }
    if (index == 63) return __uint_as_float(0x7fffffffu);
    if (index == 64) return 0.0f;
    if (index == 65) return 0x1p100f;
    if (index < 80) return __uint_as_float(random >> 9);  // subnormal
    return static_cast<float>(random >> 8) * 0x1p-21f * scale;
}

/// Blocks of kRounded / 4 threads, one for each scale.
template <class Tried>
__global__ void probe_rounding(Misroundings* findings) {
    if constexpr (Tried::kAvailable) {
        const uint32_t scale_code = blockIdx.x;
        const float scale = rows::ue4m3_value(scale_code);
        for (const float sign : {1.0f, -1.0f}) {
            float numbers[4], errors[4], right_errors[4];
            for (int i = 0; i < 4; ++i)
                numbers[i] =
                    sign * rounded_number(static_cast<int>(4 * threadIdx.x) + i, scale_code);
            const Tried tried(scale);
            const rows::SoftwareE2m1 right(scale);
            const uint32_t codes = tried.codes(numbers), right_codes = right.codes(numbers);
            tried.squared_errors(numbers, errors);
            right.squared_errors(numbers, right_errors);
            for (int i = 0; i < 4; ++i) {
                const auto got = static_cast<int32_t>(codes >> (4 * i) & 15u);
                const auto expected = static_cast<int32_t>(right_codes >> (4 * i) & 15u);
                const bool same_error =
                    __float_as_uint(errors[i]) == __float_as_uint(right_errors[i]) ||
                    (isnan(errors[i]) && isnan(right_errors[i]));
                if ((got == expected && same_error) || atomicAdd(&findings->wrong, 1) > 0) continue;
                findings->first = {numbers[i], static_cast<int32_t>(scale_code), got, expected};
            }
        }
    } else {
        if (blockIdx.x == 0 && threadIdx.x == 0) findings->wrong = -1;
    }
}

template <class Tried>
std::vector<std::string> check_rounding(Device& device) {
    auto* const memory = reinterpret_cast<Misroundings*>(device.allocate(sizeof(Misroundings)));
    Misroundings found{};
    device.send(memory, &found, sizeof(found));
    device.launch("probe_rounding", probe_rounding<Tried>, dim3(kScales), dim3(kRounded / 4), 0,
                  memory);
    device.synchronize();
    check_cuda(cudaMemcpy(&found, memory, sizeof(found), cudaMemcpyDeviceToHost),
               "reading the results of probes");
    if (found.wrong == 0) return {};
    if (found.wrong < 0) return {"this build has no FP4 instruction for this card"};
    const Misrounding& first = found.first;
    return {text(found.wrong, " of ", 2 * kRounded * kScales,
                 " numbers are wrongly rounded to E2M1; ", first.number, " under the scale code ",
                 first.scale,
                 first.got == first.expected
                     ? std::string(" has another squared error")
                     : text(" has the code ", first.got, " instead of ", first.expected))};
}

}  // namespace fp4_probe
}  // namespace tessera::cuda
