// The product for matrices of few bits whose rows are left as they are. Quants become numbers, which is exact, and scales
// come afterwards: a group's sum of products is multiplied by its scale, and the sum over groups is one chain in float32.
#pragma once

#include "quants.h"
#include "weights.h"
#ifdef HEADRACE_AMX
#include "scaled_tiles.h"
#endif

namespace headrace::HEADRACE_NAMESPACE {

static_assert(kMaxPanels <= kExpandedPanels);

// out[r] += what the sums [rows][panels * 16] of group g stand for. `offsets` are of the first row.
inline void add_scaled(const Matrix& w, int64_t g, int64_t rows, int64_t panel, int64_t panels, const float* offsets,
                       const float* sums, float* out, int64_t stride) {
    for (int64_t i = 0; i < panels * kPanel; i += kLanes) {
        const uint32_t* behind = w.panels + (panel + i / kPanel) * w.panel_words() + g * w.group_words() + w.quant_words();
        const Float scales = number_scales(w, behind, i % kPanel);
        if (w.format.has_minimums()) {
            const Float minimums = load_scales(behind + w.format.scale_words(), i % kPanel, w.format.wide_scales);
            for (int64_t r = 0; r < rows; ++r) {
                float* at = out + r * stride + i;
                const Float scaled = fma(load(sums + r * stride + i), scales, load(at));
                store(at, fma(minimums, broadcast(offsets[r * w.num_groups() + g]), scaled));
            }
        } else {
            for (int64_t r = 0; r < rows; ++r) {
                float* at = out + r * stride + i;
                store(at, fma(load(sums + r * stride + i), scales, load(at)));
            }
        }
    }
}

// Up to kRowsAtOnce rows times panels of numbers: out[r][16 p + i] for `panels` panels, of which `panel` is the first.
template <class Weights>
inline void multiply_scaled(int64_t rows, const typename Weights::Operand* x, int64_t stride, const Matrix& w,
                            const float* offsets, const PanelSource& numbers, int64_t panel, int64_t panels, float* out,
                            int64_t out_stride) {
    typename Weights::Shapes shapes;
    alignas(64) float sums[Weights::kRowsAtOnce * kMaxPanels * kPanel];
    const int64_t words = (w.product() == Type::float32 ? w.format.size : w.format.size / 2) * kPanel;
    for (int64_t r = 0; r < rows; ++r) __builtin_memset(out + r * out_stride, 0, panels * kPanel * sizeof(float));
    for (int64_t g = 0; g < w.num_groups(); ++g) {
        const uint32_t* start = numbers.starts[0] + g * words;
        const PanelSource group{Layout::matrix, &start, w.format.size, w.format.size, numbers.panel_words};
        Weights::multiply(shapes, rows, x + g * w.format.size, stride, group, 0, panels, sums, out_stride);
        add_scaled(w, g, rows, panel, panels, offsets, sums, out, out_stride);
    }
}

#ifdef HEADRACE_AMX
template <>
inline void multiply_scaled<TileWeights>(int64_t rows, const uint16_t* x, int64_t stride, const Matrix& w, const float* offsets,
                                         const PanelSource& numbers, int64_t panel, int64_t panels, float* out,
                                         int64_t out_stride) {
    const int64_t blocks = (rows + kTileRows - 1) / kTileRows;
    for (int64_t block = 0; block < blocks; ++block) {
        const int64_t row = rows * block / blocks, count = rows * (block + 1) / blocks - row;
        ScaledTiles::multiply(count, x + row * stride, stride, w, offsets + row * w.num_groups(), numbers, panel, panels,
                              out + row * out_stride, out_stride);
    }
}
#endif

// Rows as they are times quants as numbers (linear.h).
template <class Weights>
struct ScaledNumbers {
    using Operand = typename Weights::Operand;
    static constexpr int kRowsAtOnce = Weights::kRowsAtOnce;

    const Operands& x;
    const Matrix& w;
    const GroupScratch& scratch;
    const uint32_t* start;
    int64_t first_panel = 0;

    ScaledNumbers(const Operands& x, const Matrix& w, int64_t first_row, int64_t last_row, GroupScratch& scratch)
        : x(x), w(w), scratch(scratch), start(scratch.panels) {
        take_rows<Operand, false>(x, w, first_row, last_row, scratch);
    }
    static int64_t panels_at_once(int64_t rows) { return Weights::panels_at_once(rows); }

    void take(int64_t first, int64_t count) {
        first_panel = first;
        for (int64_t p = 0; p < count; ++p) expand_quants(w, first + p, scratch.panels + p * w.product_panel_words());
    }
    void expect(int64_t, int64_t) {}
    void fetch() {}

    void multiply(int64_t row, int64_t rows, int64_t panels, float* out, int64_t out_stride) const {
        const Operand* of = static_cast<const Operand*>(x.data) + row * x.stride;
        const PanelSource numbers{Layout::matrix, &start, w.in, w.in, w.product_panel_words()};
        const float* offsets = scratch.offsets + (row - scratch.first_row) * w.num_groups();
        multiply_scaled<Weights>(rows, of, x.stride, w, offsets, numbers, first_panel, panels, out, out_stride);
    }
    RowResults results(int64_t, const float* products) const { return {products}; }
};

}  // namespace headrace::HEADRACE_NAMESPACE
