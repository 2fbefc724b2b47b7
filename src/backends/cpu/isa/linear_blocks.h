#pragma once
// Row-block products for any instruction set: 16 rows of a weight times up to V::kTokens rows of
// activations, weights decoded in registers. A sum runs over the groups of a scale in order of
// columns: unscaled codes times activations inside a group, then one multiply-add by the scale.
// That order never changes with the number of rows. Internal linkage: see isa/vector.h.

#include "backends/cpu/isa/linear_formats.h"
#include "backends/cpu/isa/linear_rows.h"

namespace tessera::cpu {
namespace {

/// How far ahead codes are fetched: the hardware stops at page borders and scales are a second
/// stream.
inline constexpr int64_t kPrefetchBytes = 2048;

TESSERA_INLINE void prefetch_unit(const std::byte* codes, int unit_bytes) {
    for (int line = 0; line < unit_bytes; line += 64)
        __builtin_prefetch(codes + kPrefetchBytes + line, 0, 3);
}

template <class V, DType kFormat, int kTokens>
void dot_f32(const BlockTask& task, int64_t first) {
    using Float = typename V::Float;
    using Reader = Scales<V, kFormat>;
    constexpr int kParts = 16 / V::kLanes;
    constexpr int kGroup = group_cols(kFormat);
    const Codes<V, kFormat> codes;
    const float* x = static_cast<const float*>(task.x) + first * task.x_stride;
    Float total[kParts][kTokens];
    for (auto& part : total)
        for (Float& value : part) value = V::zero();
    for (int64_t u = 0; u < task.units; ++u) {
        const std::byte* unit = task.codes + u * Codes<V, kFormat>::kUnitBytes;
        prefetch_unit(unit, Codes<V, kFormat>::kUnitBytes);
        const float* column = x + u * kUnitCols;
        for (int part = 0; part < kParts; ++part) {
            const int row = part * V::kLanes;
            unroll<32 / kGroup>([&](auto group) __attribute__((always_inline)) {
                constexpr int kIndex = decltype(group)::value;
                Float sum[kTokens];
                for (Float& value : sum) value = V::zero();
                codes.template pairs<kIndex * kGroup, kGroup>(
                    unit, row, [&](int k, Float even, Float odd) __attribute__((always_inline)) {
                        for (int t = 0; t < kTokens; ++t) {
                            const float* place = column + t * task.x_stride + k;
                            sum[t] = V::fmadd(even, V::set(place[0]), sum[t]);
                            sum[t] = V::fmadd(odd, V::set(place[1]), sum[t]);
                        }
                    });
                if constexpr (Reader::kPresent) {
                    const Float scale = Reader::scale(task.scales, u, kIndex, row);
                    for (int t = 0; t < kTokens; ++t)
                        total[part][t] = V::fmadd(sum[t], scale, total[part][t]);
                } else {
                    for (int t = 0; t < kTokens; ++t)
                        total[part][t] = V::add(total[part][t], sum[t]);
                }
            });
            if constexpr (Reader::kMinimum) {
                const Float minimum = Reader::minimum(task.scales, u, row);
                for (int t = 0; t < kTokens; ++t)
                    total[part][t] = V::fmadd(
                        minimum, V::set(task.x_sums[(first + t) * task.units + u]), total[part][t]);
            }
        }
    }
    for (int part = 0; part < kParts; ++part)
        for (int t = 0; t < kTokens; ++t)
            V::store(task.sums + (first + t) * 16 + part * V::kLanes, total[part][t]);
}

template <class V, DType kFormat, int kTokens>
void dot_bytes(const BlockTask& task, int64_t first) {
    using Float = typename V::Float;
    using Int = typename V::Int;
    using Reader = Scales<V, kFormat>;
    constexpr int kParts = 16 / V::kLanes;
    constexpr int kGroups = 32 / group_cols(kFormat);
    constexpr bool kBiased = kFormat == DType::kQ8_0 ? V::kSignedBias : byte_offset(kFormat) != 0;
    constexpr float kCodeScale = is_fp4(kFormat) ? 0.5f : 1.0f;
    const Codes<V, kFormat> codes;
    const int8_t* x = static_cast<const int8_t*>(task.x) + first * task.x_stride;
    const int32_t* zeros = task.x_zeros + first * task.units * 2;
    const float* x_scales = task.x_scales + first * task.units;
    Float total[kParts][kTokens];
    for (auto& part : total)
        for (Float& value : part) value = V::zero();
    for (int64_t u = 0; u < task.units; ++u) {
        const std::byte* unit = task.codes + u * Codes<V, kFormat>::kUnitBytes;
        prefetch_unit(unit, Codes<V, kFormat>::kUnitBytes);
        const int8_t* column = x + u * kUnitCols;
        for (int part = 0; part < kParts; ++part) {
            const int row = part * V::kLanes;
            Float scaled[kTokens];
            unroll<kGroups>([&](auto group) __attribute__((always_inline)) {
                constexpr int kIndex = decltype(group)::value;
                constexpr int kQuads = 8 / kGroups;
                Int sum[kTokens];
                for (int t = 0; t < kTokens; ++t) {
                    const int32_t* zero = zeros + (t * task.units + u) * 2;
                    if constexpr (!kBiased)
                        sum[t] = V::set_int(0);
                    else
                        sum[t] = V::set_int(kGroups == 2 ? zero[kIndex] : zero[0] + zero[1]);
                }
                unroll<kQuads>([&](auto index) __attribute__((always_inline)) {
                    constexpr int kQuad = kIndex * kQuads + decltype(index)::value;
                    const Int weights = codes.template quad<kQuad>(unit, row);
                    for (int t = 0; t < kTokens; ++t) {
                        const Int word =
                            V::set_int(load_as<int32_t>(column + t * task.x_stride + 4 * kQuad));
                        if constexpr (kFormat == DType::kQ8_0)
                            sum[t] = V::dot_signed(sum[t], weights, word);
                        else
                            sum[t] = V::dot_bytes(sum[t], weights, word);
                    }
                });
                Float scale = Reader::scale(task.scales, u, kIndex, row);
                if constexpr (kCodeScale != 1.0f) scale = V::mul(scale, V::set(kCodeScale));
                for (int t = 0; t < kTokens; ++t) {
                    const Float value = V::to_float(sum[t]);
                    scaled[t] =
                        kIndex == 0 ? V::mul(value, scale) : V::fmadd(value, scale, scaled[t]);
                }
            });
            for (int t = 0; t < kTokens; ++t)
                total[part][t] =
                    V::fmadd(scaled[t], V::set(x_scales[t * task.units + u]), total[part][t]);
            if constexpr (Reader::kMinimum) {
                const Float minimum = Reader::minimum(task.scales, u, row);
                for (int t = 0; t < kTokens; ++t)
                    total[part][t] = V::fmadd(
                        minimum, V::set(task.x_sums[(first + t) * task.units + u]), total[part][t]);
            }
        }
    }
    for (int part = 0; part < kParts; ++part)
        for (int t = 0; t < kTokens; ++t)
            V::store(task.sums + (first + t) * 16 + part * V::kLanes, total[part][t]);
}

/// Eight, four, two, one rows at a time (four and one where registers are few).
template <class V, DType kFormat>
void block_f32(const BlockTask& task) {
    int64_t t = 0;
    for (; t + V::kTokens <= task.tokens; t += V::kTokens) dot_f32<V, kFormat, V::kTokens>(task, t);
    if constexpr (V::kTokens > 4)
        for (; t + 4 <= task.tokens; t += 4) dot_f32<V, kFormat, 4>(task, t);
    if constexpr (V::kTokens > 4)
        for (; t + 2 <= task.tokens; t += 2) dot_f32<V, kFormat, 2>(task, t);
    for (; t < task.tokens; ++t) dot_f32<V, kFormat, 1>(task, t);
}

template <class V, DType kFormat>
void block_bytes(const BlockTask& task) {
    int64_t t = 0;
    for (; t + V::kTokens <= task.tokens; t += V::kTokens)
        dot_bytes<V, kFormat, V::kTokens>(task, t);
    if constexpr (V::kTokens > 4)
        for (; t + 4 <= task.tokens; t += 4) dot_bytes<V, kFormat, 4>(task, t);
    if constexpr (V::kTokens > 4)
        for (; t + 2 <= task.tokens; t += 2) dot_bytes<V, kFormat, 2>(task, t);
    for (; t < task.tokens; ++t) dot_bytes<V, kFormat, 1>(task, t);
}

template <class V>
struct RegisterBlocks {
    template <DType kFormat>
    static constexpr BlockKernel kF32 = block_f32<V, kFormat>;
    template <DType kFormat>
    static constexpr BlockKernel kBytes = block_bytes<V, kFormat>;
};

}  // namespace
}  // namespace tessera::cpu
