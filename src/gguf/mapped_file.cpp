#include "gguf/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "gguf/messages.h"

namespace tessera {
namespace {

[[noreturn]] void fail_system(const std::string& path, const char* action, int error) {
    fail_file(path, fmt::format("cannot {}: {}", action, std::strerror(error)));
}

/// Closes the descriptor; the mapping outlives it.
struct Descriptor {
    int number;
    ~Descriptor() {
        if (number >= 0) ::close(number);
    }
};

}  // namespace

MappedFile::MappedFile(const std::string& path) {
    // O_NONBLOCK keeps a named pipe from blocking the open before it is refused below.
    const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (file.number < 0) fail_system(path, "open", errno);
    struct stat status {};
    if (::fstat(file.number, &status) != 0) fail_system(path, "read", errno);
    if (S_ISDIR(status.st_mode)) fail_file(path, "is a directory, not a model file");
    if (!S_ISREG(status.st_mode)) fail_file(path, "is not a regular file");
    if (status.st_size == 0) fail_file(path, "the file is empty");
    const size_t size = static_cast<size_t>(status.st_size);
    void* start = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number, 0);
    if (start == MAP_FAILED) fail_system(path, "map", errno);
    bytes_ = {static_cast<const std::byte*>(start), size};
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
}

MappedFile::~MappedFile() {
    if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void release_whole_pages(std::span<const std::byte> bytes) {
    const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    const uintptr_t begin = reinterpret_cast<uintptr_t>(bytes.data());
    const uintptr_t first = (begin + page - 1) / page * page;
    const uintptr_t last = (begin + bytes.size()) / page * page;
    if (first >= last) return;
    // A hint: the pages come back from the file when they are touched again, so failure is
    // harmless.
    ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace tessera
