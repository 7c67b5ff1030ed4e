// Memory that the kernel backs with huge pages where it can, aligned to cache lines.
#pragma once

#include <cstddef>

namespace headrace {

class Buffer {
  public:
    Buffer() = default;
    explicit Buffer(size_t size);  // zeroed; throws std::bad_alloc
    ~Buffer();
    Buffer(Buffer&& other) noexcept;
    Buffer& operator=(Buffer&& other) noexcept;

    void* data() const { return data_; }
    size_t size() const { return size_; }

  private:
    void* data_ = nullptr;
    size_t size_ = 0;
};

}  // namespace headrace
