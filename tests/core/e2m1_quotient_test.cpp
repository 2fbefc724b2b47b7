// Whether rounding a quotient to E2M1, as cards with FP4 tensor cores do, gives the codes of the
// codec, which compares with products instead.
#include "backends/cuda/rows/e2m1_quotient.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "core/numeric.h"

namespace tessera {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kTies[] = {0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0};

struct HostArithmetic {
    static float mul(float a, float b) { return a * b; }
    static float fma(float a, float b, float c) { return std::fma(a, b, c); }
};

/// The code of the codec (nv_code() of rows/encode.cuh): comparisons that are exact in f64.
uint8_t by_products(float x, float scale) {
    const double magnitude = std::fabs(double{x});
    uint8_t code = 0;
    for (int i = 0; i < 7; ++i) {
        const double tie = kTies[i] * double{scale};
        code = static_cast<uint8_t>(code + (i % 2 == 0 ? magnitude > tie : magnitude >= tie));
    }
    return static_cast<uint8_t>(code | (std::signbit(x) ? 8 : 0));
}

/// By the sequence of the kernel (rows/nearest_e2m1.cuh) for what lies in its range, `off` units of
/// the last place beside the reciprocal.
uint8_t by_kernel(float x, float scale, int off) {
    float inverse = 1.0f / scale;
    for (int i = 0; i < std::abs(off); ++i)
        inverse = std::nextafter(inverse, off > 0 ? kInfinity : 0.0f);
    const float quotient =
        cuda::rows::e2m1_quotient(std::fabs(x), scale, inverse, HostArithmetic{});
    return e2m1_from_f32(std::copysign(std::fmax(quotient, 0.0f), x));
}

/// Wrong codes of one number under one scale, by division and by the kernel.
int wrong_codes(float x, float scale) {
    const uint8_t code = by_products(x, scale);
    int wrong = !std::isnan(x) && e2m1_from_f32(x / scale) != code;
    for (int off = -2; off <= 2; ++off) wrong += by_kernel(x, scale, off) != code;
    return wrong;
}

// Guards against a quotient that is rounded onto a tie, or off one: all scales, all ties and the
// floats beside them.
TEST(E2m1Quotient, RoundsLikeProductsBesideEveryTie) {
    for (uint8_t scale_code = 1; scale_code < 0x7f; ++scale_code) {
        const float scale = f32_from_ue4m3(scale_code);
        for (const double tie : kTies) {
            const auto x = static_cast<float>(tie * double{scale});
            ASSERT_EQ(double{x}, tie * double{scale});
            float below = x, above = x;
            int wrong = wrong_codes(x, scale);
            for (int i = 0; i < 4; ++i) {
                below = std::nextafter(below, 0.0f);
                above = std::nextafter(above, kInfinity);
                wrong += wrong_codes(below, scale) + wrong_codes(-above, scale);
            }
            EXPECT_EQ(wrong, 0) << tie << " * " << scale;
        }
    }
}

// Guards against the ends of the range and everything between: random sizes around each scale,
// random bits (NaNs among them), zeros, subnormal numbers.
TEST(E2m1Quotient, RoundsLikeProductsEverywhere) {
    std::mt19937 random(1);
    int wrong = 0;
    for (int i = 0; i < 1'000'000; ++i) {
        const float scale = f32_from_ue4m3(static_cast<uint8_t>(1 + random() % 126));
        const float fraction = static_cast<float>(random() >> 8) * 0x1p-24f;
        wrong += wrong_codes(fraction * 8.0f * scale, scale);
        const float any = std::bit_cast<float>(static_cast<uint32_t>(random()));
        if (!(std::fabs(any) > 0x1p100f)) wrong += wrong_codes(any, scale);
    }
    EXPECT_EQ(wrong, 0);
    for (uint8_t code = 1; code < 0x7f; ++code) {
        const float scale = f32_from_ue4m3(code);
        for (const float x : {0.0f, 0x1p-149f, 0x1.8p-130f, 0x1p-126f, 448.0f, 2688.0f, 0x1p100f,
                              std::numeric_limits<float>::quiet_NaN()}) {
            EXPECT_EQ(wrong_codes(x, scale), 0) << x << " / " << scale;
            EXPECT_EQ(wrong_codes(-x, scale), 0) << -x << " / " << scale;
        }
        // Beyond the range of the kernel plain division serves: too large a quotient is 6.
        EXPECT_EQ(e2m1_from_f32(kInfinity / scale), 7);
        EXPECT_EQ(e2m1_from_f32(std::numeric_limits<float>::max() / scale), 7);
    }
}

// Guards against a block scale that is off by one: cards from sm_89 on round to signed e4m3, the
// codec to unsigned.
TEST(E2m1Quotient, ScalesRoundLikeTheCodecs) {
    int wrong = 0;
    const auto check = [&](float x) {
        wrong += e4m3_from_f32(x / 6.0f) != ue4m3_from_f32(x / 6.0f);
        wrong += e4m3_from_f32(x * 0.25f) != ue4m3_from_f32(x / 4.0f);
    };
    // Every 31st float from zero to 4096, which is beyond any row's span, and those beside ties.
    for (uint32_t bits = 0; bits <= std::bit_cast<uint32_t>(4096.0f); bits += 31)
        check(std::bit_cast<float>(bits));
    for (uint8_t code = 0; code < 0x7e; ++code) {
        const double tie = 0.5 * (double{f32_from_ue4m3(code)} +
                                  double{f32_from_ue4m3(static_cast<uint8_t>(code + 1))});
        for (const double factor : {4.0, 6.0}) {
            float x = static_cast<float>(tie * factor);
            for (int i = 0; i < 4; ++i) x = std::nextafter(x, 0.0f);
            for (int i = 0; i < 9; ++i, x = std::nextafter(x, kInfinity)) check(x);
        }
    }
    EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace tessera
