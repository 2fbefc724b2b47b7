#pragma once
// Private to src/gguf: reads little-endian fields in sequence and never passes the end.

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "gguf/messages.h"

namespace tessera {

class GgufCursor {
  public:
    GgufCursor(std::span<const std::byte> bytes, std::string_view file)
        : bytes_(bytes), file_(file) {}

    /// Errors from here on are about entry `index` of its kind ("key", "tensor").
    void begin_entry(std::string_view kind, uint64_t index) {
        kind_ = kind;
        index_ = index;
        name_ = {};
    }
    /// Names the entry, once its name is known; `name` must outlive the cursor's use.
    void name_entry(std::string_view name) { name_ = name; }

    uint64_t offset() const { return offset_; }
    uint64_t size() const { return bytes_.size(); }
    uint64_t remaining() const { return bytes_.size() - offset_; }

    /// Throws "<file>: <entry>: <what>".
    [[noreturn]] void fail(std::string_view what) const {
        if (kind_.empty()) fail_file(file_, what);
        if (name_.empty()) fail_file(file_, fmt::format("{} number {}: {}", kind_, index_, what));
        fail_file(file_, fmt::format("{} {}: {}", kind_, quoted_name(name_), what));
    }

    /// Makes sure that `count` items of `item_bytes` bytes follow.
    void need(uint64_t count, uint64_t item_bytes) const {
        if (count <= remaining() / item_bytes) return;
        const std::string wanted = item_bytes == 1
                                       ? fmt::format("{} bytes", count)
                                       : fmt::format("{} items of {} bytes", count, item_bytes);
        fail(fmt::format("{} needed at byte {}, the file ends at byte {} (incomplete download?)",
                         wanted, offset_, size()));
    }

    template <class T>
    T read() {
        need(sizeof(T), 1);
        T value;
        std::memcpy(&value, bytes_.data() + offset_, sizeof(T));
        offset_ += sizeof(T);
        return value;
    }

    /// A length and as many bytes.
    std::string_view read_string() {
        const uint64_t length = read<uint64_t>();
        need(length, 1);
        const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + offset_,
                                    static_cast<size_t>(length));
        offset_ += length;
        return text;
    }

  private:
    std::span<const std::byte> bytes_;
    std::string_view file_;
    uint64_t offset_ = 0;
    std::string_view kind_;
    uint64_t index_ = 0;
    std::string_view name_;
};

}  // namespace tessera
