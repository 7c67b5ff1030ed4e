// How blocks of inputs are mixed with one another (kernels/hadamard.h), where their number is not a power of two.
#pragma once

#include <cstdint>

namespace headrace {

constexpr int64_t kMaxMixedBlocks = 63;  // of more, blocks are not mixed with one another

// An orthogonal matrix [size, size] whose rows are cosines, for an odd size up to kMaxMixedBlocks: the discrete cosine
// transform. Source: Ahmed, Natarajan, Rao, Discrete Cosine Transform, IEEE Transactions on Computers, 1974.
const float* cosine_matrix(int64_t size);

}  // namespace headrace
