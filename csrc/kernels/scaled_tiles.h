// The product of scaled.h on AMX, and of few rows beside it on vectors. A tile of sums is that of a group: sums leave the
// tiles to be scaled while those of the next groups are computed.
//
// TDPBF16PS computes an element from 16 pairs of products: a chain of fused multiply-adds over the first of each pair and
// one over the second, both from zero, and their sum is added to the element. Vectors do the same, so bits are the same.
// Source: Intel, Instruction Set Extensions Programming Reference, TDPBF16PS.
#pragma once

#include <type_traits>

#include "amx.h"
#include "quants.h"

namespace headrace::HEADRACE_NAMESPACE {

constexpr int kGroupsAtOnce = 4;

// Tiles 0 to 3 have the sums of four groups, 4 and 6 rows, 5 and 7 numbers.
inline void shape_group_tiles(int64_t rows, int64_t inputs) {
    TileConfiguration shapes = {};
    shapes.palette = 1;
    for (int tile = 0; tile < 8; ++tile) {
        const bool has_rows = tile == 4 || tile == 6, has_numbers = tile == 5 || tile == 7;
        shapes.row_bytes[tile] = static_cast<uint16_t>(has_rows ? 2 * inputs : kTileStride);
        shapes.rows[tile] = static_cast<uint8_t>(has_numbers ? inputs / 2 : rows);
    }
    finish_writes();
    _tile_loadconfig(&shapes);
}

// Scales, and minimums where there are any, of a panel's groups.
struct PanelScales {
    const uint32_t* behind;  // the quants of the first group
    int64_t group_words, scale_words;
    bool wide;

    HEADRACE_SHARED Float scales(int64_t g) const {
        return load_scales(behind + g * group_words, 0, wide) * broadcast(1.0f / kQuantUnit);
    }
    HEADRACE_SHARED Float minimums(int64_t g) const { return load_scales(behind + g * group_words + scale_words, 0, wide); }
};

inline PanelScales panel_scales(const Matrix& w, int64_t panel) {
    return {w.panels + panel * w.panel_words() + w.quant_words(), w.group_words(), w.format.scale_words(), w.format.wide_scales};
}

template <int kRows>
struct GroupSums {
    Float at[kRows];

    template <bool kMinimums>
    HEADRACE_SHARED void add(const float* sums, const PanelScales& of, const float* offsets, int64_t g, int64_t groups) {
        const Float scales = of.scales(g);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) at[r] = fma(load(sums + r * kPanel), scales, at[r]);
        if constexpr (kMinimums) {
            const Float minimums = of.minimums(g);
#pragma GCC unroll 16
            for (int r = 0; r < kRows; ++r) at[r] = fma(minimums, broadcast(offsets[r * groups + g]), at[r]);
        }
    }
};

// A panel's numbers, some groups at a time: where they lie,
struct ReadyNumbers {
    const uint32_t* start;
    int64_t words;  // of a group

    HEADRACE_SHARED void prepare(int64_t, int64_t) {}
    HEADRACE_SHARED const uint32_t* at(int64_t g) const { return start + g * words; }
};

// or made of quants just before they are multiplied. Those of the next groups are made before these are loaded, as a tile
// can be loaded only when what was written has arrived in the cache.
template <int kBits, int kSize>
struct FreshNumbers {
    static constexpr int64_t kWords = kSize / 2 * kPanel;

    QuantNumbers numbers;
    const uint32_t* quants;
    int64_t step;
    alignas(64) uint32_t copies[2 * kGroupsAtOnce * kWords];

    FreshNumbers(const Matrix& w, int64_t panel)
        : numbers(w), quants(w.panels + panel * w.panel_words()), step(w.group_words()) {}

    HEADRACE_SHARED void prepare(int64_t g, int64_t groups) {
#pragma GCC unroll 4
        for (int i = 0; i < kGroupsAtOnce; ++i) {
            if (g + i >= groups) break;
            const uint32_t* group = quants + (g + i) * step;
            for (int64_t line = 0; line < step; line += kPanel) prefetch(group + kWordsAhead + line);
            expand_group<kBits, kSize, Type::bfloat16>(group, numbers, copies + (g + i) % (2 * kGroupsAtOnce) * kWords);
        }
        finish_writes();
    }
    HEADRACE_SHARED const uint32_t* at(int64_t g) const { return copies + g % (2 * kGroupsAtOnce) * kWords; }
};

// out[r][i] = row r times column i of a panel, for up to kRows rows; what is computed of rows after `rows` is nothing's, and
// their offsets are somewhere in the scratch.
template <class Numbers, int kRows, bool kMinimums>
HEADRACE_SHARED void multiply_scaled_panel(int64_t rows, const uint16_t* x, int64_t stride, const Matrix& w, Numbers& numbers,
                                           const PanelScales& of, const float* offsets, float* out, int64_t out_stride) {
    const int64_t size = w.format.size, groups = w.num_groups();
    alignas(64) float sums[kGroupsAtOnce][kTileRows * kPanel] = {};
    GroupSums<kRows> totals;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) totals.at[r] = broadcast(0.0f);
    numbers.prepare(0, groups);
    for (int64_t g = 0; g < groups; g += kGroupsAtOnce) {
        const int64_t count = groups - g < kGroupsAtOnce ? groups - g : kGroupsAtOnce;
        const uint16_t* rows_of = x + g * size;
        numbers.prepare(g + kGroupsAtOnce, groups);
        _tile_zero(0);
        _tile_loadd(4, rows_of, stride * 2);
        _tile_loadd(5, numbers.at(g), kTileStride);
        _tile_dpbf16ps(0, 4, 5);
        if (count > 1) {
            _tile_zero(1);
            _tile_loadd(6, rows_of + size, stride * 2);
            _tile_loadd(7, numbers.at(g + 1), kTileStride);
            _tile_dpbf16ps(1, 6, 7);
        }
        if (count > 2) {
            _tile_zero(2);
            _tile_loadd(4, rows_of + 2 * size, stride * 2);
            _tile_loadd(5, numbers.at(g + 2), kTileStride);
            _tile_dpbf16ps(2, 4, 5);
        }
        if (count > 3) {
            _tile_zero(3);
            _tile_loadd(6, rows_of + 3 * size, stride * 2);
            _tile_loadd(7, numbers.at(g + 3), kTileStride);
            _tile_dpbf16ps(3, 6, 7);
        }
        if (g) {
#pragma GCC unroll 4
            for (int i = 0; i < kGroupsAtOnce; ++i)
                totals.template add<kMinimums>(sums[i], of, offsets, g - kGroupsAtOnce + i, groups);
        }
        _tile_stored(0, sums[0], kTileStride);
        if (count > 1) _tile_stored(1, sums[1], kTileStride);
        if (count > 2) _tile_stored(2, sums[2], kTileStride);
        if (count > 3) _tile_stored(3, sums[3], kTileStride);
        finish_writes();
    }
    const int64_t last = (groups - 1) / kGroupsAtOnce * kGroupsAtOnce;
#pragma GCC unroll 4
    for (int i = 0; i < kGroupsAtOnce; ++i)
        if (last + i < groups) totals.template add<kMinimums>(sums[i], of, offsets, last + i, groups);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
        if (r < rows) store(out + r * out_stride, totals.at[r]);
}

struct ScaledTiles {
    // out[r][16 p + i] for up to 16 rows; `panel` is the matrix's of the first of `numbers`.
    static void multiply(int64_t rows, const uint16_t* x, int64_t stride, const Matrix& w, const float* offsets,
                         const PanelSource& numbers, int64_t panel, int64_t panels, float* out, int64_t out_stride) {
        const auto block = w.format.has_minimums() ? (rows <= 8 ? ready_panel<8, true> : ready_panel<16, true>)
                                                   : (rows <= 8 ? ready_panel<8, false> : ready_panel<16, false>);
        shape_group_tiles(rows, w.format.size);
        for (int64_t p = 0; p < panels; ++p)
            block(rows, x, stride, w, numbers.at(0, p), panel + p, offsets, out + p * kPanel, out_stride);
        _tile_release();
    }

    // The same with quants that are made numbers on the way.
    static void multiply_fresh(int64_t rows, const uint16_t* x, int64_t stride, const Matrix& w, const float* offsets,
                               int64_t panel, int64_t panels, float* out, int64_t out_stride) {
        const auto block = w.type == Type::uint4 ? fresh_panel_of<4, 32>(w, rows)
                           : w.format.size == 16 ? fresh_panel_of<8, 16>(w, rows)
                                                 : fresh_panel_of<8, 32>(w, rows);
        shape_group_tiles(rows, w.format.size);
        for (int64_t p = 0; p < panels; ++p) block(rows, x, stride, w, panel + p, offsets, out + p * kPanel, out_stride);
        _tile_release();
    }

  private:
    template <int kRows, bool kMinimums>
    __attribute__((noinline)) static void ready_panel(int64_t rows, const uint16_t* x, int64_t stride, const Matrix& w,
                                                      const uint32_t* start, int64_t panel, const float* offsets, float* out,
                                                      int64_t out_stride) {
        ReadyNumbers numbers{start, w.format.size / 2 * kPanel};
        multiply_scaled_panel<ReadyNumbers, kRows, kMinimums>(rows, x, stride, w, numbers, panel_scales(w, panel), offsets, out,
                                                              out_stride);
    }

    template <int kBits, int kSize, int kRows, bool kMinimums>
    __attribute__((noinline)) static void fresh_panel(int64_t rows, const uint16_t* x, int64_t stride, const Matrix& w,
                                                      int64_t panel, const float* offsets, float* out, int64_t out_stride) {
        FreshNumbers<kBits, kSize> numbers(w, panel);
        multiply_scaled_panel<FreshNumbers<kBits, kSize>, kRows, kMinimums>(rows, x, stride, w, numbers, panel_scales(w, panel),
                                                                            offsets, out, out_stride);
    }

    using Fresh = void (*)(int64_t, const uint16_t*, int64_t, const Matrix&, int64_t, const float*, float*, int64_t);

    template <int kBits, int kSize>
    static Fresh fresh_panel_of(const Matrix& w, int64_t rows) {
        return w.format.has_minimums() ? (rows <= 8 ? fresh_panel<kBits, kSize, 8, true> : fresh_panel<kBits, kSize, 16, true>)
                                       : (rows <= 8 ? fresh_panel<kBits, kSize, 8, false> : fresh_panel<kBits, kSize, 16, false>);
    }
};

// ---- few rows ----

// out[r][16 v + i] of kColumns panels.
template <int kBits, int kSize, bool kMinimums, int kRows, int kColumns>
__attribute__((noinline)) static void multiply_few(const Matrix& w, const GroupScratch& scratch, int64_t panel, float* out,
                                                   int64_t out_stride) {
    constexpr int kWords = kSize / (kBits == 4 ? 8 : 4);
    const int64_t step = w.group_words(), groups = w.num_groups();
    const QuantNumbers numbers(w);
    const uint32_t* starts[kColumns];
    PanelScales scales[kColumns];
#pragma GCC unroll 4
    for (int v = 0; v < kColumns; ++v) {
        starts[v] = w.panels + (panel + v) * w.panel_words();
        scales[v] = panel_scales(w, panel + v);
    }
    Float totals[kRows][kColumns];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < kColumns; ++v) totals[r][v] = broadcast(0.0f);
    for (int64_t g = 0; g < groups; ++g) {
        Float sums[2][kRows][kColumns];  // of the first and the second of each pair
#pragma GCC unroll 2
        for (int second = 0; second < 2; ++second)
#pragma GCC unroll 4
            for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
                for (int v = 0; v < kColumns; ++v) sums[second][r][v] = broadcast(0.0f);
        const float* x = scratch.few_rows + g * kSize;
        const auto add = [&](int second, int v, Float number, int input) __attribute__((always_inline)) {
#pragma GCC unroll 4
            for (int r = 0; r < kRows; ++r)
                sums[second][r][v] = fma(number, broadcast(x[r * w.in + input]), sums[second][r][v]);
        };
        const auto add_four = [&](auto first, int i, int input) __attribute__((always_inline)) {
            constexpr int kFirst = decltype(first)::value;
            Int words[kColumns];
#pragma GCC unroll 4
            for (int v = 0; v < kColumns; ++v) {
                if (kFirst == 0) prefetch(starts[v] + g * step + i * kPanel + kWordsAhead);
                words[v] = load_int(starts[v] + g * step + i * kPanel);
            }
#pragma GCC unroll 4
            for (int v = 0; v < kColumns; ++v) add(0, v, numbers.number<kBits, kFirst>(words[v]), input);
#pragma GCC unroll 4
            for (int v = 0; v < kColumns; ++v) add(1, v, numbers.number<kBits, kFirst + 1>(words[v]), input + 1);
#pragma GCC unroll 4
            for (int v = 0; v < kColumns; ++v) add(0, v, numbers.number<kBits, kFirst + 2>(words[v]), input + 2);
#pragma GCC unroll 4
            for (int v = 0; v < kColumns; ++v) add(1, v, numbers.number<kBits, kFirst + 3>(words[v]), input + 3);
        };
#pragma GCC unroll 8
        for (int i = 0; i < kWords; ++i) add_four(std::integral_constant<int, 0>(), i, 4 * i);
        if constexpr (kBits == 4) {
#pragma GCC unroll 8
            for (int i = 0; i < kWords; ++i) add_four(std::integral_constant<int, 4>(), i, kSize / 2 + 4 * i);
        }
#pragma GCC unroll 4
        for (int v = 0; v < kColumns; ++v) {
            const Float scale = scales[v].scales(g);
#pragma GCC unroll 4
            for (int r = 0; r < kRows; ++r) {
                const Float sum = sums[0][r][v] + sums[1][r][v];
                totals[r][v] = fma(sum, scale, totals[r][v]);
                if constexpr (kMinimums)
                    totals[r][v] = fma(scales[v].minimums(g), broadcast(scratch.offsets[r * groups + g]), totals[r][v]);
            }
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kColumns; ++v)
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) store(out + r * out_stride + v * kPanel, totals[r][v]);
}

template <int kBits, int kSize, bool kMinimums, int kRows = kFewRows>
inline void multiply_few_rows(int64_t rows, const Matrix& w, const GroupScratch& scratch, int64_t panel, int64_t panels,
                              float* out, int64_t out_stride) {
    if (rows == kRows) {
        constexpr int kMost = kRows == 1 ? 4 : 2;  // panels beside one another
        int64_t p = 0;
        for (; p + kMost <= panels; p += kMost)
            multiply_few<kBits, kSize, kMinimums, kRows, kMost>(w, scratch, panel + p, out + p * kPanel, out_stride);
        for (; p < panels; ++p)
            multiply_few<kBits, kSize, kMinimums, kRows, 1>(w, scratch, panel + p, out + p * kPanel, out_stride);
    } else if constexpr (kRows > 1) {
        multiply_few_rows<kBits, kSize, kMinimums, kRows - 1>(rows, w, scratch, panel, panels, out, out_stride);
    }
}

template <int kBits, int kSize>
inline auto few_rows_of(const Matrix& w) {
    return w.format.has_minimums() ? multiply_few_rows<kBits, kSize, true> : multiply_few_rows<kBits, kSize, false>;
}

// A few rows as they are times quants as they are stored (linear.h), with the bits of ScaledNumbers<TileWeights>: up to
// kFewRows on vectors, up to 16 on tiles.
struct ScaledRows {
    static constexpr int kRowsAtOnce = static_cast<int>(kTileRows);

    const Operands& x;
    const Matrix& w;
    const GroupScratch& scratch;
    int64_t first_panel = 0;

    ScaledRows(const Operands& x, const Matrix& w, int64_t first_row, int64_t last_row, GroupScratch& scratch)
        : x(x), w(w), scratch(scratch) {
        const auto take = last_row - first_row > kFewRows ? take_rows<uint16_t, false> : take_rows<uint16_t, true>;
        take(x, w, first_row, last_row, scratch);
    }
    static int64_t panels_at_once(int64_t) { return kMaxPanels; }
    void take(int64_t first, int64_t) { first_panel = first; }
    void expect(int64_t, int64_t) {}
    void fetch() {}

    void multiply(int64_t row, int64_t rows, int64_t panels, float* out, int64_t out_stride) const {
        if (rows <= kFewRows) {
            const auto block = w.type == Type::uint4 ? few_rows_of<4, 32>(w)
                               : w.format.size == 16 ? few_rows_of<8, 16>(w)
                                                     : few_rows_of<8, 32>(w);
            return block(rows, w, scratch, first_panel, panels, out, out_stride);
        }
        const uint16_t* of = static_cast<const uint16_t*>(x.data) + row * x.stride;
        ScaledTiles::multiply_fresh(rows, of, x.stride, w, scratch.offsets, first_panel, panels, out, out_stride);
    }
    RowResults results(int64_t, const float* products) const { return {products}; }
};

}  // namespace headrace::HEADRACE_NAMESPACE
