// The quants of a matrix of few bits as numbers: a panel of bfloat16 or float32, which hold them exactly. Scales are not in
// it, and each number is kQuantUnit times what it stands for.
#pragma once

#include "convert.h"
#include "groups.h"

namespace headrace::HEADRACE_NAMESPACE {

// How far ahead a panel is fetched: making numbers is slower than reading quants, so a processor's own looking ahead does
// not hide the way to memory. Half as far was slower, in 8 bits above all.
constexpr int64_t kWordsAhead = 2048;

// What makes numbers of words of quants. Where a quant of 8 bits has no zero it is less than 128.
struct QuantNumbers {
    int32_t zero;
    HalfTable halves;

    explicit QuantNumbers(const Matrix& w) : zero(w.format.has_minimums() ? 0 : w.format.zero), halves(zero) {}

    // Input kInput of the four or eight in a word, or with it the next one. Of 4 bits those of the high halves follow.
    template <int kBits, int kInput>
    HEADRACE_SHARED Float number(Int words) const {
        if constexpr (kBits == 4) return number_of_half<kInput>(words, halves);
        else return number_of_byte<kInput>(minus_bytes(words, zero));
    }
    template <int kBits, int kInput>
    HEADRACE_SHARED Pairs pair(Int words) const {
        if constexpr (kBits == 4) return pair_of_halves<kInput>(words, halves);
        else return pair_of_bytes<kInput>(minus_bytes(words, zero));
    }
};

// The words of inputs `input` and `input` + 1 of the word's.
template <int kBits, Type kType, int kInput>
HEADRACE_SHARED void put_numbers(Int words, const QuantNumbers& numbers, uint32_t* out, int64_t input) {
    if constexpr (kType == Type::bfloat16) {
        store_pairs(out + input / 2 * kPanel, numbers.pair<kBits, kInput>(words));
    } else {
        store(reinterpret_cast<float*>(out + input * kPanel), numbers.number<kBits, kInput>(words));
        store(reinterpret_cast<float*>(out + (input + 1) * kPanel), numbers.number<kBits, kInput + 1>(words));
    }
}

// A group's quants, [words][16], as kSize inputs of a panel.
template <int kBits, int kSize, Type kType>
HEADRACE_SHARED void expand_group(const uint32_t* group, const QuantNumbers& numbers, uint32_t* out) {
    constexpr int kWords = kSize / (kBits == 4 ? 8 : 4) * static_cast<int>(kPanel);
#pragma GCC unroll 8
    for (int i = 0; i < kWords; i += kLanes) {
        const Int words = load_int(group + i);
        uint32_t* to = out + i % kPanel;
        const int64_t input = i / kPanel * 4;
        put_numbers<kBits, kType, 0>(words, numbers, to, input);
        put_numbers<kBits, kType, 2>(words, numbers, to, input + 2);
        if constexpr (kBits == 4) {
            put_numbers<kBits, kType, 4>(words, numbers, to, kSize / 2 + input);
            put_numbers<kBits, kType, 6>(words, numbers, to, kSize / 2 + input + 2);
        }
    }
}

template <int kBits, int kSize, Type kType>
__attribute__((noinline)) static void expand_quants_of(const Matrix& w, int64_t panel, uint32_t* out) {
    const QuantNumbers numbers(w);
    const uint32_t* group = w.panels + panel * w.panel_words();
    const int64_t step = w.group_words();
    for (int64_t k = 0; k < w.in; k += kSize, group += step, out += (kType == Type::bfloat16 ? kSize / 2 : kSize) * kPanel) {
        for (int64_t line = 0; line < step; line += kPanel) prefetch(group + kWordsAhead + line);
        expand_group<kBits, kSize, kType>(group, numbers, out);
    }
}

template <Type kType>
inline void expand_quants_as(const Matrix& w, int64_t panel, uint32_t* out) {
    if (w.type == Type::uint4) return expand_quants_of<4, 32, kType>(w, panel, out);
    if (w.format.size == 16) return expand_quants_of<8, 16, kType>(w, panel, out);
    expand_quants_of<8, 32, kType>(w, panel, out);
}

// Panel `panel` as a panel of w.product().
inline void expand_quants(const Matrix& w, int64_t panel, uint32_t* out) {
    if (w.format.product == Type::bfloat16) return expand_quants_as<Type::bfloat16>(w, panel, out);
    expand_quants_as<Type::float32>(w, panel, out);
}

// What scales, of which `behind` has 16, are to numbers.
HEADRACE_SHARED Float number_scales(const Matrix& w, const uint32_t* behind, int64_t lane) {
    return load_scales(behind, lane, w.format.wide_scales) * broadcast(1.0f / kQuantUnit);
}

// What products with numbers need of rows first to last of x beside the rows: the sum of each group, if the matrix has
// minimums; with kWiden, themselves as float32. Into the scratch, unless it is there.
template <class Operand, bool kWiden>
inline void take_rows(const Operands& x, const Matrix& w, int64_t first_row, int64_t last_row, GroupScratch& scratch) {
    if (scratch.first_row == first_row && scratch.last_row == last_row) return;
    float *offset = scratch.offsets, *widened = scratch.few_rows;
    for (int64_t row = first_row; row < last_row; ++row) {
        const Operand* from = static_cast<const Operand*>(x.data) + row * x.stride;
        if (w.format.has_minimums())
            for (int64_t k = 0; k < w.in; k += w.format.size) {
                Float total = load_operands(from + k);
                for (int64_t i = kLanes; i < w.format.size; i += kLanes) total = total + load_operands(from + k + i);
                *offset++ = sum(total);
            }
        if constexpr (kWiden)
            for (int64_t k = 0; k < w.in; k += kLanes, widened += kLanes) store(widened, load_operands(from + k));
    }
    scratch.first_row = first_row;
    scratch.last_row = last_row;
}

}  // namespace headrace::HEADRACE_NAMESPACE
