// Elementary functions on vectors. Each lane's result depends on that lane alone.
#pragma once

namespace headrace::HEADRACE_NAMESPACE {

// e^x to about one unit in the last place; 0 below -87.3 and infinity above 88.3.
// Source: Cody and Waite's reduction x = n ln 2 + r, and the minimax polynomial of Cephes (expf.c) for e^r.
inline Float exp(Float x) {
    const Float lowest = broadcast(-87.3f), highest = broadcast(88.3f);
    const Float clamped = min(max(x, lowest), highest);
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
    Float result = p * power_of_two(to_int(n));
    result = select(x < lowest, broadcast(0.0f), result);
    result = select(highest < x, broadcast(__builtin_inff()), result);
    return select(x == x, result, x);  // NaN
}

inline Float silu(Float x) { return x / (broadcast(1.0f) + exp(broadcast(0.0f) - x)); }

inline Float tanh(Float x) {
    return broadcast(1.0f) - broadcast(2.0f) / (broadcast(1.0f) + exp(x + x));
}

// GELU in its tanh form. Source: Hendrycks and Gimpel, Gaussian Error Linear Units, 2016.
inline Float gelu_tanh(Float x) {
    const Float cubed = x * x * x;
    const Float inner = broadcast(0.79788456f) * fma(cubed, broadcast(0.044715f), x);
    return broadcast(0.5f) * x * (broadcast(1.0f) + tanh(inner));
}

inline float exp(float x) {
    float lanes[kLanes];
    store(lanes, exp(broadcast(x)));
    return lanes[0];
}

}  // namespace headrace::HEADRACE_NAMESPACE
