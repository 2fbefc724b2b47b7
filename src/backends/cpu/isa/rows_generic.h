#pragma once
// The row kernels, written once over a register type V of isa/vector.h.

#include <cmath>
#include <cstring>
#include <limits>

#include "backends/cpu/isa/rows_kernels.h"
#include "backends/cpu/isa/rows_vector.h"

namespace tessera::cpu {
namespace {

template <class V>
struct RowOps {
    using F = typename V::Float;
    using L = Lane<V>;
    static constexpr int64_t kWidth = V::kLanes;

    /// The `count` < kWidth values at p in front of `fill`.
    static F load_tail(const float* p, int64_t count, float fill) {
        float buffer[kWidth];
        for (int64_t i = 0; i < kWidth; ++i) buffer[i] = fill;
        std::memcpy(buffer, p, static_cast<size_t>(count) * sizeof(float));
        return V::load(buffer);
    }
    static void store_tail(float* p, int64_t count, F value) {
        float buffer[kWidth];
        V::store(buffer, value);
        std::memcpy(p, buffer, static_cast<size_t>(count) * sizeof(float));
    }

    template <class Operation>
    static void map(const float* x, int64_t count, float* out, Operation operation) {
        int64_t i = 0;
        for (; i + kWidth <= count; i += kWidth) V::store(out + i, operation(V::load(x + i)));
        if (i < count) store_tail(out + i, count - i, operation(load_tail(x + i, count - i, 0.0f)));
    }
    template <class Operation>
    static void map2(
        const float* a, const float* b, int64_t count, float* out, Operation operation) {
        int64_t i = 0;
        for (; i + kWidth <= count; i += kWidth)
            V::store(out + i, operation(V::load(a + i), V::load(b + i)));
        if (i < count)
            store_tail(
                out + i, count - i,
                operation(load_tail(a + i, count - i, 0.0f), load_tail(b + i, count - i, 0.0f)));
    }

    static double square_sum(const float* x, int64_t cols) {
        const int64_t whole = cols / kWidth;
        double total = L::square_sum(x, whole);
        for (int64_t i = whole * kWidth; i < cols; ++i) total += static_cast<double>(x[i]) * x[i];
        return total;
    }
    static F norm_factor(const float* x, float eps, int64_t cols) {
        const double mean = square_sum(x, cols) / static_cast<double>(cols);
        return V::set(static_cast<float>(1.0 / __builtin_sqrt(mean + static_cast<double>(eps))));
    }

    static void rms_norm(const float* x, const float* gain, float eps, int64_t cols, float* out) {
        const F factor = norm_factor(x, eps, cols);
        if (gain == nullptr) {
            map(x, cols, out, [factor](F value) { return V::mul(value, factor); });
        } else {
            map2(x, gain, cols, out,
                 [factor](F value, F g) { return V::mul(V::mul(value, factor), g); });
        }
    }

    static void l2_norm(float* x, float eps, int64_t cols) {
        const double sum = square_sum(x, cols) + static_cast<double>(eps);
        const F factor = V::set(static_cast<float>(1.0 / __builtin_sqrt(sum)));
        map(x, cols, x, [factor](F value) { return V::mul(value, factor); });
    }

    static void rms_norm_bf16(
        const float* x, const float* gain, float eps, int64_t cols, uint16_t* out) {
        const F factor = norm_factor(x, eps, cols);
        const F one = V::set(1.0f);
        int64_t i = 0;
        for (; i + kWidth <= cols; i += kWidth) {
            const F g = gain == nullptr ? one : V::load(gain + i);
            L::store_bf16(out + i, V::mul(V::mul(V::load(x + i), factor), g));
        }
        if (i == cols) return;
        const F g = gain == nullptr ? one : load_tail(gain + i, cols - i, 0.0f);
        uint16_t buffer[kWidth];
        L::store_bf16(buffer, V::mul(V::mul(load_tail(x + i, cols - i, 0.0f), factor), g));
        std::memcpy(out + i, buffer, static_cast<size_t>(cols - i) * sizeof(uint16_t));
    }

    static void glu(Glu kind, const float* gate, const float* up, int64_t count, float* out) {
        switch (kind) {
            case Glu::kSwiGlu:
                return map2(gate, up, count, out,
                            [](F g, F u) { return V::mul(silu_of<V>(g), u); });
            case Glu::kGeGlu:
                return map2(gate, up, count, out,
                            [](F g, F u) { return V::mul(gelu_of<V>(g), u); });
            case Glu::kReGlu:
                return map2(gate, up, count, out,
                            [](F g, F u) { return V::mul(relu_of<V>(g), u); });
            case Glu::kSigmoid:
                return map2(gate, up, count, out,
                            [](F g, F u) { return V::mul(sigmoid_of<V>(g), u); });
        }
    }

    static void add(const float* a, const float* b, int64_t count, float* out) {
        map2(a, b, count, out, [](F x, F y) { return V::add(x, y); });
    }

    static void softmax(const float* x, float scale, int64_t visible, int64_t cols, float* out) {
        constexpr float kLowest = -std::numeric_limits<float>::infinity();
        const F factor = V::set(scale);
        F largest = V::set(kLowest);
        map(x, visible, out, [factor](F value) { return V::mul(value, factor); });
        int64_t i = 0;
        for (; i + kWidth <= visible; i += kWidth) largest = V::max(V::load(out + i), largest);
        if (i < visible) largest = V::max(load_tail(out + i, visible - i, kLowest), largest);
        const F maximum = V::set(L::largest(largest));
        // Lanes are emptied into an f64 total every block: the sum of a long row stays exact to
        // f32.
        constexpr int64_t kBlock = 64 * kWidth;
        double total = 0;
        for (int64_t begin = 0; begin < visible; begin += kBlock) {
            const int64_t end = begin + kBlock < visible ? begin + kBlock : visible;
            F lanes = V::set(0.0f);
            for (i = begin; i + kWidth <= end; i += kWidth) {
                const F value = exp_of<V>(V::sub(V::load(out + i), maximum));
                V::store(out + i, value);
                lanes = V::add(lanes, value);
            }
            if (i < end) {
                const F value = exp_of<V>(V::sub(load_tail(out + i, end - i, kLowest), maximum));
                store_tail(out + i, end - i, value);
                lanes = V::add(lanes, value);
            }
            total += static_cast<double>(L::sum(lanes));
        }
        const F inverse = V::set(static_cast<float>(1.0 / total));
        map(out, visible, out, [inverse](F value) { return V::mul(value, inverse); });
        if (visible < cols)
            std::memset(out + visible, 0, static_cast<size_t>(cols - visible) * sizeof(float));
    }

    static void rope(const float* turns, RopePairs pairs, int32_t rotary, float* head) {
        const float* cosines = turns;
        const float* sines = turns + rotary;
        const int64_t half = rotary / 2;
        int64_t i = 0;
        if (pairs == RopePairs::kAdjacent) {
            for (; kWidth > 1 && i + kWidth <= rotary; i += kWidth) {
                const F x = V::load(head + i);
                V::store(head + i, V::fmadd(x, V::load(cosines + i),
                                            V::mul(L::swap_pairs(x), V::load(sines + i))));
            }
            for (; i < rotary; i += 2) turn(cosines, sines, i, i + 1, head);
        } else {
            for (; i + kWidth <= half; i += kWidth) {
                const F x = V::load(head + i), y = V::load(head + half + i);
                V::store(head + i,
                         V::fmadd(x, V::load(cosines + i), V::mul(y, V::load(sines + i))));
                V::store(head + half + i, V::fmadd(y, V::load(cosines + half + i),
                                                   V::mul(x, V::load(sines + half + i))));
            }
            for (; i < half; ++i) turn(cosines, sines, i, half + i, head);
        }
    }
    /// One pair, in the arithmetic of the registers.
    static void turn(
        const float* cosines, const float* sines, int64_t first, int64_t second, float* head) {
        const F x = V::set(head[first]), y = V::set(head[second]);
        const F a = V::fmadd(x, V::set(cosines[first]), V::mul(y, V::set(sines[first])));
        const F b = V::fmadd(y, V::set(cosines[second]), V::mul(x, V::set(sines[second])));
        store_tail(head + first, 1, a);
        store_tail(head + second, 1, b);
    }

    template <class Store>
    static void narrow_with(const float* x, int64_t count, uint16_t* out, Store put) {
        int64_t i = 0;
        for (; i + kWidth <= count; i += kWidth) put(out + i, V::load(x + i));
        if (i == count) return;
        uint16_t buffer[kWidth];
        put(buffer, load_tail(x + i, count - i, 0.0f));
        std::memcpy(out + i, buffer, static_cast<size_t>(count - i) * sizeof(uint16_t));
    }
    static void f16_from_f32(const float* x, int64_t count, uint16_t* out) {
        narrow_with(x, count, out, [](uint16_t* p, F value) { L::store_f16(p, value); });
    }
    static void bf16_from_f32(const float* x, int64_t count, uint16_t* out) {
        narrow_with(x, count, out, [](uint16_t* p, F value) { L::store_bf16(p, value); });
    }
    template <class Load>
    static void widen_with(const uint16_t* x, int64_t count, float* out, Load load) {
        int64_t i = 0;
        for (; i + kWidth <= count; i += kWidth) V::store(out + i, load(x + i));
        if (i == count) return;
        uint16_t buffer[kWidth] = {};
        std::memcpy(buffer, x + i, static_cast<size_t>(count - i) * sizeof(uint16_t));
        store_tail(out + i, count - i, load(buffer));
    }
    static void f32_from_f16(const uint16_t* x, int64_t count, float* out) {
        widen_with(x, count, out, [](const uint16_t* p) { return V::load_half(p); });
    }
    static void f32_from_bf16(const uint16_t* x, int64_t count, float* out) {
        widen_with(x, count, out, [](const uint16_t* p) { return L::load_bf16(p); });
    }

    static float largest(const float* x, int64_t count, bool* has_nan) {
        constexpr float kLowest = -std::numeric_limits<float>::infinity();
        F maxima[4] = {V::set(kLowest), V::set(kLowest), V::set(kLowest), V::set(kLowest)};
        // x - x would also catch infinities; a value that differs from itself is only NaN.
        bool nan = false;
        int64_t i = 0;
        for (; i + 4 * kWidth <= count; i += 4 * kWidth)
            for (int64_t j = 0; j < 4; ++j) {
                const F value = V::load(x + i + j * kWidth);
                nan |= L::any_differs(value, value);
                maxima[j] = V::max(value, maxima[j]);
            }
        for (; i < count; i += kWidth) {
            const F value =
                i + kWidth <= count ? V::load(x + i) : load_tail(x + i, count - i, kLowest);
            nan |= L::any_differs(value, value);
            maxima[0] = V::max(value, maxima[0]);
        }
        *has_nan = nan;
        return L::largest(V::max(V::max(maxima[0], maxima[1]), V::max(maxima[2], maxima[3])));
    }

    static int64_t find_at_least(const float* x, int64_t begin, int64_t count, float floor) {
        const F threshold = V::set(floor);
        int64_t i = begin;
        for (; i + kWidth <= count; i += kWidth)
            if (L::any_at_least(V::load(x + i), threshold)) break;
        while (i < count && !(x[i] >= floor)) ++i;
        return i;
    }
};

template <class V>
constexpr RowKernels make_row_kernels() {
    using R = RowOps<V>;
    return {.rms_norm = R::rms_norm,
            .rms_norm_bf16 = R::rms_norm_bf16,
            .l2_norm = R::l2_norm,
            .glu = R::glu,
            .add = R::add,
            .softmax = R::softmax,
            .rope = R::rope,
            .f16_from_f32 = R::f16_from_f32,
            .bf16_from_f32 = R::bf16_from_f32,
            .f32_from_f16 = R::f32_from_f16,
            .f32_from_bf16 = R::f32_from_bf16,
            .largest = R::largest,
            .find_at_least = R::find_at_least};
}

}  // namespace
}  // namespace tessera::cpu
