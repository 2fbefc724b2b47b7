#include "gguf/gguf.h"

#include <fmt/format.h>

#include <limits>
#include <unordered_map>
#include <utility>

#include "core/error.h"
#include "gguf/gguf_parse.h"
#include "gguf/gguf_split.h"
#include "gguf/mapped_file.h"
#include "gguf/messages.h"

namespace tessera {
namespace {

constexpr uint32_t kAlignmentOfParts = 32;

}  // namespace

std::span<const std::byte> tensor_bytes(const GgufTensor& tensor, std::vector<std::byte>& buffer) {
    if (!tensor.produce) return {tensor.data, static_cast<size_t>(tensor.bytes)};
    buffer.resize(static_cast<size_t>(tensor.bytes));
    tensor.produce(buffer);
    return buffer;
}

struct GgufFile::Impl {
    std::string path;
    GgufContents contents;
    std::vector<MappedFile> mappings;    ///< none when the caller keeps the bytes
    std::vector<SafetensorsFile> files;  ///< of a file from parts
    int64_t file_bytes = 0;
    std::unordered_map<std::string_view, size_t> key_index;
    std::unordered_map<std::string_view, size_t> tensor_index;

    /// Built last: the views point into the names, which must not move any more.
    void build_indices() {
        for (size_t i = 0; i < contents.key_values.size(); ++i)
            key_index.emplace(contents.key_values[i].key, i);
        for (size_t i = 0; i < contents.tensors.size(); ++i)
            tensor_index.emplace(contents.tensors[i].name, i);
    }

    [[noreturn]] void fail_key(std::string_view key, std::string_view what) const {
        fail_file(path, fmt::format("key {} {}", quoted_name(key), what));
    }
    [[noreturn]] void fail_type(std::string_view key,
                                const GgufValue& value,
                                std::string_view expected) const {
        const std::string found =
            value.type == GgufType::kArray
                ? fmt::format("an array of {}", gguf_type_name(value.element_type))
                : std::string(gguf_type_name(value.type));
        fail_key(key, fmt::format("is {}, expected {}", found, expected));
    }
};

GgufFile::GgufFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GgufFile::GgufFile(GgufFile&&) noexcept = default;
GgufFile& GgufFile::operator=(GgufFile&&) noexcept = default;
GgufFile::~GgufFile() = default;

GgufFile GgufFile::open(const std::string& path) {
    auto impl = std::make_unique<Impl>();
    impl->path = path;
    impl->mappings.emplace_back(path);
    impl->contents = parse_gguf(impl->mappings.back().bytes(), path);
    GgufFile file(std::move(impl));
    file.impl_->build_indices();
    const int64_t shards = file.get_int("split.count").value_or(1);
    if (shards > 1) {
        GgufShards merged = open_gguf_shards(path, shards);
        auto whole = std::make_unique<Impl>();
        whole->path = path;
        whole->contents = std::move(merged.contents);
        whole->mappings = std::move(merged.mappings);
        whole->build_indices();
        file.impl_ = std::move(whole);
    }
    for (const MappedFile& mapping : file.impl_->mappings)
        file.impl_->file_bytes += static_cast<int64_t>(mapping.bytes().size());
    return file;
}

GgufFile GgufFile::parse(std::span<const std::byte> bytes, const std::string& name) {
    auto impl = std::make_unique<Impl>();
    impl->path = name;
    impl->contents = parse_gguf(bytes, name);
    impl->file_bytes = static_cast<int64_t>(bytes.size());
    impl->build_indices();
    return GgufFile(std::move(impl));
}

GgufFile GgufFile::from_parts(GgufParts parts) {
    auto impl = std::make_unique<Impl>();
    impl->path = std::move(parts.path);
    impl->contents.key_values = std::move(parts.key_values);
    impl->contents.tensors = std::move(parts.tensors);
    impl->contents.alignment = kAlignmentOfParts;
    impl->files = std::move(parts.files);
    for (GgufTensor& tensor : impl->contents.tensors) {
        check((tensor.data != nullptr) != (tensor.produce != nullptr),
              "a tensor has data or is produced");
        tensor.bytes =
            dtype_bytes(tensor.dtype, tensor.shape[0]) * (tensor.elements() / tensor.shape[0]);
    }
    for (const SafetensorsFile& file : impl->files) impl->file_bytes += file.file_bytes();
    impl->build_indices();
    check(impl->key_index.size() == impl->contents.key_values.size() &&
              impl->tensor_index.size() == impl->contents.tensors.size(),
          "keys and tensors have names of their own");
    return GgufFile(std::move(impl));
}

const std::string& GgufFile::path() const {
    return impl_->path;
}
uint32_t GgufFile::version() const {
    return impl_->contents.version;
}
uint32_t GgufFile::alignment() const {
    return impl_->contents.alignment;
}
int64_t GgufFile::file_bytes() const {
    return impl_->file_bytes;
}
std::span<const GgufKeyValue> GgufFile::key_values() const {
    return impl_->contents.key_values;
}
std::span<const GgufTensor> GgufFile::tensors() const {
    return impl_->contents.tensors;
}

const GgufValue* GgufFile::find(std::string_view key) const {
    const auto found = impl_->key_index.find(key);
    if (found == impl_->key_index.end()) return nullptr;
    return &impl_->contents.key_values[found->second].value;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
    const auto found = impl_->tensor_index.find(name);
    if (found == impl_->tensor_index.end()) return nullptr;
    return &impl_->contents.tensors[found->second];
}

std::optional<int64_t> GgufFile::get_int(std::string_view key) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (const int64_t* number = std::get_if<int64_t>(&value->value)) return *number;
    const uint64_t* large = std::get_if<uint64_t>(&value->value);
    if (large == nullptr) impl_->fail_type(key, *value, "an integer");
    if (*large > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
        impl_->fail_key(key, fmt::format("is {}, which is too large", *large));
    return static_cast<int64_t>(*large);
}

std::optional<double> GgufFile::get_float(std::string_view key) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return std::nullopt;
    const double* number = std::get_if<double>(&value->value);
    if (number == nullptr) impl_->fail_type(key, *value, "a floating-point number");
    return *number;
}

std::optional<bool> GgufFile::get_bool(std::string_view key) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return std::nullopt;
    const bool* truth = std::get_if<bool>(&value->value);
    if (truth == nullptr) impl_->fail_type(key, *value, "a bool");
    return *truth;
}

std::optional<std::string> GgufFile::get_string(std::string_view key) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return std::nullopt;
    const std::string* text = std::get_if<std::string>(&value->value);
    if (text == nullptr) impl_->fail_type(key, *value, "a string");
    return *text;
}

std::optional<std::vector<int64_t>> GgufFile::get_int_array(std::string_view key) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return std::nullopt;
    const GgufValue::Array* array = std::get_if<GgufValue::Array>(&value->value);
    if (array == nullptr) impl_->fail_type(key, *value, "an array of integers");
    if (const auto* numbers = std::get_if<std::vector<int64_t>>(array)) return *numbers;
    const auto* large = std::get_if<std::vector<uint64_t>>(array);
    if (large == nullptr) impl_->fail_type(key, *value, "an array of integers");
    std::vector<int64_t> numbers;
    numbers.reserve(large->size());
    for (const uint64_t number : *large) {
        if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
            impl_->fail_key(key, fmt::format("has the element {}, which is too large", number));
        numbers.push_back(static_cast<int64_t>(number));
    }
    return numbers;
}

std::optional<std::vector<float>> GgufFile::get_float_array(std::string_view key) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return std::nullopt;
    const GgufValue::Array* array = std::get_if<GgufValue::Array>(&value->value);
    const auto* numbers = array == nullptr ? nullptr : std::get_if<std::vector<double>>(array);
    if (numbers == nullptr) impl_->fail_type(key, *value, "an array of floating-point numbers");
    std::vector<float> floats;
    floats.reserve(numbers->size());
    for (const double number : *numbers) floats.push_back(static_cast<float>(number));
    return floats;
}

const std::vector<std::string>* GgufFile::get_string_array(std::string_view key) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return nullptr;
    const GgufValue::Array* array = std::get_if<GgufValue::Array>(&value->value);
    const auto* strings = array == nullptr ? nullptr : std::get_if<std::vector<std::string>>(array);
    if (strings == nullptr) impl_->fail_type(key, *value, "an array of strings");
    return strings;
}

void GgufFile::release_pages(const GgufTensor& tensor) const {
    // Memory that the caller owns is not a file's, and its contents would be lost.
    if (tensor.data == nullptr || (impl_->mappings.empty() && impl_->files.empty())) return;
    release_whole_pages({tensor.data, static_cast<size_t>(tensor.bytes)});
}

}  // namespace tessera
