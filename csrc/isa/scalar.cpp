#define HEADRACE_NAMESPACE scalar
#define HEADRACE_STRING_(name) #name
#define HEADRACE_STRING(name) HEADRACE_STRING_(name)

#include "../simd/scalar.h"

#include "kernels.inc"

namespace headrace {
const Kernels* scalar_kernels() { return &scalar::kKernels; }
}  // namespace headrace
