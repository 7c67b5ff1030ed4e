#include "stored.h"

#include <cstring>
#include <stdexcept>

namespace headrace {

namespace {

float from_bits(uint32_t u) {
    float x;
    std::memcpy(&x, &u, sizeof x);
    return x;
}

uint32_t bits_of(float x) {
    uint32_t u;
    std::memcpy(&u, &x, sizeof u);
    return u;
}

// Without arithmetic on subnormal numbers, which takes processors a hundred cycles.
float widen_half(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16, rest = half & 0x7fffu;
    const uint32_t subnormal = bits_of(static_cast<float>(static_cast<int32_t>(rest)) * 0x1p-24f);
    const uint32_t normal = (rest << 13) + (rest < 0x7c00u ? 0x38000000u : 0x70000000u);  // the latter: infinity, NaN
    return from_bits(sign | (rest < 0x400u ? subnormal : normal));
}

float half_at(const uint8_t* bytes) {
    uint16_t half;
    std::memcpy(&half, bytes, sizeof half);
    return widen_half(half);
}

// ---- a group of `kSize` quants with one scale

template <int kSize>
void scale_from_zero(const uint8_t* quants, int zero, float scale, float* out) {
    for (int k = 0; k < kSize; ++k) out[k] = static_cast<float>(quants[k] - zero) * scale;
}

template <int kSize>
void scale_and_shift(const uint8_t* quants, float scale, float minimum, float* out) {
    for (int k = 0; k < kSize; ++k) {
        const float product = static_cast<float>(quants[k]) * scale;
        out[k] = product + minimum;
    }
}

// The low halves of `kBytes` bytes, then the high ones.
template <int kBytes>
void split_nibbles(const uint8_t* bytes, uint8_t* quants) {
    for (int k = 0; k < kBytes; ++k) {
        quants[k] = bytes[k] & 15;
        quants[kBytes + k] = bytes[k] >> 4;
    }
}

// Bit k of 32 belongs to quant k.
void add_fifth_bits(const uint8_t* bytes, uint8_t* quants) {
    for (int k = 0; k < 32; ++k) quants[k] = static_cast<uint8_t>(quants[k] | (bytes[k / 8] >> k % 8 & 1) << 4);
}

// ---- blocks: how many elements and bytes they have, and their values

struct Q4_0 {
    static constexpr int kBlock = 32, kBytes = 18;
    static void widen(const uint8_t* block, float* out) {
        uint8_t quants[32];
        split_nibbles<16>(block + 2, quants);
        scale_from_zero<32>(quants, 8, half_at(block), out);
    }
};

struct Q4_1 {
    static constexpr int kBlock = 32, kBytes = 20;
    static void widen(const uint8_t* block, float* out) {
        uint8_t quants[32];
        split_nibbles<16>(block + 4, quants);
        scale_and_shift<32>(quants, half_at(block), half_at(block + 2), out);
    }
};

struct Q5_0 {
    static constexpr int kBlock = 32, kBytes = 22;
    static void widen(const uint8_t* block, float* out) {
        uint8_t quants[32];
        split_nibbles<16>(block + 6, quants);
        add_fifth_bits(block + 2, quants);
        scale_from_zero<32>(quants, 16, half_at(block), out);
    }
};

struct Q5_1 {
    static constexpr int kBlock = 32, kBytes = 24;
    static void widen(const uint8_t* block, float* out) {
        uint8_t quants[32];
        split_nibbles<16>(block + 8, quants);
        add_fifth_bits(block + 4, quants);
        scale_and_shift<32>(quants, half_at(block), half_at(block + 2), out);
    }
};

struct Q8_0 {
    static constexpr int kBlock = 32, kBytes = 34;
    static void widen(const uint8_t* block, float* out) {
        const float scale = half_at(block);
        for (int k = 0; k < 32; ++k) out[k] = static_cast<float>(static_cast<int8_t>(block[2 + k])) * scale;
    }
};

// Scale and minimum of a group of Q4_K and Q5_K: numbers of 6 bits in 12 bytes, times a float16 for all of the block.
struct GroupScale {
    float scale, minimum;
    GroupScale(const uint8_t* block, int group) {
        const uint8_t *packed = block + 4, *first = packed + group % 4, *second = first + 4, *rest = first + 8;
        const int scale6 = group < 4 ? *first & 63 : (*rest & 15) | *first >> 6 << 4;
        const int minimum6 = group < 4 ? *second & 63 : *rest >> 4 | *second >> 6 << 4;
        scale = half_at(block) * static_cast<float>(scale6);
        minimum = -(half_at(block + 2) * static_cast<float>(minimum6));
    }
};

struct Q4_K {
    static constexpr int kBlock = 256, kBytes = 144;
    static void widen(const uint8_t* block, float* out) {
        for (int group = 0; group < 8; group += 2) {  // low and high halves of 32 bytes
            uint8_t quants[64];
            split_nibbles<32>(block + 16 + group * 16, quants);
            for (int g = 0; g < 2; ++g) {
                const GroupScale scales(block, group + g);
                scale_and_shift<32>(quants + 32 * g, scales.scale, scales.minimum, out + 32 * (group + g));
            }
        }
    }
};

struct Q5_K {
    static constexpr int kBlock = 256, kBytes = 176;
    static void widen(const uint8_t* block, float* out) {
        const uint8_t* fifth = block + 16;  // bit g of byte k belongs to quant k of group g
        for (int group = 0; group < 8; group += 2) {
            uint8_t quants[64];
            split_nibbles<32>(block + 48 + group * 16, quants);
            for (int g = 0; g < 2; ++g) {
                for (int k = 0; k < 32; ++k)
                    quants[32 * g + k] = static_cast<uint8_t>(quants[32 * g + k] | (fifth[k] >> (group + g) & 1) << 4);
                const GroupScale scales(block, group + g);
                scale_and_shift<32>(quants + 32 * g, scales.scale, scales.minimum, out + 32 * (group + g));
            }
        }
    }
};

struct Q6_K {
    static constexpr int kBlock = 256, kBytes = 210;
    static void widen(const uint8_t* block, float* out) {
        const float scale = half_at(block + 208);
        for (int half = 0; half < 2; ++half) {
            uint8_t quants[128];
            split_nibbles<64>(block + 64 * half, quants);
            const uint8_t* high = block + 128 + 32 * half;  // bits 2 i and 2 i + 1 of byte k belong to quant 32 i + k
            for (int k = 0; k < 128; ++k)
                quants[k] = static_cast<uint8_t>(quants[k] | (high[k % 32] >> k / 32 * 2 & 3) << 4);
            for (int group = 0; group < 8; ++group) {
                const auto factor = static_cast<int8_t>(block[192 + 8 * half + group]);
                scale_from_zero<16>(quants + 16 * group, 32, scale * static_cast<float>(factor),
                                    out + 128 * half + 16 * group);
            }
        }
    }
};

// ---- rows of them

template <class Block>
void widen_blocks(const void* blocks, int64_t num_elements, float* out) {
    const auto* block = static_cast<const uint8_t*>(blocks);
    for (int64_t k = 0; k < num_elements; k += Block::kBlock, block += Block::kBytes) Block::widen(block, out + k);
}

template <class Block>
constexpr StoredFormat kFormat{Block::kBlock, Block::kBytes};

}  // namespace

StoredFormat format_of(Stored stored) {
    switch (stored) {
        case Stored::float32: return {1, 4};
        case Stored::bfloat16:
        case Stored::float16: return {1, 2};
        case Stored::q4_0: return kFormat<Q4_0>;
        case Stored::q4_1: return kFormat<Q4_1>;
        case Stored::q5_0: return kFormat<Q5_0>;
        case Stored::q5_1: return kFormat<Q5_1>;
        case Stored::q8_0: return kFormat<Q8_0>;
        case Stored::q4_k: return kFormat<Q4_K>;
        case Stored::q5_k: return kFormat<Q5_K>;
        case Stored::q6_k: return kFormat<Q6_K>;
    }
    throw std::invalid_argument("no such stored format");
}

void widen(Stored stored, const void* blocks, int64_t num_elements, float* out) {
    const auto* words = static_cast<const uint16_t*>(blocks);
    switch (stored) {
        case Stored::float32: std::memcpy(out, blocks, static_cast<size_t>(num_elements) * sizeof(float)); return;
        case Stored::bfloat16:
            for (int64_t k = 0; k < num_elements; ++k) out[k] = from_bits(static_cast<uint32_t>(words[k]) << 16);
            return;
        case Stored::float16:
            for (int64_t k = 0; k < num_elements; ++k) out[k] = widen_half(words[k]);
            return;
        case Stored::q4_0: return widen_blocks<Q4_0>(blocks, num_elements, out);
        case Stored::q4_1: return widen_blocks<Q4_1>(blocks, num_elements, out);
        case Stored::q5_0: return widen_blocks<Q5_0>(blocks, num_elements, out);
        case Stored::q5_1: return widen_blocks<Q5_1>(blocks, num_elements, out);
        case Stored::q8_0: return widen_blocks<Q8_0>(blocks, num_elements, out);
        case Stored::q4_k: return widen_blocks<Q4_K>(blocks, num_elements, out);
        case Stored::q5_k: return widen_blocks<Q5_K>(blocks, num_elements, out);
        case Stored::q6_k: return widen_blocks<Q6_K>(blocks, num_elements, out);
    }
}

}  // namespace headrace
