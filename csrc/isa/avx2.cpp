#define HEADRACE_NAMESPACE avx2
#define HEADRACE_STRING_(name) #name
#define HEADRACE_STRING(name) HEADRACE_STRING_(name)

#include "../simd/avx2.h"

#include "kernels.inc"

namespace headrace {
const Kernels* avx2_kernels() { return &avx2::kKernels; }
}  // namespace headrace
