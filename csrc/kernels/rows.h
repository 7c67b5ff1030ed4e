// Ops on rows: embedding, norms, rotation, and the small ones. A tile is some rows.
#pragma once

#include "../args.h"
#include "convert.h"
#include "groups.h"
#include "hadamard.h"
#include "math.h"

namespace headrace::HEADRACE_NAMESPACE {

// The token's column of the packed table: one word out of each 64 bytes.
inline void embed_row(const EmbedArgs& args, int64_t token, float* out) {
    const Matrix& table = args.table;
    if (table.is_grouped()) {
        unpack_output(table, token, out);
        if (table.is_mixed()) unmix(out, table.in);
        return;
    }
    const uint32_t* words = table.panels + token / kPanel * table.panel_words() + token % kPanel;
    if (table.type == Type::float32) {
        for (int64_t k = 0; k < table.in; ++k) __builtin_memcpy(out + k, words + k * kPanel, sizeof(float));
        return;
    }
    for (int64_t k = 0; k < table.in; ++k) out[k] = widen_bf16(words[k / 2 * kPanel] >> (k % 2 * 16) & 0xffffu);
}

inline void embed(const EmbedArgs& args, const Step& step, int64_t first_row, int64_t last_row) {
    for (int64_t row = first_row; row < last_row; ++row)
        embed_row(args, step.token_ids[row], args.out + row * args.out_stride);
}

// Four sums side by side, added in a fixed order, then what is left over.
inline float sum_of_squares(const float* x, int64_t width) {
    Float sums[4] = {broadcast(0.0f), broadcast(0.0f), broadcast(0.0f), broadcast(0.0f)};
    int64_t i = 0;
    for (; i + 4 * kLanes <= width; i += 4 * kLanes)
        for (int s = 0; s < 4; ++s) {
            const Float part = load(x + i + s * kLanes);
            sums[s] = fma(part, part, sums[s]);
        }
    for (; i + kLanes <= width; i += kLanes) {
        const Float part = load(x + i);
        sums[0] = fma(part, part, sums[0]);
    }
    float total = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; i < width; ++i) total += x[i] * x[i];
    return total;
}

inline void norm_run(const NormArgs& args, const float* x, const float* residual, int64_t out) {
    const float mean = sum_of_squares(x, args.width) / static_cast<float>(args.width);
    const float factor = 1.0f / __builtin_sqrtf(mean + args.eps);
    int64_t i = 0;
    for (; i + kLanes <= args.width; i += kLanes) {
        Float y = load(x + i) * broadcast(factor) * load(args.weight + i);
        if (residual) y = y + load(residual + i);
        store_as(args.out_type, args.out, out + i, y);
    }
    for (; i < args.width; ++i) {
        float y = x[i] * factor * args.weight[i];
        if (residual) y += residual[i];
        store_as(args.out_type, args.out, out + i, y);
    }
}

inline void norm(const NormArgs& args, const Step&, int64_t first_row, int64_t last_row, float* room) {
    NormArgs to = args;
    const bool is_mixed = args.out_type == Type::int8;
    if (is_mixed) {
        to.out = room;
        to.out_stride = 0;
        to.out_type = Type::float32;
    }
    for (int64_t row = first_row; row < last_row; ++row) {
        for (int64_t run = 0; run < args.runs; ++run) {
            const int64_t at = run * args.width;
            norm_run(to, args.x + row * args.x_stride + at,
                     args.residual ? args.residual + row * args.residual_stride + at : nullptr, row * to.out_stride + at);
        }
        if (is_mixed) mix_row(room, args.runs * args.width, room, static_cast<int8_t*>(args.out) + row * args.out_stride);
    }
}

// One head [dim], in halves: (a, b) becomes (a cos - b sin, b cos + a sin). `out` may be `x`.
inline void rotate(const Rotation& rotation, int64_t position, const float* x, float* out) {
    const int64_t half = rotation.dim / 2;
    const float* cos = rotation.cos + position * half;
    const float* sin = rotation.sin + position * half;
    int64_t i = 0;
    for (; i + kLanes <= half; i += kLanes) {
        const Float a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
        store(out + i, a * c - b * s);
        store(out + half + i, b * c + a * s);
    }
    for (; i < half; ++i) {
        const float a = x[i], b = x[half + i];
        out[i] = a * cos[i] - b * sin[i];
        out[half + i] = b * cos[i] + a * sin[i];
    }
}

inline void rope(const RopeArgs& args, const Step& step, int64_t first_row, int64_t last_row) {
    for (int64_t row = first_row; row < last_row; ++row)
        for (int64_t head = 0; head < args.num_heads; ++head) {
            const int64_t at = head * args.rotation.dim;
            rotate(args.rotation, step.positions[row], args.x + row * args.x_stride + at,
                   args.out + row * args.out_stride + at);
        }
}

inline void scale(const ScaleArgs& args, const Step&, int64_t first_row, int64_t last_row) {
    for (int64_t row = first_row; row < last_row; ++row)
        for (int64_t i = 0; i < args.width; i += kLanes) {  // rows are padded to whole vectors
            const Float x = load(args.x + row * args.x_stride + i);
            const Float y = args.softcap > 0.0f ? broadcast(args.softcap) * tanh(x / broadcast(args.softcap))
                                                : x * broadcast(args.factor);
            store_as(args.out_type, args.out, row * args.out_stride + i, y);
        }
}

}  // namespace headrace::HEADRACE_NAMESPACE
