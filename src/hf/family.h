#pragma once
// Private to src/hf: the architectures that are read, and what their tensors are called in GGUF.
// The names and orders are those that llama.cpp's loader expects (llama.cpp:src/llama-arch.cpp,
// src/models/qwen35.cpp; conversion/qwen.py for the order of heads).

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace tessera {

/// What a tensor needs besides its name.
enum class TensorWork : uint8_t {
    kCopy,            ///< a matrix as it is
    kVector,          ///< F32
    kNorm,            ///< F32, 1 is added where gains are stored around zero
    kQueryRows,       ///< rows of each query head to adjacent pairs, where rotation wants them so
    kKeyRows,         ///< the same for key heads
    kF32Matrix,       ///< small and sensitive: F32
    kValueRows,       ///< rows of value heads regrouped
    kValueHeads,      ///< one row a value head
    kValueHeadsF32,   ///< one number a value head
    kMinusExpHeads,   ///< the same, -exp of it
    kKeysThenValues,  ///< rows: queries, keys, then value heads regrouped
    kConvolution,     ///< as before, F32, [channels, 1, taps] to [channels, taps]
    kValueColumns,    ///< columns of value heads regrouped
    kExpert,          ///< one of a stack: the source has {} for its number
    kStack,           ///< all experts in one tensor
    kStackGateUp      ///< rows of gate, then of up, to two tensors
};

struct TensorRow {
    std::string_view source;  ///< behind "model.layers.N."
    std::string_view target;  ///< behind "blk.N."
    TensorWork work = TensorWork::kCopy;
};

/// How value heads relate to key heads in the recurrent layers, and the like: which keys to write.
enum class FamilyKind : uint8_t { kDense, kMoe, kHybrid, kHybridMoe };

struct Family {
    std::string_view model_type;    ///< of config.json
    std::string_view architecture;  ///< `general.architecture`
    FamilyKind kind = FamilyKind::kDense;
    bool zero_centred_norms = false;  ///< gains are stored minus 1
    bool adjacent_pairs = false;      ///< rotation over neighbours
    std::array<std::span<const TensorRow>, 5> layer_rows;
    bool is_hybrid() const { return kind == FamilyKind::kHybrid || kind == FamilyKind::kHybridMoe; }
    bool has_experts() const { return kind == FamilyKind::kMoe || kind == FamilyKind::kHybridMoe; }
};

std::span<const Family> known_families();
/// nullptr when the type is not read.
const Family* find_family(std::string_view model_type);

/// Outside of layers; targets are whole names.
std::span<const TensorRow> top_rows();
/// Behind "mtp.", to names behind "blk.N." of the first extra layer.
std::span<const TensorRow> draft_rows();

}  // namespace tessera
