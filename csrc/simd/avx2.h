// The vector interface on AVX2 and FMA: 8 floats in a register.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace headrace::HEADRACE_NAMESPACE {

constexpr int kLanes = 8;
constexpr int kRegisters = 16;
constexpr int kMaxAccumulators = 12;     // registers that a GEMM tile may hold
constexpr bool kHasPairProducts = false;  // no instruction that multiplies pairs of bfloat16

struct Float {
    __m256 v;
};
struct Int {
    __m256i v;
};
struct Mask {
    __m256 v;
};

inline Float load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline void store(float* p, Float a) { _mm256_storeu_ps(p, a.v); }
inline void stream(float* p, Float a) { _mm256_stream_ps(p, a.v); }  // past the caches, to whole vectors; then finish_streams()
inline void finish_streams() { _mm_sfence(); }
inline Float broadcast(float x) { return {_mm256_set1_ps(x)}; }
inline Float operator+(Float a, Float b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Float operator-(Float a, Float b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Float operator*(Float a, Float b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Float operator/(Float a, Float b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Float fma(Float a, Float b, Float c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }  // a * b + c
inline Float fused(Float a, Float b, Float c) { return fma(a, b, c); }  // with every instruction set
inline Float abs(Float a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
inline Float max(Float a, Float b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Float min(Float a, Float b) { return {_mm256_min_ps(a.v, b.v)}; }
inline Float round(Float a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline Mask operator<(Float a, Float b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
inline Mask operator>=(Float a, Float b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ)}; }
inline Mask operator==(Float a, Float b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)}; }
inline Float select(Mask m, Float a, Float b) { return {_mm256_blendv_ps(b.v, a.v, m.v)}; }  // m ? a : b
inline uint32_t bits(Mask m) { return static_cast<uint32_t>(_mm256_movemask_ps(m.v)); }      // bit i: lane i
inline Int to_int(Float a) { return {_mm256_cvtps_epi32(a.v)}; }                             // to the nearest
// a * 2^n for whole n of -125 to 128.
inline Float times_power_of_two(Float a, Float n) {
    const __m256i half = _mm256_slli_epi32(_mm256_add_epi32(to_int(n).v, _mm256_set1_epi32(126)), 23);
    return {_mm256_mul_ps(_mm256_add_ps(a.v, a.v), _mm256_castsi256_ps(half))};
}
inline Float zero_where(Mask m, Float a) { return {_mm256_andnot_ps(m.v, a.v)}; }

// Sums and maxima over the lanes, in an order that is always the same.
inline float sum(Float a) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
}
inline float max(Float a) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_shuffle_ps(half, half, 1)));
}

// Lanes i and i + kDistance become their sum and their difference.
template <int kDistance>
inline Float butterfly(Float a) {
    constexpr int kSecond = kDistance == 1 ? 0xaa : kDistance == 2 ? 0xcc : 0xf0;
    __m256 other;
    if constexpr (kDistance == 1) other = _mm256_permute_ps(a.v, 0xb1);
    else if constexpr (kDistance == 2) other = _mm256_permute_ps(a.v, 0x4e);
    else other = _mm256_permute2f128_ps(a.v, a.v, 1);
    return {_mm256_blend_ps(_mm256_add_ps(other, a.v), _mm256_sub_ps(other, a.v), kSecond)};
}

// ---- integers, for weights of few bits ----

inline Int load_int(const uint32_t* p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
inline Int broadcast_int(int32_t x) { return {_mm256_set1_epi32(x)}; }
inline void store_int(int32_t* p, Int a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v); }
inline void store_bytes(int8_t* p, Int a) {  // their lowest
    const __m128i places = _mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m128i first = _mm_shuffle_epi8(_mm256_castsi256_si128(a.v), places);
    const __m128i second = _mm_shuffle_epi8(_mm256_extracti128_si256(a.v, 1), places);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_unpacklo_epi32(first, second));
}
inline Float to_float(Int a) { return {_mm256_cvtepi32_ps(a.v)}; }
inline Int low_halves(Int a) { return {_mm256_and_si256(a.v, _mm256_set1_epi32(0x0f0f0f0f))}; }  // of each byte
inline Int high_halves(Int a) {
    return {_mm256_and_si256(_mm256_srli_epi32(a.v, 4), _mm256_set1_epi32(0x0f0f0f0f))};
}
// acc + in each lane the products of four bytes of w, 0 to 255, or with kSmall 0 to 63, and those of x, -128 to 127.
template <bool kSmall>
inline Int add_dots(Int acc, Int w, int32_t x) {
    const __m256i factors = _mm256_set1_epi32(x);
    if constexpr (kSmall) {  // two products fit 16 bits
        const __m256i pairs = _mm256_maddubs_epi16(w.v, factors);
        return {_mm256_add_epi32(acc.v, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
    }
    const __m256i even = _mm256_and_si256(w.v, _mm256_set1_epi32(0x00ff00ff)), odd = _mm256_srli_epi16(w.v, 8);
    const __m256i even_factors = _mm256_srai_epi16(_mm256_slli_epi16(factors, 8), 8);
    const __m256i odd_factors = _mm256_srai_epi16(factors, 8);
    const __m256i sums = _mm256_add_epi32(_mm256_madd_epi16(even, even_factors), _mm256_madd_epi16(odd, odd_factors));
    return {_mm256_add_epi32(acc.v, sums)};
}
inline Int add(Int a, Int b) { return {_mm256_add_epi32(a.v, b.v)}; }
inline Int add_256(Int a, Int b) { return {_mm256_add_epi32(a.v, _mm256_slli_epi32(b.v, 8))}; }  // a + 256 * b
inline Float load_f16(const uint16_t* p) { return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }

// ---- bfloat16: the upper half of a float32 ----

inline Float load_bf16(const uint16_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}

// To the nearest, ties to even; NaN stays NaN.
inline void store_bf16(uint16_t* p, Float a) {
    const __m256i u = _mm256_castps_si256(a.v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd), 16);
    const __m256 is_nan = _mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q);
    r = _mm256_blendv_epi8(r, _mm256_set1_epi32(0x7fc0), _mm256_castps_si256(is_nan));
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}

// A word holds two bfloat16 of one column: those of row k (low) and row k + 1 (high) of a packed matrix.
struct Pairs {
    __m256i v;
};
inline Pairs load_pairs(const uint32_t* p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
inline Float low(Pairs w) { return {_mm256_castsi256_ps(_mm256_slli_epi32(w.v, 16))}; }
// low and high to the nearest, ties to even; they are no NaN.
inline void store_rounded(uint32_t* p, Float low, Float high) {
    const auto rounded = [](Float a) {
        const __m256i u = _mm256_castps_si256(a.v);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
        return _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    };
    const __m256i words = _mm256_blend_epi16(_mm256_srli_epi32(rounded(low), 16), rounded(high), 0xaa);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), words);
}
alignas(32) static const uint32_t kHighHalves[8] = {0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u,
                                                   0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u};
inline Float high(Pairs w) {
    __m256i result;
    // Said in assembly because the compiler would keep the mask in a register, where products need all sixteen.
    __asm__("vpand %2, %1, %0" : "=x"(result) : "x"(w.v), "m"(*reinterpret_cast<const __m256i*>(kHighHalves)));
    return {_mm256_castsi256_ps(result)};
}

inline void store_pairs(uint32_t* p, Pairs w) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), w.v); }

// ---- numbers of quants: kQuantUnit times what they are, which spares a shift ----

constexpr float kQuantUnit = 16777216.0f;

inline Int minus_bytes(Int a, int32_t x) {
    return {_mm256_sub_epi8(a.v, _mm256_set1_epi8(static_cast<char>(x)))};
}
template <int kByte>
inline Float number_of_byte(Int a) {  // -128 to 127, of each lane; 0 is the lowest
    constexpr int kLane = static_cast<int>(kByte << 24 | 0x808080);  // the byte moves up to the highest place
    const __m128i places = _mm_setr_epi32(kLane, kLane + (4 << 24), kLane + (8 << 24), kLane + (12 << 24));
    return {_mm256_cvtepi32_ps(_mm256_shuffle_epi8(a.v, _mm256_broadcastsi128_si256(places)))};
}
template <int kByte>
inline Pairs pair_of_bytes(Int a) {  // kByte and the next
    const __m256i first = _mm256_castps_si256(number_of_byte<kByte>(a).v);
    return {_mm256_or_si256(_mm256_srli_epi32(first, 16), _mm256_castps_si256(number_of_byte<kByte + 1>(a).v))};
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

// Two numbers of 8 bits for each word, as bfloat16, which holds them exactly.
inline Pairs load_int8_pairs(const uint8_t* p) {
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i first = _mm256_madd_epi16(wide, _mm256_set1_epi32(1)), second = _mm256_srai_epi32(wide, 16);
    return {_mm256_or_si256(_mm256_srli_epi32(_mm256_castps_si256(_mm256_cvtepi32_ps(first)), 16),
                            _mm256_castps_si256(_mm256_cvtepi32_ps(second)))};
}
// Exponent and mantissa move to their places, and the exponent's bias becomes 127 instead of 7: 120 more, or 0x3c00. An
// exponent of 0 says a multiple m of 2^-9, and what is to be added depends on m: it is looked up, in place 8 for others.
inline Pairs load_fp8_pairs(const uint8_t* p) {
    const auto table = [](int a, int b, int c, int d, int e, int f, int g, int h, int i) {
        const auto byte = [](int x) { return static_cast<char>(x); };
        return _mm256_broadcastsi128_si256(_mm_setr_epi8(byte(a), byte(b), byte(c), byte(d), byte(e), byte(f), byte(g),
                                                         byte(h), byte(i), 0, 0, 0, 0, 0, 0, 0));
    };
    const __m256i lower = table(0, 0xf0, 0x60, 0x90, 0xc0, 0xd0, 0xe0, 0xf0, 0);
    const __m256i upper = table(0, 0x3a, 0x3b, 0x3b, 0x3b, 0x3b, 0x3b, 0x3b, 0x3c);
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i moved = _mm256_and_si256(_mm256_slli_epi16(wide, 4), _mm256_set1_epi16(static_cast<short>(0x87f0)));
    const __m256i magnitude = _mm256_and_si256(wide, _mm256_set1_epi16(0x7f));
    const __m256i place = _mm256_min_epu16(magnitude, _mm256_set1_epi16(8));  // the other byte of a lane is in place 0
    const __m256i bias = _mm256_or_si256(_mm256_shuffle_epi8(lower, place),
                                         _mm256_shuffle_epi8(upper, _mm256_slli_epi16(place, 8)));
    return {_mm256_add_epi16(moved, bias)};
}

// In assembly: gcc takes a function that does nothing else for one without effect, and drops the calls.
inline void prefetch(const void* p) { __asm__ volatile("prefetcht0 %0" ::"m"(*static_cast<const char*>(p))); }
inline void prefetch_far(const void* p) {  // into the L2 cache
    __asm__ volatile("prefetcht1 %0" ::"m"(*static_cast<const char*>(p)));
}

}  // namespace headrace::HEADRACE_NAMESPACE
