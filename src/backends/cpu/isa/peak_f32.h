#pragma once
// The peak of f32 with vectors of one width.

#include "backends/cpu/isa/peak_kernels.h"
#include "backends/cpu/isa/vector.h"

namespace tessera::cpu {
namespace {

constexpr int32_t kPeakRounds = 1 << 17;

/// `kSums` independent sums, enough to hide the latency of two units and not more than there are
/// registers for.
template <class V, int32_t kSums>
double f32_loop(float* sink) {
    typename V::Float sums[kSums];
    for (auto& sum : sums) sum = V::set(1.0f);
    const auto factor = V::set(0.75f), addend = V::set(0.25f);
    for (int32_t round = 0; round < kPeakRounds; ++round)
        for (auto& sum : sums) {
            sum = V::fmadd(sum, factor, addend);
            asm volatile("" : "+v"(sum));  // or equal sums would be computed once
        }
    float lanes[V::kLanes];
    for (const auto& sum : sums) {
        V::store(lanes, sum);
        *sink += lanes[0];
    }
    return 2.0 * V::kLanes * kSums * kPeakRounds;
}

}  // namespace
}  // namespace tessera::cpu
