// The product of gemm.h on AMX: registers of 16 rows of 64 bytes, and an instruction that multiplies two of them and adds
// to a third. Bits do not depend on how many rows and panels are computed together: each element is one chain over the
// inputs, 32 at a time, and what fills up the last 32 is zero on both sides.
#pragma once

#include "gemm.h"

namespace headrace::HEADRACE_NAMESPACE {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileInputs = 32;                       // bfloat16 in a row
constexpr int64_t kTileWords = kTileInputs / 2 * kPanel;  // of weights: a stretch of a panel, as it lies in memory
constexpr int64_t kTileStride = kPanel * sizeof(uint32_t);

// What LDTILECFG reads. Source: Intel, Software Developer's Manual, volume 1, chapter 18.
struct alignas(64) TileShapes {
    uint8_t palette, first_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

// gcc does not know what the instructions on tiles read from memory: it must have been written by now.
inline void finish_writes() { __asm__ volatile("" ::: "memory"); }

// Sums are in tiles 0 to 3, rows and weights in the others: of up to 16 rows four panels are computed together, tile 4 has
// the rows; of more, two panels, and tiles 4 and 5 have the rows.
inline void shape_tiles(int64_t rows) {
    TileShapes shapes = {};
    shapes.palette = 1;
    const auto first = static_cast<uint8_t>(rows < kTileRows ? rows : kTileRows);
    const auto second = static_cast<uint8_t>(rows - first);
    for (int tile = 0; tile < 8; ++tile) {
        shapes.row_bytes[tile] = kTileStride;
        shapes.rows[tile] = tile >= 5 ? kTileRows : first;
    }
    if (second) shapes.rows[2] = shapes.rows[3] = shapes.rows[5] = second;
    finish_writes();
    _tile_loadconfig(&shapes);
}

inline void zero_sums() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

// Of whole cache lines. Eight of them, which a group of values has, are copied without a call.
HEADRACE_SHARED void copy_words(uint32_t* to, const uint32_t* from, int64_t words) {
    if (words != kGroup / 2 * kPanel) {
        __builtin_memcpy(to, from, words * sizeof(uint32_t));
        return;
    }
#pragma GCC unroll 8
    for (int64_t line = 0; line < kGroup / 2; ++line) store_pairs(to + line * kPanel, load_pairs(from + line * kPanel));
}

// Inputs k to k + 31 of a panel: where they lie, or put together in `copy`.
inline const uint32_t* weight_tile(const PanelSource& w, int64_t panel, int64_t k, uint32_t* copy) {
    const int64_t end = w.inputs - k < kTileInputs ? w.inputs : k + kTileInputs;
    if (w.layout != Layout::values && end == k + kTileInputs) return w.at(0, panel) + k / 2 * kPanel;
    uint32_t* to = copy;
    for (int64_t input = k; input < end;) {
        const int64_t within = input % w.chunk_inputs, left = w.chunk_inputs - within;
        const int64_t count = end - input < left ? end - input : left, words = (count + 1) / 2 * kPanel;
        copy_words(to, w.at(input / w.chunk_inputs, panel) + within / 2 * kPanel, words);
        to += words;
        input += count;
    }
    if (end % 2)  // nothing is known of the other half of the last words
        for (uint32_t* word = to - kPanel; word < to; ++word) *word &= 0xffffu;
    __builtin_memset(to, 0, (copy + kTileWords - to) * sizeof(uint32_t));
    finish_writes();
    return copy;
}

// Some panels' tiles of weights, one after another. What is put together is put together a tile ahead: a tile can be loaded
// only when what was written has arrived in the cache.
template <int kPanels>
struct WeightTiles {
    const PanelSource& w;
    const int64_t panel;
    const uint32_t* starts[2][kPanels];
    alignas(64) uint32_t copies[2][kPanels][kTileWords];

    WeightTiles(const PanelSource& w, int64_t panel) : w(w), panel(panel) { prepare(0); }

    HEADRACE_SHARED void prepare(int64_t k) {
        const int64_t place = k / kTileInputs % 2;
        if (k < w.inputs)
            for (int p = 0; p < kPanels; ++p) starts[place][p] = weight_tile(w, panel + p, k, copies[place][p]);
    }

    // Of inputs k to k + 31. Called for each k in order.
    HEADRACE_SHARED const uint32_t* const* at(int64_t k) {
        prepare(k + kTileInputs);
        return starts[k / kTileInputs % 2];
    }
};

// Rows of 32 inputs, from where they lie; the last inputs are filled up.
struct RowTiles {
    const uint16_t* x;
    int64_t stride;
};

inline RowTiles row_tiles(const uint16_t* x, int64_t stride, int64_t rows, int64_t k, int64_t inputs, uint16_t* copy) {
    if (inputs - k >= kTileInputs) return {x + k, stride};
    for (int64_t r = 0; r < rows; ++r) {
        uint16_t* to = copy + r * kTileInputs;
        __builtin_memset(to, 0, kTileInputs * sizeof(uint16_t));
        __builtin_memcpy(to, x + r * stride + k, (inputs - k) * sizeof(uint16_t));
    }
    finish_writes();
    return {copy, kTileInputs};
}

// Into the L2 cache. Into the L1 a core fetches only 16 lines at a time, and through the KV cache every tile is so many.
inline void fetch_far(const uint32_t* words, int64_t count) {
    for (int64_t line = 0; line < count; line += kPanel) __asm__ volatile("prefetcht1 %0" ::"m"(words[line]));
}

// What will be read soon after inputs k to k + 31 of some panels (PanelSource::soon), while other rows are multiplied.
template <int kPanels>
HEADRACE_SHARED void fetch_soon(const PanelSource& w, int64_t panel, int64_t k) {
    if (w.layout == Layout::values) {
        const int64_t end = w.inputs - k < kTileInputs ? w.inputs : k + kTileInputs;
        for (int64_t input = k; input < end; input += w.chunk_inputs)
            for (int p = 0; p < kPanels; ++p)
                fetch_far(w.soon(input / w.chunk_inputs, panel + p, kPanels), w.chunk_inputs / 2 * kPanel);
        return;
    }
    for (int p = 0; p < kPanels; ++p) {
        const uint32_t* soon = w.soon(0, panel + p, kPanels) + k / 2 * kPanel;
        if (w.layout == Layout::keys) {
            fetch_far(soon, kTileWords);
        } else {
            for (int64_t line = 0; line < kTileWords; line += kPanel) prefetch(soon + line);
        }
    }
}

// bfloat16 weights and rows on tiles.
struct TileWeights {
    using Operand = uint16_t;
    static constexpr int kRowsAtOnce = 2 * kTileRows;

    static int64_t panels_at_once(int64_t) { return kMaxPanels; }

    static void multiply(int64_t rows, const Operand* x, int64_t stride, const PanelSource& w, int64_t first_panel,
                         int64_t num_panels, float* out, int64_t out_stride) {
        const int64_t beside = rows > kTileRows ? 2 : 4;
        shape_tiles(rows);
        for (int64_t panel = 0; panel < num_panels; panel += beside) {
            const int64_t count = num_panels - panel < beside ? num_panels - panel : beside;
            const auto block = rows > kTileRows ? (count == 2 ? many_rows<2> : many_rows<1>)
                               : count == 4     ? few_rows<4>
                               : count == 3     ? few_rows<3>
                               : count == 2     ? few_rows<2>
                                                : few_rows<1>;
            block(rows, x, stride, w, first_panel + panel, out + panel * kPanel, out_stride);
        }
        _tile_release();
    }

    template <int kPanels>
    static void few_rows(int64_t rows, const Operand* x, int64_t stride, const PanelSource& w, int64_t panel, float* out,
                         int64_t out_stride) {
        WeightTiles<kPanels> weights(w, panel);
        alignas(64) uint16_t row_copy[kTileRows * kTileInputs];
        zero_sums();
        for (int64_t k = 0; k < w.inputs; k += kTileInputs) {
            const RowTiles of = row_tiles(x, stride, rows, k, w.inputs, row_copy);
            fetch_soon<kPanels>(w, panel, k);
            const uint32_t* const* tiles = weights.at(k);
            _tile_loadd(4, of.x, of.stride * 2);
            _tile_loadd(5, tiles[0], kTileStride);
            _tile_dpbf16ps(0, 4, 5);
            if constexpr (kPanels > 1) {
                _tile_loadd(6, tiles[1], kTileStride);
                _tile_dpbf16ps(1, 4, 6);
            }
            if constexpr (kPanels > 2) {
                _tile_loadd(7, tiles[2], kTileStride);
                _tile_dpbf16ps(2, 4, 7);
            }
            if constexpr (kPanels > 3) {
                _tile_loadd(5, tiles[3], kTileStride);
                _tile_dpbf16ps(3, 4, 5);
            }
        }
        const int64_t bytes = out_stride * static_cast<int64_t>(sizeof(float));
        _tile_stored(0, out, bytes);
        if (kPanels > 1) _tile_stored(1, out + kPanel, bytes);
        if (kPanels > 2) _tile_stored(2, out + 2 * kPanel, bytes);
        if (kPanels > 3) _tile_stored(3, out + 3 * kPanel, bytes);
    }

    template <int kPanels>
    static void many_rows(int64_t rows, const Operand* x, int64_t stride, const PanelSource& w, int64_t panel, float* out,
                          int64_t out_stride) {
        WeightTiles<kPanels> weights(w, panel);
        alignas(64) uint16_t row_copy[2 * kTileRows * kTileInputs];
        zero_sums();
        for (int64_t k = 0; k < w.inputs; k += kTileInputs) {
            const RowTiles of = row_tiles(x, stride, rows, k, w.inputs, row_copy);
            fetch_soon<kPanels>(w, panel, k);
            const uint32_t* const* tiles = weights.at(k);
            _tile_loadd(4, of.x, of.stride * 2);
            _tile_loadd(6, tiles[0], kTileStride);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(5, of.x + kTileRows * of.stride, of.stride * 2);
            _tile_dpbf16ps(2, 5, 6);
            if constexpr (kPanels > 1) {
                _tile_loadd(7, tiles[1], kTileStride);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
        const int64_t bytes = out_stride * static_cast<int64_t>(sizeof(float));
        float* below = out + kTileRows * out_stride;
        _tile_stored(0, out, bytes);
        _tile_stored(2, below, bytes);
        if (kPanels > 1) {
            _tile_stored(1, out + kPanel, bytes);
            _tile_stored(3, below + kPanel, bytes);
        }
    }
};

}  // namespace headrace::HEADRACE_NAMESPACE
