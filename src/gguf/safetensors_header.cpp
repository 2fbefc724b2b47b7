#include "gguf/safetensors_header.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "gguf/messages.h"

namespace tessera {
namespace {

constexpr size_t kMostAxes = 8;

struct TypeRow {
    SafetensorsType type;
    std::string_view name;
    int64_t bytes;
};

constexpr std::array kTypes = {
    TypeRow{SafetensorsType::kBool, "BOOL", 1},
    TypeRow{SafetensorsType::kU8, "U8", 1},
    TypeRow{SafetensorsType::kI8, "I8", 1},
    TypeRow{SafetensorsType::kF8E4M3, "F8_E4M3", 1},
    TypeRow{SafetensorsType::kF8E5M2, "F8_E5M2", 1},
    TypeRow{SafetensorsType::kF8E8M0, "F8_E8M0", 1},
    TypeRow{SafetensorsType::kU16, "U16", 2},
    TypeRow{SafetensorsType::kI16, "I16", 2},
    TypeRow{SafetensorsType::kF16, "F16", 2},
    TypeRow{SafetensorsType::kBF16, "BF16", 2},
    TypeRow{SafetensorsType::kU32, "U32", 4},
    TypeRow{SafetensorsType::kI32, "I32", 4},
    TypeRow{SafetensorsType::kF32, "F32", 4},
    TypeRow{SafetensorsType::kU64, "U64", 8},
    TypeRow{SafetensorsType::kI64, "I64", 8},
    TypeRow{SafetensorsType::kF64, "F64", 8},
};

/// Receives the JSON as events, so that no document is built and nothing but the few places of the
/// format can be entered: the nesting is bounded by construction.
class HeaderReader {
  public:
    using Json = nlohmann::json;

    explicit HeaderReader(std::string_view file) : file_(file) {}
    SafetensorsHeader take() { return std::move(header_); }

    // The interface that nlohmann::json::sax_parse expects.
    bool null() { unexpected("null"); }
    bool boolean(bool) { unexpected("a bool"); }
    bool number_integer(Json::number_integer_t value) { unexpected(std::to_string(value)); }
    bool number_float(Json::number_float_t, const std::string& text) { unexpected(text); }
    bool binary(Json::binary_t&) { unexpected("binary data"); }

    bool number_unsigned(Json::number_unsigned_t value) {
        if (place_ == Place::kShape) {
            if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
                fail(fmt::format("an axis has the impossible length {}", value));
            if (entry().tensor.shape.size() == kMostAxes)
                fail(fmt::format("has more than {} axes", kMostAxes));
            entry().tensor.shape.push_back(static_cast<int64_t>(value));
            return true;
        }
        if (place_ != Place::kOffsets) unexpected(std::to_string(value));
        if (offset_count_ == 2) fail("'data_offsets' has more than two numbers");
        (offset_count_ == 0 ? entry().begin : entry().end) = value;
        ++offset_count_;
        return true;
    }

    bool string(std::string& text) {
        if (place_ == Place::kMetadata) {
            if (!header_.metadata.emplace(key_, text).second)
                fail_file(file_, fmt::format("metadata {} appears twice", quoted_name(key_)));
            return true;
        }
        if (place_ != Place::kTensor || key_ != "dtype") unexpected("a string");
        for (const TypeRow& row : kTypes) {
            if (row.name != text) continue;
            entry().tensor.type = row.type;
            return true;
        }
        fail(fmt::format("type {} is not supported", quoted_name(text)));
    }

    bool start_object(size_t) {
        if (place_ == Place::kStart) {
            place_ = Place::kTop;
        } else if (place_ == Place::kTop && key_ == "__metadata__") {
            if (has_metadata_) fail_file(file_, "'__metadata__' appears twice");
            has_metadata_ = true;
            place_ = Place::kMetadata;
        } else if (place_ == Place::kTop) {
            if (!names_.insert(key_).second)
                fail_file(file_, fmt::format("tensor {}: appears twice", quoted_name(key_)));
            header_.entries.emplace_back().tensor.name = key_;
            place_ = Place::kTensor;
            fields_ = 0;
            offset_count_ = 0;
        } else {
            unexpected("an object");
        }
        return true;
    }

    bool key(std::string& name) {
        key_ = name;
        if (place_ != Place::kTensor) return true;
        const unsigned field = name == "dtype"          ? 1u
                               : name == "shape"        ? 2u
                               : name == "data_offsets" ? 4u
                                                        : 0u;
        if (field == 0) fail(fmt::format("field {} is unknown", quoted_name(name)));
        if ((fields_ & field) != 0) fail(fmt::format("field {} appears twice", quoted_name(name)));
        fields_ |= field;
        return true;
    }

    bool end_object() {
        if (place_ == Place::kTensor && fields_ != 7)
            fail("needs the fields 'dtype', 'shape' and 'data_offsets'");
        place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
        return true;
    }

    bool start_array(size_t) {
        if (place_ == Place::kTensor && key_ == "shape")
            place_ = Place::kShape;
        else if (place_ == Place::kTensor && key_ == "data_offsets")
            place_ = Place::kOffsets;
        else
            unexpected("an array");
        return true;
    }

    bool end_array() {
        if (place_ == Place::kOffsets && offset_count_ != 2)
            fail("'data_offsets' needs two numbers");
        place_ = Place::kTensor;
        return true;
    }

    bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) {
        fail_file(file_, fmt::format("the header is not valid JSON at its byte {}", position));
    }

  private:
    enum class Place : uint8_t { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };

    SafetensorsHeader::Entry& entry() { return header_.entries.back(); }

    /// Throws about the tensor that is being read.
    [[noreturn]] void fail(std::string_view what) {
        fail_file(file_, fmt::format("tensor {}: {}", quoted_name(entry().tensor.name), what));
    }
    [[noreturn]] void unexpected(std::string_view what) {
        if (place_ == Place::kTop || place_ == Place::kMetadata || place_ == Place::kStart)
            fail_file(file_, fmt::format("the header has {} where {} was expected", what,
                                         place_ == Place::kMetadata ? "a string" : "an object"));
        fail(fmt::format("field {} cannot hold {}", quoted_name(key_), what));
    }

    std::string_view file_;
    SafetensorsHeader header_;
    Place place_ = Place::kStart;
    std::string key_;
    std::unordered_set<std::string> names_;
    bool has_metadata_ = false;
    unsigned fields_ = 0;  ///< bits 1 dtype, 2 shape, 4 data_offsets
    int offset_count_ = 0;
};

}  // namespace

std::string_view safetensors_type_name(SafetensorsType type) {
    return kTypes[static_cast<size_t>(type)].name;
}

int64_t safetensors_type_bytes(SafetensorsType type) {
    return kTypes[static_cast<size_t>(type)].bytes;
}

SafetensorsHeader parse_safetensors_header(std::string_view json, std::string_view file) {
    HeaderReader reader(file);
    nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
    return reader.take();
}

}  // namespace tessera
