// The product of groups.h on AMX. Quants of a group are a tile, rows of one or two bytes are rows of another; their sums of
// integers leave the tiles to be scaled while those of the next groups are computed. The integers are the same, and they are
// scaled by the same operations in the same order: the bits are those of groups.h.
#pragma once

#include "amx.h"
#include "groups.h"

namespace headrace::HEADRACE_NAMESPACE {

constexpr int kGroupsAtOnce = 4;

// Tiles 0 to 3 have the sums of four groups, 4 and 6 rows, 5 and 7 weights.
inline void shape_group_tiles(int64_t tile_rows, int64_t inputs) {
    TileShapes shapes = {};
    shapes.palette = 1;
    for (int tile = 0; tile < 8; ++tile) {
        const bool has_rows = tile == 4 || tile == 6, has_weights = tile == 5 || tile == 7;
        shapes.row_bytes[tile] = static_cast<uint16_t>(has_rows ? inputs : kTileStride);
        shapes.rows[tile] = static_cast<uint8_t>(has_weights ? inputs / 4 : tile_rows);
    }
    finish_writes();
    _tile_loadconfig(&shapes);
}

// The weights of a group, a byte each: where they lie, or unpacked.
template <int kBits, int kSize>
HEADRACE_SHARED const uint32_t* group_tile(const uint32_t* group, uint32_t* copy) {
    if constexpr (kBits == 8) return group;
#pragma GCC unroll 4
    for (int i = 0; i < kSize / 8; ++i) {
        const Int words = load_int(group + i * kPanel);
        store_int(reinterpret_cast<int32_t*>(copy + i * kPanel), low_halves(words));
        store_int(reinterpret_cast<int32_t*>(copy + (kSize / 8 + i) * kPanel), high_halves(words));
    }
    return copy;
}

// The rows of a block, from their first group on.
struct BlockRows {
    const int8_t* quants;
    const float *scales, *offsets;
    const int32_t* starts;
};

template <int kRows>
struct GroupSums {
    Float at[kRows];
};

// Adds what the integers of group g stand for: [rows][kRowBytes][16].
template <int kRowBytes, bool kMinimums, int kRows>
HEADRACE_SHARED void add_group(GroupSums<kRows>& sums, const uint32_t* dots, const BlockRows& rows, int64_t g, int64_t groups,
                               Float scales, Float minimums) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
        const int64_t at = r * groups + g;
        const Int upper = load_int(dots + r * kRowBytes * kPanel), lower = load_int(dots + (r * kRowBytes + kRowBytes - 1) * kPanel);
        Int dot = whole_dot<kRowBytes>(upper, lower);
        if constexpr (!kMinimums) dot = add(dot, broadcast_int(rows.starts[at]));
        sums.at[r] = fma(to_float(dot), scales * broadcast(rows.scales[at]), sums.at[r]);
        if constexpr (kMinimums) sums.at[r] = fma(minimums, broadcast(rows.offsets[at]), sums.at[r]);
    }
}

// out[r][i] = row r times column i of a panel. kRows is `rows` or more; what is computed of the others is nothing's.
template <int kBits, int kSize, int kRowBytes, bool kMinimums, bool kWide, int kRows>
__attribute__((noinline)) static void multiply_group_tiles(int64_t rows, const Matrix& w, const BlockRows& of, int64_t panel,
                                                           float* out, int64_t out_stride) {
    constexpr int kQuantWords = kSize / (kBits == 4 ? 8 : 4) * kPanel, kScaleWords = kWide ? 16 : 8;
    constexpr int kGroupWords = kQuantWords + kScaleWords * (kMinimums ? 2 : 1);
    const int64_t groups = w.in / kSize;
    const uint32_t* group = w.panels + panel * groups * kGroupWords;
    alignas(64) uint32_t copies[kGroupsAtOnce][kSize / 4 * kPanel];
    alignas(64) uint32_t dots[kGroupsAtOnce][kRows * kRowBytes * kPanel] = {};
    GroupSums<kRows> sums;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sums.at[r] = broadcast(0.0f);
    const auto add = [&](int i, int64_t g) __attribute__((always_inline)) {
        const uint32_t* behind = w.panels + (panel * groups + g) * kGroupWords + kQuantWords;
        add_group<kRowBytes, kMinimums>(sums, dots[i], of, g, groups, load_scales(behind, 0, kWide),
                                        kMinimums ? load_scales(behind + kScaleWords, 0, kWide) : broadcast(0.0f));
    };
    for (int64_t g = 0; g < groups; g += kGroupsAtOnce, group += kGroupsAtOnce * kGroupWords) {
        const int64_t count = groups - g < kGroupsAtOnce ? groups - g : kGroupsAtOnce;
        const int8_t* x = of.quants + g * kSize;
        const uint32_t* weights[kGroupsAtOnce] = {};
#pragma GCC unroll 4
        for (int i = 0; i < kGroupsAtOnce; ++i) {
            if (i == count) break;
            for (int line = 0; line < kGroupWords; line += kPanel) prefetch(group + i * kGroupWords + line + 32 * kPanel);
            weights[i] = group_tile<kBits, kSize>(group + i * kGroupWords, copies[i]);
        }
        finish_writes();
        _tile_zero(0);
        _tile_loadd(4, x, w.in);
        _tile_loadd(5, weights[0], kTileStride);
        _tile_dpbsud(0, 4, 5);
        if (count > 1) {
            _tile_zero(1);
            _tile_loadd(6, x + kSize, w.in);
            _tile_loadd(7, weights[1], kTileStride);
            _tile_dpbsud(1, 6, 7);
        }
        if (count > 2) {
            _tile_zero(2);
            _tile_loadd(4, x + 2 * kSize, w.in);
            _tile_loadd(5, weights[2], kTileStride);
            _tile_dpbsud(2, 4, 5);
        }
        if (count > 3) {
            _tile_zero(3);
            _tile_loadd(6, x + 3 * kSize, w.in);
            _tile_loadd(7, weights[3], kTileStride);
            _tile_dpbsud(3, 6, 7);
        }
        if (g) {
#pragma GCC unroll 4
            for (int i = 0; i < kGroupsAtOnce; ++i) add(i, g - kGroupsAtOnce + i);
        }
        _tile_stored(0, dots[0], kTileStride);
        if (count > 1) _tile_stored(1, dots[1], kTileStride);
        if (count > 2) _tile_stored(2, dots[2], kTileStride);
        if (count > 3) _tile_stored(3, dots[3], kTileStride);
        finish_writes();
    }
    const int64_t last = (groups - 1) / kGroupsAtOnce * kGroupsAtOnce;
#pragma GCC unroll 4
    for (int i = 0; i < kGroupsAtOnce; ++i)
        if (last + i < groups) add(i, last + i);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
        if (r < rows) store(out + r * out_stride, sums.at[r]);
}

// Weights of few bits, on tiles.
template <int kRowBytes>
struct GroupTiles {
    static constexpr int kRowsAtOnce = kTileRows / kRowBytes;

    static void multiply(int64_t rows, const Matrix& w, const GroupScratch& scratch, int64_t row, int64_t panel, int64_t panels,
                         float* out, int64_t out_stride) {
        if (rows < kFewestRows) return GroupVectors<kRowBytes>::multiply(rows, w, scratch, row, panel, panels, out, out_stride);
        const int64_t at = row * (w.in / w.format.size);
        const BlockRows of{scratch.quants + row * kRowBytes * w.in, scratch.scales + at, scratch.offsets + at, scratch.starts + at};
        const auto block = block_of(w, rows);
        shape_group_tiles(rows * kRowBytes, w.format.size);
        for (int64_t p = 0; p < panels; ++p) block(rows, w, of, panel + p, out + p * kPanel, out_stride);
        _tile_release();
    }

  private:
    static constexpr int64_t kFewestRows = 3;  // vectors are quicker for less
    using Block = void (*)(int64_t, const Matrix&, const BlockRows&, int64_t, float*, int64_t);

    static Block block_of(const Matrix& w, int64_t rows) {
        if (w.type == Type::uint4) return block_for<4, 32>(w, rows);
        return w.format.size == 32 ? block_for<8, 32>(w, rows) : block_for<8, 16>(w, rows);
    }

    template <int kBits, int kSize>
    static Block block_for(const Matrix& w, int64_t rows) {
        if (w.format.has_minimums())
            return w.format.wide_scales ? block_for<kBits, kSize, true, true>(rows) : block_for<kBits, kSize, true, false>(rows);
        return w.format.wide_scales ? block_for<kBits, kSize, false, true>(rows) : block_for<kBits, kSize, false, false>(rows);
    }

    template <int kBits, int kSize, bool kMinimums, bool kWide>
    static Block block_for(int64_t rows) {
        constexpr int kHalf = kRowsAtOnce / 2;
        return rows <= kHalf ? multiply_group_tiles<kBits, kSize, kRowBytes, kMinimums, kWide, kHalf>
                             : multiply_group_tiles<kBits, kSize, kRowBytes, kMinimums, kWide, kRowsAtOnce>;
    }
};

}  // namespace headrace::HEADRACE_NAMESPACE
