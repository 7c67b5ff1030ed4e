// The one product that everything is made of: a few rows times packed panels.
//
// An element of the result is one chain of multiply-adds over the inputs in their order. It does not depend on how many
// rows and panels are computed beside it, nor on how a product is cut into tiles and chunks: this is what makes the
// tokens of a request the same whatever the batch.
#pragma once

#include "../args.h"

namespace headrace::HEADRACE_NAMESPACE {

constexpr int kVectors = static_cast<int>(kPanel) / kLanes;  // in a panel's row

// Rows of one tile: as many as leave registers for one panel (AVX2: 6), but no more than two panels' (AVX-512: 12).
constexpr int kMaxRows = kMaxAccumulators / kVectors > 12 ? 12 : kMaxAccumulators / kVectors;

constexpr int kMaxPanels = 4;

// Panels beside one another, so that few rows too keep enough sums in flight to hide the latency of an addition.
constexpr int panels_for(int rows) {
    for (int panels = kMaxPanels; panels > 1; panels /= 2)
        if (rows * panels * kVectors <= kMaxAccumulators) return panels;
    return 1;
}

// `add` of the weights below is always inlined: called, it would keep sums in memory instead of registers.
template <int kRows, int kPanels>
struct Sums {
    Float at[kRows][kPanels * kVectors];
};

// What follows soon, into the nearest cache. A processor looks ahead by itself, but no further than a page of 4 kB, and
// begins anew with the next page: half a page ahead closes that gap. Further ahead was no better, a whole panel worse.
template <int kPanels>
HEADRACE_SHARED void fetch_ahead(const uint32_t* const* panels, int64_t row) {
    constexpr int64_t kAhead = 32;  // rows of words
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) prefetch(panels[p] + (row + kAhead) * kPanel);
}

struct Float32Weights {
    using Operand = float;

    template <int kRows, int kPanels>
    HEADRACE_SHARED static void add(Sums<kRows, kPanels>& sums, const uint32_t* const* panels,
                                    const Operand* x, int64_t stride, int64_t inputs) {
        for (int64_t k = 0; k < inputs; ++k) {
            fetch_ahead<kPanels>(panels, k);
            Float w[kPanels * kVectors];
#pragma GCC unroll 16
            for (int v = 0; v < kPanels * kVectors; ++v)
                w[v] = load(reinterpret_cast<const float*>(panels[v / kVectors]) + k * kPanel + v % kVectors * kLanes);
#pragma GCC unroll 16
            for (int r = 0; r < kRows; ++r) {
                const Float factor = broadcast(x[r * stride + k]);
#pragma GCC unroll 16
                for (int v = 0; v < kPanels * kVectors; ++v) sums.at[r][v] = fma(w[v], factor, sums.at[r][v]);
            }
        }
    }
};

// bfloat16 weights, float32 rows: halves of words are widened on the fly.
struct WidenedWeights {
    using Operand = float;

    template <int kRows, int kPanels>
    HEADRACE_SHARED static void add(Sums<kRows, kPanels>& sums, const uint32_t* const* panels,
                                    const Operand* x, int64_t stride, int64_t inputs) {
        for (int64_t k = 0; k + 1 < inputs; k += 2) {
            fetch_ahead<kPanels>(panels, k / 2);
            add_half<kRows, kPanels, false>(sums, panels, x, stride, k);
            add_half<kRows, kPanels, true>(sums, panels, x, stride, k);
        }
        if (inputs % 2) add_half<kRows, kPanels, false>(sums, panels, x, stride, inputs - 1);
    }

    template <int kRows, int kPanels, bool kHigh>
    HEADRACE_SHARED static void add_half(Sums<kRows, kPanels>& sums, const uint32_t* const* panels, const Operand* x,
                                         int64_t stride, int64_t k) {
        const auto weights = [&](int v) {
            const uint32_t* words = panels[v / kVectors] + k / 2 * kPanel + v % kVectors * kLanes;
            // Otherwise the compiler keeps words of the low half for the high one, and sums go to memory instead.
            __asm__ volatile("" : "+r"(words));
            return kHigh ? high(load_pairs(words)) : low(load_pairs(words));
        };
        const auto factor = [&](int r) { return broadcast(x[r * stride + k + (kHigh ? 1 : 0)]); };
        constexpr int kColumns = kPanels * kVectors;
        if constexpr (kRows < kColumns) {  // hold what is less, and stream the other
            Float held[kRows];
#pragma GCC unroll 16
            for (int r = 0; r < kRows; ++r) held[r] = factor(r);
#pragma GCC unroll 16
            for (int v = 0; v < kColumns; ++v) {
                const Float w = weights(v);
#pragma GCC unroll 16
                for (int r = 0; r < kRows; ++r) sums.at[r][v] = fma(w, held[r], sums.at[r][v]);
            }
        } else {
            Float held[kColumns];
#pragma GCC unroll 16
            for (int v = 0; v < kColumns; ++v) held[v] = weights(v);
#pragma GCC unroll 16
            for (int r = 0; r < kRows; ++r) {
                const Float f = factor(r);
#pragma GCC unroll 16
                for (int v = 0; v < kColumns; ++v) sums.at[r][v] = fma(held[v], f, sums.at[r][v]);
            }
        }
    }
};

#ifdef HEADRACE_BF16
// bfloat16 weights and rows, two inputs in one instruction.
struct PairWeights {
    using Operand = uint16_t;

    template <int kRows, int kPanels>
    HEADRACE_SHARED static void add(Sums<kRows, kPanels>& sums, const uint32_t* const* panels,
                                    const Operand* x, int64_t stride, int64_t inputs) {
        for (int64_t k = 0; k + 1 < inputs; k += 2) {
            fetch_ahead<kPanels>(panels, k / 2);
            Pairs w[kPanels * kVectors];
#pragma GCC unroll 16
            for (int v = 0; v < kPanels * kVectors; ++v)
                w[v] = load_pairs(panels[v / kVectors] + k / 2 * kPanel + v % kVectors * kLanes);
#pragma GCC unroll 16
            for (int r = 0; r < kRows; ++r) {
                uint32_t pair;
                __builtin_memcpy(&pair, x + r * stride + k, sizeof pair);
#pragma GCC unroll 16
                for (int v = 0; v < kPanels * kVectors; ++v) sums.at[r][v] = add_products(sums.at[r][v], w[v], pair);
            }
        }
        if (inputs % 2) {  // nothing is known of the word's other half: neither of the row's nor, in a cache, of w's
            for (int r = 0; r < kRows; ++r) {
                const Float factor = broadcast(widen_bf16(x[r * stride + inputs - 1]));
                for (int v = 0; v < kPanels * kVectors; ++v) {
                    const uint32_t* words = panels[v / kVectors] + inputs / 2 * kPanel + v % kVectors * kLanes;
                    sums.at[r][v] = fma(low(load_pairs(words)), factor, sums.at[r][v]);
                }
            }
        }
    }
};
using BFloat16Weights = PairWeights;
#else
using BFloat16Weights = WidenedWeights;
#endif

// Where panels lie. Those of a matrix lie one after another. In the cache every group of positions has its own address:
// of keys a group is a panel, of values a chunk of the inputs of all panels.
struct PanelSource {
    const uint32_t* const* starts;
    bool is_start_of_panel;  // starts[panel]; else starts[chunk]
    int64_t chunk_inputs;    // of every chunk but the last
    int64_t inputs;          // of all chunks
    int64_t panel_words;     // from one panel to the next within a chunk

    HEADRACE_SHARED const uint32_t* at(int64_t chunk, int64_t panel) const {
        return is_start_of_panel ? starts[panel] : starts[chunk] + panel * panel_words;
    }
};

template <class Weights, int kRows, int kPanels>
__attribute__((noinline)) static void multiply_block(const typename Weights::Operand* x, int64_t stride, const PanelSource& w, int64_t panel,
                           float* out, int64_t out_stride) {
    Sums<kRows, kPanels> sums;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < kPanels * kVectors; ++v) sums.at[r][v] = broadcast(0.0f);
    for (int64_t k = 0, chunk = 0; k < w.inputs; k += w.chunk_inputs, ++chunk) {
        const int64_t left = w.inputs - k, inputs = left < w.chunk_inputs ? left : w.chunk_inputs;
        const uint32_t* panels[kPanels];
        for (int p = 0; p < kPanels; ++p) panels[p] = w.at(chunk, panel + p);
        Weights::template add<kRows, kPanels>(sums, panels, x + k, stride, inputs);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < kPanels * kVectors; ++v) store(out + r * out_stride + v * kLanes, sums.at[r][v]);
}

// out[r][16 p + i] = x[r] times column i of panel p, for kRows rows and `num_panels` panels.
template <class Weights, int kRows>
inline void multiply_rows(const typename Weights::Operand* x, int64_t stride, const PanelSource& w, int64_t first_panel,
                          int64_t num_panels, float* out, int64_t out_stride) {
    constexpr int kPanels = panels_for(kRows);
    int64_t p = 0;
    for (; p + kPanels <= num_panels; p += kPanels)
        multiply_block<Weights, kRows, kPanels>(x, stride, w, first_panel + p, out + p * kPanel, out_stride);
    if constexpr (kPanels == 4) {
        if (p + 2 <= num_panels) {
            multiply_block<Weights, kRows, 2>(x, stride, w, first_panel + p, out + p * kPanel, out_stride);
            p += 2;
        }
    }
    if constexpr (kPanels > 1) {
        if (p < num_panels) multiply_block<Weights, kRows, 1>(x, stride, w, first_panel + p, out + p * kPanel, out_stride);
    }
}

// The same for a number of rows, up to kMaxRows, that is known only now.
template <class Weights, int kRows = kMaxRows>
inline void multiply(int64_t rows, const typename Weights::Operand* x, int64_t stride, const PanelSource& w,
                     int64_t first_panel, int64_t num_panels, float* out, int64_t out_stride) {
    if (rows == kRows) return multiply_rows<Weights, kRows>(x, stride, w, first_panel, num_panels, out, out_stride);
    if constexpr (kRows > 1)
        multiply<Weights, kRows - 1>(rows, x, stride, w, first_panel, num_panels, out, out_stride);
}

}  // namespace headrace::HEADRACE_NAMESPACE
