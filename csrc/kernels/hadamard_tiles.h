// The product of hadamard.h on AMX: a tile has 16 rows of 64 inputs, or 64 inputs of a panel as they lie in it.
#pragma once

#include "amx.h"

namespace headrace::HEADRACE_NAMESPACE {

constexpr int64_t kByteInputs = 64;  // in a row of a tile

// 64 inputs of a panel: where they lie, or the last 32 filled up in `copy`.
inline const uint32_t* byte_tile(const Matrix& w, const uint32_t* panel, int64_t k, uint32_t* copy) {
    const uint32_t* from = panel + k / 4 * kPanel;
    if (w.in - k >= kByteInputs) return from;
    const int64_t words = (w.in - k) / 4 * kPanel;
    __builtin_memcpy(copy, from, words * sizeof(uint32_t));
    __builtin_memset(copy + words, 0, (kTileWords - words) * sizeof(uint32_t));
    finish_writes();
    return copy;
}

// Up to 16 rows times kPanels panels, in integers.
template <int kPanels>
static void multiply_few_bytes(const Matrix& w, Prefetcher& prefetcher, const int8_t* x, int64_t stride, const uint32_t* panel,
                               int32_t* out, int64_t out_stride) {
    alignas(64) uint32_t copies[4][kTileWords];
    const int64_t words = w.panel_words(), bytes = out_stride * static_cast<int64_t>(sizeof(int32_t));
    zero_sums();
    for (int64_t k = 0; k < w.in; k += kByteInputs) {
        const uint32_t* tiles[kPanels];
        for (int p = 0; p < kPanels; ++p) {
            tiles[p] = byte_tile(w, panel + p * words, k, copies[p]);
            prefetcher.fetch();
        }
        _tile_loadd(4, x + k, stride);
        _tile_loadd(6, tiles[0], kTileStride);
        _tile_dpbsud(0, 4, 6);
        if constexpr (kPanels > 1) {
            _tile_loadd(6, tiles[1], kTileStride);
            _tile_dpbsud(1, 4, 6);
        }
        if constexpr (kPanels > 2) {
            _tile_loadd(6, tiles[2], kTileStride);
            _tile_dpbsud(2, 4, 6);
        }
        if constexpr (kPanels > 3) {
            _tile_loadd(6, tiles[3], kTileStride);
            _tile_dpbsud(3, 4, 6);
        }
    }
    _tile_stored(0, out, bytes);
    if constexpr (kPanels > 1) _tile_stored(1, out + kPanel, bytes);
    if constexpr (kPanels > 2) _tile_stored(2, out + 2 * kPanel, bytes);
    if constexpr (kPanels > 3) _tile_stored(3, out + 3 * kPanel, bytes);
}

// 17 to 32 rows.
template <int kPanels>
static void multiply_many_bytes(const Matrix& w, Prefetcher& prefetcher, const int8_t* x, int64_t stride, const uint32_t* panel,
                                int32_t* out, int64_t out_stride) {
    alignas(64) uint32_t copies[2][kTileWords];
    const int64_t words = w.panel_words(), bytes = out_stride * static_cast<int64_t>(sizeof(int32_t));
    zero_sums();
    for (int64_t k = 0; k < w.in; k += kByteInputs) {
        const uint32_t* tiles[kPanels];
        for (int p = 0; p < kPanels; ++p) {
            tiles[p] = byte_tile(w, panel + p * words, k, copies[p]);
            prefetcher.fetch();
        }
        _tile_loadd(4, x + k, stride);
        _tile_loadd(6, tiles[0], kTileStride);
        _tile_dpbsud(0, 4, 6);
        _tile_loadd(5, x + kTileRows * stride + k, stride);
        _tile_dpbsud(2, 5, 6);
        if constexpr (kPanels > 1) {
            _tile_loadd(7, tiles[1], kTileStride);
            _tile_dpbsud(1, 4, 7);
            _tile_dpbsud(3, 5, 7);
        }
    }
    int32_t* below = out + kTileRows * out_stride;
    _tile_stored(0, out, bytes);
    _tile_stored(2, below, bytes);
    if constexpr (kPanels > 1) {
        _tile_stored(1, out + kPanel, bytes);
        _tile_stored(3, below + kPanel, bytes);
    }
}

// out[r][16 p + i] for up to 32 rows.
inline void multiply_mixed_tiles(TileShapes& shapes, Prefetcher& prefetcher, int64_t rows, const int8_t* x, int64_t stride,
                                 const Matrix& w, int64_t panel, int64_t panels, int32_t* out, int64_t out_stride) {
    const int64_t beside = rows > kTileRows ? 2 : 4;
    shapes.use(rows, kByteInputs);
    for (int64_t p = 0; p < panels; p += beside) {
        const int64_t count = panels - p < beside ? panels - p : beside;
        const auto block = rows > kTileRows ? (count == 2 ? multiply_many_bytes<2> : multiply_many_bytes<1>)
                           : count == 4     ? multiply_few_bytes<4>
                           : count == 3     ? multiply_few_bytes<3>
                           : count == 2     ? multiply_few_bytes<2>
                                            : multiply_few_bytes<1>;
        block(w, prefetcher, x, stride, w.panels + (panel + p) * w.panel_words(), out + p * kPanel, out_stride);
    }
    finish_writes();
}

}  // namespace headrace::HEADRACE_NAMESPACE
