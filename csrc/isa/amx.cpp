#define HEADRACE_NAMESPACE amx
#define HEADRACE_STRING_(name) #name
#define HEADRACE_STRING(name) HEADRACE_STRING_(name)
#define HEADRACE_BF16
#define HEADRACE_AMX
#include "../simd/avx512.h"

#include "kernels.inc"

namespace headrace {
const Kernels* amx_kernels() { return &amx::kKernels; }
}  // namespace headrace
