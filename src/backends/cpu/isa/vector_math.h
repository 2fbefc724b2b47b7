#pragma once
// exp, tanh and the gate functions for vector registers, the same sequence of operations for every
// width, so that each element depends on its value alone. Argument reduction and polynomials as in
// Cephes (expf, tanhf); largest errors against f64: exp 1.5 ulp, tanh 2 ulp, silu 3 ulp.
// Internal linkage throughout: see isa/vector.h.

#include "backends/cpu/isa/vector.h"

namespace tessera::cpu {
namespace {

/// e^x; 0 below -104, infinity above 88.8, NaN stays NaN.
template <class V>
TESSERA_INLINE typename V::Float exp_of(typename V::Float x) {
    using Float = typename V::Float;
    using Int = typename V::Int;
    // NaN passes because min and max return their second operand then.
    x = V::min(V::set(89.0f), V::max(V::set(-105.0f), x));
    const Float n = V::round(V::mul(x, V::set(1.44269504088896341f)));
    Float r = V::fmadd(n, V::set(-0.693359375f), x);
    r = V::fmadd(n, V::set(2.12194440e-4f), r);
    Float p = V::fmadd(V::set(1.9875691500e-4f), r, V::set(1.3981999507e-3f));
    p = V::fmadd(p, r, V::set(8.3334519073e-3f));
    p = V::fmadd(p, r, V::set(4.1665795894e-2f));
    p = V::fmadd(p, r, V::set(1.6666665459e-1f));
    p = V::fmadd(p, r, V::set(5.0000001201e-1f));
    p = V::add(V::fmadd(p, V::mul(r, r), r), V::set(1.0f));
    // 2^n in two factors: n reaches 128 and -151, beyond one exponent field.
    const Int whole = V::to_int(n);
    const Int half = V::template right_signed<1>(whole);
    const Int rest = V::sub_int(whole, half);
    const Int bias = V::set_int(127);
    const Float first = V::from_bits(V::template left<23>(V::add_int(half, bias)));
    const Float second = V::from_bits(V::template left<23>(V::add_int(rest, bias)));
    return V::mul(V::mul(p, first), second);
}

/// x / (1 + e^-x).
template <class V>
TESSERA_INLINE typename V::Float silu_of(typename V::Float x) {
    const typename V::Float e = exp_of<V>(V::sub(V::zero(), x));
    return V::div(x, V::add(V::set(1.0f), e));
}

/// 1 / (1 + e^-x).
template <class V>
TESSERA_INLINE typename V::Float sigmoid_of(typename V::Float x) {
    const typename V::Float e = exp_of<V>(V::sub(V::zero(), x));
    return V::div(V::set(1.0f), V::add(V::set(1.0f), e));
}

template <class V>
TESSERA_INLINE typename V::Float tanh_of(typename V::Float x) {
    using Float = typename V::Float;
    const typename V::Int sign_bit = V::set_int(INT32_MIN);
    const typename V::Int sign = V::and_bits(V::bits(x), sign_bit);
    const Float magnitude = V::from_bits(V::and_bits(V::bits(x), V::set_int(INT32_MAX)));
    const Float e = exp_of<V>(V::add(magnitude, magnitude));
    const Float one = V::set(1.0f);
    const Float large = V::sub(one, V::div(V::set(2.0f), V::add(e, one)));
    const Float square = V::mul(magnitude, magnitude);
    Float p = V::fmadd(V::set(-5.70498872745e-3f), square, V::set(2.06390887954e-2f));
    p = V::fmadd(p, square, V::set(-5.37397155531e-2f));
    p = V::fmadd(p, square, V::set(1.33314422036e-1f));
    p = V::fmadd(p, square, V::set(-3.33332819422e-1f));
    const Float small = V::fmadd(V::mul(p, square), magnitude, magnitude);
    const Float result = V::select_less(magnitude, V::set(0.625f), small, large);
    return V::from_bits(V::or_bits(V::bits(result), sign));
}

/// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
template <class V>
TESSERA_INLINE typename V::Float gelu_of(typename V::Float x) {
    const typename V::Float cube = V::mul(V::mul(x, x), x);
    const typename V::Float inner =
        V::mul(V::set(0.797884560802865f), V::fmadd(V::set(0.044715f), cube, x));
    const typename V::Float half = V::mul(V::set(0.5f), x);
    return V::fmadd(half, tanh_of<V>(inner), half);
}

template <class V>
TESSERA_INLINE typename V::Float relu_of(typename V::Float x) {
    return V::max(x, V::zero());
}

}  // namespace
}  // namespace tessera::cpu
