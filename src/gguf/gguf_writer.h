#pragma once
// Writes GGUF version 3. Nothing is overwritten until the new file is complete: bytes go to
// `<path>.part`, which is renamed by finish(); the destructor removes an unfinished one.

#include <functional>
#include <string>
#include <vector>

#include "gguf/gguf.h"

namespace tessera {

class GgufWriter {
  public:
    /// UserError(kFailure) when the folder is not writable.
    explicit GgufWriter(const std::string& path);
    /// Appends the same bytes to `memory`, which the caller owns: synthetic models, tests.
    explicit GgufWriter(std::vector<std::byte>& memory);
    ~GgufWriter();
    GgufWriter(const GgufWriter&) = delete;
    GgufWriter& operator=(const GgufWriter&) = delete;

    void set(const std::string& key,
             GgufValue value);  ///< replaces an earlier value of the key, keeps its place
    void set_u32(const std::string& key, uint32_t value);
    void set_f32(const std::string& key, float value);
    void set_bool(const std::string& key, bool value);
    void set_string(const std::string& key, const std::string& value);
    void set_strings(const std::string& key, std::vector<std::string> values);
    void set_i32s(const std::string& key, const std::vector<int32_t>& values);
    void set_f32s(const std::string& key, const std::vector<float>& values);

    /// Declares a tensor; `shape[0]` is the contiguous axis. All tensors are declared before the
    /// first data.
    void add_tensor(const std::string& name, DType dtype, const std::vector<int64_t>& shape);
    /// Writes header and metadata; then the data of the tensors must follow, in the order of their
    /// declaration.
    void begin_data();
    /// The next bytes of the current tensor; may be called several times a tensor.
    void write(const std::byte* data, int64_t bytes);
    /// Checks that every tensor is complete, syncs, renames.
    void finish();

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
