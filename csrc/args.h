// The arguments of the ops on a tape: plain data, the same for every instruction set. Strides are in elements.
#pragma once

#include <cstdint>

#include "step.h"

namespace headrace {

constexpr int64_t kPanel = 16;  // columns of a packed panel
constexpr int64_t kMaxHeadDim = 256;

HEADRACE_SHARED int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// uint4 and uint8 are of matrices, int8 and fp8 of KV caches. fp8 is e4m3: 4 bits of exponent, 3 of mantissa, no infinity.
// Source: Open Compute Project, OCP 8-bit Floating Point Specification (OFP8), 2023.
enum class Type : int32_t { float32, bfloat16, uint4, uint8, int8, fp8 };

// Of a matrix of few bits: runs of `size` inputs of an output, with a scale of their own. A weight is
// scale * (quant - zero), or where `zero` is negative scale * quant + minimum, and then quants are less than 128.
struct GroupFormat {
    int32_t size;      // 32 or 16, or all inputs where these are mixed
    int32_t zero;
    bool wide_scales;  // scales and minimums are float32, else float16
    Type product;      // uint8: rows are rounded to integers by groups. bfloat16, float32: quants become numbers of this type
    int32_t row_bytes; // 1 or 2, of these integers

    HEADRACE_SHARED bool has_minimums() const { return zero < 0; }
    HEADRACE_SHARED int64_t scale_words() const { return wide_scales ? 16 : 8; }
};

// A matrix [out, in] in panels of 16 outputs.
//   float32, bfloat16: [num_panels][words][16], a word is one float32 of an input, or two bfloat16 of inputs k (low half)
//     and k + 1. Outputs after the last and an odd last input are filled with zeros.
//   uint8, uint4: [num_panels][groups][quants, 16 scales, 16 minimums where there are any]. Quants are [words][16]: word i
//     has inputs 4 i to 4 i + 3 of the group, a byte each, the first one lowest; of uint4 these are the low halves of the
//     bytes, and the high ones are the same inputs of the group's second half. `in` is a whole number of groups.
struct Matrix {
    const uint32_t* panels;
    const float* bias;  // [out rounded up to panels], or null
    int64_t out, in;
    Type type;
    GroupFormat format;

    HEADRACE_SHARED bool is_grouped() const { return type == Type::uint4 || type == Type::uint8; }
    HEADRACE_SHARED bool is_mixed() const { return is_grouped() && format.size > 32; }  // kernels/hadamard.h
    HEADRACE_SHARED int64_t num_groups() const { return in / format.size; }
    HEADRACE_SHARED int64_t num_panels() const { return (out + kPanel - 1) / kPanel; }
    HEADRACE_SHARED int64_t quant_words() const { return format.size / (type == Type::uint4 ? 8 : 4) * kPanel; }
    HEADRACE_SHARED int64_t group_words() const {
        return quant_words() + format.scale_words() * (format.has_minimums() ? 2 : 1);
    }
    HEADRACE_SHARED int64_t panel_words() const {
        return is_grouped() ? num_groups() * group_words() : product_panel_words();
    }

    // What rows are multiplied by: weights or quants as they are stored, or quants as numbers of this type.
    HEADRACE_SHARED Type product() const { return is_grouped() ? format.product : type; }
    HEADRACE_SHARED int64_t product_panel_words() const { return (product() == Type::float32 ? in : (in + 1) / 2) * kPanel; }
};

// Rows that are multiplied by a matrix: bfloat16 where there are instructions for their products, else float32; or int8, of a
// matrix whose inputs are mixed.
struct Operands {
    const void* data;
    int64_t stride;
    Type type;
};

constexpr int64_t kMaxMixed = 65536;  // inputs that are mixed: sums of so many products of bytes fit 32 bits

constexpr int64_t kExpandedPanels = 4;  // of a matrix of few bits, at a time

constexpr int64_t kFewRows = 3;  // that are multiplied by quants as they lie, where more rows pass over a panel of numbers

// What a thread needs to multiply by matrices of few bits: the rows of its last tile, rounded by groups; or what it knows of
// them as they are, and panels whose quants are numbers.
struct GroupScratch {
    int8_t* quants;   // [rows, row_bytes, in], upper bytes first
    float* scales;    // [rows, groups]: what a quant stands for
    float* offsets;   // [rows, groups]: the sum of a group, rounded or not
    int32_t* starts;  // [rows, groups]: the sum of its quants times minus the matrix's zero
    float* few_rows;  // [kFewRows, in]
    int64_t first_row, last_row;  // of the op that is computed: these are they. -1: none
    uint32_t* panels;  // [kExpandedPanels, product_panel_words]

    HEADRACE_SHARED void forget() { first_row = last_row = -1; }
};

enum class Activation : int32_t { silu, gelu_tanh };

struct EmbedArgs {
    Matrix table;
    float* out;
    int64_t out_stride;
};

// out = x / rms(x) * weight over each run of `width` elements; with `residual`, that is added.
struct NormArgs {
    Rows rows;
    const float* x;
    int64_t x_stride;
    const float* weight;
    int64_t width, runs;  // a row has `runs` runs
    float eps;
    const float* residual;  // or null
    int64_t residual_stride;
    void* out;
    int64_t out_stride;
    Type out_type;  // int8: mixed and rounded, as by an op of MixArgs
};

// Rows as matrices whose inputs are mixed want them: mixed too, and rounded to bytes (MixedRow).
struct MixArgs {
    Rows rows;
    const float* x;
    int64_t x_stride;
    int64_t width;
    int8_t* out;
    int64_t out_stride;
};

// Bytes of its quants, filled up with zeros to what tiles take at a time.
HEADRACE_SHARED int64_t mixed_row_bytes(int64_t width) { return round_up(width, 64); }

// What is behind the quants of a mixed row.
struct MixedRow {
    float* scale;    // an input is scale * quant
    int32_t* total;  // of the quants

    HEADRACE_SHARED MixedRow(const int8_t* row, int64_t width)
        : scale(reinterpret_cast<float*>(const_cast<int8_t*>(row) + mixed_row_bytes(width))),
          total(reinterpret_cast<int32_t*>(scale + 1)) {}
};

// out = x @ w.T (+ bias) (+ residual). Where the rows are a chunk, x and residual have those of all samples.
struct LinearArgs {
    Rows rows;
    Operands x;
    Matrix w;
    const float* residual;  // or null
    int64_t residual_stride;
    float* out;
    int64_t out_stride;
};

// out = activation(x @ gate.T) * (x @ up.T): panel 2 i of `w` has outputs of gate, panel 2 i + 1 the same of up.
struct GatedArgs {
    Rows rows;
    Operands x;
    Matrix w;
    Activation activation;
    void* out;
    int64_t out_stride;
    Type out_type;
};

// cos and sin [num_positions, dim / 2], or null: not rotated.
struct Rotation {
    const float* cos;
    const float* sin;
    int64_t dim;
};

struct RopeArgs {
    Rows rows;
    const float* x;
    int64_t x_stride;
    Rotation rotation;
    int64_t num_heads;
    float* out;
    int64_t out_stride;
};

// One layer's keys and values: [groups of 16 slots][num_kv_heads][a group's keys, its values, its scales].
//   keys   [words of head_dim][16 slots]: a panel whose outputs are slots
//   values [panels of 16 elements][16 slots or 8 pairs of them][16]: panels whose inputs are slots
//   scales of int8 and fp8: float32 [16 slots] of keys, then of values: what an element of the slot is a multiple of
// Elements of int8 and fp8 lie as those of bfloat16 do, in half the space: there a pair of them is half a word. Their keys
// are filled up to whole cache lines.
struct KVCache {
    void* data;
    Type type;
    int64_t num_kv_heads, head_dim;
    int64_t block_size;
    Type arithmetic;  // bfloat16: rows that meet what is not float32 are rounded, where kernels do that; float32: never

    HEADRACE_SHARED bool is_quantized() const { return type == Type::int8 || type == Type::fp8; }
    HEADRACE_SHARED int64_t key_words() const {
        if (is_quantized()) return widened_key_words() / 2;
        return (type == Type::float32 ? head_dim : (head_dim + 1) / 2) * kGroup;
    }
    HEADRACE_SHARED int64_t value_width() const { return round_up(head_dim, kPanel); }
    HEADRACE_SHARED int64_t value_words() const {
        return (type == Type::float32 ? kGroup : is_quantized() ? kGroup / 4 : kGroup / 2) * value_width();
    }
    HEADRACE_SHARED int64_t group_words() const {
        return key_words() + value_words() + (is_quantized() ? 2 * kGroup : 0);
    }
    HEADRACE_SHARED uint32_t* group(int64_t group, int64_t kv_head) const {
        return static_cast<uint32_t*>(data) + (group * num_kv_heads + kv_head) * group_words();
    }

    // Once int8 or fp8 are bfloat16: keys of a group, and a panel of the values of a split. Panels lie a cache line more than
    // 8 kB apart, or they would compete for the same places of the cache.
    HEADRACE_SHARED int64_t widened_key_words() const { return round_up(head_dim, 4) / 2 * kGroup; }
    HEADRACE_SHARED int64_t widened_panel_words() const { return (kSplit / 2 + 1) * kPanel; }
    HEADRACE_SHARED int64_t widened_words() const {  // of a split
        if (!is_quantized()) return 0;
        return kSplit / kGroup * widened_key_words() + value_width() / kPanel * widened_panel_words();
    }
};

// Keys and values of tokens go to their slots: as an op those of Step::shared_tokens. The others are attention's to write.
struct KVWriteArgs {
    const float* k;
    int64_t k_stride;
    const float* v;
    int64_t v_stride;
    Rotation rotation;  // of k
    KVCache cache;
};

struct AttentionArgs {
    const float* q;
    int64_t q_stride;
    Rotation rotation;  // of q
    KVCache cache;
    int64_t num_heads;
    float scale;
    float softcap;   // 0: none
    int64_t window;  // positions that a row sees, its own among them; 0: all
    void* out;
    int64_t out_stride;
    Type out_type;
    float* partials;     // [places, num_heads, round_up(head_dim, 16) + 16]: sums, then maximum and total weight
    KVWriteArgs write;   // those of a request's only token are written by who attends to it: nobody else needs them
    int32_t* remaining;  // [tokens, num_kv_heads], splits that are not yet computed; all zero between steps

    HEADRACE_SHARED int64_t partial_width() const { return cache.value_width() + kPanel; }
};

// What a thread needs for attention, beside its stack.
struct RowTotal {  // of a query row over the splits so far
    float peak;    // the largest score
    float weight;  // the sum of weights relative to it
};
struct AttentionScratch {
    void* queries;   // [rows, value_width], operands
    float* totals;   // [rows, value_width], weighted values
    RowTotal* rows;  // [rows]
    uint32_t* copy;  // [groups of a split], where blocks are no whole groups
    uint32_t* widened;  // [widened_words], where the cache is int8 or fp8
};

// A token for each sample of the chunk, from its logits.
struct SampleArgs {
    const float* logits;
    int64_t stride;
    int64_t vocab;
};

// Rows of the samples. Strides are in bytes.
struct TakeRowsArgs {
    const void* x;
    int64_t x_stride;
    void* out;
    int64_t out_stride;
    int64_t row_bytes;
};

// out = softcap * tanh(x / softcap), or with softcap 0: factor * x
struct ScaleArgs {
    Rows rows;
    const float* x;
    int64_t x_stride;
    float factor, softcap;
    int64_t width;
    void* out;
    int64_t out_stride;
    Type out_type;
};

}  // namespace headrace
