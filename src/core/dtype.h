#pragma once
// Every element and block format that a tensor can have, with the ids that GGUF files use.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace tessera {

/// Element type of a tensor. Plain types hold one element a unit; block types (kQ4_0 and on) hold
/// `block_elements` values in `block_bytes`, laid out as ggml lays them out
/// (`ggml:src/ggml-common.h`).
enum class DType : uint8_t {
    kF32,
    kF16,
    kBF16,
    kF64,
    kI8,
    kI16,
    kI32,
    kI64,
    kQ4_0,
    kQ4_1,
    kQ5_0,
    kQ5_1,
    kQ8_0,
    kQ4_K,
    kQ5_K,
    kQ6_K,
    kMXFP4,
    kNVFP4,
    kF8_E4M3  ///< OCP 8-bit float without infinities, plain; key/value pages only, in no file
};

/// Stands for an id where GGUF files cannot hold the format.
inline constexpr uint32_t kNoGgmlId = 0xffffffffu;

struct DTypeInfo {
    DType dtype;
    std::string_view name;   ///< as llama.cpp prints it: "F32", "Q4_K", "NVFP4"
    uint32_t ggml_id;        ///< type id in GGUF files, or kNoGgmlId
    int32_t block_elements;  ///< 1 for plain types
    int32_t block_bytes;
};

/// All formats, in order of DType.
std::span<const DTypeInfo> all_dtypes();
const DTypeInfo& dtype_info(DType dtype);
/// The format with this GGUF type id, or nothing when we do not read it.
std::optional<DType> dtype_from_ggml_id(uint32_t ggml_id);
/// The format with this name, upper or lower case ("nvfp4", "Q8_0"), or nothing.
std::optional<DType> dtype_from_name(std::string_view name);
inline bool is_block_format(DType dtype) {
    return dtype_info(dtype).block_elements > 1;
}

/// Bytes of `elements` consecutive values. `elements` must be a multiple of the block size (else a
/// bug).
int64_t dtype_bytes(DType dtype, int64_t elements);

}  // namespace tessera
