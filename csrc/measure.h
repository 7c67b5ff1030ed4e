// The roof that benchmarks/roofline.py compares us with, measured by the same threads.
#pragma once

#include "kernels.h"
#include "pool.h"

namespace headrace {

// Bytes a second when all threads read a buffer of this size once, each its own part of it.
double measure_bandwidth(Pool& pool, const Kernels& kernels, size_t bytes);

// Multiplications and additions a second, all threads, on registers alone.
double measure_arithmetic(Pool& pool, const Kernels& kernels);

}  // namespace headrace
