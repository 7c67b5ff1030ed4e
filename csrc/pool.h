// The threads of a step.
//
// A job is a list of phases, each a number of tiles. Threads take tiles from a counter, so one that loses its core for a
// while delays the others by no more than the tile it holds (of attention a run of items, AttentionPlan); a phase begins when all tiles of the one before are done.
// Nobody ever waits for a thread: one that sleeps through a whole job finds the job's number gone and waits for the next.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace headrace {

class Job {
  public:
    virtual ~Job() = default;
    virtual int64_t num_phases() const = 0;
    virtual int64_t num_tiles(int64_t phase) const = 0;
    virtual void compute(int64_t phase, int64_t tile, int thread) = 0;
};

class Pool {
  public:
    static constexpr int64_t kMaxPhases = 8192;

    // `num_threads` counts the caller's. `progress` lives longer than the pool and grows by one with each phase.
    Pool(int num_threads, std::atomic<uint64_t>* progress);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int num_threads() const { return num_threads_; }

    // Computes the job and returns. One job at a time.
    void run(Job& job);

    // Ends the threads; the caller of run() is alone from then on.
    void stop();

  private:
    struct alignas(64) Phase {
        std::atomic<uint64_t> left{0};  // number of the job (upper half), and how many tiles nobody has taken (lower half)
        std::atomic<uint32_t> num_tiles{0};
        alignas(64) std::atomic<uint32_t> num_done{0};
    };

    void work(int thread);
    void take_part(uint32_t job_number, int thread);
    bool take_tile(Phase& phase, uint32_t job_number, uint32_t& tile);
    bool wait_for(const Phase& phase, uint32_t job_number);
    void announce();
    uint32_t wait_for_job(uint32_t last);

    const int num_threads_;
    std::atomic<uint64_t>* const progress_;
    std::unique_ptr<Phase[]> phases_{new Phase[kMaxPhases]};
    std::atomic<Job*> job_{nullptr};
    std::atomic<int64_t> num_phases_{0};
    std::atomic<bool> is_stopping_{false};
    alignas(64) std::atomic<uint32_t> job_number_{0};
    alignas(64) std::atomic<uint32_t> news_{0};  // changes when a phase is done or a job begins
    std::atomic<uint32_t> num_sleeping_{0};      // until `news_` changes
    std::vector<std::thread> threads_;
};

}  // namespace headrace
