// What the processor can do at best, for benchmarks/roofline.py: nothing but multiply-adds, nothing but reading.
#pragma once

#include "weights.h"

namespace headrace::HEADRACE_NAMESPACE {

#ifdef HEADRACE_AMX

constexpr int64_t kMultiplyAdds = 4 * kTileRows * kTileInputs * kPanel;  // in a round

inline float multiply_adds(int64_t rounds) {
    TileShapes shapes;
    shapes.use(2 * kTileRows, kTileStride);
    zero_sums();
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int64_t round = 0; round < rounds; ++round) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    return 0.0f;
}

#else

constexpr int64_t kMultiplyAdds = int64_t{kMaxAccumulators} * kLanes * (kHasPairProducts ? 2 : 1);  // in a round

// `rounds` rounds on registers. The result is of no use, but has to be used.
inline float multiply_adds(int64_t rounds) {
    Float sums[kMaxAccumulators];
    for (int i = 0; i < kMaxAccumulators; ++i) sums[i] = broadcast(static_cast<float>(i));
    const float factors[1] = {0.5f};
    const Float factor = broadcast(factors[0]);
    const uint32_t words[kPanel] = {};
    const Pairs pairs = load_pairs(words);
    for (int64_t round = 0; round < rounds; ++round)
#pragma GCC unroll 32
        for (int i = 0; i < kMaxAccumulators; ++i) {
#ifdef HEADRACE_BF16
            sums[i] = add_products(sums[i], pairs, 0x3f003f00u);
#else
            sums[i] = fma(sums[i], factor, factor);
#endif
        }
    (void)pairs;
    Float total = factor;
    for (int i = 0; i < kMaxAccumulators; ++i) total = total + sums[i];
    return sum(total);
}

#endif

inline float read_memory(const float* data, int64_t count) {
    Float sums[8];
    for (Float& sum : sums) sum = broadcast(0.0f);
    for (int64_t i = 0; i + 8 * kLanes <= count; i += 8 * kLanes)
#pragma GCC unroll 8
        for (int s = 0; s < 8; ++s) sums[s] = max(sums[s], load(data + i + s * kLanes));
    Float total = sums[0];
    for (int s = 1; s < 8; ++s) total = total + sums[s];
    return sum(total);
}

}  // namespace headrace::HEADRACE_NAMESPACE
