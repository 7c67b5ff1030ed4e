// x @ w.T and what follows at once: bias, residual, gated activation. A tile is some rows by some panels.
#pragma once

#include "../grid.h"
#include "convert.h"
#include "groups.h"
#include "hadamard.h"
#include "math.h"
#include "scaled.h"
#include "weights.h"

namespace headrace::HEADRACE_NAMESPACE {

struct TileRange {
    int64_t first_row, last_row, first_panel, last_panel;
    int64_t next_panel, end_panel;  // of the tile that this thread will probably take next: threads take turns
};

inline TileRange tile_range(const Grid& grid, int64_t tile, int64_t num_rows, int64_t num_panels) {
    const auto within = [](int64_t place, int64_t end) { return place < end ? place : end; };
    const int64_t row = tile / grid.panel_tiles * grid.rows, panel = tile % grid.panel_tiles * grid.panels;
    const int64_t next = tile + grid.num_threads;
    const int64_t next_panel = next < grid.num_tiles() ? next % grid.panel_tiles * grid.panels : num_panels;
    return {row,   within(row + grid.rows, num_rows),     panel,
            within(panel + grid.panels, num_panels),      next_panel,
            within(next_panel + grid.panels, num_panels)};
}

// The product of a chunk reads the rows of all samples, and begins at its own.
inline LinearArgs begin_at_chunk(LinearArgs args, const Step& step) {
    if (args.rows != Rows::chunk) return args;
    const int64_t size = args.x.type == Type::float32 ? 4 : args.x.type == Type::bfloat16 ? 2 : 1;
    args.x.data = static_cast<const char*>(args.x.data) + step.first_sample * args.x.stride * size;
    if (args.residual) args.residual += step.first_sample * args.residual_stride;
    return args;
}

// Rows times weights that are numbers. What multiply_tile asks for, as of the other products: `take` some panels, then
// `multiply` some rows by them, products[r][16 p + i], and say of a row what its products stand for. Panels to `expect` will
// probably be taken after all these, and `fetch` says that there is time for a little of them.
template <class Weights>
struct PlainRows {
    static constexpr int kRowsAtOnce = Weights::kRowsAtOnce;

    const Operands& x;
    const Matrix& w;
    const uint32_t* start = nullptr;
    bool is_near = false;  // rows have passed over these panels
    typename Weights::Shapes shapes = {};

    static int64_t panels_at_once(int64_t rows) { return Weights::panels_at_once(rows); }
    void take(int64_t first, int64_t) {
        start = w.panels + first * w.panel_words();
        is_near = false;
    }
    void expect(int64_t, int64_t) {}
    void fetch() {}

    void multiply(int64_t row, int64_t rows, int64_t panels, float* out, int64_t out_stride) {
        const auto* of = static_cast<const typename Weights::Operand*>(x.data) + row * x.stride;
        const PanelSource source{Layout::matrix, &start, w.in, w.in, w.panel_words(), is_near};
        Weights::multiply(shapes, rows, of, x.stride, source, 0, panels, out, out_stride);
        is_near = true;
    }
    RowResults results(int64_t, const float* products) const { return {products}; }
};

// Calls finish(row, first panel, number of panels, results) for each row, with some panels at a time. Rows pass over a panel while
// it is in the nearest cache. They are divided evenly: 7 are 4 and 3, not 6 and 1. `together` panels are not divided.
template <class Product, class Finish>
inline void multiply_tile(Product product, const TileRange& range, int64_t together, Finish finish) {
    alignas(64) float products[Product::kRowsAtOnce * kMaxPanels * kPanel];
    const int64_t rows = range.last_row - range.first_row, blocks = (rows + Product::kRowsAtOnce - 1) / Product::kRowsAtOnce;
    const int64_t panels_beside = Product::panels_at_once((rows + blocks - 1) / blocks);
    product.expect(range.next_panel, range.end_panel - range.next_panel);
    const int64_t step = (panels_beside + together - 1) / together * together;
    for (int64_t panel = range.first_panel; panel < range.last_panel; panel += step) {
        const int64_t panels = range.last_panel - panel < step ? range.last_panel - panel : step;
        product.take(panel, panels);
        for (int64_t block = 0; block < blocks; ++block) {
            const int64_t row = range.first_row + rows * block / blocks;
            const int64_t count = range.first_row + rows * (block + 1) / blocks - row;
            product.multiply(row, count, panels, products, step * kPanel);
            for (int64_t r = 0; r < count; ++r) {
                product.fetch();
                finish(row + r, panel, panels, product.results(row + r, products + r * step * kPanel));
            }
        }
    }
}

// With the product that the matrix asks for.
template <class Finish>
inline void multiply_by_type(const Operands& x, const Matrix& w, const TileRange& range, int64_t together,
                             GroupScratch* scratch, Finish finish) {
    const int64_t first = range.first_row, last = range.last_row;
    switch (w.type) {
        case Type::float32: return multiply_tile(PlainRows<Float32Weights>{x, w}, range, together, finish);
        case Type::bfloat16: return multiply_tile(PlainRows<BFloat16Weights>{x, w}, range, together, finish);
        default: break;
    }
    switch (w.product()) {
        case Type::float32:
            return multiply_tile(ScaledNumbers<Float32Weights>(x, w, first, last, *scratch), range, together, finish);
        case Type::bfloat16:
#ifdef HEADRACE_AMX
            if (last - first <= kTileRows) return multiply_tile(ScaledRows(x, w, first, last, *scratch), range, together, finish);
#endif
            return multiply_tile(ScaledNumbers<BFloat16Weights>(x, w, first, last, *scratch), range, together, finish);
        default:
            if (w.is_mixed()) return multiply_tile(MixedRows{x, w}, range, together, finish);
            if (w.format.row_bytes == 2) return multiply_tile(RoundedRows<2>(x, w, first, last, *scratch), range, together, finish);
            return multiply_tile(RoundedRows<1>(x, w, first, last, *scratch), range, together, finish);
    }
}

// More logits than a cache holds until they are read go to memory at once, instead of first being read from there.
constexpr int64_t kCachedBytes = 4 << 20;

inline void linear(const LinearArgs& op, const Step& step, const Grid& grid, int64_t tile, GroupScratch* scratch) {
    const LinearArgs args = begin_at_chunk(op, step);
    const int64_t rows = num_rows(step, args.rows);
    const bool is_large =
        args.rows == Rows::chunk && rows * args.out_stride * static_cast<int64_t>(sizeof(float)) > kCachedBytes;
    const auto finish = [&](int64_t row, int64_t panel, int64_t panels, const auto& results) {
        const int64_t first = panel * kPanel, width = panels * kPanel;
        float* out = args.out + row * args.out_stride + first;
        for (int64_t i = 0; i < width; i += kLanes) {
            Float sum = results.at(i);
            if (args.w.bias) sum = sum + load(args.w.bias + first + i);
            if (args.residual) sum = sum + load(args.residual + row * args.residual_stride + first + i);
            if (is_large) {  // out begins a cache line: a head is one piece
                stream(out + i, sum);
            } else {
                store(out + i, sum);
            }
        }
    };
    const TileRange range = tile_range(grid, tile, rows, args.w.num_panels());
    multiply_by_type(args.x, args.w, range, 1, scratch, finish);
    if (is_large) finish_streams();
}

inline Float activate(Activation activation, Float x) {
    return activation == Activation::silu ? silu(x) : gelu_tanh(x);
}

inline void gated(const GatedArgs& args, const Step& step, const Grid& grid, int64_t tile, GroupScratch* scratch) {
    const auto finish = [&](int64_t row, int64_t first_panel, int64_t panels, const auto& results) {
        const int64_t first = first_panel * kPanel, width = panels * kPanel;
        for (int64_t panel = 0; panel < width; panel += 2 * kPanel) {
            for (int64_t i = panel; i < panel + kPanel; i += kLanes) {
                Float gate = results.at(i), up = results.at(kPanel + i);
                if (args.w.bias) {
                    gate = gate + load(args.w.bias + first + i);
                    up = up + load(args.w.bias + first + kPanel + i);
                }
                const int64_t column = (first + panel) / 2 + i - panel;
                store_as(args.out_type, args.out, row * args.out_stride + column, activate(args.activation, gate) * up);
            }
        }
    };
    const TileRange range = tile_range(grid, tile, num_rows(step, args.rows), args.w.num_panels());
    multiply_by_type(args.x, args.w, range, 2, scratch, finish);
}

}  // namespace headrace::HEADRACE_NAMESPACE
