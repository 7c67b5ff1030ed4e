// Panels of a matrix of few bits as panels of bfloat16 or float32: the same numbers, bit for bit, as if the matrix had been
// expanded when it was loaded.
#pragma once

#include "groups.h"

namespace headrace::HEADRACE_NAMESPACE {

// How far ahead a panel is fetched: expanding one is slower than reading it, so a processor's own looking ahead does not
// hide the way to memory. Half as far was slower, in 8 bits above all.
constexpr int64_t kWordsAhead = 2048;

// Two inputs, the quants of 16 outputs each, in the form of a panel.
struct ExpandedWriter {
    uint32_t* words;
    Type type;
    Float scales, minimums, zero;
    bool has_minimums;

    HEADRACE_SHARED Float value(Int quants) const {
        const Float scaled = (to_float(quants) - zero) * scales;
        return has_minimums ? scaled + minimums : scaled;
    }

    HEADRACE_SHARED void put(int64_t input, Int first, Int second) const {
        if (type == Type::bfloat16) return store_rounded(words + input / 2 * kPanel, value(first), value(second));
        store(reinterpret_cast<float*>(words + input * kPanel), value(first));
        store(reinterpret_cast<float*>(words + (input + 1) * kPanel), value(second));
    }
};

template <int kBits, int kSize>
HEADRACE_SHARED void expand_group(const Matrix& w, const uint32_t* group, const ExpandedWriter& out, int64_t lane) {
    constexpr int kWords = kSize / (kBits == 4 ? 8 : 4);
#pragma GCC unroll 8
    for (int i = 0; i < kWords; ++i) {
        const Int words = load_int(group + i * kPanel + lane);
        const auto four = [&](int64_t input, Int bytes) {
            out.put(input, byte_of<0>(bytes), byte_of<1>(bytes));
            out.put(input + 2, byte_of<2>(bytes), byte_of<3>(bytes));
        };
        if constexpr (kBits == 4) {
            four(4 * i, low_halves(words));
            four(kSize / 2 + 4 * i, high_halves(words));
        } else {
            four(4 * i, words);
        }
    }
}

template <int kBits, int kSize, Type kType, bool kMinimums>
__attribute__((noinline)) static void expand_panel_of(const Matrix& w, int64_t panel, uint32_t* out) {
    const uint32_t* group = w.panels + panel * w.panel_words();
    const int64_t group_words = w.group_words(), quant_words = w.quant_words(), scale_words = w.format.scale_words();
    const Float zero = broadcast(kMinimums ? 0.0f : static_cast<float>(w.format.zero));
    for (int64_t k = 0; k < w.in; k += kSize, group += group_words, out += (kType == Type::bfloat16 ? kSize / 2 : kSize) * kPanel) {
        for (int64_t line = 0; line < group_words; line += kPanel) prefetch(group + kWordsAhead + line);
        for (int64_t lane = 0; lane < kPanel; lane += kLanes) {
            const uint32_t* behind = group + quant_words;
            const Float scales = load_scales(behind, lane, w.format.wide_scales);
            const Float minimums = kMinimums ? load_scales(behind + scale_words, lane, w.format.wide_scales) : zero;
            expand_group<kBits, kSize>(w, group, ExpandedWriter{out + lane, kType, scales, minimums, zero, kMinimums}, lane);
        }
    }
}

template <int kBits, int kSize>
inline void expand_panel_as(const Matrix& w, int64_t panel, uint32_t* out) {
    if (w.format.product == Type::bfloat16) {
        const auto expand = w.format.has_minimums() ? expand_panel_of<kBits, kSize, Type::bfloat16, true>
                                                    : expand_panel_of<kBits, kSize, Type::bfloat16, false>;
        return expand(w, panel, out);
    }
    const auto expand = w.format.has_minimums() ? expand_panel_of<kBits, kSize, Type::float32, true>
                                                : expand_panel_of<kBits, kSize, Type::float32, false>;
    expand(w, panel, out);
}

// Panel `panel` as a panel of w.product().
inline void expand_panel(const Matrix& w, int64_t panel, uint32_t* out) {
    if (w.type == Type::uint4) return expand_panel_as<4, 32>(w, panel, out);
    if (w.format.size == 32) return expand_panel_as<8, 32>(w, panel, out);
    expand_panel_as<8, 16>(w, panel, out);
}

}  // namespace headrace::HEADRACE_NAMESPACE
