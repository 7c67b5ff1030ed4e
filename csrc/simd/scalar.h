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
constexpr float kMagic = 12582912.0f;  // added and taken away it leaves the nearest whole number, ties to even, below 2^22
inline int32_t nearest(float x) { return static_cast<int32_t>((x + kMagic) - kMagic); }
}  // namespace detail

inline Float load(const float* p) {
    return detail::each([&](int i) { return p[i]; });
}
inline void store(float* p, Float a) { std::memcpy(p, a.v, sizeof a.v); }
inline void stream(float* p, Float a) { store(p, a); }
inline void finish_streams() {}
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
inline Float fused(Float a, Float b, Float c) {  // with every instruction set
    return detail::each([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
inline Float abs(Float a) {
    return detail::each([&](int i) { return __builtin_fabsf(a.v[i]); });
}
inline Float max(Float a, Float b) {
    return detail::each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Float min(Float a, Float b) {
    return detail::each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Float round(Float a) {
    return detail::each([&](int i) { return (a.v[i] + detail::kMagic) - detail::kMagic; });
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
// a * 2^n for whole n of -125 to 128.
inline Float times_power_of_two(Float a, Float n) {
    return detail::each([&](int i) {
        const float known = n.v[i] == n.v[i] ? n.v[i] : 0.0f;
        return 2.0f * a.v[i] * detail::from_bits(static_cast<uint32_t>(detail::nearest(known) + 126) << 23);
    });
}
inline Float zero_where(Mask m, Float a) { return select(m, broadcast(0.0f), a); }

inline float sum(Float a) { return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]); }
inline float max(Float a) {
    const float even = a.v[0] > a.v[2] ? a.v[0] : a.v[2], odd = a.v[1] > a.v[3] ? a.v[1] : a.v[3];
    return even > odd ? even : odd;
}

// Lanes i and i + kDistance become their sum and their difference.
template <int kDistance>
inline Float butterfly(Float a) {
    return detail::each([&](int i) { return i & kDistance ? a.v[i - kDistance] - a.v[i] : a.v[i] + a.v[i + kDistance]; });
}

// ---- integers, for weights of few bits ----

inline Int load_int(const uint32_t* p) {
    Int a;
    std::memcpy(a.v, p, sizeof a.v);
    return a;
}
inline Int broadcast_int(int32_t x) { return {{x, x, x, x}}; }
inline void store_int(int32_t* p, Int a) { std::memcpy(p, a.v, sizeof a.v); }
inline void store_bytes(int8_t* p, Int a) {  // their lowest
    for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int8_t>(a.v[i]);
}
inline Float to_float(Int a) {
    return detail::each([&](int i) { return static_cast<float>(a.v[i]); });
}
inline Int low_halves(Int a) {  // of each byte
    for (int32_t& x : a.v) x &= 0x0f0f0f0f;
    return a;
}
inline Int high_halves(Int a) {
    for (int32_t& x : a.v) x = x >> 4 & 0x0f0f0f0f;
    return a;
}
// acc + in each lane the products of four bytes of w, 0 to 255, and those of x, -128 to 127.
template <bool kSmall>
inline Int add_dots(Int acc, Int w, int32_t x) {
    for (int i = 0; i < kLanes; ++i)
        for (int byte = 0; byte < 32; byte += 8)
            acc.v[i] += static_cast<uint8_t>(w.v[i] >> byte) * static_cast<int8_t>(x >> byte);
    return acc;
}
inline Int add(Int a, Int b) {
    for (int i = 0; i < kLanes; ++i) a.v[i] += b.v[i];
    return a;
}
inline Int add_256(Int a, Int b) {  // a + 256 * b
    for (int i = 0; i < kLanes; ++i) a.v[i] += 256 * b.v[i];
    return a;
}
// Without a subnormal float32 on the way: kernels take those for zero.
inline Float load_f16(const uint16_t* p) {
    return detail::each([&](int i) {
        const uint32_t sign = static_cast<uint32_t>(p[i] & 0x8000u) << 16, rest = p[i] & 0x7fffu;
        if (rest < 0x400u) return detail::from_bits(sign | detail::to_bits(static_cast<float>(rest) * 0x1p-24f));
        return detail::from_bits(sign | (rest >= 0x7c00u ? 0x7f800000u | (rest & 0x3ffu) << 13 : (rest << 13) + 0x38000000u));
    });
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
// low and high to the nearest, ties to even; they are no NaN.
inline void store_rounded(uint32_t* p, Float low, Float high) {
    uint16_t lows[kLanes], highs[kLanes];
    store_bf16(lows, low);
    store_bf16(highs, high);
    for (int i = 0; i < kLanes; ++i) p[i] = lows[i] | static_cast<uint32_t>(highs[i]) << 16;
}
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

inline void store_pairs(uint32_t* p, Pairs w) { std::memcpy(p, w.v, sizeof w.v); }

// ---- numbers of quants: kQuantUnit times what they are ----

constexpr float kQuantUnit = 1.0f;

inline Int minus_bytes(Int a, int32_t x) {
    for (int32_t& lane : a.v) {
        uint32_t bytes = 0;
        for (int byte = 0; byte < 32; byte += 8)
            bytes |= (static_cast<uint32_t>((lane >> byte) - x) & 0xffu) << byte;
        lane = static_cast<int32_t>(bytes);
    }
    return a;
}
template <int kByte>
inline Float number_of_byte(Int a) {  // -128 to 127, of each lane; 0 is the lowest
    return detail::each([&](int i) { return static_cast<float>(static_cast<int8_t>(a.v[i] >> (8 * kByte))); });
}
template <int kByte>
inline Pairs pair_of_bytes(Int a) {  // kByte and the next
    const Float first = number_of_byte<kByte>(a), second = number_of_byte<kByte + 1>(a);
    Pairs pairs;
    for (int i = 0; i < kLanes; ++i) pairs.v[i] = detail::to_bits(first.v[i]) >> 16 | detail::to_bits(second.v[i]);
    return pairs;
}

struct HalfTable {
    int32_t zero;

    explicit HalfTable(int32_t zero) : zero(zero) {}
};
template <int kHalf>
inline Int bytes_of_half(Int a, const HalfTable& table) {
    return minus_bytes(kHalf < 4 ? low_halves(a) : high_halves(a), table.zero);
}
template <int kHalf>
inline Float number_of_half(Int a, const HalfTable& table) {  // 0 to 3: low halves of the bytes, 4 to 7: high ones
    return number_of_byte<kHalf % 4>(bytes_of_half<kHalf>(a, table));
}
template <int kHalf>
inline Pairs pair_of_halves(Int a, const HalfTable& table) {  // kHalf and the next
    return pair_of_bytes<kHalf % 4>(bytes_of_half<kHalf>(a, table));
}

// Two numbers of 8 bits for each word, as bfloat16, which holds them exactly: they are looked up.
namespace detail {
struct WidenedBytes {
    uint16_t int8[256], fp8[256];
    WidenedBytes() {
        for (int code = 0; code < 256; ++code) {
            const int exponent = code >> 3 & 15, mantissa = code & 7;
            const float multiple = static_cast<float>(exponent ? 8 + mantissa : mantissa);
            const float power = from_bits(static_cast<uint32_t>((exponent ? exponent : 1) - 10 + 127) << 23);  // 2^-9 and up
            fp8[code] = static_cast<uint16_t>(to_bits(multiple * power) >> 16 | (code & 0x80) << 8);
            int8[code] = static_cast<uint16_t>(to_bits(static_cast<float>(static_cast<int8_t>(code))) >> 16);
        }
    }
};
static const WidenedBytes kWidened;
inline Pairs look_up(const uint16_t* table, const uint8_t* p) {
    Pairs w;
    for (int i = 0; i < kLanes; ++i) w.v[i] = table[p[2 * i]] | static_cast<uint32_t>(table[p[2 * i + 1]]) << 16;
    return w;
}
}  // namespace detail
inline Pairs load_int8_pairs(const uint8_t* p) { return detail::look_up(detail::kWidened.int8, p); }
inline Pairs load_fp8_pairs(const uint8_t* p) { return detail::look_up(detail::kWidened.fp8, p); }

inline void prefetch(const void*) {}
inline void prefetch_far(const void*) {}

}  // namespace headrace::HEADRACE_NAMESPACE
