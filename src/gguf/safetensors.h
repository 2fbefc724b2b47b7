#pragma once
// Safetensors files (`huggingface/safetensors:README.md`, "Format"): untrusted bytes in, checked
// views out. Every failure is a UserError(kModel) whose one line names the file and the tensor.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Element types as safetensors names them; 8-bit floats and raw bytes have no DType of ours.
enum class SafetensorsType : uint8_t {
    kBool,
    kU8,
    kI8,
    kF8E4M3,
    kF8E5M2,
    kF8E8M0,
    kU16,
    kI16,
    kF16,
    kBF16,
    kU32,
    kI32,
    kF32,
    kU64,
    kI64,
    kF64
};

/// "BOOL", "F8_E4M3", ... as the file writes it.
std::string_view safetensors_type_name(SafetensorsType type);
int64_t safetensors_type_bytes(SafetensorsType type);

/// A tensor of the file, row-major, outermost axis first; no axis means one element.
struct SafetensorsTensor {
    std::string name;
    SafetensorsType type = SafetensorsType::kF32;
    std::vector<int64_t> shape;
    int64_t bytes = 0;
    const std::byte* data = nullptr;  ///< into the mapping; 1-byte alignment must be assumed
    int64_t elements() const { return bytes / safetensors_type_bytes(type); }
};

/// One open file, memory-mapped read-only.
class SafetensorsFile {
  public:
    static SafetensorsFile open(const std::string& path);
    /// Parses bytes that the caller keeps alive. `name` is used in messages.
    static SafetensorsFile parse(std::span<const std::byte> bytes, const std::string& name);
    SafetensorsFile(SafetensorsFile&&) noexcept;
    SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
    ~SafetensorsFile();

    const std::string& path() const;
    int64_t file_bytes() const;
    /// In the order of the header.
    std::span<const SafetensorsTensor> tensors() const;
    const SafetensorsTensor* find_tensor(std::string_view name) const;
    /// The text under `key` of the `__metadata__` object.
    std::optional<std::string> metadata(std::string_view key) const;

    /// Tells the kernel that the pages under this tensor of an opened (never a parsed) file are not
    /// needed soon.
    static void release_pages(const SafetensorsTensor& tensor);

  private:
    struct Impl;
    explicit SafetensorsFile(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
