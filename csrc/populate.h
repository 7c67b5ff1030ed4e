// Memory that is claimed before it is used.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <vector>

namespace headrace {

// The kernel gives a process zeroed pages when it first writes to them, and what is written to first is then a KV block of
// a request: with 2 MiB for each layer tens of milliseconds, and where a hypervisor has to find the memory first, hundreds,
// for which every stream waits. So a thread of the lowest priority touches all pages beforehand, the first ones first.
class Populator {
  public:
    struct Span {
        void* data;
        size_t size;
    };

    // Begins a second from now, when a server has started. The memory must outlive this.
    explicit Populator(std::vector<Span> spans);
    ~Populator();
    Populator(const Populator&) = delete;
    Populator& operator=(const Populator&) = delete;

    bool is_done() const;

  private:
    void run();
    bool is_stopped() const;

    std::vector<Span> spans_;
    mutable std::mutex mutex_;
    std::condition_variable stop_;
    bool stopped_ = false, done_ = false;
    std::thread thread_;
};

}  // namespace headrace
