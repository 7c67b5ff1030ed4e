// The vector interface in plain C++, for any processor: four floats, which compilers turn into whatever it has.
#pragma once

#include <cstdint>
#include <cstring>

namespace headrace::HEADRACE_NAMESPACE {

constexpr int kLanes = 4;
constexpr int kRegisters = 16;
constexpr int kMaxAccumulators = 12;
constexpr bool kHasPairProducts = false;

struct Float {
    float v[kLanes];
};
struct Int {
    int32_t v[kLanes];
};
struct Mask {
    bool v[kLanes];
};

namespace detail {
template <class F>
inline Float each(F f) {
    return {{f(0), f(1), f(2), f(3)}};
}
inline uint32_t to_bits(float x) {
    uint32_t u;
    std::memcpy(&u, &x, sizeof u);
    return u;
}
inline float from_bits(uint32_t u) {
    float x;
    std::memcpy(&x, &u, sizeof x);
    return x;
}
inline int32_t nearest(float x) {  // ties to even, for |x| below 2^22
    const float magic = 12582912.0f;
    return static_cast<int32_t>((x + magic) - magic);
}
}  // namespace detail

inline Float load(const float* p) {
    return detail::each([&](int i) { return p[i]; });
}
inline void store(float* p, Float a) { std::memcpy(p, a.v, sizeof a.v); }
inline Float broadcast(float x) { return {{x, x, x, x}}; }
inline Float operator+(Float a, Float b) {
    return detail::each([&](int i) { return a.v[i] + b.v[i]; });
}
inline Float operator-(Float a, Float b) {
    return detail::each([&](int i) { return a.v[i] - b.v[i]; });
}
inline Float operator*(Float a, Float b) {
    return detail::each([&](int i) { return a.v[i] * b.v[i]; });
}
inline Float operator/(Float a, Float b) {
    return detail::each([&](int i) { return a.v[i] / b.v[i]; });
}
// Rounded twice: a processor without the instruction would take hundreds of cycles for a true one.
inline Float fma(Float a, Float b, Float c) {
    return detail::each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
inline Float max(Float a, Float b) {
    return detail::each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Float min(Float a, Float b) {
    return detail::each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Float round(Float a) {
    return detail::each([&](int i) { return static_cast<float>(detail::nearest(a.v[i])); });
}
inline Mask operator<(Float a, Float b) {
    return {{a.v[0] < b.v[0], a.v[1] < b.v[1], a.v[2] < b.v[2], a.v[3] < b.v[3]}};
}
inline Mask operator>=(Float a, Float b) {
    return {{a.v[0] >= b.v[0], a.v[1] >= b.v[1], a.v[2] >= b.v[2], a.v[3] >= b.v[3]}};
}
inline Mask operator==(Float a, Float b) {
    return {{a.v[0] == b.v[0], a.v[1] == b.v[1], a.v[2] == b.v[2], a.v[3] == b.v[3]}};
}
inline Float select(Mask m, Float a, Float b) {
    return detail::each([&](int i) { return m.v[i] ? a.v[i] : b.v[i]; });
}
inline uint32_t bits(Mask m) {
    uint32_t all = 0;
    for (int i = 0; i < kLanes; ++i) all |= static_cast<uint32_t>(m.v[i]) << i;
    return all;
}
inline Int to_int(Float a) {
    return {{detail::nearest(a.v[0]), detail::nearest(a.v[1]), detail::nearest(a.v[2]), detail::nearest(a.v[3])}};
}
inline Float power_of_two(Int n) {
    return detail::each([&](int i) { return detail::from_bits(static_cast<uint32_t>(n.v[i] + 127) << 23); });
}

inline float sum(Float a) { return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]); }
inline float max(Float a) {
    const float even = a.v[0] > a.v[2] ? a.v[0] : a.v[2], odd = a.v[1] > a.v[3] ? a.v[1] : a.v[3];
    return even > odd ? even : odd;
}

inline Float load_bf16(const uint16_t* p) {
    return detail::each([&](int i) { return detail::from_bits(static_cast<uint32_t>(p[i]) << 16); });
}

// To the nearest, ties to even; NaN stays NaN.
inline void store_bf16(uint16_t* p, Float a) {
    for (int i = 0; i < kLanes; ++i) {
        const uint32_t u = detail::to_bits(a.v[i]);
        p[i] = static_cast<uint16_t>(a.v[i] != a.v[i] ? 0x7fc0u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
}

struct Pairs {
    uint32_t v[kLanes];
};
inline Pairs load_pairs(const uint32_t* p) {
    Pairs w;
    std::memcpy(w.v, p, sizeof w.v);
    return w;
}
inline Float low(Pairs w) {
    return detail::each([&](int i) { return detail::from_bits(w.v[i] << 16); });
}
inline Float high(Pairs w) {
    return detail::each([&](int i) { return detail::from_bits(w.v[i] & 0xffff0000u); });
}

inline void prefetch(const void*) {}

}  // namespace headrace::HEADRACE_NAMESPACE
