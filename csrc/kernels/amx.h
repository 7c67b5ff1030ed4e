// The product of gemm.h on AMX: registers of 16 rows of 64 bytes, and an instruction that multiplies two of them and adds
// to a third. Bits do not depend on how many rows and panels are computed together: each element is one chain over the
// inputs, 32 at a time (of values in the KV cache 16), and what fills up the last of them is zero on both sides.
#pragma once

#include "gemm.h"

namespace headrace::HEADRACE_NAMESPACE {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileInputs = 32;                       // bfloat16 in a row
constexpr int64_t kTileWords = kTileInputs / 2 * kPanel;  // of weights: a stretch of a panel, as it lies in memory
constexpr int64_t kTileStride = kPanel * sizeof(uint32_t);

// What LDTILECFG reads. Source: Intel, Software Developer's Manual, volume 1, chapter 18.
struct alignas(64) TileConfiguration {
    uint8_t palette, first_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

// gcc does not know what the instructions on tiles read from memory: it must have been written by now.
inline void finish_writes() { __asm__ volatile("" ::: "memory"); }

// What tiles are, from when they are first used until they are not any more. Shaping them takes as long as ten products.
//
// Sums are in tiles 0 to 3. Of up to 16 rows four panels are computed together: tile 4 has rows of 64 bytes and tile 5 rows of
// 32, the others weights: tile 6 for the first, tile 7 for the second. Of more rows two panels are: rows are in tiles 4 and 5,
// weights in 6 and 7, all of them for rows of as many bytes as are asked for.
class TileShapes {
  public:
    TileShapes() = default;
    TileShapes(const TileShapes&) = delete;
    TileShapes& operator=(const TileShapes&) = delete;
    ~TileShapes() {
        if (rows_) _tile_release();
    }

    // Before each product.
    HEADRACE_SHARED void use(int64_t rows, int64_t row_bytes) {
        finish_writes();
        if (rows == rows_ && (rows <= kTileRows || row_bytes == row_bytes_)) return;
        load(rows, row_bytes);
    }

  private:
    __attribute__((noinline)) void load(int64_t rows, int64_t row_bytes) {
        rows_ = rows;
        row_bytes_ = row_bytes;
        TileConfiguration tiles = {};
        tiles.palette = 1;
        const auto shape = [&](int tile, int64_t count, int64_t bytes) {
            tiles.rows[tile] = static_cast<uint8_t>(count);
            tiles.row_bytes[tile] = static_cast<uint16_t>(bytes);
        };
        const auto bytes_to_rows = [](int64_t bytes) { return bytes / static_cast<int64_t>(sizeof(uint32_t)); };
        const bool is_few = rows <= kTileRows;
        const int64_t first = is_few ? rows : kTileRows, second = rows - first;
        for (int tile = 0; tile < 4; ++tile) shape(tile, is_few || tile < 2 ? first : second, kTileStride);
        shape(4, first, is_few ? kTileStride : row_bytes);
        shape(5, is_few ? first : second, is_few ? kTileStride / 2 : row_bytes);
        shape(6, bytes_to_rows(is_few ? kTileStride : row_bytes), kTileStride);
        shape(7, bytes_to_rows(is_few ? kTileStride / 2 : row_bytes), kTileStride);
        finish_writes();  // of the configuration
        _tile_loadconfig(&tiles);
    }

    int64_t rows_ = 0, row_bytes_ = 0;
};

inline void zero_sums() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

// The first inputs of a tile of `words` words, filled up in `copy`.
inline const uint32_t* fill_up(const uint32_t* from, int64_t inputs, int64_t words, uint32_t* copy) {
    const int64_t count = (inputs + 1) / 2 * kPanel;
    __builtin_memcpy(copy, from, count * sizeof(uint32_t));
    if (inputs % 2)  // nothing is known of the other half of the last words
        for (uint32_t* word = copy + count - kPanel; word < copy + count; ++word) *word &= 0xffffu;
    __builtin_memset(copy + count, 0, (words - count) * sizeof(uint32_t));
    finish_writes();
    return copy;
}

// Stretches of 32 inputs of a matrix, or of keys. What lies ahead in a matrix is fetched by the first rows that pass over it.
template <bool kFetchesSoon>
struct PanelTiles {
    static constexpr int64_t kInputs = kTileInputs, kWords = kTileWords;
    static constexpr bool kIsGroup = false;

    const PanelSource& w;
    const int64_t first_panel;

    // Inputs k to k + 31 of a panel: where they lie, or the last ones filled up in `copy`.
    HEADRACE_SHARED const uint32_t* at(int64_t panel, int64_t k, uint32_t* copy) const {
        const uint32_t* from = w.at(0, first_panel + panel) + k / 2 * kPanel;
        return w.inputs - k >= kInputs ? from : fill_up(from, w.inputs - k, kWords, copy);
    }

    HEADRACE_SHARED void fetch(int64_t panel, int64_t k) const {
        if constexpr (kFetchesSoon) {
            const uint32_t* soon = w.soon(0, first_panel + panel, 0) + k / 2 * kPanel;
            for (int64_t line = 0; line < kWords; line += kPanel) prefetch(soon + line);
        } else {
            if (w.prefetcher) w.prefetcher->fetch();
        }
    }
};

// Groups of values.
struct ValueTiles {
    static constexpr int64_t kInputs = kGroup, kWords = kGroup / 2 * kPanel;
    static constexpr bool kIsGroup = true;

    const PanelSource& w;
    const int64_t first_panel;

    HEADRACE_SHARED const uint32_t* at(int64_t panel, int64_t k, uint32_t* copy) const {
        const uint32_t* from = w.at(k / kInputs, first_panel + panel);
        return w.inputs - k >= kInputs ? from : fill_up(from, w.inputs - k, kWords, copy);
    }

    HEADRACE_SHARED void fetch(int64_t panel, int64_t) const {
        if (w.prefetcher && panel % 2 == 0) w.prefetcher->fetch();
    }
};

// Rows of a tile's inputs, from where they lie; the last inputs are filled up.
struct RowTiles {
    const uint16_t* x;
    int64_t stride;
};

template <int64_t kInputs>
inline RowTiles row_tiles(const uint16_t* x, int64_t stride, int64_t rows, int64_t k, int64_t inputs, uint16_t* copy) {
    if (inputs - k >= kInputs) return {x + k, stride};
    for (int64_t r = 0; r < rows; ++r) {
        uint16_t* to = copy + r * kInputs;
        __builtin_memset(to, 0, kInputs * sizeof(uint16_t));
        __builtin_memcpy(to, x + r * stride + k, (inputs - k) * sizeof(uint16_t));
    }
    finish_writes();
    return {copy, kInputs};
}

// bfloat16 weights and rows on tiles. A tile has 32 inputs, or where weights are values of the KV cache 16, a group.
struct TileWeights {
    using Operand = uint16_t;
    using Shapes = TileShapes;
    static constexpr int kRowsAtOnce = 2 * kTileRows;

    static int64_t panels_at_once(int64_t) { return kMaxPanels; }

    static void multiply(Shapes& shapes, int64_t rows, const Operand* x, int64_t stride, const PanelSource& w,
                         int64_t first_panel, int64_t num_panels, float* out, int64_t out_stride) {
        if (w.layout == Layout::values) {
            multiply_by<ValueTiles>(shapes, rows, x, stride, w, first_panel, num_panels, out, out_stride);
        } else if (w.layout == Layout::matrix && !w.is_near) {
            multiply_by<PanelTiles<true>>(shapes, rows, x, stride, w, first_panel, num_panels, out, out_stride);
        } else {
            multiply_by<PanelTiles<false>>(shapes, rows, x, stride, w, first_panel, num_panels, out, out_stride);
        }
    }

  private:
    template <class Tiles>
    static void multiply_by(Shapes& shapes, int64_t rows, const Operand* x, int64_t stride, const PanelSource& w,
                            int64_t first_panel, int64_t num_panels, float* out, int64_t out_stride) {
        shapes.use(rows, Tiles::kInputs * 2);
        const int64_t beside = rows > kTileRows ? 2 : 4;
        for (int64_t panel = 0; panel < num_panels; panel += beside) {
            const int64_t count = num_panels - panel < beside ? num_panels - panel : beside;
            const auto block = rows > kTileRows ? (count == 2 ? many_rows<Tiles, 2> : many_rows<Tiles, 1>)
                               : count == 4     ? few_rows<Tiles, 4>
                               : count == 3     ? few_rows<Tiles, 3>
                               : count == 2     ? few_rows<Tiles, 2>
                                                : few_rows<Tiles, 1>;
            block(rows, x, stride, Tiles{w, first_panel + panel}, out + panel * kPanel, out_stride);
        }
    }

    template <class Tiles, int kPanels>
    static void few_rows(int64_t rows, const Operand* x, int64_t stride, const Tiles& weights, float* out, int64_t out_stride) {
        constexpr int64_t kInputs = Tiles::kInputs;
        alignas(64) uint32_t copies[kPanels][Tiles::kWords];
        alignas(64) uint16_t row_copy[kTileRows * kInputs];
        const int64_t inputs = weights.w.inputs;
        zero_sums();
        for (int64_t k = 0; k < inputs; k += kInputs) {
            const RowTiles of = row_tiles<kInputs>(x, stride, rows, k, inputs, row_copy);
            if constexpr (Tiles::kIsGroup) {
                _tile_loadd(5, of.x, of.stride * 2);
            } else {
                _tile_loadd(4, of.x, of.stride * 2);
            }
#pragma GCC unroll 4
            for (int p = 0; p < kPanels; ++p) {
                weights.fetch(p, k);
                const uint32_t* tile = weights.at(p, k, copies[p]);
                if constexpr (Tiles::kIsGroup) {
                    _tile_loadd(7, tile, kTileStride);
                    if (p == 0) _tile_dpbf16ps(0, 5, 7);
                    if (p == 1) _tile_dpbf16ps(1, 5, 7);
                    if (p == 2) _tile_dpbf16ps(2, 5, 7);
                    if (p == 3) _tile_dpbf16ps(3, 5, 7);
                } else {
                    _tile_loadd(6, tile, kTileStride);
                    if (p == 0) _tile_dpbf16ps(0, 4, 6);
                    if (p == 1) _tile_dpbf16ps(1, 4, 6);
                    if (p == 2) _tile_dpbf16ps(2, 4, 6);
                    if (p == 3) _tile_dpbf16ps(3, 4, 6);
                }
            }
        }
        const int64_t bytes = out_stride * static_cast<int64_t>(sizeof(float));
        _tile_stored(0, out, bytes);
        if (kPanels > 1) _tile_stored(1, out + kPanel, bytes);
        if (kPanels > 2) _tile_stored(2, out + 2 * kPanel, bytes);
        if (kPanels > 3) _tile_stored(3, out + 3 * kPanel, bytes);
    }

    template <class Tiles, int kPanels>
    static void many_rows(int64_t rows, const Operand* x, int64_t stride, const Tiles& weights, float* out, int64_t out_stride) {
        constexpr int64_t kInputs = Tiles::kInputs;
        alignas(64) uint32_t copies[kPanels][Tiles::kWords];
        alignas(64) uint16_t row_copy[2 * kTileRows * kInputs];
        const int64_t inputs = weights.w.inputs;
        zero_sums();
        for (int64_t k = 0; k < inputs; k += kInputs) {
            const RowTiles of = row_tiles<kInputs>(x, stride, rows, k, inputs, row_copy);
#pragma GCC unroll 2
            for (int p = 0; p < kPanels; ++p) weights.fetch(p, k);
            _tile_loadd(4, of.x, of.stride * 2);
            _tile_loadd(6, weights.at(0, k, copies[0]), kTileStride);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(5, of.x + kTileRows * of.stride, of.stride * 2);
            _tile_dpbf16ps(2, 5, 6);
            if constexpr (kPanels > 1) {
                _tile_loadd(7, weights.at(1, k, copies[1]), kTileStride);
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
