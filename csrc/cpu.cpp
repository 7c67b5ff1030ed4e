#include "cpu.h"

namespace headrace {

std::vector<const Kernels*> usable_kernels() {
    std::vector<const Kernels*> kernels;
#if defined(__x86_64__)
    // The compiler's own check also asks whether the operating system saves the wide registers.
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#ifdef HEADRACE_HAS_avx512bf16
    if (has_avx512 && __builtin_cpu_supports("avx512bf16")) kernels.push_back(avx512bf16_kernels());
#endif
#ifdef HEADRACE_HAS_avx512
    if (has_avx512) kernels.push_back(avx512_kernels());
#endif
#ifdef HEADRACE_HAS_avx2
    if (has_avx2) kernels.push_back(avx2_kernels());
#endif
#endif
    kernels.push_back(scalar_kernels());
    return kernels;
}

}  // namespace headrace
