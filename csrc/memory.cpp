#include "memory.h"

#include <new>
#include <utility>

#ifdef __unix__
#include <sys/mman.h>
#else
#include <cstdlib>
#include <cstring>
#endif

namespace headrace {

// A step reads every weight: with pages of 4 KiB it spends a tenth of its time on the translation of addresses.
constexpr size_t kHugePage = size_t{2} << 20;

Buffer::Buffer(size_t size) : size_(size) {
    if (size == 0) return;
#ifdef __unix__
    // More than asked, so that a huge page can begin where the data does.
    const size_t mapped = size + (size >= kHugePage ? kHugePage : 0);
    char* start = static_cast<char*>(mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (start == MAP_FAILED) throw std::bad_alloc();
    char* data = start;
    if (mapped > size) {
        const size_t before = (kHugePage - reinterpret_cast<size_t>(start) % kHugePage) % kHugePage / 4096 * 4096;
        const size_t used = (size + 4095) / 4096 * 4096;
        data = start + before;
        if (before) munmap(start, before);
        if (before + used < mapped) munmap(data + used, mapped - before - used);
#ifdef MADV_HUGEPAGE
        madvise(data, used, MADV_HUGEPAGE);
#endif
    }
    data_ = data;
#else
    data_ = std::aligned_alloc(64, (size + 63) / 64 * 64);
    if (!data_) throw std::bad_alloc();
    std::memset(data_, 0, size);
#endif
}

Buffer::~Buffer() {
    if (!data_) return;
#ifdef __unix__
    munmap(data_, size_);
#else
    std::free(data_);
#endif
}

Buffer::Buffer(Buffer&& other) noexcept { *this = std::move(other); }

Buffer& Buffer::operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

}  // namespace headrace
