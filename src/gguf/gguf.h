#pragma once
// GGUF files, version 2 and 3 (`ggml:docs/gguf.md`): untrusted bytes in, checked views out. Every
// failure is a UserError(kModel) whose one line names the file and the key or tensor.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/dtype.h"
#include "gguf/safetensors.h"

namespace tessera {

/// Value types of metadata, with the ids of the file format.
enum class GgufType : uint32_t {
    kU8 = 0,
    kI8 = 1,
    kU16 = 2,
    kI16 = 3,
    kU32 = 4,
    kI32 = 5,
    kF32 = 6,
    kBool = 7,
    kString = 8,
    kArray = 9,
    kU64 = 10,
    kI64 = 11,
    kF64 = 12
};

/// One metadata value; integers are widened but remember their type. Arrays hold one element type
/// and do not nest.
struct GgufValue {
    using Array = std::variant<std::vector<int64_t>,   // u8..i64, bool (0/1)
                               std::vector<uint64_t>,  // u64
                               std::vector<double>,    // f32, f64
                               std::vector<std::string>>;
    GgufType type = GgufType::kU32;
    GgufType element_type = GgufType::kU32;  ///< of arrays
    std::variant<int64_t, uint64_t, double, bool, std::string, Array> value;
};

struct GgufKeyValue {
    std::string key;
    GgufValue value;
};

/// A tensor of the file: `shape[0]` is the contiguous axis (ggml's ne0), missing axes are 1.
struct GgufTensor {
    std::string name;
    DType dtype = DType::kF32;
    int32_t rank = 1;
    std::array<int64_t, 4> shape{1, 1, 1, 1};
    int64_t bytes = 0;
    const std::byte* data = nullptr;  ///< into the mapping; 1-byte alignment must be assumed
    /// Instead of `data`, in a file from parts: writes the `bytes` bytes, which are computed each
    /// time. May throw UserError(kModel), may be called by one thread at a time.
    std::function<void(std::span<std::byte> out)> produce{};
    int64_t elements() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
};

/// The data of a tensor: a view of the file, or of `buffer` after they were produced into it.
std::span<const std::byte> tensor_bytes(const GgufTensor& tensor, std::vector<std::byte>& buffer);

/// A model that comes from files of another kind.
struct GgufParts {
    std::string path;  ///< what messages call it
    std::vector<GgufKeyValue> key_values;
    std::vector<GgufTensor> tensors;     ///< `data` or `produce` is set, `bytes` need not be
    std::vector<SafetensorsFile> files;  ///< what `data` and `produce` refer to
};

/// An open model: one file or all shards of a split one, memory-mapped read-only.
class GgufFile {
  public:
    /// Opens `path` and, when `split.count` > 1, its sisters `<prefix>-%05d-of-%05d.gguf` (any
    /// shard may be named).
    static GgufFile open(const std::string& path);
    /// Parses bytes that the caller keeps alive (tests, fuzzing). `name` is used in messages. No
    /// splits.
    static GgufFile parse(std::span<const std::byte> bytes, const std::string& name);
    /// Keys and tensor names must be unique. Its version() is 0.
    static GgufFile from_parts(GgufParts parts);
    GgufFile(GgufFile&&) noexcept;
    GgufFile& operator=(GgufFile&&) noexcept;
    ~GgufFile();

    const std::string& path() const;
    uint32_t version() const;
    uint32_t alignment() const;
    int64_t file_bytes() const;  ///< of all shards
    std::span<const GgufKeyValue> key_values() const;
    std::span<const GgufTensor> tensors() const;
    const GgufValue* find(std::string_view key) const;
    const GgufTensor* find_tensor(std::string_view name) const;

    // Typed access: nothing when the key is absent; UserError naming key, found and expected type
    // when it does not convert (any integer width converts when the value fits; f32 and f64
    // convert; bool only from bool).
    std::optional<int64_t> get_int(std::string_view key) const;
    std::optional<double> get_float(std::string_view key) const;
    std::optional<bool> get_bool(std::string_view key) const;
    std::optional<std::string> get_string(std::string_view key) const;
    std::optional<std::vector<int64_t>> get_int_array(std::string_view key) const;
    std::optional<std::vector<float>> get_float_array(std::string_view key) const;
    /// A view of a string array, valid as long as the file; nullptr when absent.
    const std::vector<std::string>* get_string_array(std::string_view key) const;

    /// Tells the kernel that the pages under this tensor are not needed soon (they were repacked).
    /// Produced tensors do that themselves.
    void release_pages(const GgufTensor& tensor) const;

  private:
    struct Impl;
    explicit GgufFile(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
