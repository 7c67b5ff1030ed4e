// AVX-512 and AMX for processors without them: the intrinsics of csrc/simd/avx512.h and csrc/kernels/amx.h, each a loop over
// its lanes.
//
// `make emulate` puts this file before every other in the AVX-512 kernels and in cpu.cpp, compiled for AVX2, so that the
// conformance suite can run them on any machine. It is for their logic (tails, masks, tile shapes, packing) and for their
// bits: each function rounds as Intel's Software Developer's Manual says. It says nothing about speed.
//
// Registers are the compiler's own 64-byte vectors, which it splits for the narrower machine. An intrinsic that is missing
// here shows as "inlining failed in call to always_inline '_mm512_...'": add it.
#pragma once

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstring>

// csrc/cpu.cpp asks for the features by name. A macro does not expand inside itself, so the builtin is still there.
#define __builtin_cpu_supports(feature) \
    (__builtin_strncmp(feature, "avx512", 6) == 0 || __builtin_cpu_supports(feature))

#define __get_cpuid_count(leaf, subleaf, a, b, c, d) (*(d) = ~0u, 1)
#define syscall(...) 0L

// In a namespace without a name: two instruction sets must not share a function, see test_native_build.py.
namespace {
namespace emulated {

template <class F>
inline __m512 each(F f) {
    __m512 r;
    for (int i = 0; i < 16; ++i) r[i] = f(i);
    return r;
}

template <class F>
inline __m512i each_int(F f) {
    uint32_t r[16];
    for (int i = 0; i < 16; ++i) r[i] = f(i);
    __m512i v;
    std::memcpy(&v, r, sizeof v);
    return v;
}

template <class F>
inline __m512i each_half(F f) {
    uint16_t r[32];
    for (int i = 0; i < 32; ++i) r[i] = static_cast<uint16_t>(f(i));
    __m512i v;
    std::memcpy(&v, r, sizeof v);
    return v;
}

template <class F>
inline __m512i each_byte(F f) {
    uint8_t r[64];
    for (int i = 0; i < 64; ++i) r[i] = static_cast<uint8_t>(f(i));
    __m512i v;
    std::memcpy(&v, r, sizeof v);
    return v;
}

struct Bytes {
    uint8_t v[64];
    explicit Bytes(__m512i a) { std::memcpy(v, &a, sizeof v); }
    uint8_t operator[](int i) const { return v[i]; }
};

struct Halves {
    uint16_t v[32];
    explicit Halves(__m512i a) { std::memcpy(v, &a, sizeof v); }
    uint16_t operator[](int i) const { return v[i]; }
};

struct Words {
    uint32_t v[16];
    explicit Words(__m512i a) { std::memcpy(v, &a, sizeof v); }
    uint32_t operator[](int i) const { return v[i]; }
};

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

inline bool compare(float a, float b, int predicate) {
    switch (predicate) {
        case _CMP_LT_OQ:
            return a < b;
        case _CMP_LE_OQ:
            return a <= b;
        case _CMP_GT_OQ:
            return a > b;
        case _CMP_GE_OQ:
            return a >= b;
        case _CMP_EQ_OQ:
            return a == b;
        case _CMP_NEQ_UQ:
            return a != b;
        case _CMP_UNORD_Q:
            return a != a || b != b;
        default:
            __builtin_trap();
    }
}

inline float flushed(float x) {  // a subnormal is zero
    const uint32_t u = to_bits(x);
    return (u & 0x7f800000u) == 0 ? from_bits(u & 0x80000000u) : x;
}

// VDPBF16PS rounds to nearest whatever MXCSR says, takes subnormals as zero and makes none. The product of two bfloat16
// has 16 bits, so multiplying and then adding is the fused operation.
inline float add_product(float acc, uint32_t a, uint32_t b) {
    return flushed(flushed(acc) + flushed(flushed(from_bits(a)) * flushed(from_bits(b))));
}

}  // namespace emulated

// ---- memory and constants

inline __m512 emulated_loadu_ps(const void* p) {
    __m512 v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline void emulated_storeu_ps(void* p, __m512 a) { std::memcpy(p, &a, sizeof a); }
inline void emulated_stream_ps(void* p, __m512 a) {
    if (reinterpret_cast<uintptr_t>(p) % sizeof a) __builtin_trap();
    std::memcpy(p, &a, sizeof a);
}
inline __m512i emulated_loadu_si512(const void* p) {
    __m512i v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline void emulated_storeu_si512(void* p, __m512i a) { std::memcpy(p, &a, sizeof a); }
inline __m512 emulated_set1_ps(float x) {
    return emulated::each([&](int) { return x; });
}
inline __m512i emulated_set1_epi32(int x) {
    return emulated::each_int([&](int) { return static_cast<uint32_t>(x); });
}
inline __m512 emulated_setzero_ps() { return emulated_set1_ps(0.0f); }
inline __m512i emulated_set1_epi8(char x) {
    return emulated::each_int([&](int) { return static_cast<uint8_t>(x) * 0x01010101u; });
}
inline __m512i emulated_set4_epi32(int d, int c, int b, int a) {
    const int words[4] = {a, b, c, d};
    return emulated::each_int([&](int i) { return static_cast<uint32_t>(words[i % 4]); });
}
template <class... Words>
inline __m512i emulated_setr_epi32(Words... words) {
    const int all[16] = {words...};
    return emulated::each_int([&](int i) { return static_cast<uint32_t>(all[i]); });
}
inline __m512i emulated_broadcast_i64x4(__m256i a) {
    __m512i v;
    std::memcpy(&v, &a, sizeof a);
    std::memcpy(reinterpret_cast<char*>(&v) + sizeof a, &a, sizeof a);
    return v;
}
inline __m512i emulated_setzero_si512() { return emulated_set1_epi32(0); }

// ---- floats

inline __m512 emulated_add_ps(__m512 a, __m512 b) { return a + b; }
inline __m512 emulated_sub_ps(__m512 a, __m512 b) { return a - b; }
inline __m512 emulated_mul_ps(__m512 a, __m512 b) { return a * b; }
inline __m512 emulated_div_ps(__m512 a, __m512 b) { return a / b; }
// For whole numbers b, as all are here.
inline __m512 emulated_scalef_ps(__m512 a, __m512 b) {
    return emulated::each([&](int i) { return b[i] != b[i] ? b[i] : __builtin_ldexpf(a[i], static_cast<int>(b[i])); });
}
inline __m512 emulated_maskz_mov_ps(__mmask16 mask, __m512 a) {
    return emulated::each([&](int i) { return mask >> i & 1 ? a[i] : 0.0f; });
}
inline __m512 emulated_fmadd_ps(__m512 a, __m512 b, __m512 c) {
    return emulated::each([&](int i) { return std::fma(a[i], b[i], c[i]); });
}
inline __m512 emulated_max_ps(__m512 a, __m512 b) {  // the second one if either is NaN, or both are zero
    return emulated::each([&](int i) { return a[i] > b[i] ? a[i] : b[i]; });
}
inline __m512 emulated_min_ps(__m512 a, __m512 b) {
    return emulated::each([&](int i) { return a[i] < b[i] ? a[i] : b[i]; });
}
inline __m512 emulated_roundscale_ps(__m512 a, int mode) {
    if (mode != (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)) __builtin_trap();
    return emulated::each([&](int i) { return std::nearbyint(a[i]); });
}
inline __mmask16 emulated_cmp_ps_mask(__m512 a, __m512 b, int predicate) {
    unsigned mask = 0;
    for (int i = 0; i < 16; ++i) mask |= static_cast<unsigned>(emulated::compare(a[i], b[i], predicate)) << i;
    return static_cast<__mmask16>(mask);
}
inline __m512 emulated_mask_blend_ps(__mmask16 mask, __m512 a, __m512 b) {
    return emulated::each([&](int i) { return mask >> i & 1 ? b[i] : a[i]; });
}

// ---- integers

inline __m512i emulated_add_epi32(__m512i a, __m512i b) {
    const emulated::Words x(a), y(b);
    return emulated::each_int([&](int i) { return x[i] + y[i]; });
}
inline __m512i emulated_sub_epi32(__m512i a, __m512i b) {
    const emulated::Words x(a), y(b);
    return emulated::each_int([&](int i) { return x[i] - y[i]; });
}
inline __m512i emulated_sub_epi8(__m512i a, __m512i b) {
    const emulated::Bytes x(a), y(b);
    return emulated::each_byte([&](int i) { return x[i] - y[i]; });
}
inline __m512i emulated_shuffle_epi8(__m512i a, __m512i places) {  // within 16 bytes
    const emulated::Bytes x(a), at(places);
    return emulated::each_byte([&](int i) { return at[i] & 0x80 ? 0 : x[(i & 48) + (at[i] & 15)]; });
}
inline __m512i emulated_and_si512(__m512i a, __m512i b) { return a & b; }
inline __m512i emulated_or_si512(__m512i a, __m512i b) { return a | b; }
inline __m512i emulated_slli_epi32(__m512i a, unsigned count) {
    const emulated::Words x(a);
    return emulated::each_int([&](int i) { return count > 31 ? 0u : x[i] << count; });
}
inline __m512i emulated_srli_epi32(__m512i a, unsigned count) {
    const emulated::Words x(a);
    return emulated::each_int([&](int i) { return count > 31 ? 0u : x[i] >> count; });
}
inline __m512i emulated_mask_mov_epi32(__m512i a, __mmask16 mask, __m512i b) {
    const emulated::Words x(a), y(b);
    return emulated::each_int([&](int i) { return mask >> i & 1 ? y[i] : x[i]; });
}

inline __m512i emulated_srai_epi32(__m512i a, unsigned count) {
    const emulated::Words x(a);
    const unsigned at_most = count > 31 ? 31 : count;
    return emulated::each_int([&](int i) { return static_cast<uint32_t>(static_cast<int32_t>(x[i]) >> at_most); });
}
inline __m512i emulated_add_epi16(__m512i a, __m512i b) {
    const emulated::Halves x(a), y(b);
    return emulated::each_half([&](int i) { return x[i] + y[i]; });
}
inline __m512i emulated_min_epu16(__m512i a, __m512i b) {
    const emulated::Halves x(a), y(b);
    return emulated::each_half([&](int i) { return x[i] < y[i] ? x[i] : y[i]; });
}
inline __m512i emulated_slli_epi16(__m512i a, unsigned count) {
    const emulated::Halves x(a);
    return emulated::each_half([&](int i) { return count > 15 ? 0u : static_cast<unsigned>(x[i]) << count; });
}
inline __m512i emulated_srli_epi16(__m512i a, unsigned count) {
    const emulated::Halves x(a);
    return emulated::each_half([&](int i) { return count > 15 ? 0u : static_cast<unsigned>(x[i]) >> count; });
}
inline __m512 emulated_abs_ps(__m512 a) {
    return emulated::each([&](int i) { return __builtin_fabsf(a[i]); });
}
inline __m512 emulated_permute_ps(__m512 a, int places) {  // within four lanes
    return emulated::each([&](int i) { return a[i / 4 * 4 + (places >> i % 4 * 2 & 3)]; });
}
inline __m512 emulated_shuffle_f32x4(__m512 a, __m512 b, int places) {  // two fours of each
    return emulated::each([&](int i) { return (i < 8 ? a : b)[(places >> i / 4 * 2 & 3) * 4 + i % 4]; });
}
inline __m512 emulated_permutexvar_ps(__m512i places, __m512 a) {
    const emulated::Words at(places);
    return emulated::each([&](int i) { return a[at[i] & 15]; });
}
inline __m512i emulated_permutexvar_epi16(__m512i places, __m512i a) {
    const emulated::Halves at(places), x(a);
    return emulated::each_half([&](int i) { return x[at[i] & 31]; });
}
inline __m512i emulated_madd_epi16(__m512i a, __m512i b) {
    const emulated::Halves x(a), y(b);
    const auto product = [&](int i) { return static_cast<int16_t>(x[i]) * static_cast<int16_t>(y[i]); };
    return emulated::each_int([&](int i) {
        return static_cast<uint32_t>(product(2 * i)) + static_cast<uint32_t>(product(2 * i + 1));
    });
}

inline __m512i emulated_dpbusd_epi32(__m512i acc, __m512i a, __m512i b) {  // unsigned bytes by signed ones
    const emulated::Words sums(acc), x(a), y(b);
    return emulated::each_int([&](int i) {
        uint32_t sum = sums[i];
        for (int byte = 0; byte < 32; byte += 8)
            sum += static_cast<uint32_t>(static_cast<uint8_t>(x[i] >> byte) * static_cast<int8_t>(y[i] >> byte));
        return sum;
    });
}

// ---- between types

inline __m512 emulated_cvtepi32_ps(__m512i a) {
    const emulated::Words x(a);
    return emulated::each([&](int i) { return static_cast<float>(static_cast<int32_t>(x[i])); });
}
inline __m512 emulated_cvtph_ps(__m256i a) {
    uint16_t x[16];
    std::memcpy(x, &a, sizeof x);
    return emulated::each([&](int i) {
        const float magnitude = (x[i] & 0x7c00) == 0x7c00
                                    ? emulated::from_bits(0x7f800000u | (x[i] & 0x3ffu) << 13)
                                    : std::ldexp(static_cast<float>((x[i] & 0x3ff) + ((x[i] & 0x7c00) ? 0x400 : 0)),
                                                 ((x[i] & 0x7c00) ? (x[i] >> 10 & 31) : 1) - 25);
        return x[i] & 0x8000 ? -magnitude : magnitude;
    });
}

inline __m512i emulated_cvtps_epi32(__m512 a) {  // what does not fit becomes the smallest integer
    return emulated::each_int([&](int i) {
        const float x = std::nearbyint(a[i]);
        return x >= -0x1p31f && x < 0x1p31f ? static_cast<uint32_t>(static_cast<int32_t>(x)) : 0x80000000u;
    });
}
inline __m512i emulated_cvtepi8_epi16(__m256i a) {
    int8_t x[32];
    std::memcpy(x, &a, sizeof x);
    return emulated::each_half([&](int i) { return x[i]; });
}
inline __m512i emulated_cvtepu16_epi32(__m256i a) {
    uint16_t x[16];
    std::memcpy(x, &a, sizeof x);
    return emulated::each_int([&](int i) { return static_cast<uint32_t>(x[i]); });
}
inline __m256i emulated_cvtepi32_epi16(__m512i a) {
    const emulated::Words x(a);
    uint16_t r[16];
    for (int i = 0; i < 16; ++i) r[i] = static_cast<uint16_t>(x[i]);
    __m256i v;
    std::memcpy(&v, r, sizeof v);
    return v;
}
inline __m128i emulated_cvtepi32_epi8(__m512i a) {
    const emulated::Words x(a);
    uint8_t r[16];
    for (int i = 0; i < 16; ++i) r[i] = static_cast<uint8_t>(x[i]);
    __m128i v;
    std::memcpy(&v, r, sizeof v);
    return v;
}
inline __m256 emulated_extractf32x8_ps(__m512 a, int half) {
    __m256 v;
    std::memcpy(&v, reinterpret_cast<const char*>(&a) + (half & 1) * sizeof v, sizeof v);
    return v;
}
inline __m256 emulated_castps512_ps256(__m512 a) { return emulated_extractf32x8_ps(a, 0); }
inline __m512 emulated_castsi512_ps(__m512i a) { return reinterpret_cast<__m512>(a); }
inline __m512i emulated_castps_si512(__m512 a) { return reinterpret_cast<__m512i>(a); }

// ---- AVX512_BF16

inline __m512 emulated_dpbf16_ps(__m512 acc, __m512bh a, __m512bh b) {
    uint32_t x[16], y[16];
    std::memcpy(x, &a, sizeof x);
    std::memcpy(y, &b, sizeof y);
    return emulated::each([&](int i) {  // the upper halves first
        const float upper = emulated::add_product(acc[i], x[i] & 0xffff0000u, y[i] & 0xffff0000u);
        return emulated::add_product(upper, x[i] << 16, y[i] << 16);
    });
}

// Subnormal numbers become zeros.
inline __m512bh emulated_cvtne2ps_pbh(__m512 upper, __m512 lower) {
    uint16_t halves[32];
    for (int i = 0; i < 32; ++i) {
        const float x = emulated::flushed(i < 16 ? lower[i] : upper[i - 16]);
        const uint32_t u = emulated::to_bits(x);
        halves[i] = static_cast<uint16_t>(x != x ? u >> 16 | 0x40u : (u + 0x7fffu + (u >> 16 & 1u)) >> 16);
    }
    __m512bh v;
    std::memcpy(&v, halves, sizeof v);
    return v;
}

inline __m256bh emulated_cvtneps_pbh(__m512 a) {
    const __m512bh both = emulated_cvtne2ps_pbh(a, a);
    __m256bh v;
    std::memcpy(&v, &both, sizeof v);
    return v;
}

// ---- AMX

namespace emulated {

struct Tile {
    uint16_t row_bytes;
    uint8_t rows;
    uint32_t words[16][16];
};
thread_local Tile tiles[8];

// TDPBF16PS sums the low halves and the high halves of all words apart from each other, each sum fused and subnormals zero.
inline void multiply_tiles(Tile& sums, const Tile& a, const Tile& b) {
    if (a.row_bytes / 4 != b.rows || a.rows != sums.rows || b.row_bytes != sums.row_bytes) __builtin_trap();
    for (int m = 0; m < sums.rows; ++m)
        for (int n = 0; n < sums.row_bytes / 4; ++n) {
            float low = 0.0f, high = 0.0f;
            for (int k = 0; k < b.rows; ++k) {
                low = add_product(low, a.words[m][k] << 16, b.words[k][n] << 16);
                high = add_product(high, a.words[m][k] & 0xffff0000u, b.words[k][n] & 0xffff0000u);
            }
            sums.words[m][n] = to_bits(flushed(flushed(from_bits(sums.words[m][n])) + flushed(low + high)));
        }
}

// TDPBUSD's like for signed bytes of a and unsigned ones of b: TDPBSUD.
inline void multiply_byte_tiles(Tile& sums, const Tile& a, const Tile& b) {
    if (a.row_bytes / 4 != b.rows || a.rows != sums.rows || b.row_bytes != sums.row_bytes) __builtin_trap();
    for (int m = 0; m < sums.rows; ++m)
        for (int n = 0; n < sums.row_bytes / 4; ++n)
            for (int k = 0; k < b.rows; ++k)
                for (int byte = 0; byte < 32; byte += 8)
                    sums.words[m][n] += static_cast<uint32_t>(static_cast<int8_t>(a.words[m][k] >> byte) *
                                                              static_cast<uint8_t>(b.words[k][n] >> byte));
}

}  // namespace emulated

inline void emulated_tile_loadconfig(const void* shapes) {  // palette, first row, 14 bytes, then sizes
    for (int tile = 0; tile < 8; ++tile) {
        std::memset(&emulated::tiles[tile], 0, sizeof(emulated::Tile));
        std::memcpy(&emulated::tiles[tile].row_bytes, static_cast<const char*>(shapes) + 16 + 2 * tile, 2);
        std::memcpy(&emulated::tiles[tile].rows, static_cast<const char*>(shapes) + 48 + tile, 1);
        if (emulated::tiles[tile].rows == 0 || emulated::tiles[tile].rows > 16) __builtin_trap();
    }
}
inline void emulated_tile_release() { std::memset(emulated::tiles, 0, sizeof emulated::tiles); }
inline void emulated_tile_zero(int tile) { std::memset(emulated::tiles[tile].words, 0, sizeof(emulated::tiles[tile].words)); }
inline void emulated_tile_loadd(int tile, const void* from, int64_t stride) {
    emulated_tile_zero(tile);
    emulated::Tile& to = emulated::tiles[tile];
    for (int row = 0; row < to.rows; ++row)
        std::memcpy(to.words[row], static_cast<const char*>(from) + row * stride, to.row_bytes);
}
inline void emulated_tile_stored(int tile, void* to, int64_t stride) {
    const emulated::Tile& from = emulated::tiles[tile];
    for (int row = 0; row < from.rows; ++row)
        std::memcpy(static_cast<char*>(to) + row * stride, from.words[row], from.row_bytes);
}
inline void emulated_tile_dpbf16ps(int sums, int a, int b) {
    emulated::multiply_tiles(emulated::tiles[sums], emulated::tiles[a], emulated::tiles[b]);
}

inline void emulated_tile_dpbsud(int sums, int a, int b) {
    emulated::multiply_byte_tiles(emulated::tiles[sums], emulated::tiles[a], emulated::tiles[b]);
}

}  // namespace

// Some are macros in the compiler's own header when it does not optimise.
#undef _mm512_cmp_ps_mask
#undef _mm512_permute_ps
#undef _mm512_shuffle_f32x4
#undef _mm512_extractf32x8_ps
#undef _mm512_roundscale_ps
#undef _mm512_slli_epi32
#undef _mm512_slli_epi16
#undef _mm512_srai_epi32
#undef _mm512_set4_epi32
#undef _mm512_setr_epi32
#undef _mm512_srli_epi16
#undef _mm512_srli_epi32
#undef _tile_dpbf16ps
#undef _tile_dpbsud
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero

#define _mm512_abs_ps emulated_abs_ps
#define _mm512_add_epi16 emulated_add_epi16
#define _mm512_add_epi32 emulated_add_epi32
#define _mm512_add_ps emulated_add_ps
#define _mm512_and_si512 emulated_and_si512
#define _mm512_broadcast_i64x4 emulated_broadcast_i64x4
#define _mm512_castps512_ps256 emulated_castps512_ps256
#define _mm512_castps_si512 emulated_castps_si512
#define _mm512_castsi512_ps emulated_castsi512_ps
#define _mm512_cmp_ps_mask emulated_cmp_ps_mask
#define _mm512_cvtepi32_epi16 emulated_cvtepi32_epi16
#define _mm512_cvtepi32_epi8 emulated_cvtepi32_epi8
#define _mm512_cvtepi32_ps emulated_cvtepi32_ps
#define _mm512_cvtepi8_epi16 emulated_cvtepi8_epi16
#define _mm512_cvtepu16_epi32 emulated_cvtepu16_epi32
#define _mm512_cvtne2ps_pbh emulated_cvtne2ps_pbh
#define _mm512_cvtneps_pbh emulated_cvtneps_pbh
#define _mm512_cvtph_ps emulated_cvtph_ps
#define _mm512_cvtps_epi32 emulated_cvtps_epi32
#define _mm512_div_ps emulated_div_ps
#define _mm512_dpbf16_ps emulated_dpbf16_ps
#define _mm512_dpbusd_epi32 emulated_dpbusd_epi32
#define _mm512_extractf32x8_ps emulated_extractf32x8_ps
#define _mm512_fmadd_ps emulated_fmadd_ps
#define _mm512_loadu_ps emulated_loadu_ps
#define _mm512_loadu_si512 emulated_loadu_si512
#define _mm512_madd_epi16 emulated_madd_epi16
#define _mm512_mask_blend_ps emulated_mask_blend_ps
#define _mm512_mask_mov_epi32 emulated_mask_mov_epi32
#define _mm512_maskz_mov_ps emulated_maskz_mov_ps
#define _mm512_max_ps emulated_max_ps
#define _mm512_min_epu16 emulated_min_epu16
#define _mm512_min_ps emulated_min_ps
#define _mm512_mul_ps emulated_mul_ps
#define _mm512_or_si512 emulated_or_si512
#define _mm512_permutexvar_epi16 emulated_permutexvar_epi16
#define _mm512_permute_ps emulated_permute_ps
#define _mm512_permutexvar_ps emulated_permutexvar_ps
#define _mm512_roundscale_ps emulated_roundscale_ps
#define _mm512_scalef_ps emulated_scalef_ps
#define _mm512_set1_epi32 emulated_set1_epi32
#define _mm512_set1_epi8 emulated_set1_epi8
#define _mm512_set1_ps emulated_set1_ps
#define _mm512_set4_epi32 emulated_set4_epi32
#define _mm512_setr_epi32 emulated_setr_epi32
#define _mm512_setzero_ps emulated_setzero_ps
#define _mm512_setzero_si512 emulated_setzero_si512
#define _mm512_shuffle_epi8 emulated_shuffle_epi8
#define _mm512_shuffle_f32x4 emulated_shuffle_f32x4
#define _mm512_slli_epi16 emulated_slli_epi16
#define _mm512_slli_epi32 emulated_slli_epi32
#define _mm512_srai_epi32 emulated_srai_epi32
#define _mm512_srli_epi16 emulated_srli_epi16
#define _mm512_srli_epi32 emulated_srli_epi32
#define _mm512_storeu_ps emulated_storeu_ps
#define _mm512_stream_ps emulated_stream_ps
#define _mm512_storeu_si512 emulated_storeu_si512
#define _mm512_sub_epi32 emulated_sub_epi32
#define _mm512_sub_epi8 emulated_sub_epi8
#define _mm512_sub_ps emulated_sub_ps
#define _tile_dpbf16ps emulated_tile_dpbf16ps
#define _tile_dpbsud emulated_tile_dpbsud
#define _tile_loadconfig emulated_tile_loadconfig
#define _tile_loadd emulated_tile_loadd
#define _tile_release emulated_tile_release
#define _tile_stored emulated_tile_stored
#define _tile_zero emulated_tile_zero
