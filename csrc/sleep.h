// What C++17 lacks for threads that wait: sleeping until a number changes.
#pragma once

#include <atomic>
#include <cstdint>

namespace headrace {

// Sleeps until wake_all(word) is called or for no reason at all, if `word` still has this value.
void sleep_while(const std::atomic<uint32_t>& word, uint32_t value);
void wake_all(std::atomic<uint32_t>& word);

void name_thread(const char* name);  // its first 15 characters

inline void pause_thread() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

}  // namespace headrace
