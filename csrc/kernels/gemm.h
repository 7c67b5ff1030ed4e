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

// What the products of a row stand for: what they are.
struct RowResults {
    const float* products;

    HEADRACE_SHARED Float at(int64_t i) const { return load(products + i); }
};
constexpr int kMaxColumns = kMaxPanels * kVectors;

// Vectors of columns beside one another: few rows too must keep enough sums in flight to hide the latency of an addition.
// On AVX2 that is 4 rows by 3 vectors, or 5 by 2; 4 by 2 would be too few.
constexpr int columns_for(int rows) {
    int columns = kMaxAccumulators / rows < kMaxColumns ? kMaxAccumulators / rows : kMaxColumns;
    while (columns > 4 && kMaxColumns % columns) --columns;
    return columns;
}

// Panels to take at a time, so that their vectors can be divided so.
constexpr int panels_for(int rows) {
    return columns_for(rows) % kVectors ? kMaxPanels : columns_for(rows) / kVectors;
}

// What a thread will read next, pieces of memory of one size. They are fetched into the L2 cache a little with everything that
// is computed, so that the processor reads and multiplies at the same time; many at once would only wait for one another.
struct Prefetcher {
    static constexpr int64_t kLine = 64, kLinesAtOnce = 8;

    const uint32_t* const* next = nullptr;  // pieces that are not begun
    const uint32_t* const* last = nullptr;
    int64_t bytes = 0;  // of each
    const char *at = nullptr, *end = nullptr;  // of the one that is begun

    void start(const uint32_t* const* pieces, int64_t count, int64_t words) {
        next = pieces;
        last = pieces + count;
        bytes = words * static_cast<int64_t>(sizeof(uint32_t));
        at = end = nullptr;
    }
    void stop() { start(nullptr, 0, 0); }

    HEADRACE_SHARED void fetch() {
        if (at >= end) {
            if (next == last) return;
            at = reinterpret_cast<const char*>(*next++);
            end = at + bytes;
        }
#pragma GCC unroll 8
        for (int64_t line = 0; line < kLinesAtOnce; ++line) prefetch_far(at + line * kLine);
        at += kLinesAtOnce * kLine;
    }
};

// Where panels lie. Those of a matrix lie one after another. In the cache every group of positions has its own address:
// of keys a group is a panel, of values a chunk of the inputs of all panels.
enum class Layout { matrix, keys, values };

struct PanelSource {
    Layout layout;
    const uint32_t* const* starts;  // keys: of each panel, and of kMaxPanels more; values: of each chunk; else one
    int64_t chunk_inputs;           // of every chunk but the last
    int64_t inputs;                 // of all chunks
    int64_t panel_words;            // from one panel to the next within a chunk
    bool is_near = false;              // it has been read shortly before
    Prefetcher* prefetcher = nullptr;  // of what will be read after all this

    HEADRACE_SHARED const uint32_t* at(int64_t chunk, int64_t panel) const {
        return layout == Layout::keys ? starts[panel] : starts[chunk] + panel * panel_words;
    }

    // What will be read soon after that. In a matrix a processor looks ahead by itself, but no further than a page of
    // 4 kB, and begins anew with the next page: half a page ahead closes that gap. (Further was no better, a whole panel
    // worse.) Through the cache it cannot look ahead: every group may lie in another page.
    HEADRACE_SHARED const uint32_t* soon(int64_t chunk, int64_t panel, int64_t panels_beside) const {
        if (layout == Layout::matrix) return at(chunk, panel) + 32 * kPanel;
        if (layout == Layout::keys) return starts[panel + panels_beside];
        const int64_t last = (inputs - 1) / chunk_inputs;
        return at(chunk + 4 < last ? chunk + 4 : last, panel);
    }
};

template <class Weights>
inline void multiply_some(int64_t rows, const typename Weights::Operand* x, int64_t stride, const PanelSource& w,
                          int64_t first_panel, int64_t num_panels, float* out, int64_t out_stride);

// What weights below have whose products are made of vectors. `add` is always inlined: called, it would keep sums in memory
// instead of registers.
template <class Weights, class Operand_>
struct OnVectors {
    using Operand = Operand_;
    struct Shapes {};  // of tiles
    static constexpr int kRowsAtOnce = kMaxRows;

    // Panels to take at a time, so that their vectors are divided evenly.
    static int64_t panels_at_once(int64_t rows) { return panels_for(static_cast<int>(rows)); }

    // out[r][16 p + i] = x[r] times column i of panel p, for up to kRowsAtOnce rows.
    static void multiply(Shapes&, int64_t rows, const Operand* x, int64_t stride, const PanelSource& w, int64_t first_panel,
                         int64_t num_panels, float* out, int64_t out_stride) {
        multiply_some<Weights>(rows, x, stride, w, first_panel, num_panels, out, out_stride);
    }
};

template <int kRows, int kColumns>
struct Sums {
    Float at[kRows][kColumns];
};

// Vectors that a division into blocks keeps together: those of a panel, if blocks can be whole panels.
constexpr int kept_together(int rows) { return columns_for(rows) % kVectors ? 1 : kVectors; }

// Where the words of a block's columns begin, and what will be read soon after them.
template <int kRows, int kColumns>
struct Columns {
    static constexpr int kTogether = kept_together(kRows), kCount = kColumns / kTogether;
    const uint32_t *starts[kCount], *soon[kCount];

    HEADRACE_SHARED const uint32_t* at(int v) const { return starts[v / kTogether] + v % kTogether * kLanes; }

    // As far on as this row of words, into the nearest cache.
    HEADRACE_SHARED void fetch(int64_t row) const {
#pragma GCC unroll 8
        for (int i = 0; i < kCount; ++i) prefetch(soon[i] + row * kPanel);
    }
};

struct Float32Weights : OnVectors<Float32Weights, float> {
    template <int kRows, int kColumns>
    HEADRACE_SHARED static void add(Sums<kRows, kColumns>& sums, const Columns<kRows, kColumns>& columns, const Operand* x,
                                    int64_t stride, int64_t inputs) {
        for (int64_t k = 0; k < inputs; ++k) {
            columns.fetch(k);
            Float w[kColumns];
#pragma GCC unroll 16
            for (int v = 0; v < kColumns; ++v)
                w[v] = load(reinterpret_cast<const float*>(columns.at(v)) + k * kPanel);
#pragma GCC unroll 16
            for (int r = 0; r < kRows; ++r) {
                const Float factor = broadcast(x[r * stride + k]);
#pragma GCC unroll 16
                for (int v = 0; v < kColumns; ++v) sums.at[r][v] = fma(w[v], factor, sums.at[r][v]);
            }
        }
    }
};

// bfloat16 weights, float32 rows: halves of words are widened on the fly.
struct WidenedWeights : OnVectors<WidenedWeights, float> {
    template <int kRows, int kColumns>
    HEADRACE_SHARED static void add(Sums<kRows, kColumns>& sums, const Columns<kRows, kColumns>& columns, const Operand* x,
                                    int64_t stride, int64_t inputs) {
        for (int64_t k = 0; k + 1 < inputs; k += 2) {
            columns.fetch(k / 2);
            add_half<kRows, kColumns, false>(sums, columns, x, stride, k);
            add_half<kRows, kColumns, true>(sums, columns, x, stride, k);
        }
        if (inputs % 2) add_half<kRows, kColumns, false>(sums, columns, x, stride, inputs - 1);
    }

    template <int kRows, int kColumns, bool kHigh>
    HEADRACE_SHARED static void add_half(Sums<kRows, kColumns>& sums, const Columns<kRows, kColumns>& columns, const Operand* x,
                                         int64_t stride, int64_t k) {
        const auto weights = [&](int v) {
            const uint32_t* words = columns.at(v) + k / 2 * kPanel;
            // Otherwise the compiler keeps words of the low half for the high one, and sums go to memory instead.
            __asm__ volatile("" : "+r"(words));
            return kHigh ? high(load_pairs(words)) : low(load_pairs(words));
        };
        const auto factor = [&](int r) { return broadcast(x[r * stride + k + (kHigh ? 1 : 0)]); };
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
struct PairWeights : OnVectors<PairWeights, uint16_t> {
    template <int kRows, int kColumns>
    HEADRACE_SHARED static void add(Sums<kRows, kColumns>& sums, const Columns<kRows, kColumns>& columns, const Operand* x,
                                    int64_t stride, int64_t inputs) {
        for (int64_t k = 0; k + 1 < inputs; k += 2) {
            columns.fetch(k / 2);
            Pairs w[kColumns];
#pragma GCC unroll 16
            for (int v = 0; v < kColumns; ++v)
                w[v] = load_pairs(columns.at(v) + k / 2 * kPanel);
#pragma GCC unroll 16
            for (int r = 0; r < kRows; ++r) {
                uint32_t pair;
                __builtin_memcpy(&pair, x + r * stride + k, sizeof pair);
#pragma GCC unroll 16
                for (int v = 0; v < kColumns; ++v) sums.at[r][v] = add_products(sums.at[r][v], w[v], pair);
            }
        }
        if (inputs % 2) {  // nothing is known of the word's other half: neither of the row's nor, in a cache, of w's
            for (int r = 0; r < kRows; ++r) {
                const Float factor = broadcast(widen_bf16(x[r * stride + inputs - 1]));
                for (int v = 0; v < kColumns; ++v) {
                    const uint32_t* words = columns.at(v) + inputs / 2 * kPanel;
                    sums.at[r][v] = fma(low(load_pairs(words)), factor, sums.at[r][v]);
                }
            }
        }
    }
};
#endif

// out[r][i] = x[r] times column i of kColumns vectors, of which `column` is the first.
template <class Weights, int kRows, int kColumns>
HEADRACE_SHARED void compute_block(const typename Weights::Operand* x, int64_t stride, const PanelSource& w,
                                   int64_t column, float* out, int64_t out_stride) {
    Sums<kRows, kColumns> sums;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < kColumns; ++v) sums.at[r][v] = broadcast(0.0f);
    for (int64_t k = 0, chunk = 0; k < w.inputs; k += w.chunk_inputs, ++chunk) {
        const int64_t left = w.inputs - k, inputs = left < w.chunk_inputs ? left : w.chunk_inputs;
        Columns<kRows, kColumns> columns;
        for (int i = 0; i < columns.kCount; ++i) {
            const int64_t first = column + i * columns.kTogether;
            columns.starts[i] = w.at(chunk, first / kVectors) + first % kVectors * kLanes;
            columns.soon[i] = w.soon(chunk, first / kVectors, (kColumns + kVectors - 1) / kVectors);
        }
        Weights::template add<kRows, kColumns>(sums, columns, x + k, stride, inputs);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < kColumns; ++v) store(out + r * out_stride + v * kLanes, sums.at[r][v]);
}

// A block is a function of its own: inlined into something large, it would keep sums in memory. gcc's usual way to give out
// registers does so too where a block takes all of them, and its other way where a block does not.
#if defined(__GNUC__) && !defined(__clang__)
#define HEADRACE_ALL_REGISTERS __attribute__((optimize("-fira-algorithm=priority")))
#else
#define HEADRACE_ALL_REGISTERS
#endif

template <class Weights, int kRows, int kColumns>
__attribute__((noinline)) static void multiply_block(const typename Weights::Operand* x, int64_t stride,
                                                     const PanelSource& w, int64_t column, float* out,
                                                     int64_t out_stride) {
    compute_block<Weights, kRows, kColumns>(x, stride, w, column, out, out_stride);
}

template <class Weights, int kRows, int kColumns>
__attribute__((noinline)) HEADRACE_ALL_REGISTERS static void multiply_full_block(
    const typename Weights::Operand* x, int64_t stride, const PanelSource& w, int64_t column, float* out,
    int64_t out_stride) {
    compute_block<Weights, kRows, kColumns>(x, stride, w, column, out, out_stride);
}

// The same for a number of vectors, up to columns_for(kRows), that is known only now.
template <class Weights, int kRows, int kColumns = columns_for(kRows)>
inline void multiply_columns(int64_t columns, const typename Weights::Operand* x, int64_t stride, const PanelSource& w,
                             int64_t column, float* out, int64_t out_stride) {
    if (columns == kColumns) {
        constexpr int kHeld = kRows < kColumns ? kRows : kColumns;  // beside the sums, and one that is streamed
        if constexpr (kRows * kColumns + kHeld + 1 >= kRegisters)
            return multiply_full_block<Weights, kRows, kColumns>(x, stride, w, column, out, out_stride);
        return multiply_block<Weights, kRows, kColumns>(x, stride, w, column, out, out_stride);
    }
    if constexpr (kColumns > kept_together(kRows))
        multiply_columns<Weights, kRows, kColumns - kept_together(kRows)>(columns, x, stride, w, column, out, out_stride);
}

// out[r][16 p + i] = x[r] times column i of panel p, for kRows rows and `num_panels` panels, which are divided evenly.
template <class Weights, int kRows>
inline void multiply_rows(const typename Weights::Operand* x, int64_t stride, const PanelSource& w, int64_t first_panel,
                          int64_t num_panels, float* out, int64_t out_stride) {
    constexpr int kTogether = kept_together(kRows), kMost = columns_for(kRows) / kTogether;
    const int64_t pieces = num_panels * kVectors / kTogether, blocks = (pieces + kMost - 1) / kMost;
    for (int64_t block = 0; block < blocks; ++block) {
        const int64_t first = pieces * block / blocks * kTogether, end = pieces * (block + 1) / blocks * kTogether;
        multiply_columns<Weights, kRows>(end - first, x, stride, w, first_panel * kVectors + first, out + first * kLanes,
                                         out_stride);
    }
}

// The same for a number of rows that is known only now.
template <class Weights, int kRows>
inline void multiply_up_to(int64_t rows, const typename Weights::Operand* x, int64_t stride, const PanelSource& w,
                           int64_t first_panel, int64_t num_panels, float* out, int64_t out_stride) {
    if (rows == kRows) return multiply_rows<Weights, kRows>(x, stride, w, first_panel, num_panels, out, out_stride);
    if constexpr (kRows > 1)
        multiply_up_to<Weights, kRows - 1>(rows, x, stride, w, first_panel, num_panels, out, out_stride);
}

template <class Weights>
inline void multiply_some(int64_t rows, const typename Weights::Operand* x, int64_t stride, const PanelSource& w,
                          int64_t first_panel, int64_t num_panels, float* out, int64_t out_stride) {
    multiply_up_to<Weights, kMaxRows>(rows, x, stride, w, first_panel, num_panels, out, out_stride);
}

}  // namespace headrace::HEADRACE_NAMESPACE
