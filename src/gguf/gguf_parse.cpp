#include "gguf/gguf_parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "gguf/gguf_cursor.h"
#include "gguf/messages.h"

namespace tessera {
namespace {

constexpr uint64_t kLongestKey = 65535;
constexpr uint64_t kLongestTensorName = 63;
constexpr uint32_t kMostAxes = 4;
constexpr uint32_t kDefaultAlignment = 32;
// The shortest entries: length, one letter, type and a one-byte value; length, one letter, axis
// count, one axis, type and offset.
constexpr uint64_t kLeastKeyBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kLeastTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

struct TypeName {
    uint32_t id;
    std::string_view name;
};

// Types of llama.cpp that exist and that we do not read.
constexpr std::array kUnsupported = {
    TypeName{9, "Q8_1"},     TypeName{10, "Q2_K"},    TypeName{11, "Q3_K"},
    TypeName{15, "Q8_K"},    TypeName{16, "IQ2_XXS"}, TypeName{17, "IQ2_XS"},
    TypeName{18, "IQ3_XXS"}, TypeName{19, "IQ1_S"},   TypeName{20, "IQ4_NL"},
    TypeName{21, "IQ3_S"},   TypeName{22, "IQ2_S"},   TypeName{23, "IQ4_XS"},
    TypeName{29, "IQ1_M"},   TypeName{34, "TQ1_0"},   TypeName{35, "TQ2_0"},
    TypeName{41, "Q1_0"},    TypeName{42, "Q2_0"},
};

// Types that llama.cpp itself no longer reads.
constexpr std::array kRetired = {
    TypeName{4, "Q4_2"},        TypeName{5, "Q4_3"},        TypeName{31, "Q4_0_4_4"},
    TypeName{32, "Q4_0_4_8"},   TypeName{33, "Q4_0_8_8"},   TypeName{36, "IQ4_NL_4_4"},
    TypeName{37, "IQ4_NL_4_8"}, TypeName{38, "IQ4_NL_8_8"},
};

std::string unreadable_type(uint32_t id) {
    for (const TypeName& type : kUnsupported)
        if (type.id == id) return fmt::format("type {} (id {}) is not supported", type.name, id);
    for (const TypeName& type : kRetired)
        if (type.id == id)
            return fmt::format("type {} (id {}) was retired; convert the model again", type.name,
                               id);
    return fmt::format("type id {} is unknown", id);
}

bool is_power_of_two(uint64_t value) {
    return std::has_single_bit(value);
}

/// a * b, or nothing when it does not fit; both are not negative.
std::optional<int64_t> product(int64_t a, int64_t b) {
    int64_t result = 0;
    if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
    return result;
}

class Parser {
  public:
    Parser(std::span<const std::byte> bytes, std::string_view file)
        : bytes_(bytes), file_(file), cursor_(bytes, file) {}

    GgufContents parse() {
        read_magic_and_version();
        const uint64_t tensor_count = cursor_.read<uint64_t>();
        const uint64_t key_count = cursor_.read<uint64_t>();
        check_count(tensor_count, kLeastTensorBytes, "tensors");
        check_count(key_count, kLeastKeyBytes, "keys");
        read_keys(key_count);
        read_alignment();
        read_tensors(tensor_count);
        place_tensors();
        return std::move(contents_);
    }

  private:
    void read_magic_and_version() {
        constexpr std::string_view kMagic = "GGUF";
        const std::string_view start(reinterpret_cast<const char*>(bytes_.data()),
                                     std::min(bytes_.size(), kMagic.size()));
        if (start != kMagic)
            cursor_.fail(fmt::format("not a GGUF file (it begins with {})", quoted_name(start)));
        cursor_.read<uint32_t>();
        const uint32_t version = cursor_.read<uint32_t>();
        if (version != 0 && (version & 0xffffu) == 0)
            cursor_.fail("a big-endian GGUF file; only little-endian ones are read");
        if (version == 1) cursor_.fail("GGUF version 1 is no longer read; convert the model again");
        if (version != 2 && version != 3)
            cursor_.fail(fmt::format("GGUF version {} is unknown (2 and 3 are read)", version));
        contents_.version = version;
    }

    void check_count(uint64_t count, uint64_t least_bytes, std::string_view what) {
        if (count <= cursor_.remaining() / least_bytes) return;
        cursor_.fail(
            fmt::format("the header names {} {}, but only {} bytes follow (incomplete download?)",
                        count, what, cursor_.remaining()));
    }

    void read_keys(uint64_t count) {
        std::unordered_set<std::string_view> seen;
        for (uint64_t i = 0; i < count; ++i) {
            cursor_.begin_entry("key", i);
            const std::string_view key = cursor_.read_string();
            if (key.empty()) cursor_.fail("the name is empty");
            cursor_.name_entry(key);
            if (key.size() > kLongestKey)
                cursor_.fail(
                    fmt::format("the name has {} bytes, {} are allowed", key.size(), kLongestKey));
            if (!seen.insert(key).second) cursor_.fail("appears twice");
            GgufKeyValue& entry = contents_.key_values.emplace_back();
            entry.key = key;
            read_value(entry.value);
        }
        cursor_.begin_entry({}, 0);
    }

    GgufType read_type() {
        const uint32_t type = cursor_.read<uint32_t>();
        if (type > static_cast<uint32_t>(GgufType::kF64))
            cursor_.fail(fmt::format("value type {} is unknown", type));
        return static_cast<GgufType>(type);
    }

    bool read_bool() {
        const uint8_t byte = cursor_.read<uint8_t>();
        if (byte > 1) cursor_.fail(fmt::format("a bool is stored as {}, not 0 or 1", byte));
        return byte == 1;
    }

    void read_value(GgufValue& value) {
        value.type = read_type();
        switch (value.type) {
            case GgufType::kU8:
                value.value = int64_t{cursor_.read<uint8_t>()};
                return;
            case GgufType::kI8:
                value.value = int64_t{cursor_.read<int8_t>()};
                return;
            case GgufType::kU16:
                value.value = int64_t{cursor_.read<uint16_t>()};
                return;
            case GgufType::kI16:
                value.value = int64_t{cursor_.read<int16_t>()};
                return;
            case GgufType::kU32:
                value.value = int64_t{cursor_.read<uint32_t>()};
                return;
            case GgufType::kI32:
                value.value = int64_t{cursor_.read<int32_t>()};
                return;
            case GgufType::kI64:
                value.value = cursor_.read<int64_t>();
                return;
            case GgufType::kU64:
                value.value = cursor_.read<uint64_t>();
                return;
            case GgufType::kF32:
                value.value = double{cursor_.read<float>()};
                return;
            case GgufType::kF64:
                value.value = cursor_.read<double>();
                return;
            case GgufType::kBool:
                value.value = read_bool();
                return;
            case GgufType::kString:
                value.value = std::string(cursor_.read_string());
                return;
            case GgufType::kArray:
                break;
        }
        value.element_type = read_type();
        const uint64_t count = cursor_.read<uint64_t>();
        read_array(value, count);
    }

    template <class Stored, class Kept>
    std::vector<Kept> read_numbers(uint64_t count) {
        cursor_.need(count, sizeof(Stored));
        std::vector<Kept> numbers(static_cast<size_t>(count));
        for (Kept& number : numbers) number = static_cast<Kept>(cursor_.read<Stored>());
        return numbers;
    }

    void read_array(GgufValue& value, uint64_t count) {
        using Array = GgufValue::Array;
        const auto keep = [&value](auto&& numbers) { value.value = Array(std::move(numbers)); };
        switch (value.element_type) {
            case GgufType::kU8:
                return keep(read_numbers<uint8_t, int64_t>(count));
            case GgufType::kI8:
                return keep(read_numbers<int8_t, int64_t>(count));
            case GgufType::kU16:
                return keep(read_numbers<uint16_t, int64_t>(count));
            case GgufType::kI16:
                return keep(read_numbers<int16_t, int64_t>(count));
            case GgufType::kU32:
                return keep(read_numbers<uint32_t, int64_t>(count));
            case GgufType::kI32:
                return keep(read_numbers<int32_t, int64_t>(count));
            case GgufType::kI64:
                return keep(read_numbers<int64_t, int64_t>(count));
            case GgufType::kU64:
                return keep(read_numbers<uint64_t, uint64_t>(count));
            case GgufType::kF32:
                return keep(read_numbers<float, double>(count));
            case GgufType::kF64:
                return keep(read_numbers<double, double>(count));
            case GgufType::kBool:
                return keep(read_bools(count));
            case GgufType::kString:
                return keep(read_strings(count));
            case GgufType::kArray:
                break;
        }
        cursor_.fail("an array of arrays is not supported");
    }

    std::vector<int64_t> read_bools(uint64_t count) {
        cursor_.need(count, 1);
        std::vector<int64_t> bools(static_cast<size_t>(count));
        for (int64_t& value : bools) value = read_bool() ? 1 : 0;
        return bools;
    }

    std::vector<std::string> read_strings(uint64_t count) {
        cursor_.need(count, sizeof(uint64_t));
        std::vector<std::string> strings;
        strings.reserve(static_cast<size_t>(count));
        for (uint64_t i = 0; i < count; ++i) strings.emplace_back(cursor_.read_string());
        return strings;
    }

    void read_alignment() {
        contents_.alignment = kDefaultAlignment;
        constexpr std::string_view kKey = "general.alignment";
        for (const GgufKeyValue& entry : contents_.key_values) {
            if (entry.key != kKey) continue;
            cursor_.begin_entry("key", 0);
            cursor_.name_entry(kKey);
            if (entry.value.type != GgufType::kU32)
                cursor_.fail(fmt::format("has type {}, not u32", gguf_type_name(entry.value.type)));
            const int64_t alignment = std::get<int64_t>(entry.value.value);
            if (!is_power_of_two(static_cast<uint64_t>(alignment)))
                cursor_.fail(fmt::format("{} is not a power of two", alignment));
            contents_.alignment = static_cast<uint32_t>(alignment);
        }
    }

    void read_tensors(uint64_t count) {
        std::unordered_set<std::string_view> seen;
        contents_.tensors.reserve(static_cast<size_t>(count));
        offsets_.reserve(static_cast<size_t>(count));
        for (uint64_t i = 0; i < count; ++i) {
            cursor_.begin_entry("tensor", i);
            const std::string_view name = cursor_.read_string();
            if (name.empty()) cursor_.fail("the name is empty");
            cursor_.name_entry(name);
            if (name.size() > kLongestTensorName)
                cursor_.fail(fmt::format("the name has {} bytes, {} are allowed", name.size(),
                                         kLongestTensorName));
            if (!seen.insert(name).second) cursor_.fail("appears twice");
            GgufTensor& tensor = contents_.tensors.emplace_back();
            tensor.name = name;
            read_shape(tensor);
            read_tensor_type(tensor);
            offsets_.push_back(cursor_.read<uint64_t>());
        }
        cursor_.begin_entry({}, 0);
    }

    void read_shape(GgufTensor& tensor) {
        const uint32_t rank = cursor_.read<uint32_t>();
        if (rank < 1 || rank > kMostAxes)
            cursor_.fail(fmt::format("has {} axes, 1 to {} are allowed", rank, kMostAxes));
        tensor.rank = static_cast<int32_t>(rank);
        for (uint32_t axis = 0; axis < rank; ++axis) {
            const int64_t extent = cursor_.read<int64_t>();
            if (extent < 1)
                cursor_.fail(fmt::format("axis {} has the impossible length {}", axis, extent));
            tensor.shape[axis] = extent;
        }
    }

    void read_tensor_type(GgufTensor& tensor) {
        const uint32_t id = cursor_.read<uint32_t>();
        const std::optional<DType> dtype = dtype_from_ggml_id(id);
        if (!dtype) cursor_.fail(unreadable_type(id));
        tensor.dtype = *dtype;
        const DTypeInfo& info = dtype_info(*dtype);
        if (tensor.shape[0] % info.block_elements != 0)
            cursor_.fail(fmt::format("rows of {} values do not fill whole {} blocks of {}",
                                     tensor.shape[0], info.name, info.block_elements));
        std::optional<int64_t> bytes =
            product(tensor.shape[0] / info.block_elements, info.block_bytes);
        std::optional<int64_t> elements = tensor.shape[0];
        for (size_t axis = 1; axis < tensor.shape.size(); ++axis) {
            if (bytes) bytes = product(*bytes, tensor.shape[axis]);
            if (elements) elements = product(*elements, tensor.shape[axis]);
        }
        if (!bytes || !elements)
            cursor_.fail(fmt::format(
                "the shape [{}] has too many elements",
                fmt::join(tensor.shape.data(), tensor.shape.data() + tensor.rank, ", ")));
        tensor.bytes = *bytes;
    }

    /// Checks the offsets and turns them into pointers.
    void place_tensors() {
        const uint64_t alignment = contents_.alignment;
        const uint64_t padding = (alignment - cursor_.offset() % alignment) % alignment;
        const uint64_t data_start = cursor_.offset() + padding;
        for (size_t i = 0; i < contents_.tensors.size(); ++i) {
            GgufTensor& tensor = contents_.tensors[i];
            cursor_.begin_entry("tensor", i);
            cursor_.name_entry(tensor.name);
            const uint64_t offset = offsets_[i];
            const uint64_t bytes = static_cast<uint64_t>(tensor.bytes);
            if (offset % alignment != 0)
                cursor_.fail(fmt::format("offset {} is not a multiple of the alignment {}", offset,
                                         alignment));
            const uint64_t room = cursor_.size() > data_start ? cursor_.size() - data_start : 0;
            if (offset > room || bytes > room - offset)
                cursor_.fail(fmt::format(
                    "{} bytes at offset {} of the data pass the end of the file: it has {} bytes "
                    "of data (incomplete download?)",
                    bytes, offset, room));
            tensor.data = bytes_.data() + data_start + offset;
        }
        check_overlaps();
    }

    void check_overlaps() {
        std::vector<const GgufTensor*> order;
        order.reserve(contents_.tensors.size());
        for (const GgufTensor& tensor : contents_.tensors) order.push_back(&tensor);
        std::ranges::stable_sort(order, {}, &GgufTensor::data);
        for (size_t i = 1; i < order.size(); ++i) {
            const GgufTensor& before = *order[i - 1];
            if (before.data + before.bytes <= order[i]->data) continue;
            fail_file(file_, fmt::format("tensor {}: its data overlap those of tensor {}",
                                         quoted_name(order[i]->name), quoted_name(before.name)));
        }
    }

    std::span<const std::byte> bytes_;
    std::string_view file_;
    GgufCursor cursor_;
    GgufContents contents_;
    std::vector<uint64_t> offsets_;
};

}  // namespace

std::string_view gguf_type_name(GgufType type) {
    constexpr std::array<std::string_view, 13> kNames = {"u8",  "i8",  "u16",  "i16",    "u32",
                                                         "i32", "f32", "bool", "string", "array",
                                                         "u64", "i64", "f64"};
    return kNames[static_cast<size_t>(type)];
}

GgufContents parse_gguf(std::span<const std::byte> bytes, std::string_view file) {
    return Parser(bytes, file).parse();
}

}  // namespace tessera
