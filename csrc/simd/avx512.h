// The vector interface on AVX-512 (F, BW, DQ, VL): 16 floats in a register. With HEADRACE_BF16 the products of pairs of
// bfloat16 are one instruction, and rows are multiplied as bfloat16.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace headrace::HEADRACE_NAMESPACE {

constexpr int kLanes = 16;
constexpr int kRegisters = 32;
constexpr int kMaxAccumulators = 24;

struct Float {
    __m512 v;
};
struct Int {
    __m512i v;
};
struct Mask {
    __mmask16 v;
};

inline Float load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Float a) { _mm512_storeu_ps(p, a.v); }
inline void stream(float* p, Float a) { _mm512_stream_ps(p, a.v); }  // past the caches, to whole vectors; then finish_streams()
inline void finish_streams() { _mm_sfence(); }
inline Float broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline Float operator+(Float a, Float b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Float operator-(Float a, Float b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Float operator*(Float a, Float b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Float operator/(Float a, Float b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Float fma(Float a, Float b, Float c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Float fused(Float a, Float b, Float c) { return fma(a, b, c); }  // with every instruction set
inline Float abs(Float a) { return {_mm512_abs_ps(a.v)}; }
inline Float max(Float a, Float b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Float min(Float a, Float b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Float round(Float a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Mask operator<(Float a, Float b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
inline Mask operator>=(Float a, Float b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
inline Mask operator==(Float a, Float b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
inline Float select(Mask m, Float a, Float b) { return {_mm512_mask_blend_ps(m.v, b.v, a.v)}; }
inline uint32_t bits(Mask m) { return m.v; }
inline Int to_int(Float a) { return {_mm512_cvtps_epi32(a.v)}; }
inline Float times_power_of_two(Float a, Float n) { return {_mm512_scalef_ps(a.v, n.v)}; }
inline Float zero_where(Mask m, Float a) { return {_mm512_maskz_mov_ps(static_cast<__mmask16>(~m.v), a.v)}; }

inline float sum(Float a) {
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_shuffle_ps(quarter, quarter, 1)));
}
inline float max(Float a) {
    __m256 half = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quarter = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_max_ss(quarter, _mm_shuffle_ps(quarter, quarter, 1)));
}

// Lanes i and i + kDistance become their sum and their difference.
template <int kDistance>
inline Float butterfly(Float a) {
    constexpr unsigned kSecond = kDistance == 1 ? 0xaaaa : kDistance == 2 ? 0xcccc : kDistance == 4 ? 0xf0f0 : 0xff00;
    const __m512 signs = _mm512_mask_blend_ps(kSecond, _mm512_set1_ps(1.0f), _mm512_set1_ps(-1.0f));
    __m512 other;
    if constexpr (kDistance == 1) other = _mm512_permute_ps(a.v, 0xb1);
    else if constexpr (kDistance == 2) other = _mm512_permute_ps(a.v, 0x4e);
    else if constexpr (kDistance == 4) other = _mm512_shuffle_f32x4(a.v, a.v, 0xb1);
    else other = _mm512_shuffle_f32x4(a.v, a.v, 0x4e);
    return {_mm512_fmadd_ps(a.v, signs, other)};
}

// ---- integers, for weights of few bits ----

inline Int load_int(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
inline Int broadcast_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline void store_int(int32_t* p, Int a) { _mm512_storeu_si512(p, a.v); }
inline void store_bytes(int8_t* p, Int a) {  // their lowest
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}
inline Float to_float(Int a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline Int low_halves(Int a) { return {_mm512_and_si512(a.v, _mm512_set1_epi32(0x0f0f0f0f))}; }  // of each byte
inline Int high_halves(Int a) {
    return {_mm512_and_si512(_mm512_srli_epi32(a.v, 4), _mm512_set1_epi32(0x0f0f0f0f))};
}
// acc + in each lane the products of four bytes of w, 0 to 255, or with kSmall 0 to 63, and those of x, -128 to 127.
template <bool kSmall>
inline Int add_dots(Int acc, Int w, int32_t x) {
    return {_mm512_dpbusd_epi32(acc.v, w.v, _mm512_set1_epi32(x))};
}
inline Int add(Int a, Int b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline Int add_256(Int a, Int b) { return {_mm512_add_epi32(a.v, _mm512_slli_epi32(b.v, 8))}; }  // a + 256 * b
inline Float load_f16(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}

inline Float load_bf16(const uint16_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}

// To the nearest, ties to even; NaN stays NaN. The instruction takes subnormals as zero.
inline void store_bf16(uint16_t* p, Float a) {
#ifdef HEADRACE_BF16
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a.v)));
#else
    const __m512i u = _mm512_castps_si512(a.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd), 16);
    r = _mm512_mask_mov_epi32(r, _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc0));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(r));
#endif
}

struct Pairs {
    __m512i v;
};
inline Pairs load_pairs(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
inline Float low(Pairs w) { return {_mm512_castsi512_ps(_mm512_slli_epi32(w.v, 16))}; }
inline Float high(Pairs w) {
    return {_mm512_castsi512_ps(_mm512_and_si512(w.v, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}

inline void store_pairs(uint32_t* p, Pairs w) { _mm512_storeu_si512(p, w.v); }

// ---- numbers of quants: kQuantUnit times what they are, which spares a shift ----

constexpr float kQuantUnit = 16777216.0f;

inline Int minus_bytes(Int a, int32_t x) {
    return {_mm512_sub_epi8(a.v, _mm512_set1_epi8(static_cast<char>(x)))};
}
template <int kByte>
inline Float number_of_byte(Int a) {  // -128 to 127, of each lane; 0 is the lowest
    constexpr int kLane = static_cast<int>(kByte << 24 | 0x808080);  // the byte moves up to the highest place
    const __m512i places = _mm512_set4_epi32(kLane + (12 << 24), kLane + (8 << 24), kLane + (4 << 24), kLane);
    return {_mm512_cvtepi32_ps(_mm512_shuffle_epi8(a.v, places))};
}
template <int kByte>
inline Pairs pair_of_bytes(Int a) {  // kByte and the next
    const __m512i first = _mm512_castps_si512(number_of_byte<kByte>(a).v);
    return {_mm512_or_si512(_mm512_srli_epi32(first, 16), _mm512_castps_si512(number_of_byte<kByte + 1>(a).v))};
}

// Half bytes are looked up. What is above a half byte may be anything: tables of pairs have every number twice.
struct HalfTable {
    __m512 floats;
    __m512i pairs;

    explicit HalfTable(int32_t zero) {
        const __m512i places = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        floats = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(places, _mm512_set1_epi32(zero))),
                               _mm512_set1_ps(kQuantUnit));
        pairs = _mm512_broadcast_i64x4(_mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(floats), 16)));
    }
};
template <int kHalf>
inline Float number_of_half(Int a, const HalfTable& table) {  // 0 to 3: low halves of the bytes, 4 to 7: high ones
    constexpr int kShift = kHalf % 4 * 8 + kHalf / 4 * 4;
    return {_mm512_permutexvar_ps(kShift ? _mm512_srli_epi32(a.v, kShift) : a.v, table.floats)};
}
template <int kHalf>
inline Pairs pair_of_halves(Int a, const HalfTable& table) {  // kHalf and the next
    constexpr int kShift = kHalf % 4 * 4 + kHalf / 4 * 4;
    const __m512i apart = _mm512_shuffle_epi8(  // bytes 0 and 2 of each lane, then 1 and 3
        a.v, _mm512_set4_epi32(0x0f0d0e0c, 0x0b090a08, 0x07050604, 0x03010200));
    return {_mm512_permutexvar_epi16(kShift ? _mm512_srli_epi16(apart, kShift) : apart, table.pairs)};
}

// Two numbers of 8 bits for each word, as bfloat16, which holds them exactly.
inline Pairs load_int8_pairs(const uint8_t* p) {
    const __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    const __m512i first = _mm512_madd_epi16(wide, _mm512_set1_epi32(1)), second = _mm512_srai_epi32(wide, 16);
    return {_mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(_mm512_cvtepi32_ps(first)), 16),
                            _mm512_castps_si512(_mm512_cvtepi32_ps(second)))};
}
// Exponent and mantissa move to their places, and the exponent's bias becomes 127 instead of 7: 120 more, or 0x3c00. An
// exponent of 0 says a multiple m of 2^-9, and what is to be added depends on m: it is looked up, in place 8 for others.
alignas(64) static const uint16_t kFp8Biases[32] = {0, 0x3af0, 0x3b60, 0x3b90, 0x3bc0, 0x3bd0, 0x3be0, 0x3bf0, 0x3c00};
inline Pairs load_fp8_pairs(const uint8_t* p) {
    const __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    const __m512i moved = _mm512_and_si512(_mm512_slli_epi16(wide, 4), _mm512_set1_epi32(static_cast<int>(0x87f087f0u)));
    const __m512i magnitude = _mm512_and_si512(wide, _mm512_set1_epi32(0x007f007f));
    const __m512i place = _mm512_min_epu16(magnitude, _mm512_set1_epi32(0x00080008));
    return {_mm512_add_epi16(moved, _mm512_permutexvar_epi16(place, _mm512_loadu_si512(kFp8Biases)))};
}

// store_rounded(p, low, high): words of both, to the nearest, ties to even; they are no NaN.
#ifdef HEADRACE_BF16

constexpr bool kHasPairProducts = true;

// Words of a first and a second half in turn.
alignas(64) static const uint16_t kAlternately[32] = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
                                                     8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
inline void store_rounded(uint32_t* p, Float low, Float high) {
    const __m512i halves = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high.v, low.v));
    _mm512_storeu_si512(p, _mm512_permutexvar_epi16(_mm512_loadu_si512(kAlternately), halves));
}

// acc + the products of the low halves and of the high halves, where `pair` is two bfloat16, the same for all lanes.
inline Float add_products(Float acc, Pairs w, uint32_t pair) {
    return {_mm512_dpbf16_ps(acc.v, reinterpret_cast<__m512bh>(w.v),
                             reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(pair))))};
}

#else

constexpr bool kHasPairProducts = false;

inline void store_rounded(uint32_t* p, Float low, Float high) {
    const auto rounded = [](Float a) {
        const __m512i u = _mm512_castps_si512(a.v);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
        return _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    };
    const __m512i upper = _mm512_and_si512(rounded(high), _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
    _mm512_storeu_si512(p, _mm512_or_si512(_mm512_srli_epi32(rounded(low), 16), upper));
}

#endif

// In assembly: gcc takes a function that does nothing else for one without effect, and drops the calls.
inline void prefetch(const void* p) { __asm__ volatile("prefetcht0 %0" ::"m"(*static_cast<const char*>(p))); }
inline void prefetch_far(const void* p) {  // into the L2 cache
    __asm__ volatile("prefetcht1 %0" ::"m"(*static_cast<const char*>(p)));
}

}  // namespace headrace::HEADRACE_NAMESPACE
