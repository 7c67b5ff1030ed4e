// The pool alone, as it is and under ThreadSanitizer: many tiny jobs on more threads than cores, so that threads sleep
// through phases and whole jobs, wake in the middle of later ones, and meet the end of the pool in every state. Run by the
// tests and by `make sanitize`. Exit status 0 if every tile of every job was computed once, and after all tiles of the
// phase before.
#include "../pool.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>

using headrace::Job;
using headrace::Pool;

namespace {

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            std::fprintf(stderr, "pool_test.cpp:%d: %s\n", __LINE__, #condition); \
            std::abort();                                                      \
        }                                                                      \
    } while (false)

// Its state is plain memory on purpose: what the pool promises is that nobody needs more. A tile is written by one thread,
// and read in the next phase by any. It lives on the caller's stack for as long as run() and is gone then: a thread that
// still looked at it would be caught.
class CountingJob : public Job {
  public:
    CountingJob(std::mt19937& random, int num_threads) : num_threads_(num_threads) {
        const size_t num_phases = random() % 6;  // a job may have nothing to do
        for (size_t i = 0; i < num_phases; ++i) counts_.emplace_back(random() % 9 == 0 ? 64 : random() % 5);
    }

    int64_t num_phases() const override { return static_cast<int64_t>(counts_.size()); }
    int64_t num_tiles(int64_t phase) const override { return static_cast<int64_t>(counts_[phase].size()); }

    void compute(int64_t phase, int64_t tile, int thread) override {
        CHECK(thread >= 0 && thread < num_threads_);
        if (phase > 0)
            for (int count : counts_[phase - 1]) CHECK(count == 1);
        ++counts_[phase][tile];
    }

    void check() const {
        for (const std::vector<int>& phase : counts_)
            for (int count : phase) CHECK(count == 1);
    }

  private:
    const int num_threads_;
    std::vector<std::vector<int>> counts_;  // of calls, by phase and tile
};

void run_jobs(int num_threads, int num_jobs, unsigned seed) {
    std::mt19937 random(seed);
    std::atomic<uint64_t> progress{0};
    uint64_t num_phases = 0;
    Pool pool(num_threads, &progress);
    for (int i = 0; i < num_jobs; ++i) {
        CountingJob job(random, num_threads);
        pool.run(job);
        job.check();
        num_phases += static_cast<uint64_t>(job.num_phases());
        // Longer than threads spin: they are asleep when the next job comes, or just falling asleep.
        if (random() % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 60));
    }
    CHECK(progress.load() == num_phases);
    if (seed % 2) {
        pool.stop();
        CountingJob job(random, num_threads);
        pool.run(job);  // alone
        job.check();
    }
}

// Small and large jobs by turns, by more threads than there are cores: one that comes late to a small job finds the large
// one half prepared.
class UnevenJob : public Job {
  public:
    explicit UnevenJob(int num_tiles) : num_tiles_(num_tiles) {}

    int64_t num_phases() const override { return kNumPhases; }
    int64_t num_tiles(int64_t) const override { return num_tiles_; }
    void compute(int64_t, int64_t tile, int) override {
        CHECK(tile < num_tiles_);
        num_calls_.fetch_add(1, std::memory_order_relaxed);
    }

    void check() const { CHECK(num_calls_.load() == kNumPhases * num_tiles_); }

  private:
    static constexpr int kNumPhases = 3;
    const int num_tiles_;
    std::atomic<int> num_calls_{0};
};

void run_uneven_jobs(int num_jobs) {
    std::atomic<uint64_t> progress{0};
    Pool pool(8, &progress);
    for (int i = 0; i < num_jobs; ++i) {
        UnevenJob job(i % 2 ? 1 : 40);
        pool.run(job);
        job.check();
    }
}

}  // namespace

int main(int argc, char** argv) {
    const int num_jobs = argc > 1 ? std::atoi(argv[1]) : 2000;
    unsigned seed = 0;
    for (int num_threads : {1, 2, 3, 8}) run_jobs(num_threads, num_jobs, seed++);
    for (int i = 0; i < 200; ++i) run_jobs(4, i % 3, seed++);  // pools that end at once
    run_uneven_jobs(100 * num_jobs);
    std::printf("pool_test: passed\n");
    return 0;
}
