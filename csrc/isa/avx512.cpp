#define HEADRACE_NAMESPACE avx512
#define HEADRACE_STRING_(name) #name
#define HEADRACE_STRING(name) HEADRACE_STRING_(name)

#include "../simd/avx512.h"

#include "kernels.inc"

namespace headrace {
const Kernels* avx512_kernels() { return &avx512::kKernels; }
}  // namespace headrace
