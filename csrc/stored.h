// How checkpoints store weights: plain floats, and the blocks of GGUF files.
#pragma once

#include <cstdint>

namespace headrace {

enum class Stored : int32_t { float32, bfloat16, float16, q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k };

// Of plain floats a block is one of them.
struct StoredFormat {
    int64_t block;        // elements
    int64_t block_bytes;
};

StoredFormat format_of(Stored stored);

// The values of whole blocks as float32, bit for bit what ggml makes of them: scale * (quant - zero), or
// scale * quant + minimum, every operation rounded. Source: ggml/src/ggml-quants.c, ggml-common.h.
void widen(Stored stored, const void* blocks, int64_t num_elements, float* out);

}  // namespace headrace
