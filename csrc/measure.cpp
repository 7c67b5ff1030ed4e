#include "measure.h"

#include <chrono>
#include <cstring>

#include "memory.h"

namespace headrace {

namespace {

constexpr size_t kChunk = size_t{1} << 20;  // bytes of a tile
constexpr int64_t kRounds = 1 << 16;        // of a tile
constexpr int64_t kTilesOfThread = 64;

class Reading final : public Job {
  public:
    Reading(const Kernels& kernels, const Buffer& buffer) : kernels_(kernels), buffer_(buffer) {}
    int64_t num_phases() const override { return 1; }
    int64_t num_tiles(int64_t) const override { return static_cast<int64_t>(buffer_.size() / kChunk); }
    void compute(int64_t, int64_t tile, int) override {
        const char* start = static_cast<const char*>(buffer_.data()) + static_cast<size_t>(tile) * kChunk;
        volatile float used = kernels_.read_memory(reinterpret_cast<const float*>(start), kChunk / sizeof(float));
        (void)used;
    }

  private:
    const Kernels& kernels_;
    const Buffer& buffer_;
};

class Arithmetic final : public Job {
  public:
    Arithmetic(const Kernels& kernels, int num_threads) : kernels_(kernels), num_threads_(num_threads) {}
    int64_t num_phases() const override { return 1; }
    int64_t num_tiles(int64_t) const override { return kTilesOfThread * num_threads_; }
    void compute(int64_t, int64_t, int) override {
        volatile float used = kernels_.multiply_adds(kRounds);
        (void)used;
    }

  private:
    const Kernels& kernels_;
    const int num_threads_;
};

double seconds_of(Pool& pool, Job& job) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(job);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

double measure_bandwidth(Pool& pool, const Kernels& kernels, size_t bytes) {
    Buffer buffer(bytes / kChunk * kChunk);
    std::memset(buffer.data(), 0, buffer.size());
    Reading job(kernels, buffer);
    return static_cast<double>(buffer.size()) / seconds_of(pool, job);
}

double measure_arithmetic(Pool& pool, const Kernels& kernels) {
    Arithmetic job(kernels, pool.num_threads());
    const double operations = 2.0 * static_cast<double>(kernels.multiply_adds_in_round * kRounds * job.num_tiles(0));
    return operations / seconds_of(pool, job);
}

}  // namespace headrace
