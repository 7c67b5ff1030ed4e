#include "pack.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu.h"

namespace headrace {

namespace {

constexpr int64_t kChunk = 256;  // inputs at a time: whole blocks of every format

// Words of a chunk of the rows of a panel: 16 KiB, which stay in the cache until they are turned into lines of the panel.
using Tile = uint32_t[kPanel][kChunk];

uint16_t round_bf16(float x) {
    uint32_t u;
    std::memcpy(&u, &x, sizeof u);
    return static_cast<uint16_t>(x != x ? 0x7fc0u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// A row's inputs as words of a matrix of this type, an odd last one with a zero beside it.
void read_row(Type type, Stored stored, const void* inputs, int64_t count, uint32_t* words) {
    if (type == Type::bfloat16 && stored == Stored::bfloat16) {
        words[count / 2] = 0;
        std::memcpy(words, inputs, static_cast<size_t>(count) * sizeof(uint16_t));
        return;
    }
    float wide[kChunk];
    widen(stored, inputs, count, wide);
    if (type == Type::float32) {
        std::memcpy(words, wide, static_cast<size_t>(count) * sizeof(float));
        return;
    }
    uint16_t narrow[kChunk + 1];
    for (int64_t k = 0; k < count; ++k) narrow[k] = round_bf16(wide[k]);
    narrow[count] = 0;
    std::memcpy(words, narrow, static_cast<size_t>((count + 1) / 2) * sizeof(uint32_t));
}

// Words of a row lie 64 bytes apart in a panel, beside those of the other rows.
void turn(const uint32_t* rows, int64_t stride, int64_t num_rows, int64_t num_words, uint32_t* panel) {
    if (num_rows == kPanel) {  // with a constant the compiler does it line by line
        for (int64_t word = 0; word < num_words; ++word)
            for (int64_t row = 0; row < kPanel; ++row) panel[word * kPanel + row] = rows[row * stride + word];
        return;
    }
    for (int64_t word = 0; word < num_words; ++word)
        for (int64_t row = 0; row < num_rows; ++row) panel[word * kPanel + row] = rows[row * stride + word];
}

}  // namespace

int64_t stored_row_bytes(const Matrix& matrix, Stored stored) {
    const StoredFormat format = format_of(stored);
    return matrix.in % format.block ? -1 : matrix.in / format.block * format.block_bytes;
}

void pack_rows(const Matrix& matrix, uint32_t* panels, const void* rows, Stored stored, int64_t num_rows, int64_t first,
               int64_t panel_step, int64_t panel_offset) {
    const int64_t row_bytes = stored_row_bytes(matrix, stored), inputs_in_word = matrix.type == Type::float32 ? 1 : 2;
    const StoredFormat format = format_of(stored);
    Tile tile;
    for (int64_t i = 0, count; i < num_rows; i += count) {
        const int64_t place = first + i, lane = place % kPanel, panel = place / kPanel * panel_step + panel_offset;
        count = std::min(kPanel - lane, num_rows - i);
        for (int64_t k = 0; k < matrix.in; k += kChunk) {
            const int64_t num_inputs = std::min(kChunk, matrix.in - k);
            for (int64_t row = 0; row < count; ++row)
                read_row(matrix.type, stored,
                         static_cast<const char*>(rows) + (i + row) * row_bytes + k / format.block * format.block_bytes,
                         num_inputs, tile[row]);
            turn(tile[0], kChunk, count, (num_inputs + inputs_in_word - 1) / inputs_in_word,
                 panels + panel * matrix.panel_words() + k / inputs_in_word * kPanel + lane);
        }
    }
}

void pack_mixed(const Matrix& matrix, uint32_t* panels, const void* rows, Stored stored, int64_t num_rows, int64_t first,
                int64_t panel_step, int64_t panel_offset) {
    const int64_t row_bytes = stored_row_bytes(matrix, stored), in = matrix.in, row_words = in / 4;
    const auto round_mixed = usable_kernels().front()->round_mixed;
    std::vector<float> wide(in), room(in);
    std::vector<int8_t> quants(in);
    std::vector<uint32_t> words(kPanel * row_words);
    for (int64_t i = 0, count; i < num_rows; i += count) {
        const int64_t place = first + i, lane = place % kPanel;
        uint32_t* panel = panels + (place / kPanel * panel_step + panel_offset) * matrix.panel_words();
        auto* scales = reinterpret_cast<float*>(panel + matrix.quant_words()) + lane;
        count = std::min(kPanel - lane, num_rows - i);
        for (int64_t row = 0; row < count; ++row) {
            int32_t total;
            widen(stored, static_cast<const char*>(rows) + (i + row) * row_bytes, in, wide.data());
            round_mixed(wide.data(), in, room.data(), quants.data(), scales + row, &total);
            uint32_t* to = words.data() + row * row_words;
            std::memcpy(to, quants.data(), static_cast<size_t>(in));
            for (int64_t word = 0; word < row_words; ++word) to[word] ^= 0x80808080u;  // from -128 ... 127 to 0 ... 255
        }
        turn(words.data(), row_words, count, row_words, panel + lane);
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
