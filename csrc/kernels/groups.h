// The product for matrices of few bits. Rows are rounded to integers of 8 or 16 bits, each group with a scale of its own; then
// every product within a group is one of integers, which are exact, and only the sum over groups is in float32: one chain in
// their order for each element, whatever is computed beside it.
#pragma once

#include "../args.h"
#include "convert.h"
#include "gemm.h"

namespace headrace::HEADRACE_NAMESPACE {

// ---- rows ----

// An integer q of 16 bits is 256 * upper + lower, both int8.
template <int kRowBytes>
inline void round_group(const float* x, int64_t size, int32_t zero, int8_t* upper, int8_t* lower, float* scale, float* offset,
                        int32_t* start) {
    constexpr float kMost = kRowBytes == 1 ? 127.0f : 127.0f * 256.0f;
    float most = 0.0f;
    for (int64_t i = 0; i < size; i += kLanes) {
        const Float part = load(x + i);
        const float peak = max(max(part, broadcast(0.0f) - part));
        most = peak > most ? peak : most;
    }
    const float factor = most > 0.0f ? kMost / most : 0.0f;
    alignas(64) int32_t rounded[32];
    for (int64_t i = 0; i < size; i += kLanes) store_int(rounded + i, to_int(load(x + i) * broadcast(factor)));
    int32_t total = 0;
    for (int64_t i = 0; i < size; ++i) total += rounded[i];
    if constexpr (kRowBytes == 1) {
        for (int64_t i = 0; i < size; ++i) upper[i] = static_cast<int8_t>(rounded[i]);
    } else {
        for (int64_t i = 0; i < size; ++i) upper[i] = static_cast<int8_t>((rounded[i] + 128) >> 8);
        for (int64_t i = 0; i < size; ++i) lower[i] = static_cast<int8_t>(rounded[i]);  // modulo 256
    }
    *scale = most / kMost;
    *offset = *scale * static_cast<float>(total);
    *start = zero > 0 ? -zero * total : 0;
}

// Rows first to last of x, into the scratch, unless they are there: a thread takes several tiles of the same rows.
template <int kRowBytes>
inline void round_rows(const Operands& x, const Matrix& w, int64_t first_row, int64_t last_row, GroupScratch& scratch) {
    if (scratch.first_row == first_row && scratch.last_row == last_row) return;
    const int64_t size = w.format.size, groups = w.num_groups();
    for (int64_t row = first_row; row < last_row; ++row) {
        const float* from = static_cast<const float*>(x.data) + row * x.stride;
        const int64_t to = (row - first_row) * groups;
        int8_t* quants = scratch.quants + (row - first_row) * kRowBytes * w.in;
        for (int64_t g = 0; g < groups; ++g)
            round_group<kRowBytes>(from + g * size, size, w.format.zero, quants + g * size, quants + w.in + g * size,
                                   scratch.scales + to + g, scratch.offsets + to + g, scratch.starts + to + g);
    }
    scratch.first_row = first_row;
    scratch.last_row = last_row;
}

// ---- blocks ----

inline Float load_scales(const uint32_t* words, int64_t lane, bool wide) {
    return wide ? load(reinterpret_cast<const float*>(words) + lane)
                : load_f16(reinterpret_cast<const uint16_t*>(words) + lane);
}

// Rows of a block: sums of integers and of floats must both fit the registers.
template <int kRowBytes>
constexpr int kGroupRows = kRegisters >= 32 ? (kRowBytes == 1 ? 6 : 4) : (kRowBytes == 1 ? 3 : 2);

// What the integers of a group are, from the sums of their upper and their lower bytes.
template <int kRowBytes>
HEADRACE_SHARED Int whole_dot(Int upper, Int lower) {
    if constexpr (kRowBytes == 1) return upper;
    return add_256(lower, upper);
}

// out[r][i] = row r times column i of kColumns vectors, of which `column` is the first. Rows count from the scratch's first.
template <int kBits, int kSize, int kRowBytes, int kRows, int kColumns>
__attribute__((noinline)) static void multiply_groups(const Matrix& w, const GroupScratch& scratch, int64_t row,
                                                      int64_t column, float* out, int64_t out_stride) {
    constexpr int kWords = kSize / (kBits == 4 ? 8 : 4);
    const int64_t groups = w.in / kSize, group_words = w.group_words(), panel_words = w.panel_words();
    const int64_t scale_words = w.format.scale_words(), row_stride = w.in;
    const bool wide = w.format.wide_scales, has_minimums = w.format.has_minimums();
    const uint32_t* starts[kColumns];
    for (int v = 0; v < kColumns; ++v) starts[v] = w.panels + (column + v) / kVectors * panel_words;
    Float sums[kRows][kColumns];
    for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kColumns; ++v) sums[r][v] = broadcast(0.0f);
    for (int64_t g = 0; g < groups; ++g) {
        const int64_t at = row * groups + g;
        Int dots[kRowBytes][kRows][kColumns];
#pragma GCC unroll 8
        for (int b = 0; b < kRowBytes; ++b)
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
                for (int v = 0; v < kColumns; ++v)
                    dots[b][r][v] = broadcast_int(b == kRowBytes - 1 ? scratch.starts[at + r * groups] : 0);
        const int8_t* quants = scratch.quants + row * kRowBytes * row_stride + g * kSize;
        const auto add = [&](int v, Int weights, int i) __attribute__((always_inline)) {
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
                for (int b = 0; b < kRowBytes; ++b) {
                    int32_t x;
                    __builtin_memcpy(&x, quants + (r * kRowBytes + b) * row_stride + i, sizeof x);
                    dots[b][r][v] = add_dots<kBits == 4>(dots[b][r][v], weights, x);
                }
        };
#pragma GCC unroll 8
        for (int i = 0; i < kWords; ++i)
#pragma GCC unroll 8
            for (int v = 0; v < kColumns; ++v) {
                const Int words = load_int(starts[v] + g * group_words + i * kPanel + (column + v) % kVectors * kLanes);
                if constexpr (kBits == 4) {
                    const Int first = low_halves(words), second = high_halves(words);
                    add(v, first, 4 * i);
                    add(v, second, kSize / 2 + 4 * i);
                } else {
                    add(v, words, 4 * i);
                }
            }
#pragma GCC unroll 8
        for (int v = 0; v < kColumns; ++v) {
            const uint32_t* behind = starts[v] + g * group_words + kWords * kPanel;
            const int64_t lane = (column + v) % kVectors * kLanes;
            const Float scales = load_scales(behind, lane, wide);
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r)
                sums[r][v] = fma(to_float(whole_dot<kRowBytes>(dots[0][r][v], dots[kRowBytes - 1][r][v])),
                                 scales * broadcast(scratch.scales[at + r * groups]), sums[r][v]);
            if (has_minimums) {
                const Float minimums = load_scales(behind + scale_words, lane, wide);
#pragma GCC unroll 8
                for (int r = 0; r < kRows; ++r)
                    sums[r][v] = fma(minimums, broadcast(scratch.offsets[at + r * groups]), sums[r][v]);
            }
        }
    }
    for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kColumns; ++v) store(out + r * out_stride + v * kLanes, sums[r][v]);
}

// For up to kRows rows and `panels` panels. Few rows need more vectors beside one another.
template <int kBits, int kSize, int kRowBytes, int kRows = kGroupRows<kRowBytes>>
inline void multiply_group_rows(int64_t rows, const Matrix& w, const GroupScratch& scratch, int64_t row, int64_t panel,
                                int64_t panels, float* out, int64_t out_stride) {
    if (rows == kRows) {
        constexpr int kMost = kRows * kRowBytes <= 2 ? 4 : 2;
        const int64_t last = panels * kVectors;
        int64_t column = 0;
        for (; column + kMost <= last; column += kMost)
            multiply_groups<kBits, kSize, kRowBytes, kRows, kMost>(w, scratch, row, panel * kVectors + column,
                                                                   out + column * kLanes, out_stride);
        for (; column < last; ++column)
            multiply_groups<kBits, kSize, kRowBytes, kRows, 1>(w, scratch, row, panel * kVectors + column,
                                                               out + column * kLanes, out_stride);
    } else if constexpr (kRows > 1) {
        multiply_group_rows<kBits, kSize, kRowBytes, kRows - 1>(rows, w, scratch, row, panel, panels, out, out_stride);
    }
}

// Rounded rows of the scratch times quants as they are stored (linear.h).
template <int kRowBytes>
struct RoundedRows {
    static constexpr int kRowsAtOnce = kGroupRows<kRowBytes>;

    const Matrix& w;
    const GroupScratch& scratch;
    int64_t first_panel = 0;

    RoundedRows(const Operands& x, const Matrix& w, int64_t first_row, int64_t last_row, GroupScratch& scratch)
        : w(w), scratch(scratch) {
        round_rows<kRowBytes>(x, w, first_row, last_row, scratch);
    }
    static int64_t panels_at_once(int64_t) { return kMaxPanels; }
    void take(int64_t first, int64_t) { first_panel = first; }
    void expect(int64_t, int64_t) {}
    void fetch() {}

    void multiply(int64_t row, int64_t rows, int64_t panels, float* out, int64_t out_stride) const {
        const auto block = w.type == Type::uint4    ? multiply_group_rows<4, 32, kRowBytes>
                           : w.format.size == 32 ? multiply_group_rows<8, 32, kRowBytes>
                                                 : multiply_group_rows<8, 16, kRowBytes>;
        block(rows, w, scratch, row - scratch.first_row, first_panel, panels, out, out_stride);
    }
    RowResults results(int64_t, const float* products) const { return {products}; }
};

// ---- one weight ----

// The weights of one output, by input, as products have them: for looking up a row of an embedding.
inline void unpack_output(const Matrix& w, int64_t output, float* out) {
    const int64_t lane = output % kPanel, size = w.format.size, half = size / 2;
    const uint32_t* group = w.panels + output / kPanel * w.panel_words();
    alignas(64) float scales[kPanel], minimums[kPanel];
    for (int64_t g = 0; g < w.num_groups(); ++g, group += w.group_words()) {
        const uint32_t* behind = group + w.quant_words();
        for (int64_t i = 0; i < kPanel; i += kLanes) {
            store(scales + i, load_scales(behind, i, w.format.wide_scales));
            if (w.format.has_minimums())
                store(minimums + i, load_scales(behind + w.format.scale_words(), i, w.format.wide_scales));
        }
        for (int64_t k = 0; k < size; ++k) {
            const int64_t place = w.type == Type::uint4 ? k % half : k;
            uint32_t quant = group[place / 4 * kPanel + lane] >> (place % 4 * 8) & 0xffu;
            if (w.type == Type::uint4) quant = k < half ? quant & 0xfu : quant >> 4;
            out[g * size + k] = w.format.has_minimums()
                                    ? scales[lane] * static_cast<float>(quant) + minimums[lane]
                                    : scales[lane] * static_cast<float>(static_cast<int32_t>(quant) - w.format.zero);
        }
    }
}

}  // namespace headrace::HEADRACE_NAMESPACE
