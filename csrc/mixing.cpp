#include "mixing.h"

#include <cmath>
#include <vector>

namespace headrace {

namespace {

std::vector<float> make_cosines(int64_t size) {
    const double pi = std::acos(-1.0), width = static_cast<double>(size);
    std::vector<float> cosines;
    for (int64_t row = 0; row < size; ++row)
        for (int64_t column = 0; column < size; ++column) {
            const double angle = pi * static_cast<double>((2 * column + 1) * row) / (2.0 * width);
            cosines.push_back(static_cast<float>(std::sqrt((row ? 2.0 : 1.0) / width) * std::cos(angle)));
        }
    return cosines;
}

std::vector<std::vector<float>> make_all() {
    std::vector<std::vector<float>> all;
    for (int64_t size = 1; size <= kMaxMixedBlocks; size += 2) all.push_back(make_cosines(size));
    return all;
}

}  // namespace

const float* cosine_matrix(int64_t size) {
    static const std::vector<std::vector<float>> all = make_all();
    return all[size / 2].data();
}

}  // namespace headrace
