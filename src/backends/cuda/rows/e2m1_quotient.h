#pragma once
// Quotients for the instruction that rounds to E2M1: plain C++, for the kernel and for the test
// that shows that they will do (tests/core/e2m1_quotient_test.cpp).

namespace tessera::cuda::rows {

/// x / scale up to half a unit of the last place and a trifle, and rounding it to E2M1, nearest
/// even, gives what rounding the exact quotient gives. For a positive ue4m3 `scale`, `inverse` =
/// 1 / scale to two units of the last place, and 0 <= x <= 2^100; anything else may come out as
/// anything. `f` has mul() and fma(), each rounded once.
///
/// The codec compares x with products of `scale` (4 bits) and the points between two numbers of
/// E2M1 (3 bits), which are exact. An x on such a product, c * scale, gives c, as the correction
/// leaves an error of 2^-43. Its neighbours' quotients are at least 16/15 of half a unit of the
/// last place of c away from c (the significand of `scale` is at most 15/8) and so are rounded to
/// other numbers, on their side of c.
template <class Arithmetic>
constexpr float e2m1_quotient(float x, float scale, float inverse, const Arithmetic& f) {
    const float near = f.mul(x, inverse);
    return f.fma(f.fma(-near, scale, x), inverse, near);
}

}  // namespace tessera::cuda::rows
