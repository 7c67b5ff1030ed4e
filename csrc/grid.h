// How the rows and panels of a product are cut into tiles. No result depends on it; speed does.
#pragma once

#include "args.h"

namespace headrace {

struct Grid {
    int64_t rows, panels;              // of a tile, at most
    int64_t row_tiles, panel_tiles;
    int64_t num_threads;

    HEADRACE_SHARED int64_t num_tiles() const { return row_tiles * panel_tiles; }
};

constexpr int64_t kTileBytes = 64 << 10;  // of weights: they take long enough for nobody to notice where a tile ends

// Of any grid, where so many are multiplied at a time.
HEADRACE_SHARED int64_t max_tile_rows(int64_t max_rows) { return 8 * max_rows; }

// `step` is the number of panels of `w` that must stay together; `max_rows` are multiplied at a time.
HEADRACE_SHARED Grid make_grid(int64_t num_rows, const Matrix& w, int64_t step, int64_t max_rows, int64_t num_threads) {
    const int64_t num_panels = w.num_panels(), panel_bytes = w.panel_words() * static_cast<int64_t>(sizeof(uint32_t));
    if (num_rows == 0) return {0, 0, 0, 0, num_threads};
    // As many rows as keep a core's share of them in its L2 cache while panels pass by.
    const int64_t most = max_tile_rows(max_rows), row_tiles = (num_rows + most - 1) / most;
    const int64_t blocks = (num_rows + max_rows - 1) / max_rows;
    const int64_t rows = (blocks + row_tiles - 1) / row_tiles * max_rows;
    // Four panels have enough sums in flight at one row. Fewer, where the last tiles would leave threads idle.
    int64_t panels = 4;
    while (panels > step && (num_panels / panels) * row_tiles < 6 * num_threads) panels -= step;
    // More, where there are many small ones: each tile has to be asked for.
    while (panels * panel_bytes < kTileBytes && num_panels / panels * row_tiles >= 24 * num_threads) panels *= 2;
    return {rows, panels, (num_rows + rows - 1) / rows, (num_panels + panels - 1) / panels, num_threads};
}

}  // namespace headrace
