// Numbers below 1e-38 count as zero while a model is computed: some processors take a hundred cycles for each, and
// products of small attention weights are full of them.
#pragma once

#include <cstdint>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace headrace {

class DenormalsAreZero {
  public:
    explicit DenormalsAreZero(bool is_on) : saved_(get()) {
        if (is_on) set(saved_ | kFlags);
    }
    ~DenormalsAreZero() { set(saved_); }
    DenormalsAreZero(const DenormalsAreZero&) = delete;
    DenormalsAreZero& operator=(const DenormalsAreZero&) = delete;

  private:
#if defined(__SSE__)
    static constexpr uint64_t kFlags = 0x8040;  // flush results to zero, take arguments as zero
    static uint64_t get() { return _mm_getcsr(); }
    static void set(uint64_t flags) { _mm_setcsr(static_cast<unsigned>(flags)); }
#elif defined(__aarch64__)
    static constexpr uint64_t kFlags = uint64_t{1} << 24;
    static uint64_t get() {
        uint64_t flags;
        __asm__ __volatile__("mrs %0, fpcr" : "=r"(flags));
        return flags;
    }
    static void set(uint64_t flags) { __asm__ __volatile__("msr fpcr, %0" : : "r"(flags)); }
#else
    static constexpr uint64_t kFlags = 0;
    static uint64_t get() { return 0; }
    static void set(uint64_t) {}
#endif

    const uint64_t saved_;
};

}  // namespace headrace
