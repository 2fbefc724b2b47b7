#include "core/dtype.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "core/error.h"

namespace tessera {
namespace {

constexpr std::array kDTypes = {
    DTypeInfo{DType::kF32, "F32", 0, 1, 4},
    DTypeInfo{DType::kF16, "F16", 1, 1, 2},
    DTypeInfo{DType::kBF16, "BF16", 30, 1, 2},
    DTypeInfo{DType::kF64, "F64", 28, 1, 8},
    DTypeInfo{DType::kI8, "I8", 24, 1, 1},
    DTypeInfo{DType::kI16, "I16", 25, 1, 2},
    DTypeInfo{DType::kI32, "I32", 26, 1, 4},
    DTypeInfo{DType::kI64, "I64", 27, 1, 8},
    DTypeInfo{DType::kQ4_0, "Q4_0", 2, 32, 18},
    DTypeInfo{DType::kQ4_1, "Q4_1", 3, 32, 20},
    DTypeInfo{DType::kQ5_0, "Q5_0", 6, 32, 22},
    DTypeInfo{DType::kQ5_1, "Q5_1", 7, 32, 24},
    DTypeInfo{DType::kQ8_0, "Q8_0", 8, 32, 34},
    DTypeInfo{DType::kQ4_K, "Q4_K", 12, 256, 144},
    DTypeInfo{DType::kQ5_K, "Q5_K", 13, 256, 176},
    DTypeInfo{DType::kQ6_K, "Q6_K", 14, 256, 210},
    DTypeInfo{DType::kMXFP4, "MXFP4", 39, 32, 17},
    DTypeInfo{DType::kNVFP4, "NVFP4", 40, 64, 36},
    DTypeInfo{DType::kF8_E4M3, "F8_E4M3", kNoGgmlId, 1, 1},
};

constexpr bool in_enum_order() {
    for (size_t i = 0; i < kDTypes.size(); ++i)
        if (static_cast<size_t>(kDTypes[i].dtype) != i) return false;
    return true;
}
static_assert(in_enum_order(), "the table is indexed by DType");

}  // namespace

std::span<const DTypeInfo> all_dtypes() {
    return kDTypes;
}

const DTypeInfo& dtype_info(DType dtype) {
    return kDTypes[static_cast<size_t>(dtype)];
}

std::optional<DType> dtype_from_ggml_id(uint32_t ggml_id) {
    if (ggml_id == kNoGgmlId) return std::nullopt;
    for (const DTypeInfo& info : kDTypes)
        if (info.ggml_id == ggml_id) return info.dtype;
    return std::nullopt;
}

std::optional<DType> dtype_from_name(std::string_view name) {
    const auto equal_ignoring_case = [](char a, char b) {
        return std::toupper(static_cast<unsigned char>(a)) ==
               std::toupper(static_cast<unsigned char>(b));
    };
    for (const DTypeInfo& info : kDTypes)
        if (std::ranges::equal(info.name, name, equal_ignoring_case)) return info.dtype;
    return std::nullopt;
}

int64_t dtype_bytes(DType dtype, int64_t elements) {
    const DTypeInfo& info = dtype_info(dtype);
    check(elements % info.block_elements == 0, "elements do not fill whole blocks");
    return elements / info.block_elements * info.block_bytes;
}

}  // namespace tessera
