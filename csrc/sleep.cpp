#include "sleep.h"

#ifdef __linux__

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstring>

namespace headrace {

void sleep_while(const std::atomic<uint32_t>& word, uint32_t value) {
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word) {
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void name_thread(const char* name) {
    char start[16] = {};
    std::strncpy(start, name, sizeof start - 1);
    pthread_setname_np(pthread_self(), start);
}

}  // namespace headrace

#else

#include <condition_variable>
#include <mutex>

namespace headrace {

namespace {
std::mutex mutex;
std::condition_variable changed;
}  // namespace

void sleep_while(const std::atomic<uint32_t>& word, uint32_t value) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return word.load() != value; });
}

void wake_all(std::atomic<uint32_t>&) {
    { std::lock_guard<std::mutex> lock(mutex); }
    changed.notify_all();
}

void name_thread(const char*) {}

}  // namespace headrace

#endif
