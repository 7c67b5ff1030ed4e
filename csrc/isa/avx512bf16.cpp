#define HEADRACE_NAMESPACE avx512bf16
#define HEADRACE_STRING_(name) #name
#define HEADRACE_STRING(name) HEADRACE_STRING_(name)
#define HEADRACE_BF16
#include "../simd/avx512.h"

#include "kernels.inc"

namespace headrace {
const Kernels* avx512bf16_kernels() { return &avx512bf16::kKernels; }
}  // namespace headrace
