#include "pool.h"

#include <chrono>
#include <cstdio>

#include "sleep.h"

namespace headrace {

namespace {

// Long enough to bridge the end of a phase or the Python between two steps of a fast model; short enough that an idle
// server uses no processor, and that spinning takes nothing from a thread which has work.
constexpr auto kSpinTime = std::chrono::microseconds(20);
constexpr int kChecksBetweenClocks = 32;

// Calls is_over() again and again until it is true or the time to spin is up.
template <class IsOver>
bool spin(IsOver is_over) {
    if (is_over()) return true;
    const auto end = std::chrono::steady_clock::now() + kSpinTime;
    do {
        for (int i = 0; i < kChecksBetweenClocks; ++i) {
            if (is_over()) return true;
            pause_thread();
        }
    } while (std::chrono::steady_clock::now() < end);
    return false;
}

}  // namespace

Pool::Pool(int num_threads, std::atomic<uint64_t>* progress) : num_threads_(num_threads), progress_(progress) {
    for (int thread = 1; thread < num_threads; ++thread) threads_.emplace_back(&Pool::work, this, thread);
}

Pool::~Pool() { stop(); }

void Pool::stop() {
    is_stopping_ = true;
    ++job_number_;
    announce();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
}

void Pool::run(Job& job) {
    const int64_t num_phases = job.num_phases();
    const uint32_t number = job_number_.load(std::memory_order_relaxed) + 1;
    for (int64_t i = 0; i < num_phases; ++i) {
        Phase& phase = phases_[i];
        const auto num_tiles = static_cast<uint32_t>(job.num_tiles(i));
        phase.num_tiles.store(num_tiles, std::memory_order_relaxed);
        phase.num_done.store(0, std::memory_order_relaxed);
        phase.left.store(static_cast<uint64_t>(number) << 32 | num_tiles, std::memory_order_relaxed);
    }
    job_.store(&job, std::memory_order_relaxed);
    num_phases_.store(num_phases, std::memory_order_relaxed);
    job_number_.store(number, std::memory_order_release);
    if (num_threads_ > 1) announce();
    take_part(number, 0);
}

void Pool::work(int thread) {
    char name[32];
    std::snprintf(name, sizeof name, "headrace-cpu-%d", thread);
    name_thread(name);
    uint32_t number = 0;
    while (true) {
        number = wait_for_job(number);
        if (is_stopping_) return;
        take_part(number, thread);
    }
}

void Pool::take_part(uint32_t job_number, int thread) {
    Job* job = job_.load(std::memory_order_relaxed);
    const int64_t num_phases = num_phases_.load(std::memory_order_relaxed);
    for (int64_t i = 0; i < num_phases; ++i) {
        Phase& phase = phases_[i];
        uint32_t tile, num_done = 0;
        // From the first tile until it says that it is done the job cannot end: `job` and all that it knows are there.
        for (; take_tile(phase, job_number, tile); ++num_done) job->compute(i, tile, thread);
        if (num_done > 0) {
            const uint32_t num_tiles = phase.num_tiles.load(std::memory_order_relaxed);
            if (phase.num_done.fetch_add(num_done, std::memory_order_acq_rel) + num_done == num_tiles) announce();
        }
        if (!wait_for(phase, job_number)) return;
        if (thread == 0) progress_->fetch_add(1, std::memory_order_relaxed);
    }
}

// False if there is none left, or the job is over.
bool Pool::take_tile(Phase& phase, uint32_t job_number, uint32_t& tile) {
    uint64_t left = phase.left.load(std::memory_order_acquire);
    uint32_t num_left;
    do {
        // Nothing but this one word may decide: a thread that comes late can find the next job half prepared, and any
        // other number with it.
        num_left = static_cast<uint32_t>(left);
        if (left >> 32 != job_number || num_left == 0) return false;
    } while (!phase.left.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel, std::memory_order_acquire));
    tile = phase.num_tiles.load(std::memory_order_relaxed) - num_left;
    return true;
}

// False if the job is over.
bool Pool::wait_for(const Phase& phase, uint32_t job_number) {
    bool is_current = true;
    const auto is_over = [&] {
        is_current = job_number_.load(std::memory_order_acquire) == job_number;
        return !is_current ||
               phase.num_done.load(std::memory_order_acquire) >= phase.num_tiles.load(std::memory_order_relaxed);
    };
    while (!spin(is_over)) {
        num_sleeping_.fetch_add(1);
        const uint32_t news = news_.load();
        if (!is_over()) sleep_while(news_, news);
        num_sleeping_.fetch_sub(1);
    }
    return is_current;
}

uint32_t Pool::wait_for_job(uint32_t last) {
    const auto has_job = [&] { return job_number_.load(std::memory_order_acquire) != last; };
    while (!spin(has_job)) {
        num_sleeping_.fetch_add(1);
        const uint32_t news = news_.load();
        if (!has_job()) sleep_while(news_, news);
        num_sleeping_.fetch_sub(1);
    }
    return job_number_.load(std::memory_order_acquire);
}

// A sleeper counts itself, reads `news_`, and then looks once more whether it should sleep: so either it sees what this
// is about, or `news_` has changed since and it does not fall asleep, or it is counted here.
void Pool::announce() {
    news_.fetch_add(1);
    if (num_sleeping_.load() > 0) wake_all(news_);
}

}  // namespace headrace
