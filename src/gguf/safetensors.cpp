#include "gguf/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "gguf/mapped_file.h"
#include "gguf/messages.h"
#include "gguf/safetensors_header.h"

namespace tessera {
namespace {

using Entry = SafetensorsHeader::Entry;

constexpr uint64_t kLargestHeader = 100'000'000;
constexpr uint64_t kLengthBytes = 8;

std::string_view header_text(std::span<const std::byte> bytes, const std::string& file) {
    if (bytes.size() < kLengthBytes)
        fail_file(file, fmt::format("not a safetensors file (it has {} bytes)", bytes.size()));
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), kLengthBytes);
    if (length > kLargestHeader)
        fail_file(file, fmt::format("not a safetensors file (a header of {} bytes, {} are allowed)",
                                    length, kLargestHeader));
    if (length > bytes.size() - kLengthBytes)
        fail_file(file, fmt::format("the header has {} bytes, but only {} follow its length "
                                    "(incomplete download?)",
                                    length, bytes.size() - kLengthBytes));
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes,
                                static_cast<size_t>(length));
    if (text.empty() || text.front() != '{')
        fail_file(file, "not a safetensors file (the header does not begin with '{')");
    return text;
}

/// Bytes that the shape needs, or nothing when they do not fit into 63 bits.
std::optional<int64_t> bytes_of_shape(const SafetensorsTensor& tensor) {
    // An empty axis makes the product zero, whatever the order in which the others overflow.
    if (std::ranges::find(tensor.shape, 0) != tensor.shape.end()) return 0;
    int64_t bytes = safetensors_type_bytes(tensor.type);
    for (const int64_t extent : tensor.shape)
        if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
    return bytes;
}

void place_entry(Entry& entry, std::span<const std::byte> data, const std::string& file) {
    const auto fail = [&](std::string_view what) {
        fail_file(file, fmt::format("tensor {}: {}", quoted_name(entry.tensor.name), what));
    };
    if (entry.begin > entry.end)
        fail(fmt::format("its data begin at {} and end at {}", entry.begin, entry.end));
    if (entry.end > data.size())
        fail(
            fmt::format("its data end at byte {}, the file has {} bytes of data (incomplete "
                        "download?)",
                        entry.end, data.size()));
    const uint64_t stored = entry.end - entry.begin;
    const std::optional<int64_t> needed = bytes_of_shape(entry.tensor);
    if (!needed || static_cast<uint64_t>(*needed) != stored)
        fail(fmt::format("shape [{}] of {} does not fit into {} bytes of data",
                         fmt::join(entry.tensor.shape, ", "),
                         safetensors_type_name(entry.tensor.type), stored));
    entry.tensor.bytes = *needed;
    entry.tensor.data = data.data() + entry.begin;
}

/// The data of all tensors must cover the data section exactly, without gap or overlap: a gap would
/// be a place to hide bytes in, and an overlap means that an offset is wrong.
void check_cover(const std::vector<Entry>& entries, uint64_t data_bytes, const std::string& file) {
    std::vector<const Entry*> order;
    order.reserve(entries.size());
    for (const Entry& entry : entries) order.push_back(&entry);
    std::ranges::stable_sort(order, [](const Entry* a, const Entry* b) {
        return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
    });
    uint64_t end = 0;
    for (const Entry* entry : order) {
        if (entry->begin != end)
            fail_file(file,
                      fmt::format("tensor {}: its data begin at {}, the tensor before ends at {}",
                                  quoted_name(entry->tensor.name), entry->begin, end));
        end = entry->end;
    }
    if (end != data_bytes)
        fail_file(file, fmt::format("{} bytes after the last tensor belong to no tensor",
                                    data_bytes - end));
}

}  // namespace

struct SafetensorsFile::Impl {
    std::string path;
    int64_t file_bytes = 0;
    std::optional<MappedFile> mapping;  ///< none when the caller keeps the bytes
    std::vector<SafetensorsTensor> tensors;
    std::map<std::string, std::string, std::less<>> metadata;
    std::unordered_map<std::string_view, size_t> index;

    void read(std::span<const std::byte> bytes) {
        file_bytes = static_cast<int64_t>(bytes.size());
        const std::string_view text = header_text(bytes, path);
        SafetensorsHeader header = parse_safetensors_header(text, path);
        const std::span<const std::byte> data = bytes.subspan(kLengthBytes + text.size());
        for (Entry& entry : header.entries) place_entry(entry, data, path);
        check_cover(header.entries, data.size(), path);
        metadata = std::move(header.metadata);
        tensors.reserve(header.entries.size());
        for (Entry& entry : header.entries) tensors.push_back(std::move(entry.tensor));
        for (size_t i = 0; i < tensors.size(); ++i) index.emplace(tensors[i].name, i);
    }
};

SafetensorsFile::SafetensorsFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;
SafetensorsFile::~SafetensorsFile() = default;

SafetensorsFile SafetensorsFile::open(const std::string& path) {
    auto impl = std::make_unique<Impl>();
    impl->path = path;
    impl->mapping.emplace(path);
    impl->read(impl->mapping->bytes());
    return SafetensorsFile(std::move(impl));
}

SafetensorsFile SafetensorsFile::parse(std::span<const std::byte> bytes, const std::string& name) {
    auto impl = std::make_unique<Impl>();
    impl->path = name;
    impl->read(bytes);
    return SafetensorsFile(std::move(impl));
}

const std::string& SafetensorsFile::path() const {
    return impl_->path;
}

int64_t SafetensorsFile::file_bytes() const {
    return impl_->file_bytes;
}

std::span<const SafetensorsTensor> SafetensorsFile::tensors() const {
    return impl_->tensors;
}

const SafetensorsTensor* SafetensorsFile::find_tensor(std::string_view name) const {
    const auto found = impl_->index.find(name);
    return found == impl_->index.end() ? nullptr : &impl_->tensors[found->second];
}

std::optional<std::string> SafetensorsFile::metadata(std::string_view key) const {
    const auto found = impl_->metadata.find(key);
    if (found == impl_->metadata.end()) return std::nullopt;
    return found->second;
}

void SafetensorsFile::release_pages(const SafetensorsTensor& tensor) {
    release_whole_pages({tensor.data, static_cast<size_t>(tensor.bytes)});
}

}  // namespace tessera
