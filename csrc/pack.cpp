#include "pack.h"

#include <cstring>

namespace headrace {

namespace {

uint32_t bits_of(float x) {
    uint32_t u;
    std::memcpy(&u, &x, sizeof u);
    return u;
}

float from_bits(uint32_t u) {
    float x;
    std::memcpy(&x, &u, sizeof x);
    return x;
}

float widen_half(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16, rest = half & 0x7fffu;
    if (rest >= 0x7c00u) return from_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);  // infinity, NaN
    // As a float32 whose exponent is too small by 112; the product is exact, for subnormal numbers too.
    return from_bits(sign | bits_of(from_bits(rest << 13) * from_bits(0x77800000u)));
}

template <Stored kStored>
float read(const void* row, int64_t i) {
    if constexpr (kStored == Stored::float32) {
        return static_cast<const float*>(row)[i];
    } else if constexpr (kStored == Stored::bfloat16) {
        return from_bits(static_cast<uint32_t>(static_cast<const uint16_t*>(row)[i]) << 16);
    } else {
        return widen_half(static_cast<const uint16_t*>(row)[i]);
    }
}

uint32_t round_bf16(float x) {
    const uint32_t u = bits_of(x);
    if (x != x) return 0x7fc0u;
    return (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
}

// Writes one row: a word of each 64 bytes.
template <Stored kStored>
void pack_row(Type type, const void* row, int64_t in, uint32_t* words) {
    if (type == Type::float32) {
        for (int64_t k = 0; k < in; ++k) words[k * kPanel] = bits_of(read<kStored>(row, k));
        return;
    }
    for (int64_t k = 0; k < in; k += 2) {
        const uint32_t low = round_bf16(read<kStored>(row, k));
        const uint32_t high = k + 1 < in ? round_bf16(read<kStored>(row, k + 1)) : 0;
        words[k / 2 * kPanel] = low | high << 16;
    }
}

template <Stored kStored>
void pack(const Matrix& matrix, uint32_t* panels, const void* rows, int64_t num_rows, int64_t first, int64_t panel_step,
          int64_t panel_offset) {
    const int64_t row_bytes = matrix.in * (kStored == Stored::float32 ? 4 : 2);
    for (int64_t i = 0; i < num_rows; ++i) {
        const int64_t place = first + i, panel = place / kPanel * panel_step + panel_offset;
        pack_row<kStored>(matrix.type, static_cast<const char*>(rows) + i * row_bytes, matrix.in,
                          panels + panel * matrix.panel_words() + place % kPanel);
    }
}

}  // namespace

void pack_rows(const Matrix& matrix, uint32_t* panels, const void* rows, Stored stored, int64_t num_rows, int64_t first,
               int64_t panel_step, int64_t panel_offset) {
    switch (stored) {
        case Stored::float32: return pack<Stored::float32>(matrix, panels, rows, num_rows, first, panel_step, panel_offset);
        case Stored::bfloat16: return pack<Stored::bfloat16>(matrix, panels, rows, num_rows, first, panel_step, panel_offset);
        case Stored::float16: return pack<Stored::float16>(matrix, panels, rows, num_rows, first, panel_step, panel_offset);
    }
}

void pack_groups(const Matrix& matrix, uint32_t* panels, const uint8_t* quants, const void* scales, const void* minimums,
                 int64_t num_rows, int64_t first, int64_t panel_step, int64_t panel_offset) {
    const int64_t size = matrix.format.size, groups = matrix.in / size, half = size / 2;
    const int64_t scale_bytes = matrix.format.wide_scales ? 4 : 2;
    for (int64_t i = 0; i < num_rows; ++i) {
        const int64_t place = first + i, panel = place / kPanel * panel_step + panel_offset, lane = place % kPanel;
        uint32_t* group = panels + panel * matrix.panel_words();
        for (int64_t g = 0; g < groups; ++g, group += matrix.group_words()) {
            const uint8_t* from = quants + i * matrix.in + g * size;
            uint8_t* bytes = reinterpret_cast<uint8_t*>(group + lane);
            if (matrix.type == Type::uint4) {
                for (int64_t k = 0; k < half; ++k)
                    bytes[k / 4 * kPanel * 4 + k % 4] = static_cast<uint8_t>(from[k] | from[half + k] << 4);
            } else {
                for (int64_t k = 0; k < size; ++k) bytes[k / 4 * kPanel * 4 + k % 4] = from[k];
            }
            char* behind = reinterpret_cast<char*>(group + matrix.quant_words()) + lane * scale_bytes;
            const int64_t at = (i * groups + g) * scale_bytes;
            std::memcpy(behind, static_cast<const char*>(scales) + at, static_cast<size_t>(scale_bytes));
            if (matrix.format.has_minimums())
                std::memcpy(behind + matrix.format.scale_words() * 4, static_cast<const char*>(minimums) + at,
                            static_cast<size_t>(scale_bytes));
        }
    }
}

}  // namespace headrace
