// Elementary functions on vectors. Each lane's result depends on that lane alone.
#pragma once

namespace headrace::HEADRACE_NAMESPACE {

// e^x to about one unit in the last place; 0 below -86.6, infinity where float32 ends.
// Source: Cody and Waite's reduction x = n ln 2 + r, and the minimax polynomial of Cephes (expf.c) for e^r.
inline Float exp(Float x) {
    const Float lowest = broadcast(-86.6f), highest = broadcast(88.8f);
    const Float clamped = min(highest, max(lowest, x));  // NaN is what the second of two is
    const Float n = round(clamped * broadcast(1.44269504f));
    Float r = fma(n, broadcast(-0.693359375f), clamped);
    r = fma(n, broadcast(2.12194440e-4f), r);
    Float p = broadcast(1.9875691500e-4f);
    p = fma(p, r, broadcast(1.3981999507e-3f));
    p = fma(p, r, broadcast(8.3334519073e-3f));
    p = fma(p, r, broadcast(4.1665795894e-2f));
    p = fma(p, r, broadcast(1.6666665459e-1f));
    p = fma(p, r, broadcast(5.0000001201e-1f));
    p = fma(p * r, r, r + broadcast(1.0f));
    return zero_where(x < lowest, times_power_of_two(p, n));
}

inline Float silu(Float x) { return x / (broadcast(1.0f) + exp(broadcast(0.0f) - x)); }

// To about one unit in the last place. 1 - 2 / (1 + e^2x) would lose what is small against 1, and most of what a softcap
// sees is: near 0, a polynomial. Source: Cephes (tanhf.c).
inline Float tanh(Float x) {
    const Float square = x * x;
    Float p = broadcast(-5.70498872745e-3f);
    p = fma(p, square, broadcast(2.06390887954e-2f));
    p = fma(p, square, broadcast(-5.37397155531e-2f));
    p = fma(p, square, broadcast(1.33314422036e-1f));
    p = fma(p, square, broadcast(-3.33332819422e-1f));
    const Float near = fma(p * square, x, x);
    const Float far = broadcast(1.0f) - broadcast(2.0f) / (broadcast(1.0f) + exp(x + x));
    return select(square < broadcast(0.625f * 0.625f), near, far);
}

// GELU in its tanh form, x / 2 (1 + tanh u), as x / (1 + e^-2u), which is the same and loses nothing where tanh u is
// near -1. Source: Hendrycks and Gimpel, Gaussian Error Linear Units, 2016.
inline Float gelu_tanh(Float x) {
    const Float u = broadcast(0.79788456f) * fma(x * x * x, broadcast(0.044715f), x);
    return x / (broadcast(1.0f) + exp(broadcast(-2.0f) * u));
}

inline float exp(float x) {
    float lanes[kLanes];
    store(lanes, exp(broadcast(x)));
    return lanes[0];
}

}  // namespace headrace::HEADRACE_NAMESPACE
