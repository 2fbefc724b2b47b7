#include "gguf/gguf_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <type_traits>
#include <unordered_set>
#include <utility>

#include "core/error.h"

namespace tessera {
namespace {

constexpr uint32_t kVersion = 3;
constexpr int64_t kDefaultAlignment = 32;

template <class T>
void append(std::string& out, T value) {
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    out.append(bytes, sizeof(T));
}

void append_string(std::string& out, std::string_view text) {
    append(out, static_cast<uint64_t>(text.size()));
    out += text;
}

/// A number of ours in the width of `type`.
template <class T>
void append_number(std::string& out, GgufType type, T value) {
    switch (type) {
        case GgufType::kU8:
            return append(out, static_cast<uint8_t>(value));
        case GgufType::kI8:
            return append(out, static_cast<int8_t>(value));
        case GgufType::kU16:
            return append(out, static_cast<uint16_t>(value));
        case GgufType::kI16:
            return append(out, static_cast<int16_t>(value));
        case GgufType::kU32:
            return append(out, static_cast<uint32_t>(value));
        case GgufType::kI32:
            return append(out, static_cast<int32_t>(value));
        case GgufType::kU64:
            return append(out, static_cast<uint64_t>(value));
        case GgufType::kI64:
            return append(out, static_cast<int64_t>(value));
        case GgufType::kF32:
            return append(out, static_cast<float>(value));
        case GgufType::kF64:
            return append(out, static_cast<double>(value));
        case GgufType::kBool:
            return append(out, static_cast<uint8_t>(value != T{0} ? 1 : 0));
        case GgufType::kString:
        case GgufType::kArray:
            break;
    }
    check(false, "the type of a GGUF value does not fit its contents");
}

void append_array(std::string& out, GgufType element_type, const GgufValue::Array& array) {
    append(out, static_cast<uint32_t>(element_type));
    std::visit(
        [&](const auto& elements) {
            using Element = typename std::decay_t<decltype(elements)>::value_type;
            append(out, static_cast<uint64_t>(elements.size()));
            for (const Element& element : elements) {
                if constexpr (std::is_same_v<Element, std::string>) {
                    check(element_type == GgufType::kString, "strings in an array of numbers");
                    append_string(out, element);
                } else {
                    append_number(out, element_type, element);
                }
            }
        },
        array);
}

void append_value(std::string& out, const GgufValue& value) {
    append(out, static_cast<uint32_t>(value.type));
    std::visit(
        [&](const auto& content) {
            using Content = std::decay_t<decltype(content)>;
            if constexpr (std::is_same_v<Content, GgufValue::Array>) {
                check(value.type == GgufType::kArray, "an array under a scalar type");
                append_array(out, value.element_type, content);
            } else if constexpr (std::is_same_v<Content, std::string>) {
                check(value.type == GgufType::kString, "a string under another type");
                append_string(out, content);
            } else if constexpr (std::is_same_v<Content, bool>) {
                append_number(out, value.type, content ? 1 : 0);
            } else {
                append_number(out, value.type, content);
            }
        },
        value.value);
}

/// Locks the open file `path`. False when another program has it, or had it and has just given it
/// another name.
bool is_ours_alone(int descriptor, const std::string& path) {
    if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
    struct stat opened {};
    struct stat named {};
    return ::fstat(descriptor, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
           opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

/// The last step renames over `path`, which would put a plain file in the place of a device.
void refuse_special_file(const std::string& path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) return;
    throw UserError(ExitCode::kFailure, fmt::format("{}: exists and is not a regular file", path));
}

int64_t padded(int64_t bytes, int64_t alignment) {
    return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

struct GgufWriter::Impl {
    std::string path;
    std::string part;
    int descriptor = -1;
    std::vector<std::byte>* memory = nullptr;  ///< instead of a file
    std::vector<GgufKeyValue> key_values;
    std::vector<GgufTensor> tensors;
    std::unordered_set<std::string> names;
    bool has_begun = false;
    int64_t alignment = kDefaultAlignment;
    size_t current = 0;   ///< tensor whose data come next
    int64_t written = 0;  ///< bytes of it

    [[noreturn]] void fail(const char* action) const {
        throw UserError(ExitCode::kFailure,
                        fmt::format("{}: cannot {}: {}", part, action, std::strerror(errno)));
    }

    void write_all(const void* data, int64_t bytes) const {
        if (memory != nullptr) {
            const auto* first = static_cast<const std::byte*>(data);
            memory->insert(memory->end(), first, first + bytes);
            return;
        }
        const char* position = static_cast<const char*>(data);
        while (bytes > 0) {
            const ssize_t done = ::write(descriptor, position, static_cast<size_t>(bytes));
            if (done < 0 && errno == EINTR) continue;
            if (done < 0) fail("write");
            position += done;
            bytes -= done;
        }
    }

    /// Growing by doubling would need twice the memory of a large model.
    void reserve(int64_t header_bytes) const {
        int64_t bytes = padded(header_bytes, alignment);
        for (const GgufTensor& tensor : tensors) bytes += padded(tensor.bytes, alignment);
        memory->reserve(memory->size() + static_cast<size_t>(bytes));
    }

    void write_padding(int64_t bytes) const {
        const std::string zeros(static_cast<size_t>(padded(bytes, alignment) - bytes), '\0');
        write_all(zeros.data(), static_cast<int64_t>(zeros.size()));
    }

    std::string header() const {
        std::string out = "GGUF";
        append(out, kVersion);
        append(out, static_cast<uint64_t>(tensors.size()));
        append(out, static_cast<uint64_t>(key_values.size()));
        for (const GgufKeyValue& entry : key_values) {
            append_string(out, entry.key);
            append_value(out, entry.value);
        }
        int64_t offset = 0;
        for (const GgufTensor& tensor : tensors) {
            append_string(out, tensor.name);
            append(out, static_cast<uint32_t>(tensor.rank));
            for (int32_t axis = 0; axis < tensor.rank; ++axis)
                append(out, tensor.shape[static_cast<size_t>(axis)]);
            append(out, dtype_info(tensor.dtype).ggml_id);
            append(out, static_cast<uint64_t>(offset));
            offset += padded(tensor.bytes, alignment);
        }
        return out;
    }
};

GgufWriter::GgufWriter(const std::string& path) : impl_(std::make_unique<Impl>()) {
    impl_->path = path;
    impl_->part = path + ".part";
    refuse_special_file(path);
    const int descriptor = ::open(impl_->part.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0) impl_->fail("create");
    // Taken over only once it is ours alone: it is emptied, and removed at the end.
    if (!is_ours_alone(descriptor, impl_->part)) {
        ::close(descriptor);
        throw UserError(ExitCode::kFailure,
                        fmt::format("{}: another program is writing it", impl_->part));
    }
    impl_->descriptor = descriptor;
    if (::ftruncate(descriptor, 0) != 0) impl_->fail("empty");
}

GgufWriter::GgufWriter(std::vector<std::byte>& memory) : impl_(std::make_unique<Impl>()) {
    impl_->memory = &memory;
}

GgufWriter::~GgufWriter() {
    if (impl_->descriptor < 0) return;
    ::close(impl_->descriptor);
    ::unlink(impl_->part.c_str());
}

void GgufWriter::set(const std::string& key, GgufValue value) {
    check(!impl_->has_begun, "metadata come before data");
    check(!key.empty(), "a GGUF key has a name");
    if (key == "general.alignment") {
        check(value.type == GgufType::kU32, "the alignment is a u32");
        impl_->alignment = std::get<int64_t>(value.value);
        check(impl_->alignment > 0 && std::has_single_bit(static_cast<uint64_t>(impl_->alignment)),
              "the alignment is a power of two");
    }
    const auto found = std::ranges::find(impl_->key_values, key, &GgufKeyValue::key);
    if (found != impl_->key_values.end())
        found->value = std::move(value);
    else
        impl_->key_values.push_back({key, std::move(value)});
}

void GgufWriter::set_u32(const std::string& key, uint32_t value) {
    set(key, {.type = GgufType::kU32, .value = int64_t{value}});
}
void GgufWriter::set_f32(const std::string& key, float value) {
    set(key, {.type = GgufType::kF32, .value = double{value}});
}
void GgufWriter::set_bool(const std::string& key, bool value) {
    set(key, {.type = GgufType::kBool, .value = value});
}
void GgufWriter::set_string(const std::string& key, const std::string& value) {
    set(key, {.type = GgufType::kString, .value = value});
}
void GgufWriter::set_strings(const std::string& key, std::vector<std::string> values) {
    set(key, {.type = GgufType::kArray,
              .element_type = GgufType::kString,
              .value = GgufValue::Array(std::move(values))});
}
void GgufWriter::set_i32s(const std::string& key, const std::vector<int32_t>& values) {
    set(key, {.type = GgufType::kArray,
              .element_type = GgufType::kI32,
              .value = GgufValue::Array(std::vector<int64_t>(values.begin(), values.end()))});
}
void GgufWriter::set_f32s(const std::string& key, const std::vector<float>& values) {
    set(key, {.type = GgufType::kArray,
              .element_type = GgufType::kF32,
              .value = GgufValue::Array(std::vector<double>(values.begin(), values.end()))});
}

void GgufWriter::add_tensor(const std::string& name,
                            DType dtype,
                            const std::vector<int64_t>& shape) {
    check(!impl_->has_begun, "tensors are declared before data");
    check(!name.empty() && name.size() < 64, "a tensor name has 1 to 63 bytes");
    check(impl_->names.insert(name).second, "a tensor is declared once");
    check(!shape.empty() && shape.size() <= 4, "a tensor has 1 to 4 axes");
    GgufTensor tensor{.name = name, .dtype = dtype, .rank = static_cast<int32_t>(shape.size())};
    for (size_t axis = 0; axis < shape.size(); ++axis) {
        check(shape[axis] > 0, "an axis is not empty");
        tensor.shape[axis] = shape[axis];
    }
    tensor.bytes = dtype_bytes(dtype, shape[0]) * (tensor.elements() / shape[0]);
    impl_->tensors.push_back(std::move(tensor));
}

void GgufWriter::begin_data() {
    check(!impl_->has_begun, "data begin once");
    impl_->has_begun = true;
    const std::string header = impl_->header();
    const int64_t bytes = static_cast<int64_t>(header.size());
    if (impl_->memory != nullptr) impl_->reserve(bytes);
    impl_->write_all(header.data(), bytes);
    impl_->write_padding(bytes);
}

void GgufWriter::write(const std::byte* data, int64_t bytes) {
    check(impl_->has_begun && impl_->current < impl_->tensors.size(),
          "data come after begin_data and belong to a tensor");
    const int64_t whole = impl_->tensors[impl_->current].bytes;
    check(bytes >= 0 && bytes <= whole - impl_->written, "more data than the tensor has");
    impl_->write_all(data, bytes);
    impl_->written += bytes;
    if (impl_->written < whole) return;
    impl_->write_padding(whole);
    impl_->written = 0;
    ++impl_->current;
}

void GgufWriter::finish() {
    check(impl_->has_begun && impl_->current == impl_->tensors.size(),
          "every tensor is written before finish");
    if (impl_->memory != nullptr) return;
    if (::fsync(impl_->descriptor) != 0) impl_->fail("write");
    // Renamed while it is still locked, so that no other program can take it for a part.
    const bool renamed = ::rename(impl_->part.c_str(), impl_->path.c_str()) == 0;
    const int error = errno;
    if (!renamed) ::unlink(impl_->part.c_str());
    ::close(std::exchange(impl_->descriptor, -1));
    errno = error;
    if (!renamed) impl_->fail("rename");
}

}  // namespace tessera
