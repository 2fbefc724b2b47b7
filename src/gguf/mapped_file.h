#pragma once
// Private to src/gguf: a whole file, memory-mapped read-only.

#include <cstddef>
#include <span>
#include <string>

namespace tessera {

class MappedFile {
  public:
    /// UserError(kModel) when `path` cannot be opened, is empty or is not a regular file.
    explicit MappedFile(const std::string& path);
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    ~MappedFile();

    std::span<const std::byte> bytes() const { return bytes_; }

  private:
    std::span<const std::byte> bytes_;
};

/// Tells the kernel that the whole pages inside `bytes` (part of a mapping) are not needed soon.
void release_whole_pages(std::span<const std::byte> bytes);

}  // namespace tessera
