// The product for matrices of 8 bits with one scale for each output: rows are rounded to 8 bits too, with one scale for each
// row. A few inputs of a row are far larger than the others, and would leave these next to no steps. So the inputs of rows and
// matrix are mixed first: some signs change, a Hadamard matrix adds up blocks of them in all ways, and cosines the blocks. All
// that is orthogonal: products stay what they are, and inputs become of one size. Source: Ashkboos et al., QuaRot, 2024,
// arXiv:2404.00456.
//
// A row is mixed by itself, the same way with every instruction set, and what follows is integers: bits depend on nothing but
// the row and the matrix, neither on what is computed together nor on the instruction set.
#pragma once

#include <type_traits>

#include "../args.h"
#include "../mixing.h"
#include "convert.h"
#include "gemm.h"

namespace headrace::HEADRACE_NAMESPACE {

// ---- mixing ----

struct Signs {
    static constexpr int64_t kCount = 512;
    float at[kCount];

    constexpr Signs() : at() {
        uint32_t state = 1;  // of a linear congruential generator. Source: Press et al., Numerical Recipes, chapter 7.1
        for (float& sign : at) {
            state = state * 1664525u + 1013904223u;
            sign = state >> 31 ? -1.0f : 1.0f;
        }
    }
};
alignas(64) static constexpr Signs kSigns;

// The largest power of two that divides the width: one block.
HEADRACE_SHARED int64_t mixed_block(int64_t width) { return width & -width; }
HEADRACE_SHARED float mixing_factor(int64_t width) { return 1.0f / __builtin_sqrtf(static_cast<float>(mixed_block(width))); }

// Within a vector, at distances 1, 2, ... kLanes / 2.
template <int kDistance = 1>
HEADRACE_SHARED Float mix_lanes(Float a) {
    if constexpr (kDistance == kLanes) return a;
    else return mix_lanes<2 * kDistance>(butterfly<kDistance>(a));
}

// Four vectors: the first two distances from one to the next.
HEADRACE_SHARED void mix_four(Float& a, Float& b, Float& c, Float& d) {
    const Float ab = a + b, a_b = a - b, cd = c + d, c_d = c - d;
    a = ab + cd;
    b = a_b + c_d;
    c = ab - cd;
    d = a_b - c_d;
}

// Each block of x times a Hadamard matrix, but for its factor 1 / sqrt(block); with kSigned the signs come first.
template <bool kSigned>
inline void mix_blocks(const float* x, int64_t width, float* out) {
    const int64_t block = mixed_block(width);
    const auto first = [&](int64_t i) __attribute__((always_inline)) {
        return mix_lanes(kSigned ? load(x + i) * load(kSigns.at + i % Signs::kCount) : load(x + i));
    };
    int64_t distance = 2 * kLanes;
    if (block == 2 * kLanes) {
        for (int64_t i = 0; i < width; i += 2 * kLanes) {
            const Float a = first(i), b = first(i + kLanes);
            store(out + i, a + b);
            store(out + i + kLanes, a - b);
        }
    } else {
        distance = 4 * kLanes;
        for (int64_t i = 0; i < width; i += 4 * kLanes) {
            Float a = first(i), b = first(i + kLanes), c = first(i + 2 * kLanes), d = first(i + 3 * kLanes);
            mix_four(a, b, c, d);
            store(out + i, a);
            store(out + i + kLanes, b);
            store(out + i + 2 * kLanes, c);
            store(out + i + 3 * kLanes, d);
        }
    }
    for (; 4 * distance <= block; distance *= 4)  // this distance and twice it
        for (int64_t start = 0; start < width; start += 4 * distance)
            for (float *at = out + start, *end = at + distance; at < end; at += kLanes) {
                Float a = load(at), b = load(at + distance), c = load(at + 2 * distance), d = load(at + 3 * distance);
                mix_four(a, b, c, d);
                store(at, a);
                store(at + distance, b);
                store(at + 2 * distance, c);
                store(at + 3 * distance, d);
            }
    if (2 * distance <= block)
        for (int64_t start = 0; start < width; start += 2 * distance)
            for (float *at = out + start, *end = at + distance; at < end; at += kLanes) {
                const Float a = load(at), b = load(at + distance);
                store(at, a + b);
                store(at + distance, a - b);
            }
}

// out[j] = the sum over `count` vectors, of which x is the first, of cosines[j * row_step + i * step] times vector i.
template <int kOutputs>
HEADRACE_SHARED void add_blocks(const float* x, int64_t block, int64_t count, const float* cosines, int64_t row_step,
                                int64_t step, Float* out) {
    Float sums[kOutputs];
#pragma GCC unroll 16
    for (Float& sum : sums) sum = broadcast(0.0f);
    for (int64_t i = 0; i < count; ++i) {
        const Float part = load(x + i * block);
#pragma GCC unroll 16
        for (int j = 0; j < kOutputs; ++j) sums[j] = fused(part, broadcast(cosines[j * row_step + i * step]), sums[j]);
    }
#pragma GCC unroll 16
    for (int j = 0; j < kOutputs; ++j) out[j] = sums[j];
}

// The blocks times the cosines, or with kBack times the inverse of these. Returns the largest of each lane.
template <bool kBack>
inline Float mix_across(float* x, int64_t width) {
    const int64_t block = mixed_block(width), count = width / block;
    Float peaks = broadcast(0.0f);
    if (count == 1 || count > kMaxMixedBlocks) {
        for (int64_t i = 0; i < width; i += kLanes) peaks = max(peaks, abs(load(x + i)));
        return peaks;
    }
    const float* cosines = cosine_matrix(count);
    const int64_t row_step = kBack ? 1 : count, step = kBack ? count : 1;
    for (int64_t i = 0; i < block; i += kLanes) {
        Float mixed[kMaxMixedBlocks];
        int64_t to = 0;
        const auto add = [&](auto outputs) __attribute__((always_inline)) {
            constexpr int kOutputs = decltype(outputs)::value;
            for (; to + kOutputs <= count; to += kOutputs)
                add_blocks<kOutputs>(x + i, block, count, cosines + to * row_step, row_step, step, mixed + to);
        };
        add(std::integral_constant<int, 9>());
        add(std::integral_constant<int, 3>());
        add(std::integral_constant<int, 1>());
        for (to = 0; to < count; ++to) {
            store(x + to * block + i, mixed[to]);
            peaks = max(peaks, abs(mixed[to]));
        }
    }
    return peaks;
}

// Inputs as they were, of what round_mixed has mixed.
inline void unmix(float* x, int64_t width) {
    mix_across<true>(x, width);
    mix_blocks<false>(x, width, x);
    const Float factor = broadcast(mixing_factor(width));
    for (int64_t i = 0; i < width; i += kLanes)
        store(x + i, load(x + i) * load(kSigns.at + i % Signs::kCount) * factor);
}

// ---- rows ----

// Mixed and rounded: an input is scale * quant. `total` is the sum of the quants, `room` is for `width` numbers. With an
// input that is not finite the scale is NaN.
inline void round_mixed(const float* x, int64_t width, float* room, int8_t* quants, float* scale, int32_t* total) {
    mix_blocks<true>(x, width, room);
    const float most = max(mix_across<false>(room, width)), factor = most > 0.0f ? 127.0f / most : 0.0f;
    Int sums = broadcast_int(0);
    Float strange = broadcast(0.0f);
    for (int64_t i = 0; i < width; i += kLanes) {
        const Float part = load(room + i);
        strange = fma(part, broadcast(0.0f), strange);
        const Int rounded = to_int(part * broadcast(factor));
        sums = add(sums, rounded);
        store_bytes(quants + i, rounded);
    }
    alignas(64) int32_t lanes[kLanes];
    store_int(lanes, sums);
    *total = 0;
    for (const int32_t lane : lanes) *total += lane;
    *scale = most / 127.0f * mixing_factor(width) + sum(strange);
}

// x becomes a row that a matrix of mixed inputs is multiplied by. `room` may be x.
inline void mix_row(const float* x, int64_t width, float* room, int8_t* out) {
    const MixedRow mixed(out, width);
    round_mixed(x, width, room, out, mixed.scale, mixed.total);
    __builtin_memset(out + width, 0, mixed_row_bytes(width) - width);
}

inline void mix(const MixArgs& args, const Step&, int64_t first_row, int64_t last_row, float* room) {
    for (int64_t row = first_row; row < last_row; ++row)
        mix_row(args.x + row * args.x_stride, args.width, room, args.out + row * args.out_stride);
}

// ---- products ----

// What the integer products of a row stand for. Quants of a matrix are 128 too large.
struct MixedResults {
    const uint32_t* products;
    Int start;
    Float scale;
    const float* scales;  // of the outputs of the first panel, and of those of others `panel_words` behind
    int64_t panel_words;

    MixedResults(const int8_t* row, const Matrix& w, int64_t panel, const float* products)
        : products(reinterpret_cast<const uint32_t*>(products)),
          start(broadcast_int(-128 * *MixedRow(row, w.in).total)),
          scale(broadcast(*MixedRow(row, w.in).scale)),
          scales(reinterpret_cast<const float*>(w.panels + panel * w.panel_words() + w.quant_words())),
          panel_words(w.panel_words()) {}

    HEADRACE_SHARED Float at(int64_t i) const {
        const Float of_output = load(scales + i / kPanel * panel_words + i % kPanel);
        return to_float(add(load_int(products + i), start)) * (of_output * scale);
    }
};

// out[r][i] = row r times column i of kColumns vectors, of which `column` is the first.
template <int kRows, int kColumns>
__attribute__((noinline)) static void multiply_mixed(const int8_t* x, int64_t stride, const Matrix& w, int64_t column,
                                                     int32_t* out, int64_t out_stride) {
    constexpr int64_t kAhead = 2048;  // words
    const int64_t words = w.in / 4;
    const uint32_t* starts[kColumns];
    for (int v = 0; v < kColumns; ++v)
        starts[v] = w.panels + (column + v) / kVectors * w.panel_words() + (column + v) % kVectors * kLanes;
    Int dots[kRows][kColumns];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kColumns; ++v) dots[r][v] = broadcast_int(0);
    for (int64_t i = 0; i < words; ++i) {
        Int weights[kColumns];
#pragma GCC unroll 8
        for (int v = 0; v < kColumns; ++v) {
            prefetch(starts[v] + i * kPanel + kAhead);
            weights[v] = load_int(starts[v] + i * kPanel);
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            int32_t four;
            __builtin_memcpy(&four, x + r * stride + 4 * i, sizeof four);
#pragma GCC unroll 8
            for (int v = 0; v < kColumns; ++v) dots[r][v] = add_dots<false>(dots[r][v], weights[v], four);
        }
    }
    for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kColumns; ++v) store_int(out + r * out_stride + v * kLanes, dots[r][v]);
}

constexpr int kMixedColumns = 4;  // vectors beside one another

template <int kRows = kMaxAccumulators / kMixedColumns>
inline void multiply_mixed_rows(int64_t rows, const int8_t* x, int64_t stride, const Matrix& w, int64_t panel, int64_t panels,
                                int32_t* out, int64_t out_stride) {
    if (rows == kRows) {
        const int64_t first = panel * kVectors, last = panels * kVectors;
        int64_t v = 0;
        for (; v + kMixedColumns <= last; v += kMixedColumns)
            multiply_mixed<kRows, kMixedColumns>(x, stride, w, first + v, out + v * kLanes, out_stride);
        for (; v < last; ++v) multiply_mixed<kRows, 1>(x, stride, w, first + v, out + v * kLanes, out_stride);
    } else if constexpr (kRows > 1) {
        multiply_mixed_rows<kRows - 1>(rows, x, stride, w, panel, panels, out, out_stride);
    }
}

}  // namespace headrace::HEADRACE_NAMESPACE

#ifdef HEADRACE_AMX
#include "hadamard_tiles.h"
#endif

namespace headrace::HEADRACE_NAMESPACE {

// Mixed and rounded rows times a matrix of their kind (linear.h).
struct MixedRows {
#ifdef HEADRACE_AMX
    static constexpr int kRowsAtOnce = static_cast<int>(2 * kTileRows);
#else
    static constexpr int kRowsAtOnce = kMaxAccumulators / kMixedColumns;
#endif

    const Operands& x;
    const Matrix& w;
    int64_t first_panel = 0;
    const uint32_t* next = nullptr;  // the prefetcher knows where this is, so nobody copies a MixedRows
    Prefetcher prefetcher = {};
#ifdef HEADRACE_AMX
    TileShapes shapes = {};
#endif

    static int64_t panels_at_once(int64_t) { return kMaxPanels; }
    void take(int64_t first, int64_t) { first_panel = first; }
    void expect(int64_t first, int64_t count) {
        next = w.panels + first * w.panel_words();
        prefetcher.start(&next, count > 0, count * w.panel_words());
    }
    void fetch() { prefetcher.fetch(); }

    const int8_t* row(int64_t index) const { return static_cast<const int8_t*>(x.data) + index * x.stride; }

    void multiply(int64_t first, int64_t rows, int64_t panels, float* out, int64_t out_stride) {
        auto* dots = reinterpret_cast<int32_t*>(out);
#ifdef HEADRACE_AMX
        if (rows > kFewRows) return multiply_mixed_tiles(shapes, prefetcher, rows, row(first), x.stride, w, first_panel, panels, dots,
                                                          out_stride);
#endif
        multiply_mixed_rows(rows, row(first), x.stride, w, first_panel, panels, dots, out_stride);
    }
    MixedResults results(int64_t index, const float* products) const { return {row(index), w, first_panel, products}; }
};

}  // namespace headrace::HEADRACE_NAMESPACE
