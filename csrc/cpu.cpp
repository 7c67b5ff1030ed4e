#include "cpu.h"

#include <algorithm>

#ifdef HEADRACE_HAS_amx
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace headrace {

namespace {

#ifdef HEADRACE_HAS_amx
// Tiles have to be asked for: without leave from the kernel the first instruction on them is a fault. Source: Linux,
// Documentation/arch/x86/xstate.rst.
bool has_amx() {
    constexpr unsigned kBFloat16 = 1u << 22, kTiles = 1u << 24, kInt8 = 1u << 25;  // cpuid leaf 7, edx
    constexpr unsigned kWanted = kBFloat16 | kTiles | kInt8;
    constexpr int kRequestPermission = 0x1023, kTileData = 18;   // arch_prctl
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kWanted) != kWanted) return false;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

#if defined(__x86_64__)
// Intel's processors multiply pairs of bfloat16 at half the rate of float32.
bool is_intel() { return __builtin_cpu_is("intel"); }
#endif

}  // namespace

std::vector<const Kernels*> usable_kernels() {
    std::vector<const Kernels*> kernels;
#if defined(__x86_64__)
    // The compiler's own check also asks whether the operating system saves the wide registers.
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx512vnni");
#ifdef HEADRACE_HAS_amx
    if (has_avx512 && has_amx()) kernels.push_back(amx_kernels());
#endif
    std::vector<const Kernels*> wide;
#ifdef HEADRACE_HAS_avx512bf16
    if (has_avx512 && __builtin_cpu_supports("avx512bf16")) wide.push_back(avx512bf16_kernels());
#endif
#ifdef HEADRACE_HAS_avx512
    if (has_avx512) wide.push_back(avx512_kernels());
#endif
    if (is_intel()) std::reverse(wide.begin(), wide.end());
    kernels.insert(kernels.end(), wide.begin(), wide.end());
#ifdef HEADRACE_HAS_avx2
    if (has_avx2) kernels.push_back(avx2_kernels());
#endif
#endif
    kernels.push_back(scalar_kernels());
    return kernels;
}

}  // namespace headrace
