#include "pack.h"

#include <cstring>
#include <vector>

namespace headrace {

namespace {

uint32_t bits_of(float x) {
    uint32_t u;
    std::memcpy(&u, &x, sizeof u);
    return u;
}

uint16_t round_bf16(float x) {
    const uint32_t u = bits_of(x);
    return static_cast<uint16_t>(x != x ? 0x7fc0u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// The words of one row lie 64 bytes apart: the other rows of its panel are in between.
void scatter(const float* values, int64_t in, uint32_t* words) {
    for (int64_t k = 0; k < in; ++k) words[k * kPanel] = bits_of(values[k]);
}

void scatter(const uint16_t* values, int64_t in, uint32_t* words) {
    for (int64_t k = 0; k + 1 < in; k += 2) words[k / 2 * kPanel] = values[k] | static_cast<uint32_t>(values[k + 1]) << 16;
    if (in % 2) words[in / 2 * kPanel] = values[in - 1];
}

// Packs row after row, through buffers that stay in the cache.
class RowPacker {
public:
    RowPacker(const Matrix& matrix, Stored stored)
        : in_(matrix.in), type_(matrix.type), stored_(stored), wide_(static_cast<size_t>(in_)),
          narrow_(static_cast<size_t>(in_)) {}

    void pack(const void* row, uint32_t* words) {
        if (type_ == Type::bfloat16 && stored_ == Stored::bfloat16)
            return scatter(static_cast<const uint16_t*>(row), in_, words);
        widen(stored_, row, in_, wide_.data());
        if (type_ == Type::float32) return scatter(wide_.data(), in_, words);
        for (size_t k = 0; k < wide_.size(); ++k) narrow_[k] = round_bf16(wide_[k]);
        scatter(narrow_.data(), in_, words);
    }

private:
    int64_t in_;
    Type type_;
    Stored stored_;
    std::vector<float> wide_;
    std::vector<uint16_t> narrow_;
};

}  // namespace

int64_t stored_row_bytes(const Matrix& matrix, Stored stored) {
    const StoredFormat format = format_of(stored);
    return matrix.in % format.block ? -1 : matrix.in / format.block * format.block_bytes;
}

void pack_rows(const Matrix& matrix, uint32_t* panels, const void* rows, Stored stored, int64_t num_rows, int64_t first,
               int64_t panel_step, int64_t panel_offset) {
    const int64_t row_bytes = stored_row_bytes(matrix, stored);
    RowPacker packer(matrix, stored);
    for (int64_t i = 0; i < num_rows; ++i) {
        const int64_t place = first + i, panel = place / kPanel * panel_step + panel_offset;
        packer.pack(static_cast<const char*>(rows) + i * row_bytes,
                    panels + panel * matrix.panel_words() + place % kPanel);
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
